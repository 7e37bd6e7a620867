"""Power answers: what an exporter's answer says of power, energy, heat and clocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from loadgen.base import untrusted
from loadgen.base.text import list_first
from loadgen.features.sensors.power_metrics import FAMILIES, HELD_BACK, PowerFamily, PowerMetric
from loadgen.features.sensors.sensor import COUNTERS, Quantity
from loadgen.server.exchange import ControlAnswer
from loadgen.server.prometheus import explain_cut, explain_excess, explain_other_text, parse_line, read_name

_MOST_NAMES, _LONGEST_HOST = 5, 100
_SPENT: dict[Quantity, tuple[Quantity, ...]] = {"power_w": ("energy_j",)}  # each only where none of these is
_BY_NAME = {name: (family, metric) for family in FAMILIES for name, metric in family.metrics.items()}
_RANKS = {name: rank for family in FAMILIES for rank, name in enumerate(family.metrics)}


class ExportedValue(msgspec.Struct, frozen=True):
    """One sample of an exposition: what it is of, and its value in our unit."""

    family: PowerFamily
    metric: PowerMetric
    quantity: Quantity | Literal["held_back"]
    rank: int  # of its name among those of its family
    host: str  # "": the exporter does not name it
    unit: str  # of its machine, or of the world: a GPU's UUID
    index: str
    value: float


def _select_lines(status: int, body: bytes) -> tuple[tuple[str, ...], str]:
    """Select an answer's lines with power, energy, heat or clocks; else the error, as a sentence's end."""
    if status != 200:
        return (), f"answers {status}"
    text = body.decode("utf-8", "replace")
    if why := explain_other_text(text) or explain_cut(text):
        return (), why
    lines = text.splitlines()
    selected = tuple(line for line in lines if read_name(line) in _BY_NAME)
    if why := explain_excess(selected, "power"):
        return (), why
    named = {read_name(line) for line in selected}
    if not any(_BY_NAME[name][1].quantity in (*COUNTERS, *_SPENT) for name in named):
        return (), _explain_no_power(lines)
    return selected, ""


def _explain_no_power(lines: Sequence[str]) -> str:
    """Explain what an exposition has instead of power, and what to do."""
    names = list(dict.fromkeys(read_name(line) for line in lines if line and line[0] != "#"))
    for family in FAMILIES:
        if any(name.startswith(family.marks) for name in names):
            return f"is {family.name} without power or energy: {family.advice}"
    listed = list_first([untrusted.read_text(name, _LONGEST_HOST) for name in names], _MOST_NAMES)
    known = ", ".join(f"{family.name} (port {family.port})" for family in FAMILIES)
    found = f"only {listed}" if names else "no metric"
    return f"has no power or energy, {found}: give the URL of {known}"


@lru_cache(maxsize=64)  # many exporters answer with the same for seconds
def _parse_lines(lines: tuple[str, ...]) -> tuple[ExportedValue, ...]:
    """Parse selected lines; those of repeated zones and of values that there are not are left out.

    Raises ValueError for a line that is none.
    """
    return tuple(_parse_rows(lines))


def _parse_rows(lines: Iterable[str]) -> Iterator[ExportedValue]:
    for line in lines:
        sample = parse_line(line)
        family, metric = _BY_NAME[sample.name]
        labels = {name: untrusted.read_text(text, _LONGEST_HOST) for name, text in sample.labels.items()}
        quantity = metric.kinds.get(labels.get(metric.label, "")) if metric.kinds else metric.quantity
        if quantity is None:
            continue
        index = labels.get(family.index, "")
        unit = labels.get(family.unit, "") or index
        value = untrusted.read_number(sample.value * metric.scale)
        if value is None or sample.value in family.blanks or (family.left_out and family.left_out in unit):
            continue
        # A counter at 0 is one that does not count.
        if value == 0 and quantity != HELD_BACK:
            continue
        yield ExportedValue(
            family, metric, quantity, _RANKS[sample.name], labels.get(family.host, ""), unit, index, value
        )


def read_values(answer: ControlAnswer) -> tuple[tuple[ExportedValue, ...], str]:
    """Read the values of an answer; else the reason, as the end of a sentence that begins with the URL."""
    if answer.error:
        return (), answer.error
    lines, why = _select_lines(answer.status, answer.body)
    if why:
        return (), why
    try:
        return _parse_lines(lines), ""
    except ValueError:
        return (), "has a malformed line"


def choose_values(rows: Sequence[ExportedValue]) -> dict[Quantity, float]:
    """Choose each quantity's value of the rows of one GPU, by the first name that has one.

    Of several rows of a name, as of MIG's instances or a clock's domains, it is the greatest. Power is left
    out where there is a counter of energy.
    """
    chosen: dict[Quantity, tuple[int, float]] = {}
    for row in rows:
        quantity = row.quantity
        if quantity != HELD_BACK:
            rank, value = chosen.get(quantity, (row.rank, row.value))
            if row.rank <= rank:
                chosen[quantity] = row.rank, max(value, row.value) if row.rank == rank else row.value
    return {
        quantity: value
        for quantity, (_, value) in chosen.items()
        if not any(better in chosen for better in _SPENT.get(quantity, ()))
    }
