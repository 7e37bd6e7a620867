"""Two states of a machine differ by what someone set and by what it went through, not by noise."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from builders import made_cases as made
from builders.loops import loop_over_named, read_tables
from loadgen.facts.run_facts import Facts, mask_texts
from loadgen.host.machine_state import (
    MachineState,
    list_setting_differences,
    list_state_differences,
)

GIB = 1 << 30
TABLES = read_tables("machine_state")
COOL = msgspec.convert(TABLES["cool"], MachineState)


@loop_over_named(("changes", "differences"), TABLES["differences"])
def test_states_differ_in(changes: dict[str, Any], differences: list[list[str]]) -> None:
    other = msgspec.convert({**TABLES["cool"], **changes}, MachineState)
    assert [*map(list, list_state_differences(COOL, other))] == differences
    assert list_state_differences(other, COOL) == [(what, b, a) for what, a, b in differences]


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
    pinned = replace(COOL.clocks["GPU 0 SM"], pinned=True)
    a, b = (replace(COOL, clocks={"GPU 0 SM": replace(pinned, now_mhz=mhz)}) for mhz in (2400, 1200))
    assert list_state_differences(a, b) == [("GPU 0 SM clock", "2,400 MHz", "1,200 MHz")]


def test_a_state_is_stored_with_the_run() -> None:
    facts = replace(made.run().facts, state_before=COOL)
    stored = Facts.read_stored(json.loads(facts.encode()))
    assert (stored.state_before, stored.state_after) == (COOL, None)
    assert mask_texts(facts, lambda value: value).state_before == COOL
