"""Divergence: how far a candidate's distribution is from a reference's, from log-probabilities of tokens.

With d = log p − log q of a token that p sampled, k = exp(−d) − 1 + d has the mean KL(p‖q), since that of
exp(−d) is 1. It is never negative, and varies far less than d where p and q are close (Schulman,
Approximating KL Divergence, 2020: the estimator k3). Perplexity, agreement and bits per byte are of a text
that both scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Float64
from loadgen.features.quality.cluster_intervals import ClusterMean
from loadgen.features.quality.quality_record import (
    BACKWARD,
    CANDIDATE,
    FORWARD,
    HIGHEST,
    REFERENCE,
    KlDivergence,
    MeanInterval,
    Quality,
    SampledAnswer,
    TextSegment,
    TokenScores,
)
from loadgen.features.quality.sampling_checks import (
    FILLED_IN,
    IMPOSSIBLE,
    MOST_SCORE,
    check_sampling,
    estimate_nats,
    explain_unbelievable,
    is_not_one,
)

_FEW = "an interval needs two answers: pass more --tokens"
_FEW_SEGMENTS = "an interval needs two segments of text: pass a longer --text"
_NOT_SCORED = "no text was scored"
_NO_FIRSTS = "a server does not report its first choices in a prompt"
_IMPOSSIBLE = (
    "tokens that one server sampled are impossible by the other's log-probabilities, which are truncated: "
    "start vLLM with --logprobs-mode raw_logprobs"
)
_UNBOUNDED = (
    "a server gives a token of the text no probability at all: its log-probabilities are truncated (start "
    "vLLM with --logprobs-mode raw_logprobs), or the checkpoint is broken"
)
_MOST_LOG = 700.0  # of a perplexity, beyond which it is no number any more


class QualityEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of two servers: one has sampled the answers, both have scored answers and text.

    `own` are the sampling server's scores of its answers as prompts, `other` those of the other server, both
    in the order of the answers; the scores of one answer are None where there are none. The segments of the
    text are in one order too, empty where it was not scored. `why` has the reason why `kl`, `noise_floor` or
    `text` was not measured.
    """

    reference: str  # the model, as it is served
    candidate: str
    answers: Sequence[SampledAnswer] = ()
    own: Sequence[TokenScores | None] = ()
    other: Sequence[TokenScores | None] = ()
    candidate_sampled: bool = False  # then the direction is candidate‖reference
    reference_text: Sequence[TextSegment] = ()
    candidate_text: Sequence[TextSegment] = ()
    why: Mapping[str, str] = {}
    settings: Mapping[str, Any] = {}
    digests: Mapping[str, str] = {}


def judge_evidence(evidence: QualityEvidence) -> Quality:
    """Compute all figures of quality; one that cannot be had is None, with the reason in `why`."""
    unbelievable = explain_unbelievable_evidence(evidence)
    doubts = (unbelievable,) if unbelievable else check_sampling(evidence.answers, evidence.own)
    differ = compare_vocabularies(evidence.reference_text, evidence.candidate_text)
    texts = {REFERENCE: evidence.reference_text, CANDIDATE: evidence.candidate_text}
    unscored = evidence.why.get("text", "" if all(texts.values()) else _NOT_SCORED) or unbelievable
    unbounded = unscored or (_UNBOUNDED if any(map(_has_impossible, texts.values())) else "")
    kl: KlDivergence | str = evidence.why.get("kl") or differ or next(iter(doubts), "")
    if not kl:
        kl, further = _estimate_kl(evidence)
        doubts = (*doubts, *further)
    figures: dict[str, Any] = {
        "kl": kl,
        "noise_floor": evidence.why.get("noise_floor") or next(iter(doubts), "") or _estimate_floor(evidence),
        "agreement": unscored or differ or _measure_agreement(evidence),
        "perplexity_ratio": unbounded or differ or _measure_ratio(evidence),
        "perplexity": unbounded or {name: _measure_perplexity(text) for name, text in texts.items()},
        "bits_per_byte": unbounded or _count_bits(texts),
    }
    return Quality(
        reference=evidence.reference,
        candidate=evidence.candidate,
        why={name: found for name, found in figures.items() if isinstance(found, str)},
        doubts=doubts,
        settings=dict(evidence.settings),
        digests=dict(evidence.digests),
        **{name: found for name, found in figures.items() if not isinstance(found, str)},
    )


