"""Turn table: two checkpoints under one load of sessions, turn by turn."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from builders.made_cases import WHEN
from builders.made_sessions import made, rows_of
from loadgen.study.compare import render
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.loads import turn_table
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.run_summary import SESSION_MS, Reported, of_run

TURNS = [3, 3, 6]


def reported(name: str, cached: bool) -> Reported:
    rows = rows_of(TURNS)
    for row in rows:
        row.cached_tokens = row.cached_tokens if cached else 0
    result = made(TURNS, rows, label=name, started=WHEN + timedelta(minutes=cached))
    return of_run(Path(f"runs/{name}"), result)


def test_rows_of_sessions_are_compared_turn_by_turn() -> None:
    (compared,) = compare_runs([reported("warm", True), reported("cold", False)], ComparisonOptions())
    table = turn_table(compared)
    assert table is not None
    titles = [column.title for column in table.columns]
    assert titles == ["turn", "warm TTFT", "cached", "cold TTFT", "cached"]
    assert table.body[0] == ("1", "40.0", "0.0 %", "40.0", "0.0 %")
    assert table.body[1] == ("2", "40.0", "50.0 %", "40.0", "0.0 %")
    for shown in (render.render_text([compared]), render.render_markdown([compared])):
        assert "TTFT and cached share by turn" in shown


def test_a_sessions_duration_is_a_figure_of_the_comparison() -> None:
    one, other = reported("warm", True), reported("cold", False)
    assert one.figure(SESSION_MS) == pytest.approx((440 + 440 + 980) / 3)
    (compared,) = compare_runs([one, other], ComparisonOptions(headline=SESSION_MS))
    assert compared.headline == SESSION_MS
    assert "session ms" in render.render_text([compared])


def test_a_comparison_without_sessions_has_no_such_table() -> None:
    (compared,) = compare_runs([reported("warm", True)], ComparisonOptions())
    assert turn_table(compared) is None
