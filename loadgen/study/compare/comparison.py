"""Comparison: reported runs as tables, one a load, each row compared with the baseline, with its verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.text import list_first
from loadgen.report.load_identity import Load
from loadgen.report.load_table import SIMULATION
from loadgen.roofline import bound
from loadgen.roofline.models import find_suffix
from loadgen.study.compare import rows as lines
from loadgen.study.compare import run_groups, statistics
from loadgen.study.compare.model import ALONE, ComparedFigure, ComparedLoad, ComparisonOptions, Line
from loadgen.study.compare.rows import FIGURES, IN_PLACE, BaselineRuns, read_figure
from loadgen.study.compare.run_groups import Group
from loadgen.study.consistency.self_consistency import judge_figures
from loadgen.study.run_summary import Reported, group_by, strip_load
from loadgen.verdict.run_facts import FailedCell

_SPEED = "speed_tok_s"  # of speed tables and ladders
_CLOSED = (
    _SPEED, "output_throughput", bound.DECODING, "mean_tpot_ms", "mean_e2el_ms", "mean_ttft_ms",
    bound.PREFILL,
)  # fmt: skip
_RATED = ("mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms", "output_throughput", _SPEED)
_UNQUANTIZED = ("", "BF16", "FP16", "FP32")
_NAMED = 3  # at most this many are named
Failed = list[tuple[str, FailedCell]]  # with the row that it belongs to


def compare_runs(
    reported: Sequence[Reported],
    ask: ComparisonOptions,
    failures: Sequence[FailedCell] = (),
    lacking: Sequence[str] = (),
) -> list[ComparedLoad]:
    """Compare runs in a table a load, in order of appearance; Holm over rows and loads of each figure.

    A run that is there twice is used once; failed cells are failures of their rows; what holds for all tables
    is remarked on the first, what is `lacking` of the rooflines on the first that lacks one. Raises
    UsageError where the baseline or the headline asked for does not exist.
    """
    runs, repeated = run_groups.drop_repeated(run_groups.sort_as_measured([*map(judge_figures, reported)]))
    cells = [run.cell for run in runs if run.cell is not None] + [failure.cell for failure in failures]
    by_server = len({cell.server for cell in cells}) > 1
    names = run_groups.name_rows(runs, by_server=by_server)
    failed = _group_failures(failures, names, by_server)
    stored = (run.cell.checkpoint if run.cell else run.name for run in runs)
    checkpoints = dict(zip(names, stored, strict=True))
    for name, failure in failed:
        checkpoints.setdefault(name, failure.cell.checkpoint)
    baseline, remarks = _choose_baseline(checkpoints, ask)
    _check_headline(ask.headline, runs)
    loads = run_groups.group_runs(runs, names)
    if ask.allow_unlike and sum(baseline in group.rows for group in loads) == 1:
        loads = run_groups.group_runs(runs, names, one_load=True)
    tables = [
        _compare_load(
            group,
            _adjust_baseline(group, baseline, checkpoints, ask),
            _select_failures(group.load, failed, loads),
            ask,
        )
        for group in loads
    ]
    tables += [
        _compare_load(Group(Load(name=name), {}), baseline, lost, ask)
        for name, lost in _find_lost_loads(failed, loads).items()
    ]
    if repeated:
        remarks.append(f"given twice, used once: {list_first([run.source for run in repeated], _NAMED)}")
    made = _judge_loads(tables)
    lacks = [any(line.roofline is None for line in table.lines if line.runs) for table in made]
    bare = lacks.index(True) if True in lacks else 0
    return [
        replace(table, remarks=(*([] if at else remarks), *table.remarks, *(lacking if at == bare else ())))
        for at, table in enumerate(made)
    ]


def _choose_baseline(checkpoints: Mapping[str, str], ask: ComparisonOptions) -> tuple[str, list[str]]:
    """Choose the row that the others are compared with; return remarks on the choice too."""
    for wanted in filter(None, (ask.baseline, ask.campaign.baseline)):
        if matches := match_rows(wanted, checkpoints):
            several = f"{wanted} is {len(matches)} rows, of which {matches[0]} is the baseline"
            return matches[0], [several] if len(matches) > 1 else []
        if wanted == ask.baseline:
            names, near = ", ".join(list(checkpoints)[:20]), suggest_name(wanted, checkpoints)
            raise UsageError(f"--baseline {wanted}: no such row{near}; there are {names}")
    return find_default_row(checkpoints), []


def match_rows(wanted: str, names: Collection[str]) -> list[str]:
    """List the rows that a name means: of that name, else with words added to it, else in another case."""
    begins = f"{wanted} on ", f"{wanted} ("
    exact = [wanted] if wanted in names else [name for name in names if name.startswith(begins)]
    return exact or [name for name in names if name.lower() == wanted.lower()]


def find_default_row(checkpoints: Mapping[str, str]) -> str:
    """Find the baseline where none is named: the first row that is not quantized, else the first."""
    plain = (
        name for name, checkpoint in checkpoints.items() if find_suffix(checkpoint).upper() in _UNQUANTIZED
    )
    return next(plain, next(iter(checkpoints), ""))


def _adjust_baseline(
    group: Group, baseline: str, checkpoints: Mapping[str, str], ask: ComparisonOptions
) -> str:
    """Choose a load's baseline: its own first row if none was named and the default is missing."""
    if ask.baseline or ask.campaign.baseline or baseline in group.rows:
        return baseline
    return find_default_row({name: checkpoints[name] for name in group.rows})


