"""Cooling: a pause before a cell, until the machine has cooled to the temperature asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from loadgen.base import clock
from loadgen.host.sensor import Reading, Sensor
from loadgen.run.progress import Display
from loadgen.study.series.file import CoolDown

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
        """Wait until it is cool, or the time is over."""
        hottest = began_c = self._hottest_c()
        if began_c is None:
            if not self.reported_missing:
                self.say("no temperature sensor can be read: there are no pauses to cool down")
            self.reported_missing = True
            return
        began_ns = clock.now_ns()
        end_ns = began_ns + int(self.wanted.at_most_s * 1e9)
        with self.display.waiting("cooling down", self.wanted.at_most_s, self._words):
            while hottest is not None and hottest > self.wanted.to_c and clock.now_ns() < end_ns:
                time.sleep(poll_s)
                hottest = self._hottest_c()
        took_s = (clock.now_ns() - began_ns) / 1e9
        if hottest is not None and hottest > self.wanted.to_c:
            self.say(
                f"still {hottest:.0f} °C after {took_s:.0f} s (cool_down asks for {self.wanted.to_c:g}): "
                "continuing"
            )
        elif began_c > self.wanted.to_c:
            self.say(f"cooled down from {began_c:.0f} to {hottest or 0:.0f} °C in {took_s:.0f} s")

    def _hottest_c(self) -> float | None:
        reading = Reading.merge(sensor.read(()) for sensor in self.sensors)
        heat = [value for (quantity, _), value in reading.values.items() if quantity == "temperature_c"]
        self.hottest_c = max(heat, default=self.hottest_c)
        return max(heat, default=None)

    def _words(self) -> str:
        return f"{self.hottest_c:.0f} °C, until {self.wanted.to_c:g}"
