"""Sampling checks: whether log-probabilities are of the distribution that a server sampled from.

Sums over samples are compared with those expected of the probabilities that the server itself reports. The
difference is a martingale, so that Bernstein's bound in Freedman's form (Annals of Probability 3, 1975,
100-118) is true of any number of samples: P(|Σ(x − Ex)| ≥ t) ≤ 2 exp(−t² / 2(V + bt/3)), where V sums up
the variances and b is the largest difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from loadgen.base.arrays import Float64
from loadgen.features.quality.cluster_intervals import ClusterMean
from loadgen.features.quality.quality_record import SampledAnswer, TokenScores

_CHANCE = 1e-4  # of a doubt about a server that samples as it reports, by each count
MOST_SCORE = 4.0  # standard errors, of means that are only normal in the limit
_MOST_RANGE = 4.0  # nats below the first choice, from which on log-probabilities count as equal
_TIE = 1e-4  # nats: log-probabilities no further apart are equal
_LEAST_OFF = 2e-3  # of a mean ratio from 1: rounding of the log-probabilities is below
_LEAST_FLOOR = 1e-3  # nats a token: with less, no scale can be found in the difference
_MOST_SLOPE = 0.05  # by which reported log-probabilities may be scaled
_ROUNDING = 1e-4  # nats above 0: a sum of probabilities in 32 bits
_FEWEST_EQUAL = 20  # tokens: a model may be sure of fewer
IMPOSSIBLE = -1000.0  # nats: engines write −9999 and the like for a probability of 0

_DEFAULTS = "start vLLM with --generation-config vllm, SGLang with --sampling-defaults openai"
_TRUNCATES = f"it truncates what it samples (top_k, top_p, min_p): {_DEFAULTS}"
_SCALES = f"its temperature is not 1, or it has penalties or a small top_k: {_DEFAULTS}"
_PROCESSED = (
    "it reports log-probabilities after temperature or truncation: start vLLM with --logprobs-mode "
    "raw_logprobs and --generation-config vllm, SGLang with --sampling-defaults openai"
)
FILLED_IN = "measure the engine itself, not a gateway that fills in what it does not know"


def explain_unbelievable(side: str, logprobs: Iterable[Sequence[float]]) -> str:
    """Explain why numbers that `side` reports as log-probabilities are none; "" if they may be.

    One above 0, but for rounding, or that is no number, is no log-probability; nor are 0 at every token.
    """
    values = np.asarray([value for each in logprobs for value in each], np.float64)
    wrong = values[~(values <= _ROUNDING)]
    if len(wrong):
        return (
            f"{len(wrong):,} of {len(values):,} log-probabilities of the {side} are above 0, as "
            f"{wrong[0]:.4g}, so they are none: {FILLED_IN}"
        )
    if len(values) >= _FEWEST_EQUAL and not values.any():
        return f"every log-probability of the {side} is 0, a probability of 1 at each token: {FILLED_IN}"
    return ""


def estimate_nats(differences: Float64) -> Float64:
    """Estimate KL in nats by each d, a sampled less a scored log-probability: exp(−d) − 1 + d."""
    return np.expm1(-differences) + differences


def is_not_one(ratio: ClusterMean) -> bool:
    """Whether a mean of ratios is not 1: by over 4 standard errors, and by more than rounding."""
    return abs(ratio.mean - 1) > _LEAST_OFF and abs(ratio.score(1.0)) > MOST_SCORE


def check_sampling(answers: Sequence[SampledAnswer], own: Sequence[TokenScores | None]) -> tuple[str, ...]:
    """List why the log-probabilities are not of what was sampled: evidence, cause, remedy; () if they are.

    `own` has for each answer the sampling server's scores of it as a prompt, None where it has none. What the
    server did not report (`top`, `own`) is not checked.
    """
    if any(value < IMPOSSIBLE for answer in answers for value in answer.logprobs):
        return (f"the sampling server reports tokens it sampled as impossible: {_PROCESSED}",)
    return (*_check_counts(answers), *_check_own_scores(answers, own))


def _check_counts(answers: Sequence[SampledAnswer]) -> Iterator[str]:
    """Yield a doubt about the samples at positions of each N of top log-probabilities that were reported."""
    rows = [
        (value, top)
        for answer in answers
        if answer.top is not None
        for value, top in zip(answer.logprobs, answer.top, strict=True)
        if len(top) > 1
    ]
    for count in sorted({len(top) for _, top in rows}):
        chosen = np.asarray([value for value, top in rows if len(top) == count])
        top = np.sort(np.asarray([top for _, top in rows if len(top) == count]), axis=1)[:, ::-1]
        if doubt := _check_top(chosen, top):
            yield doubt


def _check_top(chosen: Float64, top: Float64) -> str:
    """Return why samples are not of the distribution of which `top` has the highest log-probabilities, or "".

    The log-probabilities of samples inside the top N show another temperature, samples outside it truncation.
    The last of the N counts as outside with any that ties with it: which of those is in the N is arbitrary.
    """
    last, first = top[:, -1] + _TIE, top[:, 0] - _TIE
    listed = top > last[:, None]
    chances = np.where(listed, np.exp(top), 0.0)
    mass = chances.sum(1)
    inside = (chosen > last) & (last < first)
    values = np.maximum(top - top[:, [0]], -_MOST_RANGE)[inside]
    shares = (chances / np.maximum(mass, 1e-300)[:, None])[inside]
    means = (shares * values).sum(1)
    variance = float((shares * (values - means[:, None]) ** 2).sum())
    off = float((np.maximum(chosen - top[:, 0], -_MOST_RANGE)[inside] - means).sum())
    if _is_improbable(off, variance, len(means), _MOST_RANGE):
        mean = float(chosen[inside].mean())
        return (
            f"the {len(means):,} tokens sampled of the {top.shape[1]} most probable have a mean "
            f"log-probability of {mean:.3f}, {mean - off / len(means):.3f} is expected: {_SCALES}"
        )
    outside, chance = chosen <= last, np.clip(1 - mass, 0.0, 1.0)
    expected, seen = float(chance.sum()), int(outside.sum())
    if _is_improbable(seen - expected, float((chance * (1 - chance)).sum()), len(chance)):
        return (
            f"{seen:,} of {len(outside):,} sampled tokens are outside the {top.shape[1]} most probable, "
            f"{expected:,.1f} are expected: {_TRUNCATES}"
        )
    return ""


def _is_improbable(off: float, variance: float, count: int, most: float = 1.0) -> bool:
    """Whether a sum would be this far off by chance in fewer than one of 10,000 runs.

    `variance` is of the sum of `count` values, each off by `most` at most.
    """
    excess = abs(off) - _TIE * count  # rounding of the log-probabilities
    return excess > 0 and excess * excess / 2 / (variance + most * excess / 3) > math.log(2 / _CHANCE)


def _check_own_scores(answers: Sequence[SampledAnswer], own: Sequence[TokenScores | None]) -> Iterator[str]:
    """Yield a doubt if reported log-probabilities are not of one distribution with the server's own scores.

    The mean of exp(own − reported) is 1 where the reported distribution was sampled. It may have been, and
    still be the other at another temperature: then the reported log-probabilities are the others, scaled.
    """
    pairs = [
        (np.asarray(answer.logprobs), np.asarray(scores.logprobs))
        for answer, scores in zip(answers, own, strict=True)
        if scores is not None and answer.token_ids
    ]
    if len(pairs) < 2:
        return
    off = [reported - mine for reported, mine in pairs]
    ratio = ClusterMean.of([np.exp(-d) for d in off])
    if is_not_one(ratio):
        yield (
            "the log-probabilities of its own answers are not those of its samples (the mean ratio is "
            f"{ratio.mean:.4g}, 1 is expected): {_PROCESSED}"
        )
        return
    floor = ClusterMean.of([estimate_nats(d) for d in off])
    if floor.mean > _LEAST_FLOOR and abs(slope := _find_slope(pairs)) > _MOST_SLOPE:
        yield (
            f"the log-probabilities of its samples are scaled by {1 / (1 + slope):.2f} (they differ from its "
            f"scores of the same tokens by {floor.mean:.3g} nats a token): {_PROCESSED}"
        )


def _find_slope(pairs: Sequence[tuple[Float64, Float64]]) -> float:
    """Return by how much the scored log-probabilities rise per nat of the reported ones, less 1.

    The slope of regression on the reported ones, which are exact: the noise of the others leaves it as it is.
    """
    reported, mine = (np.concatenate(column) for column in zip(*pairs, strict=True))
    off, spread = reported - reported.mean(), float(reported.var())
    return float((off * (mine - reported)).mean()) / spread if spread > 0 else 0.0
