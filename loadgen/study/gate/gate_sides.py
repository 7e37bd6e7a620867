"""Gate sides: the runs of the new build and of its base, under each load, and why they cannot be compared."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.rule import Severity
from loadgen.base.text import clean_line, format_count, list_first
from loadgen.facts.run_facts import ATTACHED
from loadgen.figures.figure_table import SELECTABLE, find_figure
from loadgen.host.machine_state import MEMORY_BANDWIDTH, Difference, list_setting_differences
from loadgen.study.compare import comparability, comparison, run_groups, statistics
from loadgen.study.compare.comparability import MODE, list_run_differences
from loadgen.study.compare.comparison import INVALID, SUSPECT
from loadgen.study.compare.comparison_report import describe_load
from loadgen.study.consistency.self_consistency import judge_figures
from loadgen.study.gate.gate_record import make_gate_metric
from loadgen.study.gate.gate_verdict import GateMetric, GateSeries
from loadgen.study.importers.result_sources import Sources
from loadgen.study.load_table import SIMULATION
from loadgen.study.run_summary import FailedCell, Reported

NEW, BASE = "new", "base"
_CLIENT, _STATE = "client", "state"  # rules of comparability that only mark, or are judged here
_NAMED = 4


class GateSides(msgspec.Struct, frozen=True):
    """The runs of both sides under one load, in the order of measuring; a side may have none."""

    load: str  # in words, with the row's name where there are several
    new: tuple[Reported, ...]
    base: tuple[Reported, ...]
    in_turn: bool = False  # the n-th of both sides were measured next to each other

    @property
    def runs(self) -> tuple[Reported, ...]:
        """The runs of both sides, the new ones first."""
        return (*self.new, *self.base)


def match_places(read: Sources, new: str, base: str) -> tuple[list[GateSides], list[str]]:
    """Match the runs of two places (`Reported.place`) by row and load; return also why not to compare them.

    A side of one row is compared with one of another name; rows of several are matched by name. Raises
    UsageError where a place has no run, or both are one.
    """
    if new == base:
        raise UsageError(f"{new} was named before: give the runs of the new side, and those of the base")
    runs = {place: [run for run in _list_runs(read) if run.place == place] for place in (new, base)}
    if bare := [place for place in (new, base) if not runs[place]]:
        why = read.errors[0] if read.errors else f"{bare[0]} has no run of its own"
        raise UsageError(why if bare[0] in why else f"{bare[0]} has no run of its own: {why}")
    by_server = len({run.cell.server for own in runs.values() for run in own if run.cell}) > 1
    names = {place: run_groups.name_rows(own, by_server=by_server) for place, own in runs.items()}
    rows = [dict.fromkeys(names[place]) for place in (new, base)]
    reasons = list(map(describe_failure, read.failures))
    if len(rows[0]) == len(rows[1]) == 1:
        return group_sides(runs[new], runs[base]), reasons
    sides: list[GateSides] = []
    for name in rows[0] | rows[1]:
        own, other = (
            [run for run, row in zip(runs[place], names[place], strict=True) if row == name]
            for place in (new, base)
        )
        if own and other:
            sides += group_sides(own, other, name)
        else:
            reasons.append(f"{name} has runs in {new if own else base} alone")
    return sides, reasons


def match_rows(read: Sources, baseline: str) -> tuple[list[GateSides], list[str]]:
    """Match each row's runs with those of the row `baseline`, of one place; return also why not to compare.

    Raises UsageError where there is no such row, or no other.
    """
    runs = _list_runs(read)
    cells = [run.cell for run in runs if run.cell] + [failure.cell for failure in read.failures]
    by_server = len({cell.server for cell in cells}) > 1
    names = run_groups.name_rows(runs, by_server=by_server)
    rows = list(dict.fromkeys(names))
    matches = comparison.match_rows(baseline, rows) if baseline else []
    if not matches or len(rows) < 2:
        wrong = f"--baseline {baseline}: no such row" if baseline and rows[1:] else "there is no base"
        advice = "name one with --baseline" if rows[1:] else "give the runs of the base too"
        raise UsageError(f"{wrong}: {advice}; there are {list_first(rows, _NAMED)}")
    base = [run for run, row in zip(runs, names, strict=True) if row == matches[0]]
    others = [row for row in rows if row != matches[0]]
    sides: list[GateSides] = []
    for name in others:
        own = [run for run, row in zip(runs, names, strict=True) if row == name]
        grouped = group_sides(own, base, name if len(others) > 1 else "")
        starts = [{run.cell and run.cell.start for run in side} for side in (own, base)]
        in_turn = all(None not in names and (len(names) > 1 or names == {ATTACHED}) for names in starts)
        sides += [msgspec.structs.replace(each, in_turn=in_turn) for each in grouped]
    return sides, list(map(describe_failure, read.failures))


def _list_runs(read: Sources) -> list[Reported]:
    """List the runs as measured; raises UsageError if there are only searches, or a run was given twice."""
    runs = read.outside_searches.reported
    if read.limits and not runs:
        raise UsageError(
            "these are searches for a limit: a gate judges runs; `loadgen compare` has the limits"
        )
    kept, repeated = run_groups.drop_repeated(run_groups.sort_as_measured([*map(judge_figures, runs)]))
    if repeated:
        raise UsageError(f"{repeated[0].source} is a run that was given twice: give each once")
    return kept


def group_sides(new: Sequence[Reported], base: Sequence[Reported], name: str = "") -> list[GateSides]:
    """Group the runs of two sides by load; `name` stands before each load if it is not ""."""
    names = [NEW] * len(new) + [BASE] * len(base)
    return [
        GateSides(
            ": ".join(filter(None, (name, describe_load(group.load)))),
            group.rows.get(NEW, ()),
            group.rows.get(BASE, ()),
        )
        for group in run_groups.group_runs([*new, *base], names)
    ]


def pair_repeats(runs: Iterable[Reported], base: str, new: Sequence[str]) -> list[GateSides]:
    """Pair the runs of a campaign's arms by repeat while repeats are whole: a GateSides a new arm and load.

    A repeat is whole if the arms `base` and `new` have a run of it under every profile; those after one that
    is not are left out; [] without a whole one.
    """
    by_cell = {(cell.arm, cell.profile, cell.repeat): run for run in runs if (cell := run.cell) is not None}
    profiles = list(dict.fromkeys(profile for _, profile, _ in by_cell))
    every = [(arm, profile) for arm in (base, *new) for profile in profiles]
    pairs = 0
    while every and all((arm, profile, pairs) in by_cell for arm, profile in every):
        pairs += 1
    sides: list[GateSides] = []
    for arm, profile in ((arm, profile) for arm in new for profile in profiles if pairs):
        own, other = ([by_cell[side, profile, repeat] for repeat in range(pairs)] for side in (arm, base))
        grouped = group_sides(own, other, arm if len(new) > 1 else "")
        sides += [msgspec.structs.replace(each, in_turn=True) for each in grouped]
    return sides


def describe_failure(failure: FailedCell) -> str:
    """Write which cell of a campaign failed, and why."""
    cell, why = failure.cell, clean_line(failure.reason.partition("\n")[0])
    return f"r{cell.repeat} {cell.arm}, {cell.profile}: FAILED: {why}"


def list_reasons(sides: Sequence[GateSides], metrics: Sequence[GateMetric], allows_state: bool) -> list[str]:
    """List why sides cannot be compared, load by load, each load's gravest first; [] if they can.

    They cannot be where a load is of one side alone, a run is INVALID, ended early or was measured by another
    client, a rule of comparability refuses them, the machine's state differs (unless `allows_state`), or a
    run lacks a figure that others have.
    """
    whole = [each for each in sides if each.new and each.base]
    lone = [each for each in sides if not (each.new and each.base)]
    new, base = ([each.load for each in lone if getattr(each, side)] for side in (NEW, BASE))
    if len(new) == len(base) == 1:  # in one sentence
        reasons = [f"another load: {new[0]}; base {base[0]}"]
    else:
        reasons = [f"the base has no run of {load}" for load in new]
        reasons += [f"only the base has runs of {load}" for load in base]
    for each in whole:
        own = list[str]()
        for side, runs in ((NEW, each.new), (BASE, each.base)):
            own += _count_runs(side, [run for run in runs if run.level == INVALID], len(runs), INVALID)
            if saturated := sum(run.saturated for run in runs):
                share = f"{saturated} of {format_count(len(runs), 'run')}"
                own.append(f"{side}: {share} ended early: the server fell behind")
        own += _explain_rules(each, Severity.REFUSED)
        own += [] if allows_state else list_unequal_states(each.new, each.base, each.in_turn)
        for metric in metrics:
            for side, runs in ((NEW, each.new), (BASE, each.base)):
                if lacking := sum(comparison.read_figure(run, metric.key) is None for run in runs):
                    own.append(f"{side}: {lacking} of {format_count(len(runs), 'run')} without {metric.name}")
            if other := comparability.explain_other_quantity(metric.key, each.new, each.base):
                own.append(f"{metric.name}: {other}")
        reasons += [f"{each.load}: {reason}" if len(whole) > 1 else reason for reason in own]
    return list(dict.fromkeys(reasons))


def list_remarks(sides: Sequence[GateSides]) -> list[str]:
    """List what a reader should know of compared sides: marks of the rules, starts, states and doubts."""
    remarks = [SIMULATION] if any(run.simulated for each in sides for run in each.runs) else []
    for each in sides:
        remarks += statistics.list_unit_remarks((each.new, each.base))
        remarks += statistics.list_order_remarks([(NEW, each.new)], BASE, each.base)
        remarks += _explain_rules(each, Severity.MARKED)
        remarks += list_passing_states(each.new, each.base)
        for side, runs in ((NEW, each.new), (BASE, each.base)):
            suspect = [run for run in runs if run.level == SUSPECT]
            remarks += _count_runs(side, suspect, len(runs), SUSPECT)
            failed, sent = (math.fsum(counts) for counts in zip(*(run.failures for run in runs), strict=True))
            remarks += [f"{side}: {failed:.0f} of {sent:.0f} requests failed"] * (failed > 0)
    return list(dict.fromkeys(remarks))


def _count_runs(side: str, runs: Sequence[Reported], every: int, level: str) -> Iterator[str]:
    """Yield a line on how many of all runs of a side have a level, and their doubts; none if no run has."""
    if runs:
        doubts = ", ".join(dict.fromkeys(doubt for run in runs for doubt in run.doubts))
        yield f"{side}: {len(runs)} of {format_count(every, 'run')} {level}{f': {doubts}' if doubts else ''}"


def _explain_rules(sides: GateSides, severity: Severity) -> list[str]:
    """List the differences by the rules of one severity, of each run from the first of the base.

    Another client is refused here: latencies are not defined alike, and no margin makes up for that.
    """
    first = sides.base[0]
    findings = [
        finding
        for run in (*sides.new, *sides.base[1:])
        for finding in comparability.find_differences(run, first)
        if finding.rule.code != _STATE
    ]
    if severity is Severity.REFUSED:
        chosen = [each for each in findings if each.rule.severity is severity or each.rule.code == _CLIENT]
    else:
        chosen = [each for each in findings if each.rule.severity is severity and each.rule.code != _CLIENT]
    return list(dict.fromkeys(f"{finding.rule.code}: {finding.evidence}" for finding in chosen))


def check_metrics(metrics: Sequence[GateMetric], runs: Sequence[Reported]) -> None:
    """Raise UsageError of a metric that no run has, with those of its figure that there are."""
    for metric in metrics:
        if any(comparison.read_figure(run, metric.key) is not None for run in runs):
            continue
        known = find_figure(metric.key)
        keys = Counter(key for run in runs for key in run.figures if run.figure(key) is not None)
        like = [key for key in keys if known is not None and find_figure(key) is known] or list(keys)
        more = ""
        if known is not None and known.key in SELECTABLE:
            more = ": a percentile is there if --metric-percentiles of the runs names it"
        raise UsageError(
            f"--metric {metric.name}: no run has {metric.key}{more}; there are {list_first(like, _NAMED)}"
        )


def choose_metric(sides: Sequence[GateSides]) -> GateMetric:
    """Choose the figure that a gate judges if none is named: the one that decides in `loadgen compare`."""
    runs = [run for each in sides for run in each.runs]
    column = comparison.find_column(comparison.choose_headline(runs[0].load, runs))
    return make_gate_metric(column.label, column.key, column.higher_is_faster)


def make_series(
    sides: GateSides, metrics: Sequence[GateMetric], measured_here: bool = False
) -> list[GateSeries]:
    """Make the series of given runs, a unit a start of the server or a run, paired as by `compare`.

    Of runs that were `measured_here` the n-th of both sides are a pair: all have the figures.
    """
    series = []
    for metric in metrics:
        read = partial(comparison.read_figure, key=metric.key)
        if measured_here:
            new, base = (tuple(read(run) or 0.0 for run in side) for side in (sides.new, sides.base))
            paired, order = True, None
        else:
            units = statistics.pair_units(sides.new, sides.base, read)
            new, base, paired, order = tuple(units.row), tuple(units.baseline), units.paired, units.order
        series.append(GateSeries(metric, sides.load, new, base, paired, order))
    return series


# Pairs were measured in turn: what differs the same way in this share of them sets the sides apart; what
# differs now and then, now this way and now that, is spread, which the pairs show.
MOSTLY = 0.8
ALLOWING = "--allow-other-state"
_TELLING = 3  # runs a side, whose spread shows whether a condition is the side's
_NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?")


def list_unequal_states(new: Sequence[Reported], base: Sequence[Reported], in_turn: bool) -> list[str]:
    """List what of the machine's state separates the sides, each new run next to the base's nearest.

    Of runs that were not measured `in_turn`, any difference does; of those that were, a setting (a clock
    limit, a power cap, firmware), and a condition (heat, other processes, memory bandwidth) that differs the
    same way in four of five pairs. Memory bandwidth never does where it differs on one side as well, or has
    too few runs to show that: on a shared machine it varies by half from run to run.
    """
    pairs = _pair_runs(new, base)
    apart = [difference for pair in pairs for difference in _list_differences(*pair)]
    spread = (
        difference for side in (new, base) for run in side for difference in _list_differences(run, side[0])
    )
    if min(len(new), len(base)) < _TELLING or any(what == MEMORY_BANDWIDTH for what, *_ in spread):
        apart = [each for each in apart if each[0] != MEMORY_BANDWIDTH]
    if in_turn:
        states = [
            [None if each.facts is None else each.facts.state_before for each in pair] for pair in pairs
        ]
        known = [(own, other) for own, other in states if own is not None and other is not None]
        settings = {what for pair in known for what, *_ in list_setting_differences(*pair)}
        counts = Counter(map(_find_direction, apart))
        most = MOSTLY * len(pairs)
        apart = [each for each in apart if each[0] in settings or counts[_find_direction(each)] >= most]
    first: dict[str, Difference] = {}
    for difference in apart:
        first.setdefault(difference[0], difference)
    said = [f"state of the machine: {what} {own}, baseline {other}" for what, own, other in first.values()]
    return [f"{said[0]} ({ALLOWING} compares all the same)", *said[1:]] if said else []


def list_passing_states(new: Sequence[Reported], base: Sequence[Reported]) -> list[str]:
    """List by what the machine's state differs in any pair, and in how many pairs each does."""
    pairs = _pair_runs(new, base)
    apart = [difference for pair in pairs for difference in _list_differences(*pair)]
    counts = Counter(what for what, *_ in apart)
    return [f"{what} differs in {count} of {len(pairs)} pairs" for what, count in counts.items()]


def _pair_runs(new: Sequence[Reported], base: Sequence[Reported]) -> list[tuple[Reported, Reported]]:
    """Pair each new run with the base's of the same place, or its last."""
    return [(run, base[min(at, len(base) - 1)]) for at, run in enumerate(new)]


def _list_differences(run: Reported, base: Reported) -> list[Difference]:
    """List the differences of two runs' states but for the power mode, which has a rule of its own."""
    if run.machine != base.machine:
        return []
    return [difference for difference in list_run_differences(run, base) if difference[0] != MODE]


def _find_direction(difference: Difference) -> tuple[str, object]:
    """Return what differs and which way: whether the new side has more, or both values if they are words."""
    what, own, other = difference
    values = [match[0].replace(",", "") for text in (own, other) if (match := _NUMBER.match(text))]
    return what, float(values[0]) > float(values[1]) if len(values) == 2 else (own, other)
