"""Divergence: how far a candidate's distribution is from a reference's, from log-probabilities of tokens.

With d = log p − log q of a token that p sampled, k = exp(−d) − 1 + d has the mean KL(p‖q), since that of
exp(−d) is 1. It is never negative, and varies far less than d where p and q are close (Schulman,
Approximating KL Divergence, 2020: the estimator k3). Perplexity, agreement and bits per byte are of a text
that both scored.

Tokens of one answer are alike, so the answers are the sample, and a mean per token is a ratio of two sums
(Cochran, Sampling Techniques, 3rd ed. 1977, chapters 6 and 9). The interval of a mean that may be skewed is
the bootstrap-t over clusters (Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982, 10.7):
each side's coverage is off by the order of 1/m for m clusters, that of Student's by 1/√m (Hall, Annals of
Statistics 16, 1988, 927-953).

Whether a server samples from what it reports is checked by sums over samples, compared with those expected
of the probabilities that it reports. The difference is a martingale, so that Bernstein's bound in Freedman's
form (Annals of Probability 3, 1975, 100-118) is true of any number of samples: P(|Σ(x − Ex)| ≥ t) ≤
2 exp(−t² / 2(V + bt/3)), where V sums up the variances and b is the largest difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.base.arrays import Float64
from loadgen.base.intervals import LEAST_SPREAD, RatioOfSums, t_quantile
from loadgen.features.fingerprint.answer_check import find_difference
from loadgen.study.quality.quality_record import (
    BACKWARD,
    CANDIDATE,
    FORWARD,
    HIGHEST,
    ITSELF,
    REFERENCE,
    Direction,
    KlDivergence,
    MeanInterval,
    Quality,
    SampledAnswer,
    TextSegment,
    TokenScores,
)
from loadgen.study.quality.reference_file import (
    GREEDY,
    PairedAnswers,
    ReferenceContents,
    ReferenceHeader,
)

_RESAMPLES = 2000
_SEED = 41  # of the bootstrap: equal data have equal intervals
_FEWEST, _MOST = 30, 1000  # clusters that are resampled: fewer hold too little, of more the mean is normal
_TAIL = 0.025


class ClusterMean(RatioOfSums):
    """The mean per token of values summed by cluster; a size is a number of tokens, or of bytes."""

    @classmethod
    def of(cls, clusters: Sequence[Float64]) -> ClusterMean:
        """Average the values of each token, an array a cluster."""
        return cls([float(values.sum()) for values in clusters], [len(values) for values in clusters])

    def find_interval(self) -> MeanInterval | None:
        """Find the 95 % interval: bootstrap-t, or Student's t for under 30 or over 1000 clusters.

        None for a single cluster; of clusters that do not vary both ends are the mean.
        """
        if self.clusters < 2:
            return None
        t = t_quantile(self.clusters - 1)
        below, above = -t, t
        if _FEWEST <= self.clusters <= _MOST and self.error:
            below, above = self._resample_t()
        return MeanInterval(
            mean=self.mean, low=self.mean - above * self.error, high=self.mean - below * self.error
        )

    def find_share_interval(self) -> MeanInterval | None:
        """Find the 95 % interval of a share by Wilson's score with the clusters' effective sample size.

        That size is p(1 − p) ÷ error², at most the tokens (Korn and Graubard, Survey Methodology 24, 1998),
        and z is Student's t; where all clusters are equal it is the tokens. None for a single cluster.
        """
        if self.clusters < 2:
            return None
        share = min(max(self.mean, 0.0), 1.0)
        spread = share * (1 - share)
        size = min(self.total, spread / self.error**2) if self.error and spread else self.total
        t = t_quantile(self.clusters - 1)
        centre = (share + t * t / (2 * size)) / (1 + t * t / size)
        half = t / (1 + t * t / size) * math.sqrt(spread / size + t * t / (4 * size * size))
        low = centre - half if share > 0 else 0.0  # but for rounding
        high = centre + half if share < 1 else 1.0
        return MeanInterval(mean=share, low=low, high=high)

    def score(self, expected: float) -> float:
        """Compute how many standard errors the mean is from `expected`, less what skewness explains.

        Hall's transformation of Student's t (Journal of the Royal Statistical Society B 54, 1992, 221-228).
        0.0 where the clusters do not vary and the mean is as expected, ±inf where it is not.
        """
        off = self.mean - expected
        if self.error == 0.0:
            return 0.0 if abs(off) <= LEAST_SPREAD + 1e-9 * abs(expected) else math.copysign(math.inf, off)
        t, m = off / self.error, self.clusters
        deviation = math.sqrt(float((self.residuals**2).mean()))
        skew = float((self.residuals**3).mean()) / deviation**3 / math.sqrt(m) if deviation else 0.0
        return t + skew * t * t / 3 + skew**2 * t**3 / 27 + skew / 6

    def _resample_t(self) -> tuple[float, float]:
        """Return the 2.5 % and 97.5 % quantiles of t over 2000 resamples of the clusters."""
        m = self.clusters
        weights = (
            np.random.default_rng(_SEED).multinomial(m, np.full(m, 1 / m), size=_RESAMPLES).astype(float)
        )
        totals = weights @ self.sizes
        off = (weights @ self.residuals) / totals  # of a resample's mean from the mean
        squares = (
            weights @ self.residuals**2
            - 2 * off * (weights @ (self.residuals * self.sizes))
            + off**2 * (weights @ self.sizes**2)
        )
        errors = np.sqrt(np.maximum(squares, 0.0) * m / (m - 1)) / totals
        errors = np.maximum(errors, LEAST_SPREAD * self.error)  # of one cluster, drawn m times
        low, high = np.quantile(off / errors, [_TAIL, 1 - _TAIL])
        return float(low), float(high)


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
    return (*_list_top_doubts(answers), *_list_score_doubts(answers, own))


def _list_top_doubts(answers: Sequence[SampledAnswer]) -> Iterator[str]:
    """Yield doubts about samples against the reported top N, judged for each N of 2 or more by itself."""
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
        if doubt := _explain_top(chosen, top):
            yield doubt


def _explain_top(chosen: Float64, top: Float64) -> str:
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


def _list_score_doubts(answers: Sequence[SampledAnswer], own: Sequence[TokenScores | None]) -> Iterator[str]:
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
            "the log-probabilities of its own responses are not those of its samples (the mean ratio is "
            f"{ratio.mean:.4g}, 1 is expected): {_PROCESSED}"
        )
        return
    floor = ClusterMean.of([estimate_nats(d) for d in off])
    if floor.mean <= _LEAST_FLOOR:
        return
    # The slope of scored over reported ones: these are exact, and the others' noise leaves it as it is.
    reported, mine = (np.concatenate(column) for column in zip(*pairs, strict=True))
    spread = float(reported.var())
    slope = float(((reported - reported.mean()) * (mine - reported)).mean()) / spread if spread > 0 else 0.0
    if abs(slope) > _MOST_SLOPE:
        yield (
            f"the log-probabilities of its samples are scaled by {1 / (1 + slope):.2f} (they differ from its "
            f"scores of the same tokens by {floor.mean:.3g} nats a token): {_PROCESSED}"
        )


_FEW = "an interval needs two responses: pass more --tokens"
_FEW_SEGMENTS = "an interval needs two segments of text: pass a longer --text"
_NOT_SCORED = "no text was scored"
_NO_FIRSTS = "a server does not report its first choices in a prompt"
_NO_IDS = "a server returns no token ids, so greedy responses are compared as texts"
_IMPOSSIBLE = (
    "tokens that one server sampled are impossible by the other's log-probabilities, which are truncated: "
    "start vLLM with --logprobs-mode raw_logprobs"
)
_UNBOUNDED = (
    "a server gives a token of the text no probability at all: its log-probabilities are truncated (start "
    "vLLM with --logprobs-mode raw_logprobs), or the checkpoint is broken"
)
_MOST_LOG = 700.0  # of a perplexity, beyond which it is no number any more


def explain_no_text(header: ReferenceHeader) -> str:
    """Explain why figures of the text are None where a server cannot score it."""
    return f"{header.engine} ({header.model}) scores no text"


def judge_contents(
    reference: ReferenceContents,
    candidate: ReferenceContents | None = None,
    back: ReferenceContents | None = None,
    *,
    why: Mapping[str, str] | None = None,
) -> Quality:
    """Compute a candidate's quality from what both have given; without a candidate, the reference's own.

    `back` has the reference's scores of what the candidate has sampled, else the candidate has scored what
    the reference has. A figure that cannot be had is None, with the reason in the quality's `why`; `why` has
    reasons why `kl`, `noise_floor` or `text` was not measured.
    """
    held, reasons, differ = candidate or reference, dict(why or {}), ""
    if reference.header.settings.get(GREEDY):
        return judge_greedy(reference, candidate, reasons.get("kl", "greedy responses are compared"))
    if candidate is None:
        reasons["kl"] = ITSELF
    elif reference.text.take_ids(candidate.text) is None:
        differ = "the vocabularies differ: the same text has other tokens; bits per byte compare them"
        reasons |= {"kl": differ, "noise_floor": differ}
    elif reference.segments and len(reference.segments) != len(held.segments) > 0:
        differ = "the reference and the candidate have scored different lengths of the text"
    if back is not None:
        reasons["text"] = explain_no_text(held.header)
    elif candidate is not None and not reference.segments:
        reasons.setdefault("text", "the reference's file has no scores of the text")
    pairs = PairedAnswers.of(reference, held) if back is None else PairedAnswers.of(held, back)
    texts = {REFERENCE: reference.segments, CANDIDATE: [] if "text" in reasons else held.segments}
    unbelievable = _explain_unbelievable_pairs(pairs, texts, backward=back is not None)
    doubts = (unbelievable,) if unbelievable else check_sampling(pairs.answers, pairs.own)
    unscored = reasons.get("text", "" if all(texts.values()) else _NOT_SCORED) or unbelievable
    logprobs = (value for text in texts.values() for part in text for value in part.scores.logprobs)
    unbounded = unscored or ("" if all(value >= IMPOSSIBLE for value in logprobs) else _UNBOUNDED)
    kl: KlDivergence | str = reasons.get("kl") or next(iter(doubts), "")
    if not kl:
        kl, further = _estimate_kl(pairs, FORWARD if back is None else BACKWARD)
        doubts = (*doubts, *further)
    figures: dict[str, Any] = {
        "kl": kl,
        "noise_floor": reasons.get("noise_floor") or next(iter(doubts), "") or _estimate_floor(pairs),
        "agreement": unscored or differ or _measure_agreement(*texts.values()),
        "perplexity_ratio": unbounded or differ or _measure_ratio(*texts.values()),
        "perplexity": unbounded or {name: _measure_perplexity(text) for name, text in texts.items()},
        "bits_per_byte": unbounded or _count_bits(texts),
    }
    if candidate is None:
        figures |= {"agreement": ITSELF, "perplexity_ratio": ITSELF}
    return _make_quality(reference, candidate, figures, doubts)


def _make_quality(
    reference: ReferenceContents,
    candidate: ReferenceContents | None,
    figures: Mapping[str, Any],
    doubts: tuple[str, ...] = (),
    **settings: Any,
) -> Quality:
    """Make the quality of figures by name; a text in place of one is why it is None."""
    held = candidate or reference
    engines = {"candidate_engine": held.header.engine, "reference_engine": reference.header.engine}
    digests = {"text": held.header.text_digest, "reference": reference.digest}
    return Quality(
        reference=reference.header.model,
        candidate=held.header.model,
        of_reference=candidate is None,
        why={name: found for name, found in figures.items() if isinstance(found, str)},
        doubts=doubts,
        settings={**held.header.settings, **engines, **settings},
        digests={name: digest for name, digest in digests.items() if digest or name == "text"},
        **{name: found for name, found in figures.items() if not isinstance(found, str)},
    )


def judge_greedy(reference: ReferenceContents, candidate: ReferenceContents | None, why: str) -> Quality:
    """Compute how far a candidate's greedy answers are the reference's; `why` there is no KL divergence.

    Up to the first token that differs both have read the same, and each token is a choice of both: the share
    of the same choices is that of the same first choices along greedy answers. What follows is not compared.
    Where a server has no token ids, answers are compared as texts, and only whole ones are.
    """
    own = candidate or reference
    theirs = {answer.prompt: answer for answer in reference.greedy}
    pairs = [(answer, theirs[answer.prompt]) for answer in own.greedy if answer.prompt in theirs]
    by_token = all(answer.token_ids for pair in pairs for answer in pair)
    found = [find_difference(*pair, by_token) for pair in pairs]
    lengths = [len(answer.token_ids) for answer, _ in pairs]
    reached = [(at[0], at[0] + 1) if at else (n, n) for at, n in zip(found, lengths, strict=True)]
    same = [(at is None, 1) for at in found]
    figures: dict[str, Any] = dict.fromkeys(("kl", "perplexity_ratio"), why)
    figures["same_answers"] = _average_rows(same).find_share_interval() if len(pairs) > 1 else _FEW
    figures["agreement"] = _NO_IDS
    if by_token:
        figures["agreement"] = _average_rows(reached).find_share_interval() if len(pairs) > 1 else _FEW
    if candidate is None:
        figures = dict.fromkeys(figures, ITSELF)
    return _make_quality(reference, candidate, figures, answers=len(pairs))


def _explain_unbelievable_pairs(
    pairs: PairedAnswers, texts: Mapping[str, Sequence[TextSegment]], backward: bool
) -> str:
    """Explain the first log-probabilities of either side that are none; "" if all may be."""
    sampler, scorer = (REFERENCE, CANDIDATE)[:: -1 if backward else 1]
    parts = (
        (sampler, (answer.logprobs for answer in pairs.answers)),
        (sampler, (found.logprobs for found in pairs.own if found is not None)),
        (scorer, (found.logprobs for found in pairs.other if found is not None)),
        *((side, (segment.scores.logprobs for segment in text)) for side, text in texts.items()),
    )
    return next(filter(None, (explain_unbelievable(*part) for part in parts)), "")


def estimate_divergence(
    answers: Sequence[SampledAnswer], scores: Sequence[TokenScores | None]
) -> MeanInterval | None:
    """Estimate KL in nats a token with its 95 % interval over those answers that have scores.

    None for fewer than two, and where a token is impossible by either, or what was reported is no
    log-probability. The lower end is at least 0.
    """
    differences = _list_differences(answers, scores)
    reported = (
        *(answer.logprobs for answer in answers),
        *(found.logprobs for found in scores if found is not None),
    )
    if len(differences) < 2 or explain_unbelievable("", reported) or _is_impossible(differences):
        return None
    return _find_kl_interval(differences)


def _list_differences(
    answers: Sequence[SampledAnswer], scores: Sequence[TokenScores | None]
) -> list[Float64]:
    """List d of each answer's tokens; answers that have no scores, or no tokens, are left out."""
    return [
        np.asarray(answer.logprobs) - np.asarray(found.logprobs)
        for answer, found in zip(answers, scores, strict=True)
        if found is not None and answer.token_ids
    ]


