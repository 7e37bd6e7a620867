"""Speculation figures: tokens a step, time a step and who counts them, of a run whose server drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import MS_NS
from loadgen.facts.run_facts import Facts
from loadgen.features.speculation.step_counts import RatioEstimate, StepCounts, estimate_ratio_of_sums
from loadgen.report.run_directory import Result, ResultPart
from loadgen.server.server_counters import ServerWindow

MESSAGES, COUNTERS, GAUGE = "messages", "counters", "gauge"
APART = 0.01  # of the tokens after the first: counts that differ by less agree
_HIDDEN = 2  # tokens that each message has at least where an interval or a buffer joins steps
_JUDGED = 16  # messages in the middle of answers without which that shows nothing
_INEXACT = "the tokens of each message are not known: pass --continuous-usage"


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

    Each is a ratio of sums over the tokens after an answer's first message; None where `why` says so.
    """

    acceptance_length: RatioEstimate | None = None  # tokens a step; its interval is of requests
    step_ms: RatioEstimate | None = None  # its interval is of waves: requests at once share their steps
    tpot_ms: RatioEstimate | None = None  # the same sums over tokens; its interval is of waves too
    by_position: tuple[float, ...] = ()  # share of the steps that accepted a first, second, … draft token
    histogram: tuple[int, ...] = ()  # steps with 1, 2, … tokens; the last, the 64th, for more
    by_category: Mapping[str, RatioEstimate] = {}  # acceptance length, by the data set's category
    source: str = ""  # of the acceptance length: messages, counters or gauge; "": there is none
    sources: Mapping[str, DraftCounts] = {}  # what each counted
    why: Mapping[str, str] = {}  # figure → why it is None


def is_speculative(facts: Facts) -> bool:
    """Whether a run's server is known to speculate, by its settings or its counters."""
    window = facts.window
    drafted = window is not None and bool(window.drafts or window.draft_tokens or window.accept_length)
    return drafted or (facts.as_run is not None and facts.as_run.speculative != "")


def measure_speculation(run: Result) -> Speculation | None:
    """Measure a run's speculation; None if its server is not known to speculate."""
    return measure_split(run) if is_speculative(run.facts) else None


def measure_split(run: Result) -> Speculation:
    """Split a run's TPOT into step time and acceptance length, also of a server that does not speculate.

    The messages are steps unless the server's counters or their sizes contradict; then the acceptance length
    is the counters' own mean, and the step time is refused.
    """
    facts, window = run.facts, find_counters(run)
    sources: dict[str, DraftCounts] = {}
    if window is not None:
        sources |= _count_by_server(window)
    why = _explain_untimed(run)
    if not why:
        counts = StepCounts.from_records(run.counted, run.counted.ok)
        why = (
            "" if counts.steps.any() else "no answer has two messages and a count of its tokens by the server"
        )
    if not why:
        sources = {MESSAGES: _count_by_messages(counts), **sources}
        if is_speculative(facts):
            why = explain_hidden_steps(run) or ""
    if why:
        return _take_server_mean(sources, why)
    wave = max(1, round(run.metrics.mean_concurrency))
    return Speculation(
        acceptance_length=estimate_ratio_of_sums(counts.tokens, counts.steps),
        step_ms=estimate_ratio_of_sums(counts.span_ns, counts.steps, 1 / MS_NS, wave),
        tpot_ms=estimate_ratio_of_sums(counts.span_ns, counts.tokens, 1 / MS_NS, wave),
        by_position=sources[MESSAGES].by_position,
        histogram=_trim(counts.histogram),
        by_category=_divide_by_category(run, counts),
        source=MESSAGES,
        sources=sources,
        why={} if counts.exact else dict.fromkeys(("histogram", "by_position"), _INEXACT),
    )


def find_counters(run: Result) -> ServerWindow | None:
    """Return the server's counters, if they are of this run alone and settled; else None."""
    window = run.facts.window if run.facts.whole_load else None
    return None if window is None or window.error or window.reset else window


