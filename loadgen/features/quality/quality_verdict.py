"""Quality verdict: whether a candidate is the reference's distribution to within a margin."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from loadgen.features.quality.quality_record import Quality

MARGIN = 0.01  # nats a token
Word = Literal["same", "different", "undecided"]
SAME: Word = "same"
DIFFERENT: Word = "different"
UNDECIDED: Word = "undecided"
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


def judge_quality(quality: Quality, margin: float = MARGIN) -> QualityVerdict | None:
    """Judge by the 95 % interval of KL whether it is below or above `margin`; None without a KL divergence.

    What is above must be above the noise floor too. Undecided, it needs the tokens with which the interval
    would just leave out the margin, since its width falls with their square root; rounded up to 500.
    """
    kl = quality.kl
    if kl is None:
        return None
    if kl.high <= margin:
        return QualityVerdict(SAME, margin)
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
