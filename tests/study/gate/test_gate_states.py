"""Gate states: another state of the machine on one side is no verdict; one that comes and goes is spread."""

from __future__ import annotations

from builders import made_runs
from builders.loops import loop_over
from loadgen.facts.machine_state import ClockState, MachineState
from loadgen.study.gate.gate_sides import list_passing_states, list_unequal_states
from loadgen.study.run_summary import Reported

SLOW = MachineState(clocks={"CPU": ClockState(now_mhz=1700, limit_mhz=1700, most_mhz=3400)})
FAST = MachineState(clocks={"CPU": ClockState(now_mhz=3400, limit_mhz=3400, most_mhz=3400)})
HOT, COLD = (MachineState(temperature_c={"GPU 0": heat}) for heat in (80.0, 50.0))
WIDE, HALF = (MachineState(copy_gb_per_s=rate) for rate in (20.0, 10.0))
ALL_THE_SAME = "(--allow-other-state compares all the same)"
CAP = [f"state of the machine: CPU clock limit 1,700 MHz, baseline 3,400 MHz {ALL_THE_SAME}"]
HEAT = [f"state of the machine: hottest sensor 80 °C, baseline 50 °C {ALL_THE_SAME}"]
SPEED = [f"state of the machine: memory bandwidth 10.0 GB/s, baseline 20.0 GB/s {ALL_THE_SAME}"]


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
        ((HALF, HALF, HALF), (WIDE, WIDE, WIDE), False, SPEED),
        ((HALF, HALF, HALF), (WIDE, WIDE, WIDE), True, SPEED),
        ((HALF, HALF, WIDE), (WIDE, WIDE, WIDE), False, []),
        ((HALF, HALF, HALF), (WIDE, HALF, WIDE), True, []),
        ((HALF, HALF), (WIDE, WIDE), False, []),
    ],
)
def test_a_state_sets_sides_apart_by_settings_or_mostly_one_way(
    new: tuple[MachineState | None, ...],
    base: tuple[MachineState | None, ...],
    in_turn: bool,
    apart: list[str],
) -> None:
    assert list_unequal_states(measured(*new), measured(*base), in_turn) == apart


def test_what_differs_now_and_then_is_counted() -> None:
    found = list_passing_states(measured(HOT, COLD, COLD, COLD), measured(COLD, COLD, HOT, COLD))
    assert found == ["hottest sensor differs in 2 of 4 pairs"]


def test_a_bandwidth_that_is_spread_is_remarked() -> None:
    found = list_passing_states(measured(HALF, WIDE, HALF), measured(WIDE, WIDE, WIDE))
    assert found == ["memory bandwidth differs in 2 of 3 pairs"]
