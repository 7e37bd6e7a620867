"""Quality record: what is measured of one model, and found of two, as it is stored, and its verdict.

A log-probability is in nats. The distribution of a token is the model's own: temperature 1, untruncated.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

Direction = Literal["reference‖candidate", "candidate‖reference"]
FORWARD: Direction = "reference‖candidate"
BACKWARD: Direction = "candidate‖reference"
REFERENCE, CANDIDATE = "reference", "candidate"
ITSELF = "it is the reference"  # why its own quality has no KL
HIGHEST = 20  # answers whose own divergence is kept


class SampledAnswer(msgspec.Struct, frozen=True):
    """Token ids that a server sampled after a prompt, and their log-probabilities as it reported them.

    `top` has for each position the N highest log-probabilities, one per distinct token, in any order; None
    where the server reports none, which leaves the sampling unchecked.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[tuple[float, ...], ...] | None = None


class TokenScores(msgspec.Struct, frozen=True):
    """The log-probability that a server gives each token of given ids, in their order."""

    logprobs: tuple[float, ...]
    firsts: tuple[int, ...] | None = None  # ids of the most probable tokens; None: not reported


class TextSegment(msgspec.Struct, frozen=True):
    """A part of the text, tokenized, and the scores of its tokens but the first, which follows nothing."""

    token_ids: tuple[int, ...]
    scores: TokenScores
    scored_bytes: int  # UTF-8 bytes of the tokens that have a score


class MeanInterval(BaseModel, extra="forbid", frozen=True):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


class KlDivergence(MeanInterval, frozen=True):
    """The Kullback-Leibler divergence, in nats a token, over the sampled answers.

    `self_check` is the mean of exp(−d), which is 1 where the log-probabilities are of what was sampled.
    `formula` is of a token: the plain d where exp(−d) is too rarely large to have its mean.
    """

    tokens: int
    answers: int
    direction: Direction
    self_check: MeanInterval
    formula: Literal["exp(−d) − 1 + d", "d"] = "exp(−d) − 1 + d"
    highest: tuple[float, ...] = ()  # of single answers, nats a token, the highest first


class Quality(BaseModel, extra="forbid", frozen=True):
    """How far a candidate is from a reference; `why` has for each figure that is None the reason.

    The keys of `perplexity` and `bits_per_byte` are "reference" and "candidate". Each of `doubts` is a
    sentence: the cause, then the remedy.
    """

    format: Literal["loadgen-quality-2"] = "loadgen-quality-2"
    reference: str  # the model, as it is served
    candidate: str
    of_reference: bool = False  # the reference's own: it has no divergence from itself
    kl: KlDivergence | None = None
    noise_floor: MeanInterval | None = None  # nats a token: the sampling server scored on its own answers
    agreement: MeanInterval | None = None  # share of the text's positions, or of those of greedy answers
    same_answers: MeanInterval | None = None  # share of greedy answers
    perplexity_ratio: MeanInterval | None = None  # candidate ÷ reference
    perplexity: dict[str, float] | None = None  # of the text, by server
    bits_per_byte: dict[str, MeanInterval] | None = None
    why: dict[str, str] = {}
    doubts: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    digests: dict[str, str] = {}


# The figures of `Quality`: the title of a column ("": it has none), and what its values are multiplied by.
FIGURES = {
    "kl": ("KL", 1.0),
    "noise_floor": ("", 1.0),
    "agreement": ("top-1 %", 100.0),
    "same_answers": ("same output %", 100.0),
    "perplexity_ratio": ("perplexity", 1.0),
    "bits_per_byte": ("", 1.0),
}
# Formats of llama.cpp with their KL to 16 bits, in nats a token: of Llama 2 7B and of Llama 3 8B.
USUAL_KL = (
    ("8 bits", "q8_0", 0.0004, 0.0014),
    ("6 bits", "q6_K", 0.0021, 0.0055),
    ("4 bits", "q4_K_M", 0.013, 0.031),
    ("2 bits", "q2_K", 0.11, 0.45),
)


def describe_usual_kl(nats: float) -> str:
    """Describe of how many bits a KL divergence is usual, or between which of them it lies."""
    words = [f"{bits} (llama.cpp's {name}: {low:g} to {high:g})" for bits, name, low, high in USUAL_KL]
    at = next((at for at, (*_, high) in enumerate(USUAL_KL) if nats <= high), None)
    if at is None:
        return f"more than is usual for {words[-1]}"
    if nats >= USUAL_KL[at][2]:
        return f"usual for {words[at]}"
    if at == 0:
        return f"less than is usual for {words[0]}"
    return f"between what is usual for {words[at - 1]} and {words[at]}"