def _is_impossible(differences: Sequence[Float64]) -> bool:
    return any(float(np.abs(d).max()) > -IMPOSSIBLE for d in differences)


def _list_nats(differences: Sequence[Float64], plain: bool) -> list[Float64]:
    return [d if plain else estimate_nats(d) for d in differences]


def _find_kl_interval(differences: Sequence[Float64], plain: bool = False) -> MeanInterval:
    """Find the interval of KL, no end below 0, as the mean of exp(−d) − 1 + d, or of d if `plain`."""
    found = ClusterMean.of(_list_nats(differences, plain)).find_interval()
    assert found is not None  # of two clusters or more
    return MeanInterval(mean=max(0.0, found.mean), low=max(0.0, found.low), high=max(0.0, found.high))


def _estimate_kl(pairs: PairedAnswers, direction: Direction) -> tuple[KlDivergence | str, tuple[str, ...]]:
    """Estimate the KL divergence, or return why it cannot be had; and the doubts about it.

    Where the mean of exp(−d) is not 1, the sampling is at fault, unless the top N have shown that it is not.
    Above 1, the other's probabilities then sum to more than 1; below, the candidate is so far that exp(−d) is
    rarely large, and the mean of d is the estimate, unless it is below 0, which no divergence is.
    """
    differences = _list_differences(pairs.answers, pairs.other)
    if len(differences) < 2:
        return _FEW, ()
    if _is_impossible(differences):
        return _IMPOSSIBLE, (_IMPOSSIBLE,)
    ratio = ClusterMean.of([np.exp(-d) for d in differences])
    off = is_not_one(ratio)
    doubt = ""
    if off:
        doubt = f"the mean of exp(−d) is {ratio.mean:.4g}, 1 is expected: "
        if not any(answer.top for answer in pairs.answers):
            doubt += (
                "the log-probabilities are not of the distribution that was sampled; remove sampling "
                "defaults and processing of log-probabilities from both servers"
            )
            return doubt, (doubt,)
        plain = ClusterMean.of(differences)
        if ratio.mean > 1 or plain.score(0.0) < -MOST_SCORE:
            doubt += (
                "the other server's probabilities of what was sampled sum to more than 1, and the mean of d "
                f"is {plain.mean:.4g}: {FILLED_IN}"
            )
            return doubt, (doubt,)
        doubt += (
            "the other server's probability is on tokens that were rarely sampled, and KL is the plain mean "
            "of d; pass more --tokens"
        )
    estimate = _find_kl_interval(differences, plain=off)
    check = ratio.find_interval()
    assert check is not None
    means = sorted((float(nats.mean()) for nats in _list_nats(differences, plain=off)), reverse=True)
    return KlDivergence(
        **estimate.model_dump(),
        tokens=sum(map(len, differences)),
        answers=len(differences),
        direction=direction,
        self_check=check.model_copy(update={"low": max(0.0, check.low)}),
        formula="d" if off else "exp(−d) − 1 + d",
        highest=tuple(means[:HIGHEST]),
    ), ((doubt,) if doubt else ())


