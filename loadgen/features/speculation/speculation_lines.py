"""Speculation lines: tokens a step, the time of a step, who counted them, and why one is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from loadgen.features.speculation.speculation_figures import (
    COUNTERS,
    GAUGE,
    MESSAGES,
    REQUESTS,
    DraftCounts,
    Speculation,
    measure_speculation,
)
from loadgen.features.speculation.step_counts import MOST_TOKENS, RatioEstimate
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions

_OF_REQUESTS = ", by the server's count of each request"
_SERVERS = {COUNTERS: "the mean of the server's counters", GAUGE: "the server's gauge of its last steps"}


def describe_speculation(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on the split of TPOT, positions, sizes of steps, categories and sources."""
    split = result.derive(measure_speculation)
    if split is None:
        return
    yield _describe_split(split)
    for why, names in groupby(split.why.items(), lambda item: item[1]):
        yield f"not known: {', '.join(name for name, _ in names)}: {why}"
    if split.by_position:
        yield f"draft tokens accepted, by position: {_list_shares(split.by_position)}"
    if split.histogram:
        counts, steps = split.histogram, sum(split.histogram)
        more = f" (the last: {MOST_TOKENS} or more)" if len(counts) == MOST_TOKENS else ""
        yield f"steps of 1, 2, … tokens: {_list_shares([count / steps for count in counts])}{more}"
    if split.by_category:
        rows = (f"{name} {_format_estimate(length)}" for name, length in split.by_category.items())
        yield f"tokens a step, by category: {'; '.join(rows)}"
    yield from _describe_sources(split)


def summarize_speculation(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the split of TPOT, of a server that speculates."""
    if (split := result.derive(measure_speculation)) is not None:
        yield _describe_split(split)


def _describe_split(split: Speculation) -> str:
    length, step_ms, tpot_ms = split.acceptance_length, split.step_ms, split.tpot_ms
    if length is None:
        return "speculation: tokens a step are not known"
    if step_ms is None or tpot_ms is None:
        return f"speculation: {length.mean:.3g} tokens a step, {_SERVERS[split.source]}; step time not known"
    return (
        f"speculation: {_format_estimate(length, 'requests')} tokens a step, "
        f"{_format_estimate(step_ms, 'parts of the run')} ms a step: {tpot_ms.mean:.4g} ms a token"
        f"{_OF_REQUESTS if split.source == REQUESTS else ''}"
    )


def _format_estimate(estimate: RatioEstimate, units: str = "") -> str:
    """Format a mean with half of its 95 % interval, and the units that this is of."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.4g}"
    of = f" (95 %, {estimate.units} {units})" if units else ""
    return f"{estimate.mean:.4g} ± {(estimate.high - estimate.low) / 2:.2g}{of}"


def _list_shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{100 * share:.3g} %" for share in shares)


def _describe_sources(split: Speculation) -> Iterator[str]:
    """Yield a line on the counts by messages next to those by the server's counters."""
    messages, counters = split.sources.get(MESSAGES), split.sources.get(COUNTERS)
    counted = [] if messages is None else [f"messages: {messages.accepted} of {messages.tokens} tokens"]
    if counters is not None:
        counted.append(f"the server's counters: {counters.accepted}{_describe_drafts(counters)}")
    if counted:
        yield f"accepted draft tokens by {'; by '.join(counted)}"


def _describe_drafts(counters: DraftCounts) -> str:
    """Describe the drafts that counters know of, with vLLM's mean, which leaves out steps without one."""
    if not counters.drafts:
        return ""
    mean = 1 + (counters.accepted or 0) / counters.drafts
    return f" of {counters.draft_tokens} in {counters.drafts} drafts ({mean:.3g} tokens a draft)"
