"""Checks: the closed set of what an audit looks for in anyone's figures, as `doubts` has that of our runs.

A check needs no more than what is published. Those whose question our own verdict answers better, from every
arrival, are not applied to our own runs (`OF_OURS`).
"""

from __future__ import annotations

from loadgen import rule
from loadgen.audit import arithmetic, likes, speed
from loadgen.audit.subject import AuditedRun
from loadgen.rule import Rule

CHECKS: tuple[Rule[AuditedRun], ...] = (
    # Figures that are impossible.
    speed.beyond_roofline,
    arithmetic.figures_disagree,
    arithmetic.impossible_order,
    arithmetic.beyond_schedule,
    arithmetic.nothing_measured,
    arithmetic.many_failures,
    # Figures that are not what they are called.
    likes.warm_cache,
    speed.beyond_peak,
    speed.above_roofline,
    speed.slow_kernel,
    arithmetic.unstreamed,
    arithmetic.failures,
    likes.duplicate,
    arithmetic.single_request,
    # Another load than that of the other runs.
    likes.answers_short,
    likes.prompts_off,
    likes.prompts_differ,
    likes.concurrency_differs,
    arithmetic.concurrency_not_held,
    arithmetic.tokens_recounted,
    # Notes.
    likes.requests_differ,
    likes.known_prompts,
    arithmetic.thin_percentiles,
    arithmetic.peak_below_mean,
    arithmetic.peak_over_limit,
    arithmetic.gaps_are_not_tokens,
    arithmetic.bursts,
    arithmetic.client_untold,
)
OF_OURS = frozenset({"warm-cache", "duplicate", "requests-differ"})  # applied to our own runs too
SAME_AS = {"warm-cache": "prefix-cache"}  # a doubt of our verdict: where it holds, the check is not repeated


def table() -> str:
    """Every check as Markdown, gravest first, as docs/audit.md has it."""
    return rule.table(CHECKS, "doubt", "###")