def _estimate_floor(pairs: PairedAnswers) -> MeanInterval | str:
    """Estimate KL from the sampling server's own scores of its answers, or return why it is unknown."""
    if not any(pairs.own):
        return "the sampling server did not score its own responses"
    differences = _list_differences(pairs.answers, pairs.own)
    if _is_impossible(differences):
        return _IMPOSSIBLE
    return _find_kl_interval(differences) if len(differences) > 1 else _FEW


def _average_rows(rows: Sequence[tuple[float, int]]) -> ClusterMean:
    """Average rows of (sum, size); those of size 0 are left out."""
    sized = [row for row in rows if row[1]]
    return ClusterMean([row[0] for row in sized], [row[1] for row in sized])


def _measure_agreement(
    reference: Sequence[TextSegment], candidate: Sequence[TextSegment]
) -> MeanInterval | str:
    """Measure the share of positions with the same first choice, or return why it is unknown."""
    counts: list[tuple[int, int]] = []
    for one, two in zip(reference, candidate, strict=True):
        firsts = one.scores.firsts, two.scores.firsts
        if firsts[0] is None or firsts[1] is None:
            return _NO_FIRSTS
        same = sum(a == b for a, b in zip(firsts[0], firsts[1], strict=True))
        counts.append((same, len(firsts[0])))
    return _average_rows(counts).find_share_interval() or _FEW_SEGMENTS