MARGIN = 0.01  # nats a token
Word = Literal["same", "different", "undecided"]
SAME: Word = "same"
DIFFERENT: Word = "different"
UNDECIDED: Word = "undecided"
# A share of the prompts, at 95 %: what is as rare may be off by any distance, and "same" is said of the rest.
MOST_UNSEEN = 0.0025
FAR = 10.0  # margins: an answer beyond it is of a tail, not of the spread of all answers
_CHANCE = 0.05
_MOST_TOKENS = 10_000_000  # beyond it no number is given
_TOKENS_STEP = 500


class QualityVerdict(msgspec.Struct, frozen=True):
    """One of same, different and undecided; `more_tokens` for an end, None where no number would decide."""

    verdict: Word
    margin: float  # nats a token
    more_tokens: int | None = None
    why: str = ""  # it is undecided, where more tokens are no remedy

    @property
    def text(self) -> str:
        """The verdict in words, as `undecided: about 12,000 more tokens`."""
        if self.verdict == SAME:
            return f"same within {self.margin:g} nats a token"
        if self.verdict == DIFFERENT:
            return f"different by more than {self.margin:g} nats a token"
        return f"undecided: {self.why or f'about {self.more_tokens:,} more tokens'}"


def bound_share(seen: int, answers: int) -> float:
    """Bound from above, at 95 %, the share of prompts like `seen` of `answers` (Clopper, Pearson)."""
    low, high = seen / answers, 1.0
    while high - low > 1e-9:
        share = (low + high) / 2
        as_few = sum(
            math.comb(answers, count) * share**count * (1 - share) ** (answers - count)
            for count in range(seen + 1)
        )
        low, high = (share, high) if as_few > _CHANCE else (low, share)
    return high


def describe_tail(kl: KlDivergence, margin: float) -> str:
    """Describe how much of KL the answers far beyond the margin hold; "" if none is."""
    far = [nats for nats in kl.highest if nats > FAR * margin]
    share = min(sum(far) / kl.answers / kl.mean, 1.0) if far and kl.mean else 0.0
    return f"{len(far)} of {kl.answers:,} responses hold {100 * share:.0f} % of KL" if far else ""


def _explain_unseen(kl: KlDivergence, margin: float) -> str:
    """Explain why an interval below the margin does not show every prompt to be below it; "" if it does.

    Answers far beyond the margin are a tail: as many more as may be there could lift the mean above it. Where
    none is, there must be answers enough that hardly any prompt could be so unseen.
    """
    far = [nats for nats in kl.highest if nats > FAR * margin]
    share = bound_share(len(far), kl.answers)
    if not far:
        # The answers of which none is off that leave MOST_UNSEEN of the prompts unseen.
        needed = math.ceil(math.log(_CHANCE) / math.log1p(-MOST_UNSEEN))
        if kl.answers >= needed:
            return ""
        shorter = max(kl.tokens // needed, 1)
        return (
            f"of {kl.answers:,} responses none is far off, so up to {100 * share:.2g} % of prompts could be: "
            f"pass more --tokens or --answer-tokens {shorter}, for {needed:,} responses"
        )
    tail = sum(far) / kl.answers
    if kl.mean - tail + share * far[0] <= margin:
        return ""
    return (
        f"{describe_tail(kl, margin)}, the worst {far[0]:.3g} nats a token, and up to {100 * share:.2g} % of "
        "prompts may: pass more --tokens"
    )


def judge_quality(quality: Quality, margin: float = MARGIN) -> QualityVerdict | None:
    """Judge by the 95 % interval of KL whether it is below or above `margin`; None without a KL divergence.

    What is below must have no tail that contradicts it, and answers enough that few prompts could have one
    unseen; what is above must be above the noise floor too. Else undecided, it needs the tokens with which
    the interval would just leave out the margin, since its width falls with their square root; rounded up to
    500.
    """
    kl = quality.kl
    if kl is None:
        return None
    if kl.high <= margin:
        unseen = _explain_unseen(kl, margin)
        return QualityVerdict(UNDECIDED if unseen else SAME, margin, why=unseen)
    floor = 0.0 if quality.noise_floor is None else quality.noise_floor.high
    if kl.low > max(margin, floor):
        return QualityVerdict(DIFFERENT, margin)
    if floor >= margin:
        return QualityVerdict(
            UNDECIDED, margin, why=f"the noise floor, {floor:.3g}, is no less than the margin, {margin:g}"
        )
    side = kl.high - kl.mean if kl.mean < margin else kl.mean - kl.low
    distance = abs(kl.mean - margin)
    needed = kl.tokens * (side / distance) ** 2 - kl.tokens if distance else math.inf
    if needed > _MOST_TOKENS:
        return QualityVerdict(UNDECIDED, margin, why="it lies at the margin")
    more = math.ceil(max(needed, 1) / _TOKENS_STEP) * _TOKENS_STEP
    return QualityVerdict(UNDECIDED, margin, more)
