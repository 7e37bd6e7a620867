"""Machine watch: keeps the cells of a campaign to one state of the machine, as cool as before the first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from loadgen.base import clock
from loadgen.base.urls import is_this_machine
from loadgen.host.machine_state import MachineState, list_state_differences
from loadgen.host.sensor import Reading, Sensor, read_machine_state
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.study.series.campaign.campaign_file import CoolDown

_POLL_S = 1.0


class Cooling:
    """Waits for the hottest sensor; without one it reports that once and never waits."""

    def __init__(
        self,
        wanted: CoolDown,
        sensors: Sequence[Sensor],
        say: Callable[[str], None],
        display: Display | None = None,
    ) -> None:
        self.wanted, self.sensors, self.say = wanted, sensors, say
        self.display = display or Display()
        self.hottest_c = 0.0  # as last read
        self.reported_missing = False

    def wait(self, poll_s: float = _POLL_S) -> None:
        """Wait until the hottest sensor is at most at `to_c`, at most `at_most_s`, reading it every `poll_s`.

        It prints how far the machine cooled; without a sensor it prints that once and returns at once.
        """
        hottest = began_c = self._read_hottest_c()
        if began_c is None:
            if not self.reported_missing:
                self.say("no temperature sensor can be read: there are no pauses to cool down")
            self.reported_missing = True
            return
        began_ns = clock.now_ns()
        end_ns = began_ns + int(self.wanted.at_most_s * 1e9)
        with self.display.waiting(
            "cooling down",
            self.wanted.at_most_s,
            lambda: f"{self.hottest_c:.0f} °C, until {self.wanted.to_c:g}",
        ):
            while hottest is not None and hottest > self.wanted.to_c and clock.now_ns() < end_ns:
                time.sleep(poll_s)
                hottest = self._read_hottest_c()
        took_s = (clock.now_ns() - began_ns) / 1e9
        if hottest is not None and hottest > self.wanted.to_c:
            self.say(
                f"still {hottest:.0f} °C after {took_s:.0f} s (at most {self.wanted.to_c:g} is wanted): "
                "continuing"
            )
        elif began_c > self.wanted.to_c:
            self.say(f"cooled down from {began_c:.0f} to {hottest or 0:.0f} °C in {took_s:.0f} s")

    def _read_hottest_c(self) -> float | None:
        """Read the sensors, set `hottest_c`, and return the highest temperature; None if none can be read."""
        reading = Reading.merge(sensor.read(()) for sensor in self.sensors)
        heat = [value for (quantity, _), value in reading.values.items() if quantity == "temperature_c"]
        self.hottest_c = max(heat, default=self.hottest_c)
        return max(heat, default=None)


_WARMER_C = 5.0  # than before the first cell: half of what counts as another state
_MOST_S = 120.0  # to wait for that


def is_measured_here(options: Options) -> bool:
    """Whether a model serves on this machine, and its sensors are read: its state belongs to the run."""
    local = options.launching.wanted or all(is_this_machine(url) for url in options.urls)
    return options.observe and not options.embedded and local


class MachineWatch:
    """Waits before each cell until the machine is cool, and compares its state with that before the first.

    `cool_down` is the file's; without it a cell waits 120 s at most until the machine is no more than 5 °C
    warmer than before the first cell. `first` is the state then, if that cell was measured earlier. With
    `require` a cell in another state is refused, else there is a line.
    """

    def __init__(
        self,
        cool_down: CoolDown | None,
        sensors: Sequence[Sensor],
        say: Callable[[str], None],
        display: Display | None = None,
        first: MachineState | None = None,
        require: bool = False,
    ) -> None:
        self.cooling = None if cool_down is None else Cooling(cool_down, sensors, say, display)
        self.sensors, self.say, self.display = sensors, say, display
        self.first, self.require = first, require
        self.said = set[str]()

    def wait_for_start(self) -> None:
        """Wait until the machine is as cool as the file requests, if it does."""
        if self.cooling is not None:
            self.cooling.wait()

    def prepare_cell(self, here: bool) -> str:
        """Wait until the machine is cool, and read its state; return why a cell is refused, "" if it is not.

        `here` is whether the server is on this machine: of another machine nothing is known. The state before
        the first cell is kept; by what a later one differs is printed once where it is not refused.
        """
        self.wait_for_start()
        if not here:
            return ""
        hottest = None if self.first is None or self.cooling is not None else self.first.find_hottest_c()
        if hottest is not None:
            wanted = CoolDown(to_c=hottest + _WARMER_C, at_most_s=_MOST_S)
            Cooling(wanted, self.sensors, self.say, self.display).wait()
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