def _measure_ratio(reference: Sequence[TextSegment], candidate: Sequence[TextSegment]) -> MeanInterval | str:
    """Measure the perplexity ratio, candidate ÷ reference, or return why it is unknown."""
    rows = [
        (math.fsum(one.scores.logprobs) - math.fsum(two.scores.logprobs), len(one.scores.logprobs))
        for one, two in zip(reference, candidate, strict=True)
    ]
    found = _average_rows(rows).find_interval()
    if found is None:
        return _FEW_SEGMENTS
    mean, low, high = (math.exp(min(value, _MOST_LOG)) for value in (found.mean, found.low, found.high))
    return MeanInterval(mean=mean, low=low, high=high)


def _measure_perplexity(text: Sequence[TextSegment]) -> float:
    logprobs = [value for segment in text for value in segment.scores.logprobs]
    return math.exp(min(-math.fsum(logprobs) / len(logprobs), _MOST_LOG))


def _count_bits(texts: Mapping[str, Sequence[TextSegment]]) -> dict[str, MeanInterval] | str:
    """Measure the bits per UTF-8 byte of each side, or return why they are unknown."""
    found = {}
    for name, text in texts.items():
        rows = [(-math.fsum(part.scores.logprobs) / math.log(2), part.scored_bytes) for part in text]
        bits = _average_rows(rows).find_interval()
        if bits is None:
            return _FEW_SEGMENTS
        found[name] = bits
    return found
