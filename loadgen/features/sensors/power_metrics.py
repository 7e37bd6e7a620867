"""Power names: what exporters of power call energy, power, clocks and heat: one table of their families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from loadgen.features.sensors.sensor import Quantity

HELD_BACK: Literal["held_back"] = "held_back"
HEAT = "thermal slowdown"
LIMITS = ("power limit", "current limit")  # a GPU under full load is at one, which is not a fault
# What slows an AMD GPU, by the word for it in the names of amdsmi and of the exporter.
VIOLATIONS = {
    ("prochot", "processor_hot"): f"hardware {HEAT}",
    ("ppt", "ppt"): LIMITS[0],
    ("socket_thm", "socket_thermal"): f"{HEAT} of the socket",
    ("vr_thm", "vr_thermal"): f"{HEAT} of the voltage regulators",
    ("hbm_thm", "hbm_thermal"): f"{HEAT} of the memory",
}
# What DCGM and amdsmi report for a value that there is not, for each width of their numbers.
_DCGM_BLANKS = tuple(float(base + n) for base in (0x7FFFFFF0, 1 << 47, 0x7FFFFFFFFFFFFFF0) for n in range(4))
AMD_BLANKS = tuple(float((1 << bits) - 1) for bits in (16, 32, 64))


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


def _name_violations() -> dict[str, PowerMetric]:
    return {
        f"gpu_violation_{name}_residency_percentage": PowerMetric(HELD_BACK, why=why)
        for (_, name), why in VIOLATIONS.items()
    }


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
    **_name_violations(),
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