def explain_unbelievable_evidence(evidence: QualityEvidence) -> str:
    """Explain which server's numbers cannot be log-probabilities; "" if all may be."""
    sampled, scored = (REFERENCE, CANDIDATE)[:: -1 if evidence.candidate_sampled else 1]
    parts = (
        (sampled, (answer.logprobs for answer in evidence.answers)),
        (sampled, (found.logprobs for found in evidence.own if found is not None)),
        (scored, (found.logprobs for found in evidence.other if found is not None)),
        (REFERENCE, (segment.scores.logprobs for segment in evidence.reference_text)),
        (CANDIDATE, (segment.scores.logprobs for segment in evidence.candidate_text)),
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
    if len(differences) < 2 or explain_unbelievable("", reported):
        return None
    if _is_impossible(differences):
        return None
    return _find_kl_interval(differences)


def compare_vocabularies(reference: Sequence[TextSegment], candidate: Sequence[TextSegment]) -> str:
    """Return where the ids of two scored texts first differ, in words; "" if nowhere, or if one is empty."""
    if not (reference and candidate):
        return ""
    for number, (one, two) in enumerate(zip(reference, candidate, strict=False), 1):
        if one.token_ids != two.token_ids:
            pairs = enumerate(zip_longest(one.token_ids, two.token_ids, fillvalue="none"), 1)
            at, first, second = next((at, *pair) for at, pair in pairs if pair[0] != pair[1])
            return (
                f"the vocabularies differ: token {at} of segment {number} of the text is {first} by the "
                f"reference's, {second} by the candidate's; bits per byte compare them"
            )
    if len(reference) != len(candidate):
        return f"the reference scored {len(reference)} segments of text, the candidate {len(candidate)}"
    return ""


def _list_differences(
    answers: Sequence[SampledAnswer], scores: Sequence[TokenScores | None]
) -> list[Float64]:
    """List d = sampled less scored log-probability by answer, of those that have tokens and scores."""
    return [
        np.asarray(answer.logprobs) - np.asarray(found.logprobs)
        for answer, found in zip(answers, scores, strict=True)
        if found is not None and answer.token_ids
    ]


def _is_impossible(differences: Sequence[Float64]) -> bool:
    """Whether any token that was sampled has no probability by one of both log-probabilities."""
    return any(float(np.abs(d).max()) > -IMPOSSIBLE for d in differences)


def _has_impossible(text: Sequence[TextSegment]) -> bool:
    """Whether any token of a scored text has no probability."""
    return any(not value >= IMPOSSIBLE for segment in text for value in segment.scores.logprobs)


def _find_kl_interval(differences: Sequence[Float64], plain: bool = False) -> MeanInterval:
    """Return the mean of exp(−d) − 1 + d, or of the `plain` d, with its interval, all cut at 0."""
    average = ClusterMean.of([d if plain else estimate_nats(d) for d in differences])
    found = _require(average.find_interval())
    return MeanInterval(mean=max(0.0, found.mean), low=max(0.0, found.low), high=max(0.0, found.high))


def _require(found: MeanInterval | None) -> MeanInterval:
    """Return an interval of at least two clusters, which cannot be None."""
    assert found is not None
    return found


def _estimate_kl(evidence: QualityEvidence) -> tuple[KlDivergence | str, tuple[str, ...]]:
    """Estimate the KL divergence, or return why it cannot be had; and the doubts about it.

    Where the mean of exp(−d) is not 1, the sampling is at fault, unless the top N have shown that it is not.
    Above 1, the other's probabilities then sum to more than 1; below, the candidate is so far that exp(−d) is
    rarely large, and the mean of d is the estimate, unless it is below 0, which no divergence is.
    """
    differences = _list_differences(evidence.answers, evidence.other)
    if len(differences) < 2:
        return _FEW, ()
    if _is_impossible(differences):
        return _IMPOSSIBLE, (_IMPOSSIBLE,)
    ratio = ClusterMean.of([np.exp(-d) for d in differences])
    off = is_not_one(ratio)
    doubt = ""
    if off:
        doubt = f"the mean of exp(−d) is {ratio.mean:.4g}, 1 is expected: "
        if not any(answer.top for answer in evidence.answers):
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
    check = _require(ratio.find_interval())
    return KlDivergence(
        **estimate.model_dump(),
        tokens=sum(map(len, differences)),
        answers=len(differences),
        direction=BACKWARD if evidence.candidate_sampled else FORWARD,
        self_check=check.model_copy(update={"low": max(0.0, check.low)}),
        formula="d" if off else "exp(−d) − 1 + d",
        highest=_list_highest([d if off else estimate_nats(d) for d in differences]),
    ), ((doubt,) if doubt else ())


def _list_highest(nats: Sequence[Float64]) -> tuple[float, ...]:
    """List the highest means a token of an answer, the highest first."""
    means = sorted((float(each.mean()) for each in nats), reverse=True)
    return tuple(means[:HIGHEST])


def _estimate_floor(evidence: QualityEvidence) -> MeanInterval | str:
    """Estimate the divergence of the sampling server from its own scores, or return why it cannot be had."""
    if not any(evidence.own):
        return "the sampling server did not score its own answers"
    differences = _list_differences(evidence.answers, evidence.own)
    if _is_impossible(differences):
        return _IMPOSSIBLE
    return _find_kl_interval(differences) if len(differences) > 1 else _FEW


def _average_rows(rows: Sequence[tuple[float, int]]) -> ClusterMean:
    """Average over sums and sizes, a pair a cluster, of those clusters that have a size."""
    sized = [row for row in rows if row[1]]
    return ClusterMean([row[0] for row in sized], [row[1] for row in sized])


def _measure_agreement(evidence: QualityEvidence) -> MeanInterval | str:
    """Measure the share of the text's positions where both have the same first choice, or return why not."""
    counts: list[tuple[int, int]] = []
    for one, two in zip(evidence.reference_text, evidence.candidate_text, strict=True):
        firsts = one.scores.firsts, two.scores.firsts
        if firsts[0] is None or firsts[1] is None:
            return _NO_FIRSTS
        same = sum(a == b for a, b in zip(firsts[0], firsts[1], strict=True))
        counts.append((same, len(firsts[0])))
    return _average_rows(counts).find_share_interval() or _FEW_SEGMENTS


def _measure_ratio(evidence: QualityEvidence) -> MeanInterval | str:
    """Measure the ratio of perplexities, candidate ÷ reference, paired by segment, or return why not."""
    rows = [
        (math.fsum(one.scores.logprobs) - math.fsum(two.scores.logprobs), len(one.scores.logprobs))
        for one, two in zip(evidence.reference_text, evidence.candidate_text, strict=True)
    ]
    found = _average_rows(rows).find_interval()
    if found is None:
        return _FEW_SEGMENTS
    mean, low, high = (math.exp(min(value, _MOST_LOG)) for value in (found.mean, found.low, found.high))
    return MeanInterval(mean=mean, low=low, high=high)


def _measure_perplexity(text: Sequence[TextSegment]) -> float:
    """Return exp of the mean negative log-probability of the text's tokens, pooled over its segments."""
    logprobs = [value for segment in text for value in segment.scores.logprobs]
    return math.exp(min(-math.fsum(logprobs) / len(logprobs), _MOST_LOG))


def _count_bits(texts: Mapping[str, Sequence[TextSegment]]) -> dict[str, MeanInterval] | str:
    """Return each server's bits per UTF-8 byte of text, with the interval over segments, or why not."""
    found = {}
    for name, text in texts.items():
        rows = [(-math.fsum(part.scores.logprobs) / math.log(2), part.scored_bytes) for part in text]
        bits = _average_rows(rows).find_interval()
        if bits is None:
            return _FEW_SEGMENTS
        found[name] = bits
    return found
