"""A campaign's cells begin on a machine as cool and set as before the first, or that is said or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import cells, failures, the_directory, written
from builders.loops import loop_over, read_tables
from loadgen import cli
from loadgen.features.sensors import sensor_discovery
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.host.sensor import Reading, Sensor
from loadgen.run.command.options import Options
from loadgen.study.series.campaign import campaign_command, execution
from loadgen.study.series.campaign.campaign_file import CoolDown
from loadgen.study.series.campaign.execution import MachineWatch, is_measured_here

TABLES = read_tables("machine_watch")


class Machine(Sensor):
    """A machine that is in the next of these states whenever it is read."""

    def __init__(self, *states: MachineState) -> None:
        self.states, self.read_states = list(states), 0

    def read(self, pids: Sequence[int]) -> Reading:
        heat = self.states[min(self.read_states, len(self.states) - 1)].find_hottest_c()
        return Reading({} if heat is None else {("temperature_c", "GPU 0"): heat})

    def read_state(self, pids: Any) -> MachineState:
        state = self.states[min(self.read_states, len(self.states) - 1)]
        self.read_states += 1
        return state


def state(celsius: float | None = None, mhz: float = 3400) -> MachineState:
    heat = {} if celsius is None else {"GPU 0": celsius}
    return MachineState(temperature_c=heat, clocks={"CPU": ClockState(limit_mhz=mhz, most_mhz=3400)})


TWO = ({"name": "A", "preset": "instant"}, {"name": "B", "preset": "instant"})
CAP = "CPU clock limit 1,700 MHz (then 3,400 MHz)"


@pytest.mark.parametrize(
    ("machine", "cool_down", "waited"),
    [
        ((state(40.0), state(44.0), state(43.0)), None, [(45.0, 120.0)] * 2),
        ((state(), state(), state()), None, []),  # nothing reports a temperature
        ((state(40.0), state(40.0), state(40.0)), CoolDown(to_c=50.0, at_most_s=300.0), [(50.0, 300.0)] * 3),
    ],
)
def test_a_cell_waits_until_it_is_as_cool_as_before_the_first(
    machine: tuple[MachineState, ...], cool_down: CoolDown | None, waited: list[tuple[float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    told: list[tuple[float, float]] = []

    def wait(wanted: CoolDown, *_: object) -> str:
        told.append((wanted.to_c, wanted.at_most_s))
        return ""

    monkeypatch.setattr(execution, "wait_until_cool", wait)
    watch = MachineWatch(cool_down, [Machine(*machine)], print)
    assert [watch.prepare_cell(here=True) for _ in machine] == ["", "", ""]
    assert told == waited


def test_another_state_is_said_once_or_refuses_each_cell() -> None:
    said: list[str] = []
    slow = (state(), state(mhz=1700), state(mhz=1700))
    watch = MachineWatch(None, [Machine(*slow)], said.append)
    assert [watch.prepare_cell(here=True) for _ in slow] == ["", "", ""]
    assert said == [f"the machine is in another state than before the first cell: {CAP}"]
    refusing = MachineWatch(None, [Machine(*slow)], said.append, require=True)
    assert [bool(refusing.prepare_cell(here=True)) for _ in slow] == [False, True, True]
    assert len(said) == 1


@loop_over(("options", "here"), TABLES["places"])
def test_which_servers_are_measured_here(options: dict[str, Any], here: bool) -> None:
    """None where no model runs: the embedded engine's."""
    assert is_measured_here(Options(**options)) == here


def test_a_campaign_refuses_the_cell_of_a_machine_in_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(state(), state(mhz=1700))
    monkeypatch.setattr(sensor_discovery, "find_sensors", lambda: [machine])
    for module in (campaign_command, execution):
        monkeypatch.setattr(module, "is_measured_here", lambda options: True)
    path = written(tmp_path, *TWO, repeats=1)
    command = ["campaign", str(path), "--run-dir", str(tmp_path / "runs"), "--quiet"]
    assert cli.main([*command, "--require-equal-state"]) == 1
    place = the_directory(tmp_path / "runs")
    assert len(cells(place)) == 1
    (reason,) = failures(place).values()
    assert reason == (
        f"the machine is in another state than before the first cell: {CAP}; bring it back, then --resume "
        "--retry-failed"
    )
    assert "the state of its machine is not recorded" in capsys.readouterr().err
