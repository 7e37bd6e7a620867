"""Speculation figures: acceptance length (tokens a step), time a step, who counts them, where one drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
import numpy as np

from loadgen.base.arrays import Bool
from loadgen.base.clock import MS_NS
from loadgen.features.speculation.step_counts import (
    MOST_TOKENS,
    RatioEstimate,
    StepCounts,
    count_accepted,
    count_all,
    estimate_over_time,
    estimate_ratio_of_sums,
    explain_apart,
    explain_hidden_steps,
    find_counters,
    sum_over_time,
)
from loadgen.records.record import Records
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions
from loadgen.server.server_counters import ServerWindow

MESSAGES, REQUESTS, COUNTERS, GAUGE = "messages", "requests", "counters", "gauge"
_INEXACT = "the tokens of each chunk are not known: pass --continuous-usage"
_NO_STEPS = "no response has two chunks and a count of its tokens by the server"
_HIDDEN = "the chunks are not steps: the server's count of each request has their number alone"


class DraftCounts(msgspec.Struct, frozen=True):
    """What one source counts of a run's decoding; None where it does not count that."""

    tokens: int | None = None  # after each answer's first message
    steps: int | None = None  # that gave them
    drafts: int | None = None  # steps with a draft to verify
    draft_tokens: int | None = None
    accepted: int | None = None  # draft tokens; a server's own count has those past an answer's end too
    acceptance_length: float | None = None  # tokens / steps; of drafts alone where steps are not known
    by_position: tuple[float, ...] = ()  # share of the drafts whose token at this position was accepted


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """A run's speed split by speculation: TPOT = step time ÷ acceptance length.

    Each is a ratio of sums over the messages after an answer's first. An answer's end cuts its last step: if
    the tokens of messages are known, what it cut off is estimated and counts. None where `why` says so.
    """

    acceptance_length: RatioEstimate | None = None  # tokens a step; its interval is of requests
    # Its interval is of parts of the run: requests at once share their steps.
    step_ms: RatioEstimate | None = None
    tpot_ms: RatioEstimate | None = None  # the same sums over tokens; its interval is of parts too
    # Share of the steps that accepted a first, second, … draft token; by counters, of the drafts.
    by_position: tuple[float, ...] = ()
    histogram: tuple[int, ...] = ()  # steps with 1, 2, … tokens; the last, the 64th, for more
    by_category: Mapping[str, RatioEstimate] = {}  # acceptance length, by the data set's category
    # The acceptance length comes from messages, the server's counts of each request, counters or a gauge.
    source: str = ""  # "": there is none
    sources: Mapping[str, DraftCounts] = {}  # what each counted
    why: Mapping[str, str] = {}  # figure → why it is None


def measure_speculation(run: Result) -> Speculation | None:
    """Measure a run's speculation; None if its server is not known to speculate."""
    return measure_split(run) if run.facts.speculates else None


def measure_split(run: Result) -> Speculation:
    """Split a run's TPOT into step time and acceptance length, also of a server that does not speculate.

    The messages are steps unless the server's counters or their sizes contradict. Then each request's steps
    are those that the server reports with it; else the acceptance length is the counters' own mean, and the
    step time is refused.
    """
    facts, window = run.facts, find_counters(run.facts)
    by_server = {} if window is None else _count_by_server(window, run.whole.completed)
    if not run.ask.streamed:
        return _take_server_mean(by_server, "the responses were not streamed")
    if not run.ask.arrivals_are_tokens:
        return _take_server_mean(by_server, "what arrived is not tokens (arrivals-not-tokens)")
    counts = StepCounts.from_records(run.counted, run.counted.ok)
    reported = counts.take_reported(run.counted)
    of_requests = {} if reported is None else {REQUESTS: _count_reported(reported, run.counted)}
    sources = {MESSAGES: _count_steps(counts), **of_requests, **by_server}
    if not counts.steps.any():
        return _take_server_mean(sources, _NO_STEPS)
    why = ""
    if facts.speculates:
        every = count_all(run.records)
        why = explain_hidden_steps(facts, every) or explain_apart(facts, every) or ""
    if not why:
        return _estimate_split(run, counts.complete_ends(run.counted), MESSAGES, sources)
    if reported is not None:
        return _estimate_split(run, reported, REQUESTS, sources)
    return _take_server_mean(sources, why, ("by_category",) if list_categories(run) else ())


def _estimate_split(
    run: Result, counts: StepCounts, source: str, sources: Mapping[str, DraftCounts]
) -> Speculation:
    """Estimate the split by counted steps; without the tokens of each message positions are the server's."""
    of_drafts = _count_steps(counts) if counts.exact else sources.get(COUNTERS, DraftCounts())
    unknown = () if counts.exact else ("histogram", *(() if of_drafts.by_position else ("by_position",)))
    tokens, steps, span_ns = sum_over_time(counts, run.counted)
    return Speculation(
        acceptance_length=estimate_ratio_of_sums(counts.tokens + counts.past, counts.steps),
        step_ms=estimate_over_time(span_ns, steps, 1 / MS_NS),
        tpot_ms=estimate_over_time(span_ns, tokens, 1 / MS_NS),
        by_position=of_drafts.by_position,
        histogram=tuple(np.trim_zeros(counts.histogram[1:], "b").tolist()),
        by_category=_divide_by_category(run, counts),
        source=source,
        sources=sources,
        why=dict.fromkeys(unknown, _INEXACT if source == MESSAGES else _HIDDEN),
    )