def _check_headline(key: str, runs: Sequence[Reported]) -> None:
    if not key:
        return
    if not any(read_figure(run, key) is not None for run in runs):
        names = (name for run in runs for name in run.figures if read_figure(run, name) is not None)
        keys = [name for name in dict.fromkeys(names) if lines.find_column(name).higher_is_faster is not None]
        raise UsageError(
            f"--headline {key}: no run reports it{suggest_name(key, keys)}; there are {', '.join(keys)}"
        )
    if lines.find_column(key).higher_is_faster is None:
        raise UsageError(f"--headline {key}: it does not rank speed: name a throughput or a latency")


def _group_failures(failures: Sequence[FailedCell], names: Sequence[str], by_server: bool) -> Failed:
    rows = []
    for failure in failures:
        name = failure.cell.arm if by_server else failure.cell.checkpoint
        own = (row for row in names if row == name or row.startswith(f"{name} ("))
        rows.append((next(own, name), failure))
    return rows


def _select_failures(load: Load, failed: Failed, loads: Sequence[Group]) -> Failed:
    """Select the failed cells under a load; all of them where there is no other load."""
    name = strip_load(load.name)
    return [failure for failure in failed if len(loads) == 1 or strip_load(failure[1].cell.profile) == name]


def _find_lost_loads(failed: Failed, loads: Sequence[Group]) -> dict[str, Failed]:
    """Find the loads under which every cell failed."""
    present = {strip_load(group.load.name) for group in loads}
    absent = [failure for failure in failed if strip_load(failure[1].cell.profile) not in present]
    return group_by(absent if len(loads) != 1 else (), lambda failure: failure[1].cell.profile)


def _compare_load(group: Group, baseline: str, failed: Failed, ask: ComparisonOptions) -> ComparedLoad:
    """Compare the rows of one load, each judged by itself."""
    every = [run for runs in group.rows.values() for run in runs]
    figures = _select_figures(every)
    headline = _choose_headline(group.load, every, ask.headline, figures)
    if every and headline not in (failure.key for failure in figures):
        figures.insert(0, lines.find_column(headline))
    rows = {name: group.rows.get(name, ()) for name in (baseline, *group.rows, *(name for name, _ in failed))}
    reference = BaselineRuns.select(rows[baseline], _find_asked_output(every), ask)
    lines_made = []
    for name, runs in rows.items():
        reasons = Counter(failure.reason for row, failure in failed if row == name)
        if runs or reasons:
            line = lines.compare_row(name, runs, reference, figures, name == baseline)
            messages = tuple(reason if n == 1 else f"{n} cells: {reason}" for reason, n in reasons.items())
            lines_made.append(replace(line, failures=messages))
    remarks, margin = tuple(_list_remarks(group, baseline, reference, lines_made)), ask.equivalence
    return ComparedLoad(
        group.load, baseline, tuple(figures), headline, tuple(lines_made), margin, ask.alpha, remarks
    )


