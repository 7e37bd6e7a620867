"""Two states of a machine differ by what someone set and by what it went through, not by noise."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from builders import made_cases as made
from builders.loops import loop_over_named
from loadgen.facts.run_facts import Facts, mask_texts
from loadgen.host.machine_state import (
    ClockState,
    GpuUse,
    MachineState,
    PowerCap,
    list_setting_differences,
    list_state_differences,
)

GIB = 1 << 30
COOL = MachineState(
    power_mode="MAXN (0)",
    cpu_governor="performance (acpi-cpufreq)",
    driver="580.142",
    firmware={"BIOS": "5.36", "GPU 0": "9A.00"},
    clocks={
        "CPU": ClockState(now_mhz=3400, limit_mhz=3400, most_mhz=3400, pinned=False),
        "GPU 0 SM": ClockState(now_mhz=208, most_mhz=3003, pinned=False),
    },
    power_caps={"GPU 0": PowerCap(now_w=700, default_w=700, least_w=200, most_w=700)},
    temperature_c={"GPU 0": 45, "CPU acpitz": 50},
    held_back=(),
    memory_bytes=120 * GIB,
    page_cache_bytes=2 * GIB,
    swap_bytes=0,
    gpus={"GPU 0": GpuUse(name="NVIDIA H100", others=1, others_bytes=0)},
    copy_gb_per_s=20.0,
)


def clock(name: str, **changes: Any) -> dict[str, ClockState]:
    return {**COOL.clocks, name: replace(COOL.clocks[name], **changes)}


@loop_over_named(
    ("changes", "differences"),
    {
        "the same": ({}, []),
        "a CPU frequency cap": (
            {"clocks": clock("CPU", limit_mhz=1700)},
            [("CPU clock limit", "3,400 MHz", "1,700 MHz")],
        ),
        "a clock that idles": ({"clocks": clock("CPU", limit_mhz=3390, now_mhz=800)}, []),
        "pinned clocks": (
            {"clocks": clock("GPU 0 SM", pinned=True)},
            [("GPU 0 SM clock", "not pinned", "pinned")],
        ),
        "a power cap": (
            {"power_caps": {"GPU 0": PowerCap(now_w=350, default_w=700)}},
            [("power cap of GPU 0", "700 W", "350 W")],
        ),
        "modes": (
            {"power_mode": "15W (2)", "cpu_governor": "powersave (acpi-cpufreq)"},
            [
                ("power mode", "MAXN (0)", "15W (2)"),
                ("CPU governor", "performance (acpi-cpufreq)", "powersave (acpi-cpufreq)"),
            ],
        ),
        "not reported": ({"power_mode": "", "driver": "", "firmware": {}}, []),
        "another VBIOS": ({"firmware": {"GPU 0": "9B.00"}}, [("firmware of GPU 0", "9A.00", "9B.00")]),
        "a hot machine": ({"temperature_c": {"GPU 0": 72}}, [("hottest sensor", "45 °C", "72 °C")]),
        "a little warmer": ({"temperature_c": {"GPU 0": 54, "CPU acpitz": 69}}, []),
        "a hot CPU": ({"temperature_c": {"CPU acpitz": 80}}, [("CPU temperature", "50 °C", "80 °C")]),
        "throttled": (
            {"held_back": ("GPU 0: power brake",)},
            [("held back", "by nothing", "GPU 0: power brake")],
        ),
        "throttling not reported": ({"held_back": None}, []),
        "another process": (
            {"gpus": {"GPU 0": GpuUse(others=2, others_bytes=8 * GIB)}},
            [("memory of other processes of GPU 0", "0.0 GiB", "8.0 GiB")],
        ),
        "another process of unknown memory": (
            {"gpus": {"GPU 0": GpuUse(others=2)}},
            [("other processes of GPU 0", "1", "2")],
        ),
        "swap": ({"swap_bytes": 4 * GIB}, [("swap in use", "0.0 GiB", "4.0 GiB")]),
        "page cache next to a GPU with its own memory": ({"page_cache_bytes": 90 * GIB}, []),
        "slow memory": ({"copy_gb_per_s": 12.0}, [("memory bandwidth", "20.0 GB/s", "12.0 GB/s")]),
        "noise of the probe": ({"copy_gb_per_s": 18.0}, []),
    },
)
def test_states_differ_in(changes: dict[str, Any], differences: list[tuple[str, str, str]]) -> None:
    assert list_state_differences(COOL, replace(COOL, **changes)) == differences
    assert list_state_differences(replace(COOL, **changes), COOL) == [
        (what, b, a) for what, a, b in differences
    ]


def test_the_page_cache_counts_where_the_gpu_shares_the_memory() -> None:
    shared = replace(COOL, unified=True, free_bytes=100 * GIB)
    full = replace(shared, page_cache_bytes=90 * GIB, free_bytes=12 * GIB)
    assert list_state_differences(shared, full) == [("page cache in unified memory", "2.0 GiB", "90.0 GiB")]
    assert list_state_differences(shared, replace(full, free_bytes=60 * GIB)) == []


def test_heat_and_memory_are_no_settings() -> None:
    hot = replace(COOL, temperature_c={"GPU 0": 90}, swap_bytes=9 * GIB, copy_gb_per_s=1.0)
    assert list_setting_differences(COOL, hot) == []
    assert list_setting_differences(COOL, replace(hot, driver="590.1")) == [
        ("GPU driver", "580.142", "590.1")
    ]


def test_pinned_clocks_differ_by_their_value() -> None:
    a, b = (replace(COOL, clocks=clock("GPU 0 SM", pinned=True, now_mhz=mhz)) for mhz in (2400, 1200))
    assert list_state_differences(a, b) == [("GPU 0 SM clock", "2,400 MHz", "1,200 MHz")]


def test_a_state_is_stored_with_the_run() -> None:
    facts = replace(made.run().facts, state_before=COOL)
    stored = Facts.read_stored(json.loads(facts.encode()))
    assert (stored.state_before, stored.state_after) == (COOL, None)
    assert mask_texts(facts, lambda value: value).state_before == COOL
