"""Groups and pairs: what is compared with what, and which values are units."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH, cell, cells, run, runs
from builders.loops import loop_over
from loadgen.study.compare import groups, statistics
from loadgen.study.compare.statistics import ONE_START, STARTS_UNREPORTED, Units
from loadgen.study.run_summary import Load, Reported

UNNAMED = replace(HIGH, name="")


def rows(reported: Sequence[Reported], one_load: bool = False) -> list[dict[str, int]]:
    """How many runs each row has, load by load."""
    names = groups.name_rows(reported)
    found = groups.group_runs(reported, names, one_load=one_load)
    return [{name: len(runs) for name, runs in group.rows.items()} for group in found]


def figure(one: Reported) -> float | None:
    return one.figure("output_throughput")


@loop_over(
    ("loads", "found"),
    [
        ([HIGH, HIGH], [{"a": 1, "b": 1}]),
        ([HIGH, replace(HIGH, name="high")], [{"a": 1, "b": 1}]),
        ([HIGH, replace(HIGH, name="low-load")], [{"a": 1}, {"b": 1}]),
        ([replace(HIGH, name="High load"), replace(HIGH, requests=5)], [{"a": 1, "b": 1}]),
        ([HIGH, UNNAMED], [{"a": 1, "b": 1}]),
        ([UNNAMED, replace(UNNAMED, input_len=2041.7)], [{"a": 1, "b": 1}]),
        ([UNNAMED, replace(UNNAMED, input_len=1024.0)], [{"a": 1}, {"b": 1}]),
        ([UNNAMED, replace(UNNAMED, max_concurrency=16)], [{"a": 1}, {"b": 1}]),
        ([Load(), Load()], [{"a": 1, "b": 1}]),
        ([HIGH, Load(requests=100)], [{"a": 1}, {"b": 1}]),
    ],
)
def test_loads_are_told_apart_by_name_else_by_their_facts(
    loads: list[Load], found: list[dict[str, int]]
) -> None:
    reported = [run(name, 1.0, load) for name, load in zip("ab", loads, strict=True)]
    assert rows(reported) == found


def test_all_are_under_one_load_where_that_is_wanted() -> None:
    assert rows([run("a", 1.0), run("b", 2.0, replace(HIGH, name="low"))], one_load=True) == [
        {"a": 1, "b": 1}
    ]


@loop_over(
    ("told", "names"),
    [
        ([{}, {}], ["a", "a"]),
        ([{"engine": "vLLM 1"}, {"engine": "vLLM 2"}], ["a (vLLM 1)", "a (vLLM 2)"]),
        ([{"engine": "vLLM 1"}, {"engine": ""}], ["a", "a"]),
        ([{"told_by": "page"}, {"told_by": "loadgen"}], ["a (page)", "a (loadgen)"]),
        (
            [{"machine": "Thor", "power_mode": "MAXN"}, {"machine": "H20"}],
            ["a (Thor)", "a (H20)"],
        ),
    ],
)
def test_runs_of_one_name_on_other_things_are_other_rows(
    told: list[dict[str, Any]], names: list[str]
) -> None:
    assert groups.name_rows([run("a", 1.0, **one) for one in told]) == names


def test_rows_of_a_campaign_have_its_names() -> None:
    reported = [replace(run("served", 1.0), cell=cell("Qwen3-8B", 0))]
    assert groups.name_rows(reported) == ["Qwen3-8B"]
    assert groups.name_rows(reported, by_server=True) == ["Qwen3-8B on vllm"]


def test_a_run_without_a_name_is_called_by_its_file() -> None:
    assert groups.name_rows([run("", 1.0, source="results/fp8.json")]) == ["fp8"]


def test_the_same_run_twice_is_there_once() -> None:
    one, copy, other = run("a", 1.0, source="x"), run("a", 1.0, source="y"), run("a", 2.0)
    assert groups.drop_repeated([one, copy, other]) == ([one, other], [copy])


def test_a_run_and_its_result_file_are_one() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    told: dict[str, Any] = {"started": when, "plan_digest": "p", "figures": {"duration": 2.0}}
    one, file, later = (run("a", 1.0, source=source, **told) for source in ("runs/x", "x.json", "runs/y"))
    later = replace(later, started=when + timedelta(seconds=1))
    assert groups.drop_repeated([one, file, later]) == ([one, later], [file])


def test_runs_of_a_campaign_are_in_the_order_of_its_file() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    second, first = (
        replace(run(name, 1.0), cell=cell(name, 0), started=when + timedelta(seconds=at))
        for name, at in (("Qwen3-14B", 9), ("Qwen3-8B", 1))
    )
    other = run("page", 1.0)
    assert groups.sort_as_measured([second, other, first]) == [first, other, second]


def test_ten_thousand_runs_are_sorted() -> None:
    reported = [run(f"row {k % 100}", 1.0 + k) for k in range(10_000)]
    assert rows(reported) == [{f"row {k}": 100 for k in range(100)}]


def same_start(reported: list[Reported]) -> list[Reported]:
    return [
        replace(one, cell=one.cell.model_copy(update={"start": "once"}))
        for one in reported
        if one.cell is not None
    ]


def two_starts(reported: list[Reported]) -> list[Reported]:
    """Repeats 0 and 1 on the first start, the others on the second."""
    return [
        replace(one, cell=one.cell.model_copy(update={"start": f"s{one.cell.repeat // 2}"}))
        for one in reported
        if one.cell is not None
    ]


@loop_over(
    ("row", "baseline", "units"),
    [
        (cells("a", [2, 3, 4]), cells("b", [1, 1, 1]), Units([2, 3, 4], [1, 1, 1], True)),
        (cells("a", [2, 3, 4])[::-1], cells("b", [1, 5, 6]), Units([2, 3, 4], [1, 5, 6], True)),
        (cells("a", [2, 3, 4])[:2], cells("b", [1, 5, 6]), Units([2, 3], [1, 5], True, 1)),
        (runs("a", [2, 3]), runs("b", [4, 5]), Units([2, 3], [4, 5], True)),
        (runs("a", [2, 3]), [run("b", 4), run("b", 5)], Units([2, 3], [4, 5], False)),
        (runs("a", [2]), runs("b", [4]), Units([2], [4], False)),
        (same_start(cells("a", [2, 3])), cells("b", [4, 5]), Units([2, 3], [4, 5], True)),
        (
            two_starts(cells("a", [1, 4, 9, 9])),
            two_starts(cells("b", [2, 2, 3, 3])),
            Units([2, 9], [2, 3], True),
        ),
        (two_starts(cells("a", [1, 4, 9, 9])), cells("b", [2, 2, 3, 3]), Units([2, 9], [2, 3], True)),
    ],
)
def test_units_of_two_sides(row: list[Reported], baseline: list[Reported], units: Units) -> None:
    found = statistics.pair_units(row, baseline, figure)
    assert (found.paired, found.left) == (units.paired, units.left)
    assert found.row == pytest.approx(units.row)
    assert found.baseline == pytest.approx(units.baseline)


def test_runs_of_one_prompt_stream_are_one_unit() -> None:
    row = [replace(run("a", value), plan_digest=plan) for value, plan in ((1, "p"), (4, "p"), (3, "q"))]
    baseline = [replace(run("b", value), plan_digest=plan) for value, plan in ((5, "p"), (6, "q"))]
    found = statistics.pair_units(row, baseline, figure)
    assert [*found.row, *found.baseline] == pytest.approx([2, 3, 5, 6])


@loop_over(
    ("row", "values", "remark"),
    [
        (cells("a", [2, 3]), [2, 3], ""),
        (same_start(cells("a", [2, 3])), [2, 3], ONE_START),
        (two_starts(cells("a", [1, 4, 9, 9])), [2, 9], ""),
        (runs("a", [2, 3]), [2, 3], STARTS_UNREPORTED),
        (runs("a", [2]), [2], ""),
    ],
)
def test_units_of_one_side(row: list[Reported], values: list[float], remark: str) -> None:
    assert statistics.list_units(row, figure) == pytest.approx(values)
    assert statistics.explain_units(row) == remark
