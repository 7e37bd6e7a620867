"""Markov chains as models: the next token's distribution depends on the last token alone, and is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.study.quality.divergence import judge_contents
from loadgen.study.quality.quality_record import Quality, SampledAnswer, TextSegment, TokenScores
from loadgen.study.quality.reference_file import AnswerLine, ReferenceContents, ReferenceHeader

VOCABULARY = 64
TOP = 20
Mode = Literal["truthful", "top_k", "temperature", "processed", "processed_top_k"]
LIES: tuple[Mode, ...] = ("top_k", "temperature", "processed", "processed_top_k")


def normalize(logits: Float64) -> Float64:
    """The log-probabilities of rows of logits."""
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


class MarkovModel:
    """A chain, and how its server samples: truthfully, or with one of the faults that a server may have.

    `top_k` samples of the 20 most probable and reports raw log-probabilities, `temperature` samples at 0.8
    and reports them raw; the processed ones report the log-probabilities of what they sampled from.
    """

    def __init__(self, logprobs: Float64, mode: Mode = "truthful") -> None:
        self.logprobs = logprobs
        self.sampled, self.reported = logprobs, logprobs
        if mode in ("top_k", "processed_top_k"):
            least = np.sort(logprobs, axis=1)[:, [-TOP]]
            self.sampled = normalize(np.where(logprobs >= least, logprobs, -np.inf))
        elif mode != "truthful":
            self.sampled = normalize(logprobs / 0.8)
        if mode.startswith("processed"):
            self.reported = self.sampled
        self.cumulated = np.exp(self.sampled).cumsum(1)
        self.cumulated[:, -1] = 1.0
        self.top = np.sort(self.reported, axis=1)[:, : -TOP - 1 : -1]
        self.firsts = self.logprobs.argmax(1)

    @property
    def stationary(self) -> Float64:
        """How often the chain is in each state in the long run."""
        shares = np.full(len(self.logprobs), 1 / len(self.logprobs))
        for _ in range(500):
            shares = shares @ np.exp(self.logprobs)
        return np.asarray(shares)

    def walk(self, states: Int64, tokens: int, rng: np.random.Generator) -> Int64:
        """Sample `tokens` tokens from each state on, int64[states, tokens + 1] with the state first."""
        path = [np.asarray(states)]
        for _ in range(tokens):
            path.append((self.cumulated[path[-1]] < rng.random(len(states))[:, None]).sum(1))
        return np.stack(path, axis=1)

    def answer(self, paths: Int64) -> list[SampledAnswer]:
        """The answers that the server would report for paths whose first state is the prompt."""
        return [
            SampledAnswer(
                (int(path[0]),),
                tuple(map(int, path[1:])),
                tuple(self.reported[path[:-1], path[1:]].tolist()),
                tuple(map(tuple, self.top[path[:-1]].tolist())),
            )
            for path in paths
        ]

    def score(self, path: Int64) -> TokenScores:
        """The scores of all of a path but its first state."""
        values = self.logprobs[path[:-1], path[1:]]
        return TokenScores(tuple(values.tolist()), tuple(self.firsts[path[:-1]].tolist()))

    def score_segment(self, path: Int64) -> TextSegment:
        """A segment of text with its scores, a byte a token."""
        return TextSegment(tuple(map(int, path)), self.score(path), len(path) - 1)


def make_chain(seed: int = 0, mode: Mode = "truthful") -> MarkovModel:
    """A chain whose logits are normal with deviation 1.5."""
    return MarkovModel(
        normalize(1.5 * np.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY))), mode
    )


def compute_kl(reference: MarkovModel, candidate: MarkovModel, shares: Float64) -> float:
    """The exact KL divergence in nats a token, where `shares` is how often a token follows each state."""
    rows = (np.exp(reference.logprobs) * (reference.logprobs - candidate.logprobs)).sum(1)
    return float(shares @ rows)


def disturb(reference: MarkovModel, kl: float, seed: int = 1) -> MarkovModel:
    """A chain at an exact KL divergence from another in the long run: its logits plus normal noise."""
    noise = np.random.default_rng(seed).normal(size=reference.logprobs.shape)
    shares, low, high = reference.stationary, 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        candidate = MarkovModel(normalize(reference.logprobs + middle * noise))
        low, high = (middle, high) if compute_kl(reference, candidate, shares) < kl else (low, middle)
    return candidate


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured of a reference's answers, with its `own` scores and the candidate's, and of a text."""

    answers: Sequence[SampledAnswer] = ()
    own: Sequence[TokenScores | None] = ()
    other: Sequence[TokenScores | None] = ()
    reference_text: Sequence[TextSegment] = ()
    candidate_text: Sequence[TextSegment] = ()
    why: Mapping[str, str] = {}

    @property
    def sides(self) -> tuple[ReferenceContents, ReferenceContents]:
        """What the reference has given, and the candidate."""
        headers = (
            ReferenceHeader(model=model, engine="vLLM", text_ids=tuple(part.token_ids for part in text))
            for model, text in (("a", self.reference_text), ("b", self.candidate_text or self.reference_text))
        )
        own, other = (list(map(AnswerLine, self.answers, each)) for each in (self.own, self.other))
        reference = ReferenceContents(next(headers), own, list(self.reference_text))
        return reference, ReferenceContents(next(headers), other, list(self.candidate_text))

    def judge(self) -> Quality:
        """The candidate's quality."""
        return judge_contents(*self.sides, why=self.why)


def gather_evidence(sampler: MarkovModel, candidate: MarkovModel, paths: Int64, texts: Int64) -> Evidence:
    """What is measured of the sampler's answers and of a text, both scored by both."""
    return Evidence(
        answers=sampler.answer(paths),
        own=[sampler.score(path) for path in paths],
        other=[candidate.score(path) for path in paths],
        reference_text=[sampler.score_segment(path) for path in texts],
        candidate_text=[candidate.score_segment(path) for path in texts],
    )
