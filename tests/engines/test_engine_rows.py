"""Engines: a row names only what those who read it know, and no two rows are taken for each other."""

from __future__ import annotations

import re

from builders.loops import loop_over
from loadgen.engines.engine import Engine, EngineMetrics
from loadgen.engines.engines import ENGINES, HOSTED, LAUNCHED, METRICS, UNKNOWN, find_by_name, find_by_owner
from loadgen.server.engine_config import EngineConfig
from loadgen.server.prometheus import GAUGES
from loadgen.server.server_counters import ServerWindow
from loadgen_servers.launch.launchers import LAUNCHERS

# Counted apart by an engine, and summed into a figure.
_PARTS = {"computed_tokens"}


def test_every_launched_engine_has_a_launcher_and_a_row() -> None:
    assert set(LAUNCHED) == set(LAUNCHERS)


def test_an_engine_is_found_by_each_of_its_marks() -> None:
    assert [find_by_name(engine.name) for engine in (*ENGINES, HOSTED, UNKNOWN)] == [
        *ENGINES,
        HOSTED,
        UNKNOWN,
    ]
    signed = [engine for engine in ENGINES if engine.owned_by]
    assert [find_by_owner(engine.owned_by) for engine in signed] == signed
    assert all(engine.owned_by or engine.own_path for engine in ENGINES)


@loop_over("row", METRICS.values())
def test_a_counter_is_one_that_the_window_has(row: EngineMetrics) -> None:
    known = GAUGES | _PARTS | set(ServerWindow.model_fields)
    assert {series.quantity for series in row.meanings.values()} | row.lazy <= known
    assert METRICS[row.name] is row


@loop_over("engine", ENGINES)
def test_a_pattern_is_of_a_field_of_the_configuration(engine: Engine) -> None:
    fields = {row.field for row in engine.log_patterns} | {row.field for row in engine.info_fields}
    assert fields <= set(EngineConfig.model_fields)
    assert all(re.compile(row.pattern).groups for row in engine.log_patterns)  # the value is in a group
