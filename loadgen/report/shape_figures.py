"""Shape figures: what requests of each stage and class got, how many were cancelled, and their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from loadgen.base.arrays import Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.base.tables import Table
from loadgen.base.text import list_first
from loadgen.facts.run_facts import Facts
from loadgen.figures.metrics import mark_good, measure_part
from loadgen.figures.per_request import PerRequest
from loadgen.plan import random_prompts
from loadgen.plan.arrival import make_process
from loadgen.plan.plan import draw_cancellations
from loadgen.plan.planned_requests import ConcurrencySteps, make_cancellations
from loadgen.plan.request_sources import RandomStream, make_arrival_rng
from loadgen.records.record import Records
from loadgen.report.run_directory import Result
from loadgen.report.section import PartColumn, ReportOptions, make_part_table
from loadgen.settings.load_schedule import LoadSchedule, RampEnds
from loadgen.settings.load_settings import CancelPoint, parse_cancel_rate
from loadgen.verdict.reconcile import count_finished_after_cancel

_PARTS = 4  # in which a ramp is read
_NEVER_NS = 1 << 61  # no sum with a reading of a clock overflows
_STAGE_COLUMNS = (
    PartColumn("end_s", "until s", 1),
    PartColumn("requests", "requests", short="reqs"),
    PartColumn("rate_per_s", "req/s", 2),
    PartColumn("mean_in_flight", "in flight", 1),
    PartColumn("most_in_flight", "max"),
    PartColumn("mean_ttft_ms", "TTFT ms", 1),
    PartColumn("p99_ttft_ms", "P99", 1),
    PartColumn("p99_e2el_ms", "E2EL P99", 1),
)
_CLASS_COLUMNS = (
    PartColumn("share", "share"),
    PartColumn("requests", "requests", short="reqs"),
    PartColumn("failed", "failed", short="fail"),
    PartColumn("mean_lengths", "in / out"),
    PartColumn("mean_ttft_ms", "TTFT ms", 1),
    PartColumn("p99_ttft_ms", "P99", 1),
    PartColumn("mean_tpot_ms", "TPOT ms", 1, "TPOT"),
    PartColumn("mean_e2el_ms", "E2EL ms", 1),
    PartColumn("p99_e2el_ms", "P99", 1),
)
_MOST_NAMED = 3  # of those that a run did not come to


class ClassFigures(msgspec.Struct, frozen=True):
    """The figures of one class of requests; latencies in ms over its successes, NaN without any."""

    name: str
    asked_share: float  # of the requests, 0 to 1
    requests: int
    share: float  # of the run's requests, 0 to 1
    failed: int
    cancelled: int  # as planned
    completed: int  # the others
    input_tokens: int  # of successes
    output_tokens: int
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    mean_e2el_ms: float
    p99_e2el_ms: float
    good: int | None  # requests that met --goodput; None: no objective was given

    @property
    def mean_lengths(self) -> str:
        """The mean tokens of a success's prompt and answer, as 512 / 128."""
        lengths = (tokens / max(self.completed, 1) for tokens in (self.input_tokens, self.output_tokens))
        return " / ".join(f"{length:.0f}" for length in lengths)


class StageFigures(msgspec.Struct, frozen=True):
    """The figures of one stage; latencies in ms over successes that were due in it, NaN without any."""

    name: str
    begin_s: float  # after the start
    end_s: float
    requests: int  # that were due in it; of a closed loop, sent in it
    failed: int  # of these
    rate_per_s: float  # requests sent in it / its time
    mean_in_flight: float  # ∫ requests in flight dt / its time, those of earlier stages included
    most_in_flight: int
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_ttft_intended_ms: float  # from when each request was due
    mean_e2el_ms: float
    p99_e2el_ms: float


# A stage, or a quarter of a ramp: its name, as `rate 2 to 5.5`, its begin and end in ns after the start.
StageWindow = tuple[str, int, int]


