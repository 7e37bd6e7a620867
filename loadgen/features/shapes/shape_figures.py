"""Shape figures: stages of a load over time, classes of a mixed one, how late requests were sent."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.figures import part_figures
from loadgen.figures.metrics import good
from loadgen.figures.part_figures import ClassFigures, StageFigures
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.figures.percentiles import percentiles
from loadgen.figures.record import Records
from loadgen.plan import arrival
from loadgen.plan.arrival import StageWindow
from loadgen.plan.prompts import random_ids
from loadgen.plan.random_stream import RandomStream
from loadgen.verdict.run_facts import Facts

_NEVER_NS = 1 << 61  # no sum with a reading of a clock overflows


def compute_by_stage(facts: Facts, records: Records, ask: MetricOptions) -> list[StageFigures]:
    """The figures of each stage of a schedule or ramp; empty where the load did not change."""
    profile = facts.profile
    if not profile.shaped or profile.timed or not len(records):
        return []
    windows, offsets_ns = _plan_stages(facts)
    if offsets_ns is None:
        due_ns, begin_ns = records.sent_ns, int(records.intended_ns.min())
    else:
        due_ns = records.intended_ns
        begin_ns = int(due_ns[0] - offsets_ns[records.index[0]])
    if facts.partial:
        next_ns = None if offsets_ns is None else _find_next_due_ns(offsets_ns, records) + begin_ns
        windows = part_figures.reached_windows(
            windows, part_figures.sending_ended_ns(records, next_ns) - begin_ns
        )
    return part_figures.stage_figures(windows, records, PerRequest.of(records, ask), due_ns, begin_ns)


def name_unreached(facts: Facts, rows: Sequence[StageFigures]) -> list[str]:
    """The names of the stages that a run which ended early did not come to; `rows` are those it did."""
    return [window.name for window in _plan_stages(facts)[0][len(rows) :]] if facts.partial else []


def _plan_stages(facts: Facts) -> tuple[list[StageWindow], Int64 | None]:
    """The stages as planned, and when each request is due; None: a closed loop has no such times."""
    offsets_ns = arrival.plan_offsets_ns(facts.profile, _make_stream(facts), facts.requests)
    return arrival.list_stages(facts.profile, offsets_ns), offsets_ns


def _find_next_due_ns(offsets_ns: Int64, records: Records) -> int:
    """When the request after the last of these is due, after the start; of the plan's last one never."""
    following = offsets_ns[int(records.index.max()) + 1 :]
    return int(following[0]) if len(following) else _NEVER_NS


def number_classes(facts: Facts, records: Records) -> Int64 | None:
    """The class of each request, int64[requests]; None where there is one class."""
    if not facts.profile.classes:
        return None
    numbers = random_ids.draw_classes(facts.profile.classes, _make_stream(facts), facts.requests)
    return numbers[records.index]


def name_classes(facts: Facts, records: Records) -> list[str]:
    """The name of each request's class; "" where there is one class."""
    numbers = number_classes(facts, records)
    if numbers is None:
        return [""] * len(records)
    names = [kind.name for kind in facts.profile.classes]
    return [names[number] for number in numbers.tolist()]


def compute_by_class(facts: Facts, records: Records, ask: MetricOptions) -> list[ClassFigures]:
    """The figures of each class; empty where there is one class."""
    numbers = number_classes(facts, records)
    if numbers is None:
        return []
    each = PerRequest.of(records, ask)
    return part_figures.class_figures(facts.profile.classes, numbers, each, good(each, ask))


def _make_stream(facts: Facts) -> RandomStream:
    return RandomStream(facts.seed, facts.profile.name, facts.repeat, attempt=facts.attempt)


def describe_lateness(records: Records) -> str:
    """How much later than due requests were sent, in words; "" where none was sent."""
    late_ns = (records.sent_ns - records.intended_ns)[records.sent]
    if not len(late_ns):
        return ""
    mean_ms, most_ms = float(late_ns.mean()) / MS_NS, float(late_ns.max()) / MS_NS
    median_ms, p99_ms = (value / MS_NS for value in percentiles(late_ns.copy(), (50, 99)))
    return f"{mean_ms:.2f} ms mean, {median_ms:.2f} P50, {p99_ms:.2f} P99, {most_ms:.2f} max"
