"""Groups and pairs: what is compared with what, which values are units, and what labels tell runs apart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cell, cells, run, runs
from builders.loops import loop_over, read_tables
from loadgen.facts.run_facts import Server
from loadgen.plan import profile
from loadgen.report.load_identity import Load
from loadgen.study import labels
from loadgen.study.compare import run_groups, statistics
from loadgen.study.compare.statistics import ONE_START, STARTS_UNREPORTED, Units
from loadgen.study.run_summary import Reported

TABLES = read_tables("run_groups")
UNNAMED = replace(HIGH, name="")


def rows(reported: Sequence[Reported], one_load: bool = False) -> list[dict[str, int]]:
    """How many runs each row has, load by load."""
    names = run_groups.name_rows(reported)
    found = run_groups.group_runs(reported, names, one_load=one_load)
    return [{name: len(runs) for name, runs in group.rows.items()} for group in found]


def figure(one: Reported) -> float | None:
    return one.figure("output_throughput")


@loop_over(("loads", "found"), TABLES["told_apart"])
def test_loads_are_told_apart_by_name_else_by_their_facts(
    loads: list[dict[str, Any]], found: list[dict[str, int]]
) -> None:
    """Loads are changes of one, or have some facts only."""
    made = [Load(**keys["only"]) if "only" in keys else replace(HIGH, **keys) for keys in loads]
    reported = [run(name, 1.0, load) for name, load in zip("ab", made, strict=True)]
    assert rows(reported) == found


@loop_over(("told", "names"), TABLES["things"])
def test_runs_of_one_name_on_other_things_are_other_rows(
    told: list[dict[str, Any]], names: list[str]
) -> None:
    assert run_groups.name_rows([run("a", 1.0, **one) for one in told]) == names


def test_a_run_without_a_name_is_called_by_its_file() -> None:
    assert run_groups.name_rows([run("", 1.0, source="results/fp8.json")]) == ["fp8"]


def test_a_run_and_its_result_file_are_one() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    told: dict[str, Any] = {"started": when, "plan_digest": "p", "figures": {"duration": 2.0}}
    one, file, later = (run("a", 1.0, source=source, **told) for source in ("runs/x", "x.json", "runs/y"))
    later = replace(later, started=when + timedelta(seconds=1))
    assert run_groups.drop_repeated([one, file, later]) == ([one, later], [file])


def test_runs_of_a_campaign_are_in_the_order_of_its_file() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    second, first = (
        replace(run(name, 1.0), cell=cell(name, 0), started=when + timedelta(seconds=at))
        for name, at in (("Qwen3-14B", 9), ("Qwen3-8B", 1))
    )
    other = run("page", 1.0)
    assert run_groups.sort_as_measured([second, other, first]) == [first, other, second]


def started(reported: list[Reported], each: int = 99) -> list[Reported]:
    """The cells' runs, so many repeats on each start of the server."""
    return [
        replace(one, cell=one.cell.model_copy(update={"start": f"s{one.cell.repeat // each}"}))
        for one in reported
        if one.cell is not None
    ]


@loop_over(("row", "baseline", "units"), [
    (cells("a", [2, 3, 4]), cells("b", [1, 1, 1]), Units([2, 3, 4], [1, 1, 1], True)),
    (cells("a", [2, 3, 4])[::-1], cells("b", [1, 5, 6]), Units([2, 3, 4], [1, 5, 6], True)),
    (cells("a", [2, 3, 4])[:2], cells("b", [1, 5, 6]), Units([2, 3], [1, 5], True, 1)),
    (runs("a", [2, 3]), runs("b", [4, 5]), Units([2, 3], [4, 5], True)),
    (runs("a", [2, 3]), [run("b", 4), run("b", 5)], Units([2, 3], [4, 5], False)),
    (runs("a", [2]), runs("b", [4]), Units([2], [4], False)),
    (started(cells("a", [2, 3])), cells("b", [4, 5]), Units([2, 3], [4, 5], True)),
    (started(cells("a", [1, 4, 9, 9]), 2), started(cells("b", [2, 2, 3, 3]), 2), Units([2, 9], [2, 3], True)),
    (started(cells("a", [1, 4, 9, 9]), 2), cells("b", [2, 2, 3, 3]), Units([2, 9], [2, 3], True)),
])  # fmt: skip
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


