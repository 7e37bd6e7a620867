"""Gate sides: which runs are held against which, or why not; a gate's record, which may be a stranger's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cells, run
from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.base.errors import UsageError
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.study.gate.gate_record import (
    GateRecord,
    lay_margins,
    make_gate_metric,
    parse_gate_metrics,
    read_gate_record,
    write_gate_record,
)
from loadgen.study.gate.gate_sides import (
    list_reasons,
    list_remarks,
    list_unequal_states,
    match_places,
    match_rows,
)
from loadgen.study.importers.result_sources import Sources
from loadgen.study.run_summary import Reported

TABLES = read_tables("gate_sides")

SPEED = make_gate_metric("tok/s", "output_throughput", True)
FIVE = (100.0, 101.0, 99.0, 100.5, 99.5)
OTHERS = (100.2, 101.2, 99.2, 100.7, 99.7)
VLLM: dict[str, Any] = {"engine": "vLLM 1", "machine": "Thor", "level": "VALID"}


def placed(place: str, reported: Sequence[Reported]) -> list[Reported]:
    return [replace(each, place=place) for each in reported]


def read(*reported: Reported, **told: Any) -> Sources:
    return Sources(tuple(reported), **told)


def test_runs_of_one_start_are_remarked_as_such() -> None:
    started = [*cells("A", FIVE, **VLLM), *cells("B", FIVE, **VLLM)]
    once = [
        replace(each, cell=each.cell.model_copy(update={"start": "once"})) for each in started if each.cell
    ]
    remark = "all runs were on one start of the server: variation between starts is not in the intervals"
    assert list_remarks(match_rows(read(*started), "A")[0]) == []
    assert list_remarks(match_rows(read(*once), "A")[0]) == [remark]


def test_several_rows_of_a_place_are_matched_by_name() -> None:
    new = placed("new", [*cells("A", FIVE, **VLLM), *cells("B", FIVE, **VLLM)])
    base = placed("base", [*cells("A", OTHERS, **VLLM), *cells("C", FIVE, **VLLM)])
    sides, reasons = match_places(read(*new, *base), "new", "base")
    assert [each.load.partition(":")[0] for each in sides] == ["A"]
    assert reasons == ["B has runs in new alone", "C has runs in base alone"]


FIRST = run("A", 100.0, plan_digest="plan-0", **VLLM)


def other(**told: Any) -> Reported:
    return replace(FIRST, **{"figures": {**FIRST.figures, "mean_ttft_ms": 999.0}, **told})


@loop_over(("changes", "reason"), TABLES["reasons"])
def test_what_cannot_be_compared_has_its_reason(changes: dict[str, Any], reason: str | None) -> None:
    load, doubts = replace(HIGH, **changes.get("load", {})), tuple(changes.get("doubts", ()))
    new = other(**changes | {"load": load, "doubts": doubts})
    if new.load != FIRST.load:  # means are counted from the totals
        kept = {key: value for key, value in new.figures.items() if not key.startswith("total_")}
        new = replace(new, figures=kept)
    places = placed("new", [new]), placed("base", [FIRST])
    sides, reasons = match_places(read(*places[0], *places[1]), "new", "base")
    assert [*reasons, *list_reasons(sides, [SPEED], allows_state=False)] == ([reason] if reason else [])


STATES = {
    **{
        name: MachineState(clocks={"CPU": ClockState(now_mhz=mhz, limit_mhz=mhz, most_mhz=3400)})
        for name, mhz in (("SLOW", 1700), ("FAST", 3400))
    },
    **{name: MachineState(temperature_c={"GPU 0": heat}) for name, heat in (("HOT", 80.0), ("COLD", 50.0))},
    **{name: MachineState(copy_gb_per_s=rate) for name, rate in (("WIDE", 20.0), ("HALF", 10.0))},
}


def measured(*states: MachineState | None) -> list[Reported]:
    return [made_runs.reported(made_runs.run(requests=4, tokens=2, state_before=state)) for state in states]


@loop_over(("new", "base", "in_turn", "apart"), TABLES["states"])
def test_a_state_sets_sides_apart_by_settings_or_mostly_one_way(
    new: list[str | None], base: list[str | None], in_turn: bool, apart: str | None
) -> None:
    runs, others = (measured(*(STATES.get(name or "") for name in side)) for side in (new, base))
    found = list_unequal_states(runs, others, in_turn)
    all_the_same = "(--allow-other-state compares all the same)"
    assert found == ([f"state of the machine: {apart} {all_the_same}"] if apart else [])


ROW = {"name": "tok/s", "key": "output_throughput", "higher_is_faster": True, "margin": 0.03}


METRICS = tuple(parse_gate_metrics(["tok/s,ttft_p99,request_goodput,itl"]))
RECORD = GateRecord(metrics=METRICS, alpha=0.05, max_pairs=9, arms=("base", "new"))


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_gate_record(tmp_path, RECORD)
    assert read_gate_record(tmp_path) == RECORD


@loop_over_named(("change", "named"), TABLES["refused_records"])
def test_what_no_gate_writes_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(RECORD.model_dump(mode="json") | change))
    with pytest.raises(UsageError, match=named) as caught:
        read_gate_record(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@loop_over(("name", "key", "higher_is_faster"), TABLES["names"])
def test_a_name_that_people_use_is_a_figures_key(name: str, key: str, higher_is_faster: bool) -> None:
    (found,) = parse_gate_metrics([name])
    assert (found.name, found.key, found.higher_is_faster) == (name, key, higher_is_faster)


@loop_over(("names", "message"), TABLES["refused_names"])
def test_a_name_that_is_no_figure_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_gate_metrics(names)
    assert message in str(refused.value)


@loop_over(("margins", "laid"), TABLES["margins"])
def test_a_margin_is_every_metrics_or_the_named_ones(margins: list[str], laid: list[float]) -> None:
    metrics = parse_gate_metrics(["tok/s,ttft_p99"])
    assert [metric.margin for metric in lay_margins(metrics, margins)] == laid


@loop_over(("margin", "message"), TABLES["refused_margins"])
def test_a_margin_that_cannot_be_is_refused(margin: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        lay_margins(parse_gate_metrics(["tok/s"]), [margin])
    assert message in str(refused.value)
