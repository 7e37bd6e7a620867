"""Shape figures: stages of a load over time, classes of a mixed one, how late requests were sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadgen.arrays import Int64
from loadgen.clock import MS_NS
from loadgen.metrics import class_figures, stages
from loadgen.metrics.class_figures import ClassFigures
from loadgen.metrics.metrics import PerRequest, good
from loadgen.metrics.percentiles import percentiles
from loadgen.metrics.record import Records
from loadgen.metrics.stages import StageFigures
from loadgen.protocol.layout import aligned, cut
from loadgen.validity.run_facts import Facts
from loadgen.workload.load import request_classes, stage_windows
from loadgen.workload.streams import RandomStream

_STAGE_TITLES = ("Stage", "until", "reqs", "req/s", "in fl.", "max", "TTFT ms", "P99", "E2EL P99")
_STAGE_WIDTHS = (-22, 7, 5, 6, 6, 4, 7, 7, 8)
_CLASS_TITLES = ("Class", "share", "reqs", "fail", "in/out", "TTFT ms", "P99", "TPOT", "E2EL ms", "P99")
_CLASS_WIDTHS = (-12, 5, 5, 4, 9, 7, 7, 6, 7, 7)


def by_stage(facts: Facts, records: Records) -> list[StageFigures]:
    """The figures of each stage of a schedule or ramp; empty where the load did not change."""
    profile = facts.profile
    if not profile.shaped or profile.timed or not len(records):
        return []
    offsets_ns = stage_windows.planned_offsets_ns(profile, _stream(facts), facts.requests)
    windows = stage_windows.windows(profile, offsets_ns)
    if offsets_ns is None:
        due_ns, begin_ns = records.sent_ns, int(records.intended_ns.min())
    else:
        due_ns = records.intended_ns
        begin_ns = int(due_ns[0] - offsets_ns[records.index[0]])
    return stages.figures(windows, records, PerRequest.of(records, facts.ask()), due_ns, begin_ns)


def class_numbers(facts: Facts, records: Records) -> Int64 | None:
    """The class of each request, int64[requests]; None where there is one class."""
    if not facts.profile.classes:
        return None
    numbers = request_classes.drawn(facts.profile.classes, _stream(facts), facts.requests)
    return numbers[records.index]


def class_names(facts: Facts, records: Records) -> list[str]:
    """The name of each request's class; "" where there is one class."""
    numbers = class_numbers(facts, records)
    if numbers is None:
        return [""] * len(records)
    names = [kind.name for kind in facts.profile.classes]
    return [names[number] for number in numbers.tolist()]


def by_class(facts: Facts, records: Records) -> list[ClassFigures]:
    """The figures of each class; empty where there is one class."""
    numbers = class_numbers(facts, records)
    if numbers is None:
        return []
    each = PerRequest.of(records, facts.ask())
    return class_figures.figures(facts.profile.classes, numbers, each, good(each, facts.ask()))


def _stream(facts: Facts) -> RandomStream:
    return RandomStream(facts.seed, facts.profile.name, facts.repeat)


def stage_lines(rows: Sequence[StageFigures]) -> Iterator[str]:
    """The stages as a table; nothing where there are none."""
    if not rows:
        return
    yield aligned(_STAGE_TITLES, _STAGE_WIDTHS, " ")
    for row in rows:
        latencies = (row.mean_ttft_ms, row.p99_ttft_ms, row.p99_e2el_ms)
        yield aligned(
            (
                cut(row.name, -_STAGE_WIDTHS[0]),
                f"{row.end_s:.4g} s",
                str(row.requests),
                f"{row.rate_per_s:.3g}",
                f"{row.mean_in_flight:.1f}",
                str(row.most_in_flight),
                *(_shown(value) for value in latencies),
            ),
            _STAGE_WIDTHS,
            " ",
        )


def class_lines(rows: Sequence[ClassFigures]) -> Iterator[str]:
    """The classes as a table, and what of each met the objectives; nothing where there is one class."""
    if not rows:
        return
    yield aligned(_CLASS_TITLES, _CLASS_WIDTHS, " ")
    for row in rows:
        lengths = [tokens / row.completed if row.completed else 0 for tokens in _tokens(row)]
        latencies = (row.mean_ttft_ms, row.p99_ttft_ms, row.mean_tpot_ms, row.mean_e2el_ms, row.p99_e2el_ms)
        counts = f"{100 * row.share:.0f} %", str(row.requests), str(row.failed)
        name = cut(row.name, -_CLASS_WIDTHS[0])
        cells = (name, *counts, "/".join(f"{length:.0f}" for length in lengths), *map(_shown, latencies))
        yield aligned(cells, _CLASS_WIDTHS, " ")
    if any(row.good is not None for row in rows):
        met = (f"{row.name} {row.good} of {row.completed + row.failed}" for row in rows)
        yield f"goodput by class: {', '.join(met)} requests met the objectives"


def _tokens(row: ClassFigures) -> tuple[int, int]:
    return row.input_tokens, row.output_tokens


def _shown(value_ms: float) -> str:
    """A latency in milliseconds, as wide as a cell."""
    if value_ms != value_ms:
        return "-"
    return f"{value_ms:.1f}" if value_ms < 1e4 else f"{value_ms:.0f}"


def lateness(records: Records) -> str:
    """How much later than due requests were sent, in words; "" where none was sent."""
    late_ns = (records.sent_ns - records.intended_ns)[records.sent]
    if not len(late_ns):
        return ""
    mean_ms, most_ms = float(late_ns.mean()) / MS_NS, float(late_ns.max()) / MS_NS
    median_ms, p99_ms = (value / MS_NS for value in percentiles(late_ns.copy(), (50, 99)))
    return f"{mean_ms:.2f} ms mean, {median_ms:.2f} P50, {p99_ms:.2f} P99, {most_ms:.2f} max"