@loop_over(("row", "values", "remark"), [
    (cells("a", [2, 3]), [2, 3], ""),
    (started(cells("a", [2, 3])), [2, 3], ONE_START),
    (started(cells("a", [1, 4, 9, 9]), 2), [2, 9], ""),
    (runs("a", [2, 3]), [2, 3], STARTS_UNREPORTED),
    (runs("a", [2]), [2], ""),
])  # fmt: skip
def test_units_of_one_side(row: list[Reported], values: list[float], remark: str) -> None:
    assert statistics.list_units(row, figure) == pytest.approx(values)
    remarks = statistics.list_unit_remarks([row])
    assert [text.partition(":")[0] for text in remarks] == ([remark] if remark else [])


KEYS = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24, "max_concurrency": 4}


def ours(**changes: Any) -> Reported:
    """A run of ours with keys of its profile, or facts, changed."""
    facts = {key: changes.pop(key) for key in ("server", "warmups", "label") if key in changes}
    made = made_runs.run(profile=profile.build({**KEYS, **changes}), **facts)
    return made_runs.reported(made, "m")


def at(url: str, simulated: str = "") -> Server:
    return Server(url=f"{url}/v1/completions", engine="vLLM", version="1", model="m", simulated=simulated)


@loop_over(("first", "second", "names"), [
    ({}, {}, ["m", "m"]),
    ({}, {"temperature": 0.7}, ["m", "m (temperature 0.7)"]),
    ({}, {"stream": False}, ["m (streamed)", "m (not streamed)"]),
    ({}, {"warmups": 4}, ["m (not warmed up)", "m (warmed up)"]),
    ({"label": "x"}, {"label": "y"}, ["m (x)", "m (y)"]),
    ({"server": at("http://h:8000")}, {"server": at("http://h:8001")}, ["m (h:8000)", "m (h:8001)"]),
    ({"server": at("http://h:4321", "instant")}, {"server": at("http://h:5432", "instant")}, ["m", "m"]),
])  # fmt: skip
def test_runs_that_are_no_repeats_are_rows_of_their_own(
    first: dict[str, Any], second: dict[str, Any], names: list[str]
) -> None:
    assert run_groups.name_rows([ours(**first), ours(**second)]) == names


def test_names_that_would_be_cut_to_one_have_only_the_keys_they_need() -> None:
    same_ends = [
        {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"temperature": 0.5, "top_p": 0.8, "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    ]
    names = run_groups.name_rows([ours(), *(ours(**keys) for keys in same_ends)])
    assert names == ["m", "m (temperature 0.5, top_p 0.9)", "m (temperature 0.5, top_p 0.8)"]


ASKED = replace(HIGH, name="", asked_input_len=2048)


@loop_over(("change", "same"), TABLES["loads"])
def test_loads_are_one_where_nothing_that_was_asked_for_differs(change: dict[str, Any], same: bool) -> None:
    one, other = run("a", 1.0, ASKED), run("a", 1.0, replace(ASKED, **change))
    assert run_groups.is_same_load(one, other) is same


LOW = replace(HIGH, name="low-load", max_concurrency=1)


def read(place: str, low: bool = False, unread: dict[str, str] | None = None, **told: Any) -> Reported:
    """A run of one checkpoint, as it was read at a place, with labels that nothing reads."""
    load = LOW if low else HIGH
    return run("m", 1.0 + len(place), load, place=place, unread=unread or {}, **told)


@loop_over(("given", "names"), TABLES["places"])
def test_what_was_named_apart_or_labelled_otherwise_is_no_repeat(
    given: list[dict[str, Any]], names: list[str]
) -> None:
    """Places, clients, engines and labels under one load tell sides apart; a sweep's points need none."""
    assert run_groups.name_rows([read(**each) for each in given]) == names


@loop_over(("title", "cells"), TABLES["labels"])
def test_a_setting_or_a_name_is_a_label(title: str, cells: list[str]) -> None:
    assert labels.is_label(title, cells)


@loop_over(("title", "cells"), TABLES["no_labels"])
def test_what_is_measured_or_of_its_run_alone_is_none(title: str, cells: list[str]) -> None:
    assert not labels.is_label(title, cells)


def test_the_labels_of_a_document_are_its_settings_at_any_depth() -> None:
    assert labels.read_labels(TABLES["document"], {"max_concurrency"}) == TABLES["of_document"]


def test_short_flags_of_a_command_are_labels_and_leave_its_words() -> None:
    command = "vllm serve m -tp 2 --eager -x=1 --low -1"
    assert labels.read_flag_labels(command) == {"tp": "2", "eager": "on", "x": "1", "low": "-1"}
    assert labels.strip_flags(command) == "vllm serve m"
    assert dict(labels.pair_flags(command.split())) == {"eager": "-x=1", "low": "-1"}
    assert labels.read_labels({"cmd": "vllm serve m -tp 2", "note": "a -b"}) == {
        "cmd.tp": "2",
        "note": "a -b",
    }
