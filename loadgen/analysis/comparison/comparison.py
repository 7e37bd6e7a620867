"""Comparison: reported runs as tables, one a load, each row beside the baseline with its verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.analysis.comparison import comparability, groups, pairs, statistics
from loadgen.analysis.comparison import rows as lines
from loadgen.analysis.comparison.groups import Group
from loadgen.analysis.comparison.model import Comparison, Effect, Figure, Line
from loadgen.analysis.comparison.rows import FIGURES, Held, told
from loadgen.analysis.run_summary import Load, Reported
from loadgen.errors import UsageError
from loadgen.roofline.models import suffix
from loadgen.spelling import nearest
from loadgen.validity.campaign_cell import FailedCell

MARGIN = 0.02  # within ± 2 % two speeds are one
_SPEED = "speed_tok_s"  # of speed tables and ladders
_CLOSED = (_SPEED, "output_throughput", "mean_tpot_ms", "mean_e2el_ms", "mean_ttft_ms")
_RATED = ("mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms", "output_throughput", _SPEED)
_UNQUANTIZED = ("", "BF16", "FP16", "FP32")
_NAMED = 3  # of many, so many are named
Failed = list[tuple[str, FailedCell]]  # with the row that it belongs to


class ComparisonOptions(msgspec.Struct, frozen=True):
    """What a comparison is asked for."""

    baseline: str = ""  # a row; "": the campaign's, else the first unquantized one, else the first
    margin: float = MARGIN  # of equivalence
    alpha: float = 0.05
    headline: str = ""  # a figure's key; "": the throughput, or latency where a rate fixes the throughput
    allow_unlike: bool = False
    campaign_baseline: str = ""  # heeded where there is such a row


def compare(
    reported: Sequence[Reported], ask: ComparisonOptions, failures: Sequence[FailedCell] = ()
) -> list[Comparison]:
    """A table a load, in order of appearance; Holm over rows and loads of each figure.

    A run that is there twice is used once; failed cells are failures of their rows. Raises UsageError where
    the baseline or the headline asked for is nowhere.
    """
    runs, again = groups.distinct(groups.in_order(reported))
    cells = [run.cell for run in runs if run.cell is not None] + [one.cell for one in failures]
    by_server = len({cell.server for cell in cells}) > 1
    names = groups.row_names(runs, by_server=by_server)
    failed = _failed(failures, names, by_server)
    checkpoints = {
        name: run.cell.checkpoint if run.cell else run.name for name, run in zip(names, runs, strict=True)
    }
    for name, one in failed:
        checkpoints.setdefault(name, one.cell.checkpoint)
    baseline, remarks = _baseline(checkpoints, ask)
    _check_headline(ask.headline, runs)
    found = groups.groups(runs, names)
    if ask.allow_unlike and sum(baseline in group.rows for group in found) == 1:
        found = groups.groups(runs, names, one_load=True)
    tables = [
        _table(group, _held(group, baseline, checkpoints, ask), _of_load(group.load, failed, found), ask)
        for group in found
    ]
    tables += [
        _table(Group(Load(name=name), {}), baseline, lost, ask) for name, lost in _lost(failed, found).items()
    ]
    remarks += _twice(again)
    return [replace(table, remarks=(*remarks, *table.remarks)) for table in _together(tables)]


def _baseline(checkpoints: Mapping[str, str], ask: ComparisonOptions) -> tuple[str, list[str]]:
    """The row that the others are held against, and what is to be said of the choice."""
    for wanted in filter(None, (ask.baseline, ask.campaign_baseline)):
        close = [name for name in checkpoints if name == wanted]
        close = close or [name for name in checkpoints if name.startswith((f"{wanted} on ", f"{wanted} ("))]
        close = close or [name for name in checkpoints if name.lower() == wanted.lower()]
        if close:
            several = f"{wanted} is {len(close)} rows, of which {close[0]} is the baseline"
            return close[0], [several] * (len(close) > 1)
        if wanted == ask.baseline:
            there = ", ".join(list(checkpoints)[:20])
            raise UsageError(
                f"--baseline {wanted}: no such row{nearest(wanted, checkpoints)}; there are {there}"
            )
    return _first(checkpoints), []


def _first(checkpoints: Mapping[str, str]) -> str:
    """The first row that is not quantized, else the first."""
    plain = (name for name, checkpoint in checkpoints.items() if suffix(checkpoint).upper() in _UNQUANTIZED)
    return next(plain, next(iter(checkpoints), ""))


def _held(group: Group, baseline: str, checkpoints: Mapping[str, str], ask: ComparisonOptions) -> str:
    """The baseline under one load: where nobody named one and it is not there, the load's own first."""
    if ask.baseline or ask.campaign_baseline or baseline in group.rows:
        return baseline
    return _first({name: checkpoints[name] for name in group.rows})