def _select_figures(runs: Sequence[Reported]) -> list[ComparedFigure]:
    """Select the columns that any run has; not speeds of two formulas if all have the throughput too."""
    known = {key for run in runs for key in run.figures if read_figure(run, key) is not None}
    figures = [figure for figure in FIGURES if any(read_figure(run, figure.key) is not None for run in runs)]
    figures += [figure for figure, usual in IN_PLACE.items() if figure.key in known and usual not in known]
    formulas = {run.speed_formula for run in runs if run.speed_formula}
    if len(formulas) > 1 and all(read_figure(run, "output_throughput") is not None for run in runs):
        figures = [figure for figure in figures if figure.key != _SPEED]
    return figures


def _choose_headline(
    load: Load, runs: Sequence[Reported], asked: str, figures: Sequence[ComparedFigure]
) -> str:
    """Choose the figure that decides: the one asked for where this load has it, else the first usual one."""
    rate = load.request_rate_per_s
    usual = _CLOSED if rate is None or math.isinf(rate) else _RATED
    if asked and any(read_figure(run, asked) is not None for run in runs):
        return asked
    keys = [figure.key for figure in figures]
    ranking = (figure.key for figure in figures if figure.higher_is_faster is not None)
    return next((key for key in usual if key in keys), next(ranking, "output_throughput"))


def _find_asked_output(runs: Sequence[Reported]) -> float | None:
    """Requested tokens of an answer: as reported, else the longest mean if whole, as with ignore_eos."""
    asked = {run.load.asked_output_len for run in runs if run.load.asked_output_len is not None}
    if asked:
        return float(asked.pop()) if len(asked) == 1 else None
    longest = max((tokens for run in runs if (tokens := run.output_len) is not None), default=None)
    return longest if longest is not None and longest == int(longest) else None


def _list_remarks(
    group: Group, baseline: str, reference: BaselineRuns, rows: Sequence[Line]
) -> Iterator[str]:
    """Yield the remarks that hold for the whole table."""
    every = [run for line in rows for run in line.runs]
    if any(run.simulated for run in every):
        yield SIMULATION
    if len(rows) == 1:
        yield ALONE
    elif reference.missing:
        yield f"no verdicts: {reference.missing} ({baseline}); --baseline NAME chooses another"
    several = [line for line in rows if len(line.runs) > 1]
    for why in dict.fromkeys(filter(None, (statistics.explain_units(line.runs) for line in several))):
        yield f"{why}: variation between starts is not in the intervals"
    tested = [line for line in rows if any(effect.units > 1 for effect in line.effects.values())]
    if any(not effect.paired for line in tested for effect in line.effects.values() if effect.units > 1):
        yield "not all runs are paired: with other prompts, or outside a campaign, they vary by prompts too"


def _judge_loads(tables: Sequence[ComparedLoad]) -> list[ComparedLoad]:
    """Judge the rows of all loads together in each figure; then mark those that are fast because broken."""
    rows = [line for table in tables for line in table.lines]
    effects = [dict(line.effects) for line in rows]
    for key in dict.fromkeys(key for row_effects in effects for key in row_effects):
        tested = [row_effects for row_effects in effects if key in row_effects]
        tests = [row_effects[key] for row_effects in tested]
        judged = statistics.judge_rows(tests, tables[0].margin, tables[0].alpha)
        for row_effects, effect in zip(tested, judged, strict=True):
            row_effects[key] = effect
    judged_rows = iter([replace(line, effects=own) for line, own in zip(rows, effects, strict=True)])
    return [_compare_answers(table, list(islice(judged_rows, len(table.lines)))) for table in tables]


def _compare_answers(table: ComparedLoad, rows: Sequence[Line]) -> ComparedLoad:
    """Set the final rows of a table, with marks from the answers of each."""
    baseline = next((line for line in rows if line.name == table.baseline), None)
    marked = (
        lines.mark_answers(line, None if line is baseline else baseline, table.headline, table.margin)
        for line in rows
    )
    return replace(table, lines=tuple(marked))
