"""Limits: the highest loads that searches found, compared with the baseline's by a test, and their tables.

Over searches that were repeated the search is the unit, judged as any figure of runs is. With one search on a
side only its own interval is known: the error of the log limit is the interval's half width on that scale
over the normal quantile, errors of two searches add as squares, and the verdict says that how searches differ
from one another is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.passages import UNBOUNDED
from loadgen.base.tables import Table, format_csv_table, make_table
from loadgen.base.text import clean_line
from loadgen.report.result_file import make_strict
from loadgen.study import limit_record, repeats
from loadgen.study.compare import run_groups, statistics
from loadgen.study.compare.comparison import find_default_row, match_rows, measure_distance
from loadgen.study.compare.comparison_report import format_ratio
from loadgen.study.compare.model import ComparedRow, ComparisonOptions, Decision, Effect
from loadgen.study.compare.statistics import CLOCK_ERROR
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitEstimate
from loadgen.study.load_table import SIMULATION
from loadgen.study.quality import quality_record
from loadgen.study.quality.arm_qualities import encode_row_quality, list_quality_cells
from loadgen.study.run_summary import group_by
from loadgen.study.sweep_record import LoadAxis

WITHIN = "one search on a side: the interval has the spread within searches, not that between them"
_OPEN = "the interval of a limit has an open end: nothing is known beyond it"
_CALLS = {
    Decision.FASTER: "more",
    Decision.SLOWER: "fewer",
    Decision.EQUIVALENT: "equivalent",
    Decision.UNDECIDED: "undecided",
    Decision.NONE: "no verdict",
}
_EFFECT = ("ratio", "low", "high", "p", "p_adjusted", "p_equivalent", "units", "paired", "why")
_ABOUT = ("axis", "objectives", "about", "baseline", "margin", "alpha")
Kind = tuple[LoadAxis, tuple[str, ...], str]  # axis, objectives, and what the search is about


class LimitRow(ComparedRow, frozen=True):
    """One checkpoint's limit, the geometric mean of its searches, against the baseline's."""

    searches: tuple[StoredLimit, ...]
    limit: LimitEstimate | None  # None: no search found one
    effect: Effect | None = None  # None of the baseline

    @property
    def found(self) -> int:
        """How many of its searches found a limit: the figures are of these."""
        return len(list_limits(self.searches))


class ComparedLimits(msgspec.Struct, frozen=True):
    """Searches of one kind: over the same axis, for the same objectives, with the same lengths."""

    axis: LoadAxis
    objectives: tuple[str, ...]
    about: str  # the workload and the machine, as far as they are known
    baseline: str
    rows: tuple[LimitRow, ...]  # the baseline first
    margin: float
    alpha: float
    kl_margin: float = quality_record.MARGIN  # nats a token, below which two distributions are one
    of_sessions: bool = False  # a load counts sessions, else requests


def compare_limits(limits: Sequence[StoredLimit], ask: ComparisonOptions) -> list[ComparedLimits]:
    """Compare limits in a table for each kind of search, in order of appearance; Holm over all their rows.

    Raises UsageError where the baseline that is asked for has no search.
    """
    names = _name_rows(limits)
    if names and ask.baseline and not match_rows(ask.baseline, names):
        known = list(dict.fromkeys(names))
        raise UsageError(
            f"--baseline {ask.baseline}: no search is of it{suggest_name(ask.baseline, known)}; there are "
            f"{', '.join(known)}"
        )
    named = group_by(zip(names, limits, strict=True), lambda pair: _identify_kind(pair[1]))
    tables = [_compare_kind(of_kind, ask) for of_kind in named.values()]
    effects = [row.effect for table in tables for row in table.rows if row.effect is not None]
    judged = iter(statistics.judge_rows(effects, ask.equivalence, ask.alpha))
    made = []
    for table in tables:
        rows = (row if row.effect is None else replace(row, effect=next(judged)) for row in table.rows)
        made.append(replace(table, rows=tuple(rows)))
    return made


def _identify_kind(limit: StoredLimit) -> Kind:
    """Return a search's axis, sorted objectives, and its first run's load and machine in words ("" if none).

    The load is a campaign's profile, lengths and shape. Lengths are those asked for, else as counted to three
    digits: a server may count a token or two more.
    """
    about = ""
    for run in limit.runs[:1]:
        load = run.load
        ways = ((load.asked_input_len, load.input_len, "in"), (load.asked_output_len, load.output_len, "out"))
        lengths = [
            f"{float(f'{counted:.3g}') if asked is None else asked:g} {way}"
            for asked, counted, way in ways
            if asked is not None or counted is not None
        ]
        profile = "" if run.cell is None else run.cell.profile
        about = ", ".join(filter(None, (profile, " / ".join(lengths), load.shape, run.machine)))
    return limit.record.axis, tuple(sorted(limit.record.objectives)), about


def _name_rows(limits: Sequence[StoredLimit]) -> list[str]:
    """Name the row of each: its checkpoint, with the server where a campaign has several.

    Searches of one name that are not repeats, as with runs, have the words in which they differ.
    """
    runs = [replace(limit.runs[0], place=limit.place) if limit.runs else None for limit in limits]
    cells = [None if run is None else run.cell for run in runs]
    by_server = len({cell.server for cell in cells if cell is not None}) > 1
    named = zip(limits, cells, strict=True)
    names = [cell.arm if cell is not None and by_server else limit.name for limit, cell in named]
    kinds = {id(run): _identify_kind(limit) for run, limit in zip(runs, limits, strict=True)}
    return run_groups.distinguish_names(
        names, runs, lambda own: [*group_by(range(len(own)), lambda at: kinds[id(own[at])]).values()]
    )


def _compare_kind(named: Sequence[tuple[str, StoredLimit]], ask: ComparisonOptions) -> ComparedLimits:
    """Compare searches of one kind, each with its row's name; the baseline's row comes first.

    That is the first row that --baseline means, else the campaign's, else the default row.
    """
    rows = {name: [limit for _, limit in of] for name, of in group_by(named, lambda pair: pair[0]).items()}
    asked = filter(None, (ask.baseline, ask.campaign.baseline))
    matches = (name for wanted in asked for name in match_rows(wanted, rows))
    baseline = next(matches, None) or find_default_row({name: name for name in rows})
    made = tuple(
        LimitRow(
            name,
            tuple(run for search in rows[name] for run in search.runs),
            tuple(rows[name]),
            summarise_limits(rows[name]),
            None if name == baseline else judge_limits(rows[name], rows[baseline], ask),
        )
        for name in (baseline, *(name for name in rows if name != baseline))
    )
    (axis, _, about), first = _identify_kind(named[0][1]), named[0][1].record
    margins = ask.equivalence, ask.alpha, ask.kl_margin
    return ComparedLimits(axis, first.objectives, about, baseline, made, *margins, first.of_sessions)


def list_limits(limits: Sequence[StoredLimit]) -> list[float]:
    """List the limits of the searches that found one, in the search's unit of load."""
    found = (limit.record.limit for limit in limits)
    return [each.value for each in found if each is not None and each.value is not None]


