"""Checks: the closed set of what an audit checks in anyone's figures, as `doubts` is that of our runs.

A check needs no more than what is published. Those whose question our own verdict answers better, from every
arrival, are not applied to our own runs (`OF_OURS`).
"""

from __future__ import annotations

from loadgen.base.rule import Rule
from loadgen.study.audit import nominal_lengths, peer_checks, roofline_checks
from loadgen.study.consistency import self_consistency, value_checks
from loadgen.study.consistency.contradictions import CONTRADICTIONS
from loadgen.study.consistency.subject import AuditedRun

CHECKS: tuple[Rule[AuditedRun], ...] = (
    # Figures that are impossible.
    value_checks.impossible_value,
    roofline_checks.beyond_roofline,
    *(each for each in CONTRADICTIONS if each is not value_checks.impossible_value),
    # Figures that are not what they are called.
    peer_checks.warm_cache,
    roofline_checks.beyond_peak,
    roofline_checks.above_roofline,
    roofline_checks.draft_not_stated,
    roofline_checks.draft_not_seen,
    roofline_checks.slow_kernel,
    value_checks.not_a_number,
    self_consistency.unstreamed,
    self_consistency.failures,
    peer_checks.duplicate,
    self_consistency.single_request,
    # Another load than that of the other runs.
    peer_checks.answers_short,
    peer_checks.prompts_off,
    peer_checks.prompts_differ,
    peer_checks.concurrency_differs,
    self_consistency.concurrency_not_held,
    self_consistency.tokens_recounted,
    # Notes.
    peer_checks.requests_differ,
    peer_checks.known_prompts,
    nominal_lengths.nine_tenths,
    self_consistency.thin_percentiles,
    self_consistency.peak_below_mean,
    self_consistency.peak_over_limit,
    self_consistency.gaps_are_not_tokens,
    self_consistency.bursts,
    self_consistency.client_untold,
)
OF_OURS = frozenset({"warm-cache", "duplicate", "requests-differ"})  # applied to our own runs too
SAME_AS = {"warm-cache": "prefix-cache"}  # a doubt of our verdict: where it holds, the check is not repeated
