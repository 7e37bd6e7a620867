"""Runs on a machine in two states are marked with both values, and refused where that is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.loops import loop_over
from builders.provoked_states import CAPPED, SERVER, read_files
from loadgen import cli
from loadgen.base.rule import Severity
from loadgen.facts.machine_state import ClockState, MachineState
from loadgen.report.report import render_report as report
from loadgen.study.compare.comparability import explain_state_differences, find_differences
from loadgen.study.run_summary import Reported

SLOW = MachineState(clocks={"CPU": ClockState(now_mhz=1700, limit_mhz=1700, most_mhz=3400)})
FAST = MachineState(clocks={"CPU": ClockState(now_mhz=3400, limit_mhz=3400, most_mhz=3400)})
CPU = "CPU clock limit 1,700 MHz, baseline 3,400 MHz"


def measured(before: MachineState | None, after: MachineState | None = None, name: str = "m") -> Reported:
    """A run with these states, on the machine at which every made run is."""
    return made_runs.reported(made_runs.run(model=name, state_before=before, state_after=after))


@loop_over(
    ("run", "baseline", "evidence"),
    [
        pytest.param(measured(SLOW), measured(FAST), CPU, id="a CPU frequency cap"),
        pytest.param(
            measured(CAPPED), measured(SERVER), "power cap of GPU 0 350 W, baseline 700 W", id="a power cap"
        ),
        pytest.param(measured(FAST), measured(FAST), None, id="one state"),
        pytest.param(measured(None), measured(FAST), None, id="not recorded"),
        pytest.param(
            measured(FAST, SLOW),
            measured(FAST, FAST),
            "CPU clock limit at the end 1,700 MHz, baseline 3,400 MHz",
            id="set during the run",
        ),
        pytest.param(measured(SLOW, SLOW), measured(FAST, FAST), CPU, id="before and at the end: once"),
        pytest.param(
            measured(FAST, replace(FAST, temperature_c={"GPU 0": 90})),
            measured(FAST, replace(FAST, temperature_c={"GPU 0": 60})),
            None,
            id="warmer at the end, which the load made",
        ),
        pytest.param(
            measured(MachineState(power_mode="30W")),
            measured(MachineState(power_mode="MAXN")),
            None,
            id="power modes, which another rule refuses",
        ),
        pytest.param(
            replace(measured(SLOW), machine="H20"),
            replace(measured(FAST), machine="Thor"),
            None,
            id="two machines",
        ),
    ],
)
def test_a_state_differs(run: Reported, baseline: Reported, evidence: str | None) -> None:
    assert explain_state_differences(run, baseline) == evidence
    found = [each for each in find_differences(run, baseline) if each.rule.code == "state"]
    assert [(each.rule.severity, each.evidence) for each in found] == (
        [(Severity.MARKED, evidence)] if evidence else []
    )


def kept(place: Path, name: str, state: MachineState | None) -> str:
    """A run directory, and its path."""
    place = place / name
    place.mkdir()
    run = made_runs.run(model=name, seed=len(name), state_before=state)
    made_runs.keep(run, place, report(run))
    return str(place)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (SLOW, "other: CPU clock limit 1,700 MHz (first run of base: 3,400 MHz)"),
        (None, "other: the state of its machine is not recorded"),
        (FAST, ""),
    ],
    ids=["a CPU frequency cap", "not recorded", "one state"],
)
def test_unequal_states_are_refused_where_that_is_wanted(
    state: MachineState | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [kept(tmp_path, "base", FAST), kept(tmp_path, "other", state)]
    assert cli.main(["compare", *places]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (CPU in shown) == (state is SLOW)
    assert cli.main(["compare", *places, "--require-equal-state"]) == (1 if why else 0)
    printed = capsys.readouterr()
    assert printed.err == (
        f"loadgen: not measured in one state: {why}; bring the machine into one state and measure again, or "
        "compare without --require-equal-state\n"
        if why
        else ""
    )
    assert (printed.out == "") == bool(why)


def test_every_row_that_differs_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orin = read_files("agx_orin")
    hot = replace(orin, temperature_c={"gpu-thermal": 95.0})
    places = [kept(tmp_path, name, state) for name, state in (("base", orin), ("a", hot), ("bb", None))]
    assert cli.main(["compare", *places, "--require-equal-state"]) == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert "a: hottest sensor 95 °C (first run of base: 77 °C); bring the machine" in first
    assert rest == ["  bb: the state of its machine is not recorded"]