def summarise_limits(limits: Sequence[StoredLimit]) -> LimitEstimate | None:
    """Return the only limit found, of several the geometric mean with its 95 % interval; None if none."""
    known = [each for limit in limits if (each := limit.record.limit) is not None and each.value is not None]
    if len(known) < 2:
        return known[0] if known else None
    log = repeats.Mean.average(np.log(list_limits(limits)).tolist())
    return LimitEstimate(value=math.exp(log.mean), low=math.exp(log.low), high=math.exp(log.high))


def judge_limits(
    row: Sequence[StoredLimit], baseline: Sequence[StoredLimit], ask: ComparisonOptions
) -> Effect:
    """Judge a row's limits against the baseline's; by the searches' own intervals with one on a side.

    They are paired if both sides have the same repeats of a campaign. Without a limit on a side there is no
    verdict.
    """
    own, others = list_limits(row), list_limits(baseline)
    if not (own and others):
        return Effect(Decision.NONE, math.nan, why="a search without a limit has no ratio")
    if min(len(own), len(others)) == 1:
        return _judge_intervals(row, baseline, ask)
    known = [[_get_repeat(limit) for limit in side if list_limits([limit])] for side in (row, baseline)]
    paired = None not in known[0] and len(set(known[0])) == len(own) == len(others)
    paired = paired and set(known[0]) == set(known[1])
    if paired:
        sides = (sorted(side, key=lambda limit: _get_repeat(limit) or 0) for side in (row, baseline))
        own, others = map(list_limits, sides)
    return statistics.Units(own, others, paired).judge(True, ask.equivalence, ask.alpha)


def _get_repeat(limit: StoredLimit) -> int | None:
    cell = limit.runs[0].cell if limit.runs else None
    return None if cell is None else cell.repeat


def _judge_intervals(
    row: Sequence[StoredLimit], baseline: Sequence[StoredLimit], ask: ComparisonOptions
) -> Effect:
    """Judge limits by their own intervals; no verdict where one has an open end, or without scipy."""
    pair = [estimate for side in (row, baseline) if (estimate := summarise_limits(side)) is not None]
    ratio = math.nan if pair[0].value is None or pair[1].value is None else pair[0].value / pair[1].value
    bare = Effect(Decision.NONE, ratio, units=1, higher_is_faster=True)
    errors = []  # standard errors of the limits' logarithms
    for each in pair:
        if not each.low or each.high is None:
            return replace(bare, why=_OPEN)
        quantile = NormalDist().inv_cdf((1 + each.confidence) / 2)
        errors.append(math.log(each.high / each.low) / (2 * quantile))
    values = math.log(ratio), max(math.hypot(*errors), CLOCK_ERROR), statistics.KNOWN_ERROR
    estimated = statistics.Estimate(*map(np.array, values))
    tested = statistics.add_p_values(bare, estimated, ask.equivalence, ask.alpha)
    return tested if math.isnan(tested.p) else replace(tested, why=WITHIN)