def divide_by_stage(run: Result) -> list[StageFigures]:
    """Compute the figures of each stage of a schedule or ramp that the run reached.

    A partial run's last one ends when it stopped sending. [] if the load did not change, a trace decided it,
    or there are no records.
    """
    facts, records = run.facts, run.records
    if not facts.profile.shaped or facts.profile.timed or not len(records):
        return []
    windows, offsets_ns = _plan_stages(facts)
    if offsets_ns is None:
        due_ns, begin_ns = records.sent_ns, int(records.intended_ns.min())
    else:
        due_ns = records.intended_ns
        begin_ns = int(due_ns[0] - offsets_ns[records.index[0]])
    if facts.partial:
        next_ns = None
        if offsets_ns is not None:  # of the request after the last sent one
            following = offsets_ns[int(records.index.max()) + 1 :]
            next_ns = begin_ns + (int(following[0]) if len(following) else _NEVER_NS)
        until_ns = find_sending_end_ns(records, next_ns) - begin_ns
        windows = [
            (name, begin_ns, min(end_ns, until_ns))
            for name, begin_ns, end_ns in windows
            if begin_ns < until_ns
        ]
    each, sent = PerRequest.from_records(records, run.ask), records.sent
    flown_ns = np.sort(records.sent_ns[sent]) - begin_ns, np.sort(records.end_ns[sent]) - begin_ns
    return [_measure_stage(window, each, due_ns - begin_ns, flown_ns) for window in windows]


def list_unreached(facts: Facts, rows: Sequence[StageFigures]) -> list[str]:
    """List the names of stages that a partial run did not reach, [] of others; `rows` are the reached."""
    return [name for name, *_ in _plan_stages(facts)[0][len(rows) :]] if facts.partial else []


def _plan_stages(facts: Facts) -> tuple[list[StageWindow], Int64 | None]:
    """Return the planned stages, and when each request is due (ns; None: a closed loop)."""
    profile = facts.profile
    offsets_ns = None
    if profile.shaped and profile.open_loop and not profile.timed:
        process = make_process(profile, profile.num_prompts or facts.requests)
        offsets_ns = process.offsets_ns(facts.requests, make_arrival_rng(_make_stream(facts)))
    if (schedule := profile.stages) is not None:
        return list(_list_schedule_stages(schedule)), offsets_ns
    if (ramp := profile.ramp) is None or offsets_ns is None or len(offsets_ns) < _PARTS:
        return [], offsets_ns
    return list(_list_ramp_stages(ramp, profile.num_prompts or len(offsets_ns), offsets_ns)), offsets_ns


def _list_schedule_stages(schedule: LoadSchedule) -> Iterator[StageWindow]:
    """Yield the windows of a schedule's stages, four of each that changes, named by their levels."""
    kind, begin_s = "concurrency" if schedule.concurrency else "rate", 0.0
    limits = ConcurrencySteps(*schedule.list_steps()) if schedule.concurrency else None
    for stage in schedule.stages:
        parts = 1 if stage.constant else _PARTS
        edges_s = np.linspace(0.0, stage.span_s, parts + 1).tolist()
        for from_s, to_s in pairwise(edges_s):
            begin_ns, end_ns = (round((begin_s + at_s) * SECOND_NS) for at_s in (from_s, to_s))
            levels = [stage.compute_level(from_s), stage.compute_level(to_s)]
            if limits is not None:  # whole numbers, of which the last one ends with the part
                levels = [limits.limit(begin_ns), limits.limit(end_ns - 1)]
            yield _name_stage(kind, levels), begin_ns, end_ns
        begin_s += stage.span_s


