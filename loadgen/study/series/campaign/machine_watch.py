"""Machine watch: keeps the cells of a campaign to one state of the machine, as cool as before the first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadgen.base import clock
from loadgen.base.urls import is_this_machine
from loadgen.host.machine_state import MachineState, list_state_differences
from loadgen.host.sensor import Reading, Sensor, read_machine_state
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.study.series.campaign.campaign_file import CoolDown

_POLL_S = 1.0


_NO_SENSOR = "no temperature sensor can be read: there are no pauses to cool down"


def wait_until_cool(wanted: CoolDown, sensors: Sequence[Sensor], display: Display) -> str:
    """Wait until the hottest sensor is at most at `to_c`, at most `at_most_s`, reading it every second.

    Returns a line on how far the machine cooled, or that no sensor can be read; "" if it was cool.
    """
    hottest = began_c = _read_hottest_c(sensors)
    if began_c is None:
        return _NO_SENSOR
    shown_c, began_ns = began_c, clock.now_ns()
    end_ns = began_ns + int(wanted.at_most_s * 1e9)
    with display.waiting(
        "cooling down", wanted.at_most_s, lambda: f"{shown_c:.0f} °C, until {wanted.to_c:g}"
    ):
        while hottest is not None and hottest > wanted.to_c and clock.now_ns() < end_ns:
            time.sleep(_POLL_S)
            hottest = _read_hottest_c(sensors)
            shown_c = shown_c if hottest is None else hottest
    took_s = (clock.now_ns() - began_ns) / 1e9
    if hottest is not None and hottest > wanted.to_c:
        return f"still {hottest:.0f} °C after {took_s:.0f} s (at most {wanted.to_c:g} is wanted): continuing"
    cooled = f"cooled down from {began_c:.0f} to {hottest or 0:.0f} °C in {took_s:.0f} s"
    return cooled if began_c > wanted.to_c else ""


def _read_hottest_c(sensors: Sequence[Sensor]) -> float | None:
    reading = Reading.merge(sensor.read(()) for sensor in sensors)
    heat = [value for (quantity, _), value in reading.values.items() if quantity == "temperature_c"]
    return max(heat, default=None)


_WARMER_C = 5.0  # than before the first cell: half of what counts as another state
_MOST_S = 120.0  # to wait for that


def is_measured_here(options: Options) -> bool:
    """Whether a model serves on this machine, and its sensors are read: its state belongs to the run."""
    local = options.launching.wanted or all(is_this_machine(url) for url in options.urls)
    return options.observe and not options.embedded and local


@dataclass
class MachineWatch:
    """Waits before each cell until the machine is cool, and compares its state with that before the first.

    `cool_down` is the file's; without it a cell waits 120 s at most until the machine is no more than 5 °C
    warmer than before the first cell. `first` is the state then, if that cell was measured earlier. With
    `require` a cell in another state is refused, else there is a line.
    """

    cool_down: CoolDown | None
    sensors: Sequence[Sensor]
    say: Callable[[str], None]
    display: Display = field(default_factory=Display)
    first: MachineState | None = None
    require: bool = False
    said: set[str] = field(default_factory=set)

    def wait_for_start(self) -> None:
        """Wait until the machine is as cool as the file requests; without a sensor say so once."""
        if self.cool_down is not None:
            line = wait_until_cool(self.cool_down, self.sensors, self.display)
            if line and (line != _NO_SENSOR or line not in self.said):
                self.said.add(line)
                self.say(line)

    def prepare_cell(self, here: bool) -> str:
        """Wait until the machine is cool, and read its state; return why a cell is refused, "" if it is not.

        `here` is whether the server is on this machine: of another machine nothing is known. The state before
        the first cell is kept; by what a later one differs is printed once where it is not refused.
        """
        self.wait_for_start()
        if not here:
            return ""
        hottest = None if self.first is None or self.cool_down is not None else self.first.find_hottest_c()
        if hottest is not None:
            wanted = CoolDown(to_c=hottest + _WARMER_C, at_most_s=_MOST_S)
            if cooled := wait_until_cool(wanted, self.sensors, self.display):
                self.say(cooled)
        state = read_machine_state(self.sensors, tuple)
        self.first = self.first or state
        apart = list_state_differences(state, self.first)
        named = ", ".join(f"{what} {now} (then {first})" for what, now, first in apart)
        line = f"the machine is in another state than before the first cell: {named}" if named else ""
        if self.require:
            return line and f"{line}; bring it back, then --resume --retry-failed"
        if line and line not in self.said:
            self.said.add(line)
            self.say(line)
        return ""
