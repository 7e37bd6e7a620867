"""Cancel lines: how many requests were cancelled as planned, how exactly, and what the server made of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.figures.record import Records
from loadgen.plan.cancellations import drawn
from loadgen.plan.streams import RandomStream
from loadgen.report.run_directory import Result
from loadgen.settings.cancel_point import CancelPoint, parse_rate
from loadgen.verdict.reconcile import finished_after_cancel
from loadgen.verdict.run_facts import Facts


def cancel_lines(result: Result) -> Iterator[str]:
    """What became of the requests that the plan cancels; nothing where it cancels none."""
    facts, records = result.facts, result.records
    point = facts.profile.cancel_point
    if point is None:
        return
    planned, cancelled = _planned(facts, records, point), result.whole.cancelled
    share = f"{100 * parse_rate(facts.profile.cancel_rate):g} %"
    line = f"cancelled as planned: {cancelled} of {planned} ({share} of the requests) after {point}"
    if cancelled:
        line += f", {_late_ns(records, point).mean() / 1e6:.2f} ms late on average"
    yield line
    if planned > cancelled:
        yield f"not cancelled: {planned - cancelled} of these ended before, or failed"
    if cancelled:
        yield f"figures are of the {result.whole.completed} requests that were answered in full"
        yield from _server_lines(result)


def _planned(facts: Facts, records: Records, point: CancelPoint) -> int:
    """How many of the requests that were sent the plan had chosen: drawn again, as the plan drew them."""
    stream = RandomStream(facts.seed, facts.profile.name, facts.repeat, attempt=facts.attempt)
    count = int(records.index.max(initial=-1)) + 1
    chosen = drawn(parse_rate(facts.profile.cancel_rate), point, stream, count).chosen
    return int(np.count_nonzero(chosen[records.index] & records.sent))


def _late_ns(records: Records, point: CancelPoint) -> Int64:
    """How long after it was due each cancelled request was closed: after its last token, where they count."""
    rows = np.flatnonzero(records.cancelled)
    if not point.after_tokens:
        return records.end_ns[rows] - records.sent_ns[rows] - point.after_ns
    due_ns = [records.arrival_ns[records.start[row + 1] - 1] for row in rows]
    return records.end_ns[rows] - np.array(due_ns, np.int64)


def _server_lines(result: Result) -> Iterator[str]:
    """What the server's counters show of the cancelled requests, where they show something."""
    window, cancelled = result.facts.window, result.whole.cancelled
    if window is None or window.finished is None:
        return
    if aborted := window.requests.get("abort"):
        yield f"the server counts {aborted} aborted requests, {cancelled} were cancelled"
    elif not finished_after_cancel(window, result.whole):
        yield f"the server counts no abort, and finished none of the {cancelled} cancelled requests"