def _list_ramp_stages(ramp: RampEnds, count: int, offsets_ns: Int64) -> Iterator[StageWindow]:
    """Yield the windows of a ramp's four quarters of requests, each with the gap after its last request."""
    n = len(offsets_ns)
    edges = [n * part // _PARTS for part in range(_PARTS + 1)]
    rates_per_s = ramp.compute_rates_per_s(count, n)
    last_gap_ns = round(SECOND_NS / float(rates_per_s[-1]))  # each request has the gap that follows it
    ends_ns = [*offsets_ns[edges[1:-1]].tolist(), int(offsets_ns[-1]) + last_gap_ns]
    begin_ns = 0
    for (first, last), end_ns in zip(pairwise(edges), ends_ns, strict=True):
        yield _name_stage("rate", rates_per_s[[first, last - 1]].tolist()), begin_ns, end_ns
        begin_ns = end_ns


def _name_stage(kind: str, levels: Sequence[float]) -> str:
    shown = (f"{level:.0f}" if level >= 100 else f"{level:.3g}" for level in levels)
    return f"{kind} " + " to ".join(dict.fromkeys(shown))


def find_sending_end_ns(records: Records, next_due_ns: int | None) -> int:
    """Return by when, in ns, a run that ended early had stopped sending: at least 1 ns after the last send.

    In an open loop that is when the next request was due, `next_due_ns`, or the last answer ended if that was
    earlier; in a closed loop (None) when the first answer after the last send ended.
    """
    sent_ns, end_ns = records.sent_ns[records.sent], records.end_ns[records.sent]
    last_ns = int(sent_ns.max(initial=0))
    later_ns = end_ns[end_ns > last_ns]
    if not len(later_ns):
        return last_ns + 1
    followed_ns = later_ns.min() if next_due_ns is None else min(next_due_ns, later_ns.max())
    return max(int(followed_ns), last_ns + 1)


def _measure_stage(
    window: StageWindow, each: PerRequest, due_ns: Int64, flown_ns: tuple[Int64, Int64]
) -> StageFigures:
    """Compute a window's figures; times are in ns after the start, `flown_ns` sorted starts and ends."""
    name, begin_ns, end_ns = window
    part = (due_ns >= begin_ns) & (due_ns < end_ns)
    starts_ns, ends_ns = flown_ns
    first, last = np.searchsorted(starts_ns, [begin_ns, end_ns])
    # The most at once are there at the window's begin, or as one of its requests starts.
    moments = np.concatenate([[begin_ns], starts_ns[first:last]])
    in_flight = np.searchsorted(starts_ns, moments, "right") - np.searchsorted(ends_ns, moments, "right")
    span_ns = max(end_ns - begin_ns, 1)
    under_way_ns = sum_exactly(ends_ns.clip(begin_ns, end_ns)) - sum_exactly(starts_ns.clip(begin_ns, end_ns))
    return StageFigures(
        name=name,
        begin_s=begin_ns / SECOND_NS,
        end_s=end_ns / SECOND_NS,
        requests=int(part.sum()),
        failed=int((part & each.failed).sum()),
        rate_per_s=int(last - first) * SECOND_NS / span_ns,
        mean_in_flight=under_way_ns / span_ns,
        most_in_flight=int(in_flight.max()),
        **measure_part(StageFigures, each, part),
    )


def name_classes(run: Result) -> list[str]:
    """Return the class name of each request; "" of each if the run has no classes."""
    numbers = _number_classes(run)
    if numbers is None:
        return [""] * len(run.records)
    names = [kind.name for kind in run.facts.profile.classes]
    return [names[number] for number in numbers.tolist()]


def divide_by_class(run: Result) -> list[ClassFigures]:
    """Compute the figures of each class of requests; [] if the run has no classes."""
    numbers, rows = _number_classes(run), []
    if numbers is None:
        return []
    each = PerRequest.from_records(run.records, run.ask)
    met = mark_good(each, run.ask)
    for number, kind in enumerate(run.facts.profile.classes):
        part = numbers == number
        rows.append(
            ClassFigures(
                name=kind.name,
                asked_share=kind.share / 100,
                requests=int(part.sum()),
                share=float(part.mean()) if len(part) else 0.0,
                failed=int((part & each.failed).sum()),
                cancelled=int((part & each.cancelled).sum()),
                completed=int((part & each.ok).sum()),
                input_tokens=int(each.input_tokens[part & each.ok].clip(0).sum()),
                output_tokens=int(each.output_tokens[part & each.ok].sum()),
                good=None if met is None else int((met & part).sum()),
                **measure_part(ClassFigures, each, part),
            )
        )
    return rows


def _number_classes(run: Result) -> Int64 | None:
    """Draw again the class number of each request, int64[requests]; None if the run has no classes."""
    classes = run.facts.profile.classes
    if not classes:
        return None
    return random_prompts.draw_classes(classes, _make_stream(run.facts), run.facts.requests)[
        run.records.index
    ]


def _make_stream(facts: Facts) -> RandomStream:
    return RandomStream(facts.seed, facts.profile.name, facts.repeat, attempt=facts.attempt)


def make_stage_table(result: Result) -> Table:
    """Make the table of the stages; without rows if the load did not change."""
    rows = ((row.name, row) for row in result.derive(divide_by_stage))
    return make_part_table("Stage", "by_stage", _STAGE_COLUMNS, rows)


def name_unreached(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the first three stages that a partial run did not reach; nothing if it reached all."""
    if missing := list_unreached(result.facts, result.derive(divide_by_stage)):
        yield f"not reached: {list_first(missing, _MOST_NAMED)}"


def make_class_table(result: Result) -> Table:
    """Make the table of the classes; without rows if there are none."""
    rows = ((row.name, row) for row in result.derive(divide_by_class))
    return make_part_table("Class", "by_class", _CLASS_COLUMNS, rows)


def describe_classes(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on each class's requests that were cancelled as planned, and that met --goodput."""
    rows = result.derive(divide_by_class)
    if result.facts.profile.cancel_point is not None:
        cancelled = (f"{row.name} {row.cancelled} of {row.requests}" for row in rows)
        yield f"cancelled by class: {', '.join(cancelled)} requests"
    if any(row.good is not None for row in rows):
        met = (f"{row.name} {row.good} of {row.completed + row.failed}" for row in rows)
        yield f"goodput by class: {', '.join(met)} requests met the objectives"


def describe_cancelled(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on the requests cancelled as planned, and the server's count; nothing if none are."""
    facts, records = result.facts, result.records
    count, point = int(records.index.max(initial=-1)) + 1, facts.profile.cancel_point
    if point is not None:
        rate = parse_cancel_rate(facts.profile.cancel_rate)
        cancellations = draw_cancellations(rate, point, _make_stream(facts), count)
    elif facts.cancels:  # the trace's
        own = {at: CancelPoint(after_ns, tokens) for at, after_ns, tokens in facts.cancels if at < count}
        cancellations = make_cancellations(own, count)
    else:
        return
    planned = int(np.count_nonzero(cancellations.chosen[records.index] & records.sent))
    cancelled = result.whole.cancelled
    line = f"cancelled as the trace says: {cancelled} of {planned} requests"
    if facts.profile.cancel_rate:
        share = f"{100 * parse_cancel_rate(facts.profile.cancel_rate):g} %"
        line = f"cancelled as planned: {cancelled} of {planned} ({share} of the requests)"
        line += f" after {cancellations.point}"
    if cancelled:
        rows = np.flatnonzero(records.cancelled)
        due_ns = np.zeros(len(rows), np.int64)
        for at, row in enumerate(rows.tolist()):
            point = cancellations.find_point(int(records.index[row]))
            last_ns = records.arrival_ns[records.start[row + 1] - 1] if point.after_tokens else 0
            due_ns[at] = last_ns or records.sent_ns[row] + point.after_ns
        line += f", {(records.end_ns[rows] - due_ns).mean() / 1e6:.2f} ms late on average"
    yield line
    if planned > cancelled:
        yield f"not cancelled: {planned - cancelled} of these ended before, or failed"
    if cancelled:
        yield f"figures are of the {result.whole.completed} requests that completed"
    if not cancelled or facts.window is None or facts.window.finished is None:
        return
    if aborted := facts.window.requests.get("abort"):
        yield f"the server counts {aborted} aborted requests, {cancelled} were cancelled"
    elif not count_finished_after_cancel(facts.window, result.whole):
        yield f"the server counts no abort, and finished none of the {cancelled} cancelled requests"