def _check_headline(key: str, runs: Sequence[Reported]) -> None:
    if not key:
        return
    if not any(told(run, key) is not None for run in runs):
        keys = dict.fromkeys(
            one for run in runs for one in run.figures if lines.figure(one).higher_is_faster is not None
        )
        there = ", ".join(one for one in keys if any(told(run, one) is not None for run in runs))
        raise UsageError(f"--headline {key}: no run tells it{nearest(key, keys)}; there are {there}")
    if lines.figure(key).higher_is_faster is None:
        raise UsageError(f"--headline {key}: nothing is faster by it; name a throughput or a latency")


def _failed(failures: Sequence[FailedCell], names: Sequence[str], by_server: bool) -> Failed:
    found = []
    for one in failures:
        name = one.cell.arm if by_server else one.cell.checkpoint
        found.append((next((row for row in names if row == name or row.startswith(f"{name} (")), name), one))
    return found


def _of_load(load: Load, failed: Failed, found: Sequence[Group]) -> Failed:
    """The failed cells under a load; all of them where there is no other load."""
    name = groups.plain(load.name)
    return [one for one in failed if len(found) == 1 or groups.plain(one[1].cell.profile) == name]


def _lost(failed: Failed, found: Sequence[Group]) -> dict[str, Failed]:
    """The loads under which every cell failed."""
    met = {groups.plain(group.load.name) for group in found}
    lost: dict[str, Failed] = {}
    for one in failed if len(found) != 1 else ():
        if groups.plain(one[1].cell.profile) not in met:
            lost.setdefault(one[1].cell.profile, []).append(one)
    return lost


def _table(group: Group, baseline: str, failed: Failed, ask: ComparisonOptions) -> Comparison:
    """One load, each row judged by itself."""
    every = [run for runs in group.rows.values() for run in runs]
    figures = _figures(every)
    headline = _headline(group.load, every, ask.headline, figures)
    if every and headline not in (one.key for one in figures):
        figures.insert(0, lines.figure(headline))
    rows = {name: group.rows.get(name, ()) for name in (baseline, *group.rows, *(name for name, _ in failed))}
    held = Held.of(
        rows[baseline],
        _asked_output(every),
        allow_unlike=ask.allow_unlike,
        margin=ask.margin,
        alpha=ask.alpha,
    )
    found = []
    for name, runs in rows.items():
        reasons = Counter(one.reason for row, one in failed if row == name)
        if runs or reasons:
            line = lines.line(name, runs, held, figures, name == baseline)
            told_of = tuple(reason if n == 1 else f"{n} cells: {reason}" for reason, n in reasons.items())
            found.append(replace(line, failures=told_of))
    remarks = tuple(_remarks(group, baseline, held, found))
    return Comparison(
        group.load, baseline, tuple(figures), headline, tuple(found), ask.margin, ask.alpha, remarks
    )