def explain_hidden_steps(run: Result) -> str | None:
    """Explain why messages are not steps, from their sizes and the server's counters; None if they are."""
    records, window = run.records, find_counters(run)
    counts = StepCounts.from_records(records, np.ones(len(records), np.bool_))
    tokens, steps = int(counts.tokens.sum()), int(counts.steps.sum())
    if not steps:
        return None
    accepted = None if window is None else window.accepted_tokens
    if accepted is None:
        middle = int(counts.histogram.sum())
        if counts.least >= _HIDDEN and middle >= _JUDGED:
            return f"each message carries {counts.least} tokens or more: it holds several steps"
        return None
    if tokens - steps > accepted + APART * tokens:
        return (
            f"messages carry {tokens - steps} tokens beyond one each, and only {accepted} draft tokens were "
            "accepted: a message holds several steps"
        )
    past = (_find_longest_draft(window) or MOST_PAST) * int((counts.steps > 0).sum())
    if tokens - steps < accepted - past - APART * tokens:
        return (
            f"{accepted} draft tokens were accepted, and messages carry only {tokens - steps} beyond one "
            "each: a step comes in several messages"
        )
    return None


MOST_PAST = 16  # tokens of a draft past an answer's end, where its length is not known


def _find_longest_draft(window: ServerWindow | None) -> int:
    """Return the tokens of the longest draft that the counters know of; 0 if they do not."""
    return 0 if window is None else len(window.accepted_by_position)


def _explain_untimed(run: Result) -> str:
    """Explain why a run has no messages to count; "" if it has."""
    if not run.ask.streamed:
        return "the answers were not streamed"
    if not run.ask.arrivals_are_tokens:
        return "what arrived is not tokens (arrivals-not-tokens)"
    return ""


def _take_server_mean(sources: Mapping[str, DraftCounts], why: str) -> Speculation:
    """Make the figures of a run whose messages are not steps: the server's own mean, without an interval."""
    of_server = {name: counts for name, counts in sources.items() if name != MESSAGES}
    known = {name: mean for name, counts in of_server.items() if (mean := counts.acceptance_length)}
    source = next(iter(known), "")
    refused = dict.fromkeys(("step_ms", "tpot_ms", "by_category", "histogram"), why)
    if not source:
        return Speculation(sources=sources, why={"acceptance_length": why, **refused})
    return Speculation(
        acceptance_length=RatioEstimate(known[source]),
        by_position=of_server[source].by_position,
        source=source,
        sources=sources,
        why=refused,
    )


def _count_by_messages(counts: StepCounts) -> DraftCounts:
    tokens, steps = int(counts.tokens.sum()), int(counts.steps.sum())
    # A step of n tokens accepted the draft's first n − 1.
    reached = np.cumsum(counts.histogram[::-1])[::-1][2:] / max(steps, 1)
    return DraftCounts(
        tokens=tokens,
        steps=steps,
        accepted=tokens - steps,
        acceptance_length=tokens / steps if steps else None,
        by_position=tuple(float(share) for share in reached[reached > 0]),
    )


def _count_by_server(window: ServerWindow) -> dict[str, DraftCounts]:
    """Count a run's steps by the server's counters, and by its gauge of the mean where it has no counter.

    Of T tokens after the first, T − accepted came with a step of their own; where every step drafts, drafts
    are the steps, also those whose tokens went past an answer's end.
    """
    found: dict[str, DraftCounts] = {}
    if (accepted := window.accepted_tokens) is not None:
        tokens, drafts = None, window.drafts
        if window.generation_tokens is not None and window.finished is not None:
            tokens = max(window.generation_tokens - window.finished, 0)
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


def _trim(histogram: Int64) -> tuple[int, ...]:
    """Return the counts from one token on, without the zeros behind the last."""
    return tuple(np.trim_zeros(histogram[1:], "b").tolist())


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
        length = estimate_ratio_of_sums(counts.tokens[mask], counts.steps[mask])
        if length is not None:
            divided[name] = length
    return divided


PARTS: Mapping[str, ResultPart] = {"speculation": ResultPart(is_speculative, measure_speculation)}
