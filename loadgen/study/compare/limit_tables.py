"""Limit tables: compared limits as text, Markdown, CSV and JSON, a sentence and a row a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import asdict

from loadgen.base.csv_text import csv_table
from loadgen.base.printable import printable
from loadgen.figures import repeats
from loadgen.report import limit_lines
from loadgen.report.load_table import SIMULATION, marked_name
from loadgen.report.speed_tables import Column, Table
from loadgen.report.vllm_json import strict
from loadgen.study.compare.limits import ComparedLimits, LimitRow, values
from loadgen.study.compare.model import Decision
from loadgen.study.compare.rows import far_apart

_CALLS = {
    Decision.FASTER: "more",
    Decision.SLOWER: "fewer",
    Decision.EQUIVALENT: "equivalent",
    Decision.UNDECIDED: "undecided",
    Decision.NONE: "no verdict",
}
_USERS = {"concurrency": "users", "rate": "requests/s"}
_EFFECT = ("ratio", "low", "high", "p", "p_adjusted", "p_equivalent", "units", "paired", "why")
CSV_COLUMNS = (
    "objectives", "about", "axis", "checkpoint", "baseline", "searches", "limit", "limit_low", "limit_high",
    "call", *_EFFECT,
)  # fmt: skip
_ABOUT = ("axis", "objectives", "about", "baseline", "margin", "alpha")
_COLUMNS = (
    Column("name", "checkpoint"), Column("limit", "limit"), Column("interval", "95 %"),
    Column("searches", "searches"), Column("times", "× baseline"), Column("call", "verdict"),
)  # fmt: skip


def title(compared: ComparedLimits) -> str:
    """What was searched for: the highest concurrency at the objectives, and of which workload."""
    highest = "concurrency" if compared.axis == "concurrency" else "request rate"
    about = f": {compared.about}" if compared.about else ""
    return printable(f"Highest {highest} at {', '.join(compared.objectives)}{about}")


def table(compared: ComparedLimits) -> Table:
    """A row a checkpoint; below it what each comes to, and what limits the verdicts."""
    body = tuple(tuple(map(printable, _cells(compared, row))) for row in compared.rows)
    return Table(_COLUMNS, body, notes=tuple(printable(note) for note in _notes(compared)))


def sentence(compared: ComparedLimits, row: LimitRow) -> str:
    """FP8 serves 1.80× (1.60–2.00) the users of BF16 at this objective; "" without a ratio."""
    if not (times := multiplied(row)):
        return ""
    at = "at this objective" if len(compared.objectives) == 1 else "at these objectives"
    return f"{row.name} serves {times} the {_USERS[compared.axis]} of {compared.baseline} {at}"


def multiplied(row: LimitRow) -> str:
    """1.80× (1.60–2.00); "" without a ratio."""
    effect = row.effect
    if effect is None or not math.isfinite(effect.ratio):
        return ""
    if not (math.isfinite(effect.low) and math.isfinite(effect.high)):
        return f"{effect.ratio:.2f}×"
    bounded = repeats.is_bounded(effect.ratio, effect.low, effect.high)
    between = f"{effect.low:.2f}–{effect.high:.2f}" if bounded else repeats.UNBOUNDED
    return f"{effect.ratio:.2f}× ({between})"


def csv(tables: Sequence[ComparedLimits]) -> str:
    """A line a checkpoint with every digit; what is not known is empty."""
    return csv_table(CSV_COLUMNS, [_flat(each, row) for each in tables for row in each.rows])


def _flat(compared: ComparedLimits, row: LimitRow) -> dict[str, Any]:
    about = {
        "objectives": "; ".join(compared.objectives),
        "about": compared.about,
        "axis": compared.axis,
        "checkpoint": row.name,
        "baseline": compared.baseline,
        "searches": row.found,
    }
    limit = {} if row.limit is None else row.limit.model_dump(include={"low", "high"})
    ends = {f"limit_{key}": value for key, value in limit.items()}
    about |= {"limit": None if row.limit is None else row.limit.value, **ends}
    if row.effect is None:
        return about
    return {**about, **{key: getattr(row.effect, key) for key in _EFFECT}, "call": _CALLS[row.effect.call]}


def json(tables: Sequence[ComparedLimits]) -> list[dict[str, Any]]:
    """Everything that is known of each, as JSON has it: no NaN, no infinity."""
    made = [
        {
            **{key: getattr(each, key) for key in _ABOUT},
            "rows": [_row(each, row) for row in each.rows],
        }
        for each in tables
    ]
    clean: list[dict[str, Any]] = strict(made)
    return clean


def _row(compared: ComparedLimits, row: LimitRow) -> dict[str, Any]:
    effect = row.effect
    return {
        "name": row.name,
        "limit": None if row.limit is None else row.limit.model_dump(),
        "effect": None if effect is None else {**asdict(effect), "call": _CALLS[effect.call]},
        "searches": [search.directory and str(search.directory) for search in row.searches],
        "words": sentence(compared, row),
    }


def _cells(compared: ComparedLimits, row: LimitRow) -> tuple[str, ...]:
    limit, ends = row.limit, "-"
    if limit is not None and limit.low is not None and limit.high is not None:
        ends = f"{limit_lines.load(limit.low)} to {limit_lines.load(limit.high)}"
        if limit.value is not None and not repeats.is_bounded(limit.value, limit.low, limit.high):
            ends = repeats.UNBOUNDED
    value = "-" if limit is None or limit.value is None else limit_lines.load(limit.value)
    call = "baseline" if row.effect is None else _CALLS[row.effect.call]
    return _shown(row), value, ends, f"{row.found}", multiplied(row), call


def _shown(row: LimitRow) -> str:
    return marked_name(row.name, any(run.simulated for search in row.searches for run in search.runs))


def _notes(compared: ComparedLimits) -> Iterator[str]:
    yield from filter(None, (sentence(compared, row) for row in compared.rows))
    for row in compared.rows:
        for search in row.searches:
            if not values([search]):  # it is in no figure: bounds of a search, or an interrupted one
                yield f"{row.name}: {limit_lines.headline(search.record)}, not in the figures"
        if factor := far_apart(values(row.searches)):
            yield f"{row.name}: are its {row.found} searches repeats? Their limits are {factor:g}× apart"
    if len(compared.rows) == 1:
        yield "one checkpoint, nothing to compare it with: pass another search"
    whys = dict.fromkeys(row.effect.why for row in compared.rows if row.effect is not None)
    yield from filter(None, whys)
    if any(row.effect is not None and row.effect.call is not Decision.NONE for row in compared.rows):
        yield f"equivalent: within ± {100 * compared.margin:g} %; by Holm over all rows at {compared.alpha:g}"
    if any(run.simulated for row in compared.rows for search in row.searches for run in search.runs):
        yield SIMULATION
