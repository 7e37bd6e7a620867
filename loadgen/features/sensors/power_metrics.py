"""Power metrics: what exporters call energy, power, clocks and heat, and what their answers say of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from loadgen.base import untrusted
from loadgen.base.text import list_first
from loadgen.host.amd import AMD_BLANKS, VIOLATIONS
from loadgen.host.sensor import COUNTERS, Quantity
from loadgen.server.exchange import ControlAnswer
from loadgen.server.prometheus import explain_cut, explain_excess, explain_other_text, parse_line, read_name

HELD_BACK: Literal["held_back"] = "held_back"
# What DCGM reports for a value that there is not, for each width of its numbers.
_DCGM_BLANKS = tuple(float(base + n) for base in (0x7FFFFFF0, 1 << 47, 0x7FFFFFFFFFFFFFF0) for n in range(4))
_MOST_NAMES, _LONGEST_HOST = 5, 100
_SPENT: dict[Quantity, tuple[Quantity, ...]] = {"power_w": ("energy_j",)}  # each only where none of these is


class PowerMetric(msgspec.Struct, frozen=True):
    """What a name means: a quantity, and its unit in ours; or, of HELD_BACK, why if it is above 0."""

    quantity: Quantity | Literal["held_back"]
    scale: float = 1.0
    place: str = "GPU"  # before the index of what it is of
    label: str = ""  # whose value is the key of `kinds`: quantities of one name; of others it is left out
    kinds: Mapping[str, Quantity] = {}
    why: str = ""  # "": the value is a mask of NVML's reasons


class PowerFamily(msgspec.Struct, frozen=True):
    """An exporter: its names and what they mean; of several for one quantity the first counts."""

    name: str
    port: int  # where it listens by default
    marks: tuple[str, ...]  # beginnings of its names
    metrics: Mapping[str, PowerMetric]
    index: str  # the label with the number of a GPU or package
    unit: str  # the label that tells it from all others
    host: str = ""  # the label of its machine; "": the URL's
    left_out: str = ""  # in the unit, of lines that repeat others
    blanks: tuple[float, ...] = ()
    query: str = ""  # by which it leaves out what costs it time
    wraps: bool = False  # a counter that falls has wrapped at an unknown greatest value
    advice: str = ""  # where it reports neither energy nor power


_AMD = {
    "gpu_energy_consumed": PowerMetric("energy_j", 1e-6),
    "gpu_package_power": PowerMetric("power_w"),
    "gpu_average_package_power": PowerMetric("power_w"),
    "gpu_power_usage": PowerMetric("power_w"),
    "gpu_junction_temperature": PowerMetric("temperature_c"),
    "gpu_clock": PowerMetric(
        "sm_mhz",
        label="clock_type",
        kinds={"GPU_CLOCK_TYPE_SYSTEM": "sm_mhz", "GPU_CLOCK_TYPE_MEMORY": "memory_mhz"},
    ),
    **{
        f"gpu_violation_{name}_residency_percentage": PowerMetric(HELD_BACK, why=why)
        for (_, name), why in VIOLATIONS.items()
    },
}

FAMILIES = (
    PowerFamily(
        "DCGM's exporter",
        9400,
        ("DCGM_FI_",),
        {
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": PowerMetric("energy_j", 1e-3),
            "DCGM_FI_DEV_POWER_USAGE": PowerMetric("power_w"),
            "DCGM_FI_DEV_GPU_TEMP": PowerMetric("temperature_c"),
            "DCGM_FI_DEV_SM_CLOCK": PowerMetric("sm_mhz"),
            "DCGM_FI_DEV_MEM_CLOCK": PowerMetric("memory_mhz"),
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": PowerMetric(HELD_BACK),
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": PowerMetric(HELD_BACK),
        },
        index="gpu",
        unit="UUID",
        host="Hostname",
        blanks=_DCGM_BLANKS,
        advice="add DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION to its counters (-f FILE.csv)",
    ),
    PowerFamily(
        "node_exporter",
        9100,
        ("node_",),
        {
            "node_rapl_package_joules_total": PowerMetric("package_j", place="CPU package"),
            "node_rapl_dram_joules_total": PowerMetric("package_j", place="CPU memory"),
        },
        index="index",
        unit="path",
        left_out="intel-rapl-mmio",
        query="?collect%5B%5D=rapl",
        wraps=True,
        advice="it has no node_rapl_package_joules_total: only root may read RAPL, so run it as root",
    ),
    PowerFamily(
        "AMD's device-metrics-exporter",
        5000,
        ("gpu_", "amd_gpu_"),
        # Its operator may add a prefix.
        {f"{prefix}{name}": metric for prefix in ("", "amd_") for name, metric in _AMD.items()},
        index="gpu_id",
        unit="serial_number",
        host="hostname",
        blanks=AMD_BLANKS,
        advice="add GPU_ENERGY_CONSUMED and GPU_PACKAGE_POWER to the fields of its configuration",
    ),
)
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
    """Parse selected lines, without repeated zones and absent values; raises ValueError for other lines."""
    rows = []
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
        host, rank = labels.get(family.host, ""), _RANKS[sample.name]
        rows.append(ExportedValue(family, metric, quantity, rank, host, unit, index, value))
    return tuple(rows)


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