def _take_server_mean(
    sources: Mapping[str, DraftCounts], why: str, also: tuple[str, ...] = ()
) -> Speculation:
    """Make the figures of a run whose messages are not steps: the server's own mean, without an interval.

    Figures that need steps, and those that `also` names, are None because of `why`.
    """
    refused = dict.fromkeys(("step_ms", "tpot_ms", "histogram", *also), why)
    of_server = {name: counts for name, counts in sources.items() if name in (COUNTERS, GAUGE)}
    known = {name: mean for name, counts in of_server.items() if (mean := counts.acceptance_length)}
    source = next(iter(known), "")
    if not source:
        return Speculation(sources=sources, why={"acceptance_length": why, **refused})
    return Speculation(
        acceptance_length=RatioEstimate(known[source]),
        by_position=of_server[source].by_position,
        source=source,
        sources=sources,
        why=refused,
    )


def _count_steps(counts: StepCounts) -> DraftCounts:
    """Count tokens, steps and accepted tokens by the messages; no positions without a histogram."""
    tokens, steps = int(counts.tokens.sum()), int(counts.steps.sum())
    # A step of n tokens accepted the draft's first n − 1.
    reached = np.cumsum(counts.histogram[::-1])[::-1][2:] / max(int(counts.histogram.sum()), 1)
    return DraftCounts(
        tokens=tokens,
        steps=steps,
        accepted=tokens - steps,
        acceptance_length=tokens / steps if steps else None,
        by_position=tuple(float(share) for share in reached[reached > 0]),
    )


def _count_reported(counts: StepCounts, records: Records) -> DraftCounts:
    """Sum what the server reports of each request with a step; drafts None if one lacks them."""
    tokens, steps, some = int(counts.tokens.sum()), int(counts.steps.sum()), counts.steps > 0
    drafts, accepted = records.server_drafts[some], records.server_accepted_tokens[some]
    return DraftCounts(
        tokens=tokens,
        steps=steps,
        drafts=int(drafts.sum()) if (drafts >= 0).all() else None,
        accepted=int(accepted.sum()),
        acceptance_length=tokens / steps,
    )


def _count_by_server(window: ServerWindow, completed: int) -> dict[str, DraftCounts]:
    """Count a run's steps by the server's counters, and by its gauge of the mean where it has no counter.

    Of T tokens after the first, T − accepted came with a step of their own; where every step drafts, drafts
    are the steps, also those whose tokens went past an answer's end. `completed` are the answers of a server
    that does not count them.
    """
    found: dict[str, DraftCounts] = {}
    if (accepted := count_accepted(window)) is not None:
        tokens, drafts = None, window.drafts
        if window.generation_tokens is not None:
            answers = completed if window.finished is None else window.finished
            tokens = max(window.generation_tokens - answers, 0)
        steps = None if tokens is None else max(tokens - accepted, drafts or 0)
        mean = tokens / steps if tokens and steps else None
        if mean is None and drafts:
            mean = 1 + accepted / drafts
        found[COUNTERS] = DraftCounts(
            tokens=tokens,
            steps=steps,
            drafts=drafts,
            draft_tokens=window.draft_tokens,
            accepted=accepted,
            acceptance_length=mean,
            by_position=tuple(count / drafts for count in window.accepted_by_position) if drafts else (),
        )
    if window.accept_length:
        found[GAUGE] = DraftCounts(acceptance_length=window.accept_length)
    return found


def list_categories(run: Result) -> Sequence[str] | None:
    """List the data set's category of each counted request; None if it has none."""
    return run.facts.data.list_categories(run.counted.index) or None


def _divide_by_category(run: Result, counts: StepCounts) -> dict[str, RatioEstimate]:
    """Estimate the acceptance length of each category, in the order of their first requests; {} if none."""
    categories = list_categories(run)
    if categories is None:
        return {}
    names = np.array(categories)
    divided: dict[str, RatioEstimate] = {}
    for name in dict.fromkeys(categories):
        mask: Bool = names == name
        length = estimate_ratio_of_sums((counts.tokens + counts.past)[mask], counts.steps[mask])
        if length is not None:
            divided[name] = length
    return divided


def list_steps(run: Result) -> list[int | None]:
    """List the steps of each success after its first message; None of others, and without two messages."""
    steps = StepCounts.from_records(run.records, run.records.ok).steps
    return [count or None for count in steps.tolist()]


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
    messages, counters = split.sources.get(MESSAGES), split.sources.get(COUNTERS)
    counted = [] if messages is None else [f"chunks: {messages.accepted} of {messages.tokens} tokens"]
    if counters is not None:
        own = f"the server's counters: {counters.accepted}"
        if counters.drafts:
            # vLLM's mean, which leaves out steps without a draft.
            mean = 1 + (counters.accepted or 0) / counters.drafts
            own += f" of {counters.draft_tokens} in {counters.drafts} drafts ({mean:.3g} tokens a draft)"
        counted.append(own)
    if counted:
        yield f"accepted draft tokens by {'; by '.join(counted)}"


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
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.4g}"
    of = f" (95 %, {estimate.units} {units})" if units else ""
    return f"{estimate.mean:.4g} ± {(estimate.high - estimate.low) / 2:.2g}{of}"


def _list_shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{100 * share:.3g} %" for share in shares)
