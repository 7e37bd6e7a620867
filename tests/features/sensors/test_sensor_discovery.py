"""The sensors of a machine are those that it has; host memory is of the processes asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from builders.recorded_sensors import DATA, RecordedNvml, tree
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.sensor_discovery import Processes, System
from loadgen.host.nvml import Gpus
from loadgen.host.sensor import Absent, Reading, Sensor, collect_facts

ALLOCATED = 64 << 20


def test_a_machine_without_a_gpu_says_so_and_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "loadgen.features.sensors.sensor_discovery.find_gpus", lambda: Absent("no NVIDIA GPU")
    )
    found = sensor_discovery.find_sensors(tmp_path)
    reading = Reading.merge(sensor.read([]) for sensor in found)
    assert [type(sensor).__name__ for sensor in found] == ["Absent", "Processes", "System"]
    assert reading.missing == ("no NVIDIA GPU", "host memory: the server's processes are unknown")
    assert reading.held_back is None
    assert list(reading.values) == [("system_bytes", "")]
    assert collect_facts(found) == {}
    assert sensor_discovery.read_device_memory_bytes() is None


def test_a_thor_has_nvml_and_its_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "loadgen.features.sensors.sensor_discovery.find_gpus", lambda: Gpus(RecordedNvml("thor"))
    )
    found = sensor_discovery.find_sensors(tree(tmp_path, (DATA / "agx_thor.txt").read_text("utf-8")))
    reading = Reading.merge(sensor.read([41]) for sensor in found[:2])
    assert reading.values["server_bytes", "GPU 0"] == 27_595_374_592
    assert reading.values["board_w", "VIN"] == 20.986
    assert reading.held_back == (("gpu", "throttle alert"),)
    facts = collect_facts(found)
    assert (facts["gpu"], facts["jetson_linux"]) == ("NVIDIA Thor", "R38.4.0")


@pytest.mark.whole
def test_the_machine_at_hand_answers_without_a_fault() -> None:
    found: list[Sensor] = sensor_discovery.find_sensors()
    values = Reading.merge(sensor.read([]) for sensor in found).values
    assert values["system_bytes", ""] > 0
    assert isinstance(collect_facts(found), dict)


@pytest.fixture
def child() -> Iterator[int]:
    """A process that holds 64 MiB, until its input ends."""
    code = f"import sys; held = b'x' * {ALLOCATED}; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert require(process.stdout).readline() == b"ready\n"
        yield process.pid
        require(process.stdin).close()


@pytest.mark.whole
def test_a_process_has_the_memory_that_it_allocated(child: int) -> None:
    reading = Processes().read([child])
    rss, pss = reading.values["rss_bytes", ""], reading.values["pss_bytes", ""]
    assert ALLOCATED <= pss <= rss < 4 * ALLOCATED
    assert reading.missing == ()


@pytest.mark.whole
def test_the_machine_uses_at_least_what_a_process_does(child: int) -> None:
    used = System().read([]).values["system_bytes", ""]
    assert ALLOCATED <= used < psutil.virtual_memory().total


class Memory:
    """Processes as psutil shows them; counts the walks for PSS."""

    def __init__(self) -> None:
        self.walks = 0
        self.pss = 100
        self.error: psutil.Error | None = None

    def __call__(self, pid: int) -> Memory:
        if pid == 9:
            raise psutil.NoSuchProcess(pid)
        return self

    def memory_info(self) -> Memory:
        return self

    def memory_full_info(self) -> Memory:
        self.walks += 1
        if self.error is not None:
            raise self.error
        return self

    rss = 300


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    found = Memory()
    monkeypatch.setattr(psutil, "Process", found)
    return found


def test_memory_is_summed_and_a_process_that_ended_has_none(memory: Memory) -> None:
    values = Processes(lambda: 0).read([1, 2, 9]).values
    assert values == {("rss_bytes", ""): 600, ("pss_bytes", ""): 200}


def test_pss_is_walked_every_five_seconds_and_told_between(memory: Memory) -> None:
    now_s = [0.0]
    sensor = Processes(lambda: int(now_s[0] * 1e9))
    told = []
    for at_s, pss in ((0.0, 100), (4.9, 150), (5.0, 160), (9.9, 170), (10.0, 180)):
        now_s[0], memory.pss = at_s, pss
        told.append(sensor.read([1]).values["pss_bytes", ""])
    assert told == [100, 100, 160, 160, 180]
    assert memory.walks == 3


def test_a_slow_walk_is_made_for_a_fifth_of_a_percent_of_the_time(memory: Memory) -> None:
    times = iter((0.0, 0.2, 99.9, 100.0, 100.2))
    sensor = Processes(lambda: int(next(times) * 1e9))
    for _ in range(3):
        sensor.read([1])
    assert memory.walks == 2


def test_a_process_of_another_user_is_a_line_and_never_a_part_of_the_sum(memory: Memory) -> None:
    memory.error = psutil.AccessDenied(1)
    reading = Processes(lambda: 0).read([1, 2])
    assert reading.values == {("rss_bytes", ""): 600}
    assert reading.missing == ("a process of the server does not report its PSS: it is another user's",)


def test_a_platform_without_pss_says_so(memory: Memory) -> None:
    del memory.pss
    reading = Processes(lambda: 0).read([1])
    assert reading.values == {("rss_bytes", ""): 300}
    assert reading.missing[0].startswith("a process of the server does not report its PSS: ")
