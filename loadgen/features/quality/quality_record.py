"""Quality record: what one model's log-probabilities are measured from, and what was found, as it is stored.

A log-probability is in nats. The distribution of a token is the model's own: temperature 1, untruncated.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import BaseModel

Direction = Literal["reference‖candidate", "candidate‖reference"]
FORWARD: Direction = "reference‖candidate"
BACKWARD: Direction = "candidate‖reference"
REFERENCE, CANDIDATE = "reference", "candidate"
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
    """The log-probability that a server gives each token of given ids, in their order.

    `ranks` are the tokens' own, 1 for the most probable; `firsts` are the ids of the most probable tokens.
    Each is None where the server does not report it.
    """

    logprobs: tuple[float, ...]
    ranks: tuple[int, ...] | None = None
    firsts: tuple[int, ...] | None = None


class TextSegment(msgspec.Struct, frozen=True):
    """A part of the text, tokenized, and the scores of all its tokens but the first, which follows nothing.

    `scored_bytes` counts the UTF-8 bytes of the tokens that have a score.
    """

    token_ids: tuple[int, ...]
    scores: TokenScores
    scored_bytes: int


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

    format: Literal["loadgen-quality-1"] = "loadgen-quality-1"
    reference: str  # the model, as it is served
    candidate: str
    kl: KlDivergence | None = None
    noise_floor: MeanInterval | None = None  # nats a token: the sampling server scored on its own answers
    agreement: MeanInterval | None = None  # share of the text's positions
    perplexity_ratio: MeanInterval | None = None  # candidate ÷ reference
    perplexity: dict[str, float] | None = None  # of the text, by server
    bits_per_byte: dict[str, MeanInterval] | None = None
    why: dict[str, str] = {}
    doubts: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    digests: dict[str, str] = {}


class QualityFigure(msgspec.Struct, frozen=True):
    """A figure of `Quality`, as it is named and shown."""

    key: str
    label: str  # in a sentence
    title: str = ""  # of a column; "": it has none
    scale: float = 1.0  # by which a value is multiplied where it is shown


FIGURES = (
    QualityFigure("kl", "KL divergence", "KL"),
    QualityFigure("noise_floor", "noise floor"),
    QualityFigure("agreement", "same first choice", "same first %", 100.0),
    QualityFigure("perplexity_ratio", "perplexity ratio", "perplexity"),
    QualityFigure("bits_per_byte", "bits per byte"),
)