def describe_limits(compared: ComparedLimits) -> str:
    """Describe in one line the limits that were searched for: axis, objectives and workload."""
    highest = "concurrency" if compared.axis == "concurrency" else "request rate"
    about = f": {compared.about}" if compared.about else ""
    return clean_line(f"Highest {highest} at {', '.join(compared.objectives)}{about}")


def make_limit_table(compared: ComparedLimits) -> Table:
    """Make a table of a row a checkpoint; its notes have the ratios, and what limits the verdicts."""
    columns = (
        ("name", "checkpoint"), ("limit", "limit"), ("interval", "95 %"), ("searches", "searches"),
        ("times", "× baseline"), ("call", "verdict"),
    )  # fmt: skip
    return make_table(columns, map(_list_cells, compared.rows), notes=_list_notes(compared))


def describe_limit_ratio(compared: ComparedLimits, row: LimitRow) -> str:
    """Write "FP8 serves 1.80× (1.60–2.00) the users of BF16 at this objective"; "" without a ratio."""
    if not (times := format_limit_ratio(row)):
        return ""
    at = "at this objective" if len(compared.objectives) == 1 else "at these objectives"
    rate = limit_record.name_unit(compared.axis, compared.of_sessions)
    users = "users" if compared.axis == "concurrency" else rate
    return f"{row.name} serves {times} the {users} of {compared.baseline} {at}"


def format_limit_ratio(row: LimitRow) -> str:
    """Write a limit's ratio with its interval, as 1.80× (1.60–2.00); "" without a ratio."""
    effect = row.effect
    return "" if effect is None else format_ratio(effect.ratio, effect.low, effect.high, 2)


def render_limit_csv(tables: Sequence[ComparedLimits]) -> str:
    """Write limits as CSV, a line a checkpoint with every digit; an unknown value is empty."""
    rows = [
        {
            "objectives": "; ".join(each.objectives),
            "about": each.about,
            "axis": each.axis,
            "checkpoint": row.name,
            "baseline": each.baseline,
            "searches": row.found,
            "limit": getattr(row.limit, "value", None),
            "limit_low": getattr(row.limit, "low", None),
            "limit_high": getattr(row.limit, "high", None),
            "call": None if row.effect is None else _CALLS[row.effect.call],
            **{name: getattr(row.effect, name, None) for name in _EFFECT},
            **(list_quality_cells(row.quality, each.kl_margin) if row.quality is not None else {}),
        }
        for each in tables
        for row in each.rows
    ]
    return format_csv_table(list(dict.fromkeys(key for row in rows for key in row)), rows)


def encode_limits(tables: Sequence[ComparedLimits]) -> list[dict[str, Any]]:
    """Make the JSON objects of compared limits; NaN is null, and infinity its name."""
    encoded = []
    for each in tables:
        rows = []
        for row in each.rows:
            effect, quality = row.effect, row.quality
            rows.append(
                {
                    "name": row.name,
                    **({} if quality is None else {"quality": encode_row_quality(quality, each.kl_margin)}),
                    "limit": None if row.limit is None else row.limit.model_dump(),
                    "effect": None if effect is None else {**asdict(effect), "call": _CALLS[effect.call]},
                    "searches": [search.directory and str(search.directory) for search in row.searches],
                    "words": describe_limit_ratio(each, row),
                }
            )
        encoded.append({**{key: getattr(each, key) for key in _ABOUT}, "rows": rows})
    clean: list[dict[str, Any]] = make_strict(encoded)
    return clean


def _list_cells(row: LimitRow) -> tuple[str, ...]:
    """List a row's name, limit, interval, number of searches that found a limit, ratio and verdict."""
    limit, ends = row.limit, "-"
    if limit is not None and limit.low is not None and limit.high is not None:
        ends = f"{limit_record.format_load(limit.low)} to {limit_record.format_load(limit.high)}"
        if limit.value is not None and not repeats.is_bounded(limit.value, limit.low, limit.high):
            ends = UNBOUNDED
    value = "-" if limit is None or limit.value is None else limit_record.format_load(limit.value)
    call = "baseline" if row.effect is None else _CALLS[row.effect.call]
    return row.shown_name, value, ends, f"{row.found}", format_limit_ratio(row), call


def _list_notes(compared: ComparedLimits) -> Iterator[str]:
    yield from filter(None, (describe_limit_ratio(compared, row) for row in compared.rows))
    for row in compared.rows:
        for search in row.searches:
            if not list_limits([search]):  # it is in no figure: bounds of a search, or an interrupted one
                yield f"{row.name}: {limit_record.describe_limit(search.record)}, not in the figures"
        if factor := measure_distance(list_limits(row.searches)):
            yield f"{row.name}: are its {row.found} searches repeats? Their limits are {factor:g}× apart"
    if len(compared.rows) == 1:
        yield "one checkpoint, nothing to compare it with: pass another search"
    whys = dict.fromkeys(row.effect.why for row in compared.rows if row.effect is not None)
    yield from filter(None, whys)
    if any(row.effect is not None and row.effect.call is not Decision.NONE for row in compared.rows):
        yield f"equivalent: within ± {100 * compared.margin:g} %; by Holm over all rows at {compared.alpha:g}"
    if any(row.simulated for row in compared.rows):
        yield SIMULATION
