"""Limits: the highest loads that searches found, each checkpoint's compared with the baseline's, by a test.

Over searches that were repeated the search is the unit, judged as any figure of runs is. With one search on a
side only its own interval is known: the error of the log limit is the interval's half width on that scale
over the normal quantile, errors of two searches add as squares, and the verdict says that how searches differ
from one another is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import NormalDist

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.spelling import nearest
from loadgen.figures.repeats import t_quantile
from loadgen.report.limit_record import LimitEstimate
from loadgen.report.sweep_record import LoadAxis
from loadgen.roofline.models import suffix
from loadgen.study.compare import distinctions, statistics
from loadgen.study.compare.estimate import CLOCK_ERROR, Estimate
from loadgen.study.compare.model import ComparisonOptions, Decision, Effect
from loadgen.study.importers.searches import StoredLimit
from loadgen.study.run_summary import Reported, grouped

WITHIN = "one search on a side: the interval has the spread within searches, not that between them"
_OPEN = "the interval of a limit has an open end: nothing is known beyond it"
_NO_SCIPY = "a verdict needs scipy: in the clone, .venv/bin/pip install '.[compare]'"
_UNQUANTIZED = ("", "BF16", "FP16", "FP32")
_MANY = 1e6  # degrees of freedom, of an error that is taken as known


Kind = tuple[LoadAxis, tuple[str, ...], str]  # axis, objectives, and what the search is about


class LimitRow(msgspec.Struct, frozen=True):
    """One checkpoint's limit, the geometric mean of its searches, against the baseline's."""

    name: str
    searches: tuple[StoredLimit, ...]
    limit: LimitEstimate | None  # None: no search found one
    effect: Effect | None = None  # None of the baseline

    @property
    def found(self) -> int:
        """How many of its searches found a limit: the figures are of these."""
        return len(values(self.searches))


class ComparedLimits(msgspec.Struct, frozen=True):
    """Searches of one kind: over the same axis, for the same objectives, with the same lengths."""

    axis: LoadAxis
    objectives: tuple[str, ...]
    about: str  # the workload and the machine, as far as they are known
    baseline: str
    rows: tuple[LimitRow, ...]  # the baseline first
    margin: float
    alpha: float


def compare(limits: Sequence[StoredLimit], ask: ComparisonOptions) -> list[ComparedLimits]:
    """A table for each kind of search, in order of appearance; Holm over all their rows.

    Raises UsageError where the baseline that is asked for has no search.
    """
    names = list(dict.fromkeys(_names(limits)))
    if names and ask.baseline and not _is_among(ask.baseline, names):
        raise UsageError(
            f"--baseline {ask.baseline}: no search is of it{nearest(ask.baseline, names)}; there are "
            f"{', '.join(names)}"
        )
    named = zip(_names(limits), limits, strict=True)
    tables = [_table(kind, ask) for kind in grouped(named, lambda pair: _kind(pair[1])).values()]
    effects = [row.effect for table in tables for row in table.rows if row.effect is not None]
    judged = iter(statistics.holm(effects, ask.equivalence, ask.alpha))
    return [
        replace(
            table,
            rows=tuple(
                row if row.effect is None else replace(row, effect=_with_cause(next(judged), row.effect))
                for row in table.rows
            ),
        )
        for table in tables
    ]


def _kind(limit: StoredLimit) -> Kind:
    return limit.record.axis, tuple(sorted(limit.record.objectives)), _about(limit)


def _about(limit: StoredLimit) -> str:
    """Profile of a campaign, lengths, and the machine: searches that differ in them are not compared.

    Lengths are those asked for, else as counted to three digits: a server may count a token or two more.
    """
    if not limit.runs:
        return ""
    run = limit.runs[0]
    load = run.load
    ways = ((load.asked_input_len, load.input_len, "in"), (load.asked_output_len, load.output_len, "out"))
    lengths = [
        f"{float(f'{counted:.3g}') if asked is None else asked:g} {way}"
        for asked, counted, way in ways
        if asked is not None or counted is not None
    ]
    profile = "" if run.cell is None else run.cell.profile
    return ", ".join(filter(None, (profile, " / ".join(lengths), load.shape, run.machine)))


def _names(limits: Sequence[StoredLimit]) -> list[str]:
    """The row of each: its checkpoint, with the server where a campaign has several.

    Searches of one name that are no repeats, as runs are none, have the words in which they differ.
    """
    cells = [limit.runs[0].cell if limit.runs else None for limit in limits]
    by_server = len({cell.server for cell in cells if cell is not None}) > 1
    named = zip(limits, cells, strict=True)
    names = [cell.arm if cell is not None and by_server else limit.name for limit, cell in named]
    for name, places in grouped(range(len(limits)), lambda at: names[at]).items():
        of_name = [limits[at] for at in places]
        if not all(limit.runs for limit in of_name):
            continue
        firsts = [replace(limit.runs[0], place=limit.place) for limit in of_name]
        kinds = {id(run): _kind(limit) for run, limit in zip(firsts, of_name, strict=True)}
        rows = distinctions.names(name, firsts, partial(_by_kind, kinds))
        for at, row in zip(places, rows, strict=True):
            names[at] = row
    return names


def _by_kind(kinds: Mapping[int, Kind], runs: Sequence[Reported]) -> list[list[int]]:
    """Places of searches' first runs by what was searched for."""
    return [*grouped(range(len(runs)), lambda at: kinds[id(runs[at])]).values()]


