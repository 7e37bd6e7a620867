"""The sampler reads sensors from a thread of its own, and waits for none that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from loadgen.base import clock
from loadgen.features.sensors.sampler import Sampler
from loadgen.features.sensors.sensor import Absent, Reading, Sensor


class Counting(Sensor):
    """A sensor that counts its looks and keeps who was asked for, and from which thread."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[int], str]] = []
        self.twice = threading.Event()

    def facts(self) -> dict[str, str]:
        return {}

    def read(self, pids: Sequence[int]) -> Reading:
        self.asked.append((pids, threading.current_thread().name))
        if len(self.asked) > 1:
            self.twice.set()
        return Reading({("rss_bytes", ""): float(len(self.asked))})


@pytest.mark.whole
def test_looking_begins_at_once_goes_on_and_ends_with_a_last_look() -> None:
    sensor = Counting()
    sensing = Sampler([sensor, Absent("no GPU")], lambda: [7], period_s=0.0)
    assert sensing.period_s == 0.1
    begin_ns = clock.now_ns()
    with sensing.sampling():
        assert sensor.twice.wait(30)
    found = sensing.summarize(begin_ns, clock.now_ns())
    assert found.samples == len(sensor.asked) >= 3
    assert set(sensor.asked) == {((7,), "sensing")}
    assert found.rss is not None
    assert found.rss.peak_bytes == found.samples
    assert found.missing == ("no GPU",)
    assert "sensing" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.whole
def test_rest_is_apart_from_the_run() -> None:
    sensor = Counting()
    sensing = Sampler([sensor], list)
    sensing.sample_idle(0.0)
    assert sensing.samples == []
    assert len(sensing.idle) == len(sensor.asked) > 0


class Stuck(Sensor):
    """A sensor that does not answer until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def facts(self) -> dict[str, str]:
        return {}

    def read(self, pids: Sequence[int]) -> Reading:
        self.let_go.wait(30)
        return Reading()


@pytest.mark.whole
def test_a_sensor_that_does_not_answer_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.features.sensors.sampler._STOP_S", 0.01)
    stuck = Stuck()
    sensing = Sampler([stuck], list)
    with sensing.sampling():
        pass
    missing = sensing.summarize(0, 1).missing
    stuck.let_go.set()
    assert missing[0] == "a sensor did not answer within 0.01 s of the end"