def _figures(runs: Sequence[Reported]) -> list[Figure]:
    """The columns that any run tells; speeds of two formulas are none where the throughput is told beside."""
    found = [one for one in FIGURES if any(told(run, one.key) is not None for run in runs)]
    formulas = {formula for run in runs if (formula := comparability.formula(run)) is not None}
    if len(formulas) > 1 and all(told(run, "output_throughput") is not None for run in runs):
        found = [one for one in found if one.key != _SPEED]
    return found


def _headline(load: Load, runs: Sequence[Reported], asked: str, figures: Sequence[Figure]) -> str:
    """The figure that decides: the one asked for where this load has it, else the first usual one."""
    rate = load.request_rate_per_s
    usual = _CLOSED if rate is None or math.isinf(rate) else _RATED
    if asked and any(told(run, asked) is not None for run in runs):
        return asked
    there = [one.key for one in figures]
    return next((key for key in usual if key in there), "output_throughput")


def _asked_output(runs: Sequence[Reported]) -> float | None:
    """Tokens asked of an answer: as told, else the longest mean where that is whole, as of ignore_eos."""
    asked = {run.load.asked_output_len for run in runs if run.load.asked_output_len is not None}
    if asked:
        return float(asked.pop()) if len(asked) == 1 else None
    longest = max((tokens for run in runs if (tokens := run.output_len) is not None), default=None)
    return longest if longest is not None and longest == int(longest) else None


def _remarks(group: Group, baseline: str, held: Held, found: Sequence[Line]) -> Iterator[str]:
    """What holds for the whole table."""
    every = [run for line in found for run in line.runs]
    if any(run.simulated for run in every):
        yield "SIMULATED: the embedded engine answered with a preset's timing; no model ran"
    if len(found) == 1:
        yield "one row: there is nothing to compare it with under this load; name another run"
    elif held.missing:
        yield f"no verdicts: {held.missing} ({baseline}); --baseline NAME chooses another"
    several = [line for line in found if len(line.runs) > 1]
    for why in dict.fromkeys(filter(None, (pairs.remark(line.runs) for line in several))):
        yield f"{why}: what differs from start to start is not in the intervals"
    tested = [line for line in found if any(one.units > 1 for one in line.effects.values())]
    if any(not one.paired for line in tested for one in line.effects.values() if one.units > 1):
        yield "not all runs are paired: those of other prompts, or of no campaign, vary by their prompts too"


def _twice(again: Sequence[Reported]) -> list[str]:
    if not again:
        return []
    named = ", ".join(run.source for run in again[:_NAMED])
    more = f" and {len(again) - _NAMED} more" if len(again) > _NAMED else ""
    return [f"given twice, used once: {named}{more}"]


def _together(tables: Sequence[Comparison]) -> list[Comparison]:
    """The rows of all loads judged together in each figure, then looked at for being fast because broken."""
    places = [(table, line) for table in range(len(tables)) for line in range(len(tables[table].lines))]
    effects = {place: dict(tables[place[0]].lines[place[1]].effects) for place in places}
    for key in dict.fromkeys(key for known in effects.values() for key in known):
        having = [place for place in places if key in effects[place]]
        if having:
            margin, alpha = tables[0].margin, tables[0].alpha
            judged = statistics.holm([effects[place][key] for place in having], margin, alpha)
            for place, effect in zip(having, judged, strict=True):
                effects[place][key] = effect
    return [
        _answered(table, [effects[at, row] for row in range(len(table.lines))])
        for at, table in enumerate(tables)
    ]


def _answered(table: Comparison, effects: Sequence[Mapping[str, Effect]]) -> Comparison:
    """The table with its final effects, and in its marks what the answers of each row tell."""
    baseline = next((line for line in table.lines if line.name == table.baseline), None)
    return replace(
        table,
        lines=tuple(
            lines.answered(
                replace(line, effects=known),
                None if line.name == table.baseline else baseline,
                table.headline,
                table.margin,
            )
            for line, known in zip(table.lines, effects, strict=True)
        ),
    )