def _table(named: Sequence[tuple[str, StoredLimit]], ask: ComparisonOptions) -> ComparedLimits:
    rows = {name: [limit for _, limit in of] for name, of in grouped(named, lambda pair: pair[0]).items()}
    baseline = _baseline(list(rows), ask)
    made = tuple(
        LimitRow(
            name,
            tuple(rows[name]),
            summary(rows[name]),
            None if name == baseline else _effect(rows[name], rows[baseline], ask),
        )
        for name in (baseline, *(name for name in rows if name != baseline))
    )
    first = named[0][1]
    return ComparedLimits(
        first.record.axis, first.record.objectives, _about(first), baseline, made, ask.equivalence, ask.alpha
    )


def _baseline(names: Sequence[str], ask: ComparisonOptions) -> str:
    """The row asked for, else the campaign's, else the first that is not quantized, else the first."""
    wanted = next(
        (
            name
            for asked in (ask.baseline, ask.campaign.baseline)
            for name in names
            if _is_among(asked, [name])
        ),
        "",
    )
    plain = (name for name in names if suffix(name).upper() in _UNQUANTIZED)
    return wanted or next(plain, names[0])


def _is_among(wanted: str, names: Sequence[str]) -> bool:
    """Whether a row has the wanted name, alone or before the words that tell it from others."""
    return wanted in names or (wanted != "" and any(name.startswith(f"{wanted} (") for name in names))


def values(limits: Sequence[StoredLimit]) -> list[float]:
    """The limits of those searches that found one."""
    found = (limit.record.limit for limit in limits)
    return [each.value for each in found if each is not None and each.value is not None]


def summary(limits: Sequence[StoredLimit]) -> LimitEstimate | None:
    """The limit of one search as it found it; of several their geometric mean with its 95 % interval."""
    known = [limit.record.limit for limit in limits if limit.record.limit is not None]
    known = [each for each in known if each.value is not None]
    if len(known) < 2:
        return known[0] if known else None
    logs = np.log([each.value for each in known if each.value is not None])
    mean, half = (
        float(logs.mean()),
        t_quantile(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs)),
    )
    return LimitEstimate(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def _effect(row: Sequence[StoredLimit], baseline: Sequence[StoredLimit], ask: ComparisonOptions) -> Effect:
    own, others = values(row), values(baseline)
    if not (own and others):
        return Effect(Decision.NONE, math.nan, why="a search without a limit has no ratio")
    if min(len(own), len(others)) == 1:
        return _within(row, baseline, ask)
    repeats = [[_repeat(limit) for limit in side if values([limit])] for side in (row, baseline)]
    paired = None not in repeats[0] and len(set(repeats[0])) == len(own) == len(others)
    paired = paired and set(repeats[0]) == set(repeats[1])
    if paired:
        own, others = (_by_repeat(side) for side in (row, baseline))
    return statistics.effect(
        own, others, paired=paired, higher_is_faster=True, margin=ask.equivalence, alpha=ask.alpha
    )


def _repeat(limit: StoredLimit) -> int | None:
    """Which repeat of a campaign it is; None outside of one."""
    cell = limit.runs[0].cell if limit.runs else None
    return None if cell is None else cell.repeat


def _by_repeat(limits: Sequence[StoredLimit]) -> list[float]:
    return values(sorted(limits, key=lambda limit: _repeat(limit) or 0))


def _within(row: Sequence[StoredLimit], baseline: Sequence[StoredLimit], ask: ComparisonOptions) -> Effect:
    """The difference of two limits by their searches' own intervals."""
    pair = summary(row), summary(baseline)
    ratio = _value(pair[0]) / _value(pair[1])
    bare = Effect(Decision.NONE, ratio, units=1, higher_is_faster=True)
    errors = [_log_error(each) for each in pair]
    if any(math.isnan(error) for error in errors):
        return replace(bare, why=_OPEN)
    error = max(math.hypot(*errors), CLOCK_ERROR)
    estimated = Estimate(*(np.array(value) for value in (math.log(ratio), error, _MANY)))
    try:
        reach = float(estimated.reach(ask.alpha))
    except ImportError:
        return replace(bare, why=_NO_SCIPY)
    return replace(
        bare,
        low=ratio * math.exp(-reach),
        high=ratio * math.exp(reach),
        p=float(estimated.p),
        p_equivalent=float(estimated.p_equivalent(ask.equivalence)),
        error=error,
        freedom=_MANY,
        units=2,  # of fewer, how many more would decide is not defined
    )


def _value(estimate: LimitEstimate | None) -> float:
    return math.nan if estimate is None or estimate.value is None else estimate.value


def _log_error(estimate: LimitEstimate | None) -> float:
    """The standard error of a limit's logarithm; NaN where its interval has an open end."""
    if estimate is None or not estimate.low or estimate.high is None:
        return math.nan
    quantile = NormalDist().inv_cdf((1 + estimate.confidence) / 2)
    return math.log(estimate.high / estimate.low) / (2 * quantile)


def _with_cause(judged: Effect, before: Effect) -> Effect:
    """A verdict by searches' own intervals keeps saying so, and does not say how many more would decide."""
    if before.freedom != _MANY:
        return judged
    return replace(judged, why=WITHIN, more_runs=None, units=1)
