"""Gate sides: which runs are held against which, and every reason for which they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cells, run
from builders.loops import loop_over
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.study.gate.gate_record import make_gate_metric
from loadgen.study.gate.gate_sides import (
    list_reasons,
    list_remarks,
    list_unequal_states,
    match_places,
    match_rows,
)
from loadgen.study.importers.result_sources import Sources
from loadgen.study.run_summary import Reported

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


@loop_over(
    ("new", "reason"),
    [
        (other(), None),
        (other(engine="vLLM 2"), None),
        (other(level="SUSPECT", doubts=("first-wave",)), None),
        (other(level="INVALID", doubts=("many-failures",)), "new: 1 of 1 run INVALID: many-failures"),
        (other(saturated=True), "new: 1 of 1 run ended early: the server fell behind"),
        (other(machine="H20"), "machine: on H20, baseline Thor"),
        (other(power_mode="30W"), None),
        (other(told_by="vllm"), "client: measured by vllm, baseline loadgen"),
        (other(load=replace(HIGH, input_len=512.0)), "prompt length: 512 tokens per prompt, baseline 2048"),
        (other(load=replace(HIGH, max_concurrency=4)), "concurrency: concurrency 4, baseline 8"),
        (other(load=replace(HIGH, requests=50)), "requests: requests: 50, baseline 100"),
        (other(figures={"mean_ttft_ms": 3.0}), "new: 1 of 1 run without tok/s"),
        (
            other(load=replace(HIGH, name="low-load")),
            "another load: low-load: 2048 in / 128 out, 100 requests, 8 at a time; base high-load: 2048 in / "
            "128 out, 100 requests, 8 at a time",
        ),
    ],
)
def test_what_cannot_be_compared_has_its_reason(new: Reported, reason: str | None) -> None:
    if new.load != FIRST.load:  # means are counted from the totals
        kept = {key: value for key, value in new.figures.items() if not key.startswith("total_")}
        new = replace(new, figures=kept)
    places = placed("new", [new]), placed("base", [FIRST])
    sides, reasons = match_places(read(*places[0], *places[1]), "new", "base")
    assert [*reasons, *list_reasons(sides, [SPEED], allows_state=False)] == ([reason] if reason else [])


SLOW = MachineState(clocks={"CPU": ClockState(now_mhz=1700, limit_mhz=1700, most_mhz=3400)})
FAST = MachineState(clocks={"CPU": ClockState(now_mhz=3400, limit_mhz=3400, most_mhz=3400)})
HOT, COLD = (MachineState(temperature_c={"GPU 0": heat}) for heat in (80.0, 50.0))
WIDE, HALF = (MachineState(copy_gb_per_s=rate) for rate in (20.0, 10.0))
ALL_THE_SAME = "(--allow-other-state compares all the same)"
CAP = [f"state of the machine: CPU clock limit 1,700 MHz, baseline 3,400 MHz {ALL_THE_SAME}"]
HEAT = [f"state of the machine: hottest sensor 80 °C, baseline 50 °C {ALL_THE_SAME}"]
BANDWIDTH = [f"state of the machine: memory bandwidth 10.0 GB/s, baseline 20.0 GB/s {ALL_THE_SAME}"]


def measured(*states: MachineState | None) -> list[Reported]:
    return [made_runs.reported(made_runs.run(requests=4, tokens=2, state_before=state)) for state in states]


@loop_over(
    ("new", "base", "in_turn", "apart"),
    [
        ((FAST, FAST), (FAST, FAST), False, []),
        ((None, None), (FAST, FAST), False, []),
        ((HOT, COLD), (COLD, COLD), False, HEAT),
        ((COLD, COLD, HOT), (COLD,), False, HEAT),
        ((FAST, FAST, FAST, SLOW), (FAST,) * 4, True, CAP),
        ((HOT, COLD, COLD, COLD), (COLD,) * 4, True, []),
        ((HOT, HOT, COLD, COLD), (COLD, COLD, HOT, HOT), True, []),
        ((HOT, HOT, HOT, HOT, COLD), (COLD,) * 5, True, HEAT),
        ((HOT, HOT, HOT), (COLD,) * 3, True, HEAT),
        ((HALF, HALF, HALF), (WIDE, WIDE, WIDE), False, BANDWIDTH),
        ((HALF, HALF, HALF), (WIDE, WIDE, WIDE), True, BANDWIDTH),
        ((HALF, HALF, WIDE), (WIDE, WIDE, WIDE), False, []),
        ((HALF, HALF, HALF), (WIDE, HALF, WIDE), True, []),
        ((HALF, HALF), (WIDE, WIDE), False, []),
    ],
)
def test_a_state_sets_sides_apart_by_settings_or_mostly_one_way(
    new: tuple[MachineState | None, ...], base: tuple[MachineState | None, ...], in_turn: bool,
    apart: list[str],
) -> None:  # fmt: skip
    assert list_unequal_states(measured(*new), measured(*base), in_turn) == apart
