"""Sensors that raise, system files of any bytes, a cache that is none: each costs itself and nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from builders.loops import loop_over
from builders.made_cases import measured, run
from builders.recorded_sensors import DATA, RecordedNvml, tree
from facts.test_calibration import calibrated
from loadgen.base import files, untrusted
from loadgen.features.selftest import capacity, kept_selftests
from loadgen.features.selftest.kept_selftests import beyond_capacity, headroom
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.sampler import Sampler
from loadgen.features.sensors.sensor_discovery import Processes, System
from loadgen.host import environment
from loadgen.host.jetson import Board
from loadgen.host.nvml import Gpus
from loadgen.host.sensor import Absent, Reading, Sensor, collect_facts

FAULTS = [
    RuntimeError("driver\nsays \x1b[2J no"),
    OSError(5, "Input/output error"),
    OverflowError("int too large"),
    ZeroDivisionError(),
    RecursionError("deep"),
    MemoryError(),
    pynvml.NVMLError(999),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    AttributeError("no such thing"),
]


def machine(root: Path) -> list[Sensor]:
    """One of each sensor there is."""
    place = tree(root, (DATA / "agx_thor.txt").read_text("utf-8"))
    return [Gpus(RecordedNvml("thor")), Board(place), Processes(), System(), Absent("no such thing")]


def broken(monkeypatch: pytest.MonkeyPatch, sensor: Sensor, method: str, fault: Exception) -> None:
    def fails(*_: object) -> Reading:
        raise fault

    monkeypatch.setattr(type(sensor), method, fails)


@loop_over("fault", FAULTS)
@loop_over("which", range(5))
def test_a_sensor_that_raises_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int, fault: Exception
) -> None:
    every = machine(tmp_path)
    whole = Sampler(every, list)
    whole.samples.append(whole._sample((os.getpid(),)))
    lost = set(every[which].read((os.getpid(),)).values)
    broken(monkeypatch, every[which], "read", fault)
    hurt = Sampler(every, list)
    hurt.samples.append(hurt._sample((os.getpid(),)))
    assert set(hurt.samples[0].reading.values) == set(whole.samples[0].reading.values) - lost
    name, kind = type(every[which]).__name__, type(fault).__name__
    missing = hurt.summarize(0, 1 << 62).missing
    said = [one for one in missing if one.startswith(f"the sensor {name} failed: {kind}")]
    assert len(said) == 1
    assert said[0].isprintable()


@loop_over("fault", FAULTS)
@loop_over("which", range(4))
def test_facts_that_raise_cost_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int, fault: Exception
) -> None:
    every = machine(tmp_path)
    whole, lost = collect_facts(every), every[which].facts()
    broken(monkeypatch, every[which], "facts", fault)
    assert collect_facts(every) == {name: said for name, said in whole.items() if name not in lost}


@loop_over("fault", FAULTS)
@loop_over("looked_for", ["find_gpus", "find_board"])
def test_sensors_that_cannot_be_looked_for_are_said_to_be_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looked_for: str, fault: Exception
) -> None:
    def fails(*_: object) -> Sensor:
        raise fault

    monkeypatch.setattr(
        "loadgen.features.sensors.sensor_discovery.find_gpus", lambda: Absent("no NVIDIA GPU")
    )
    monkeypatch.setattr(f"loadgen.features.sensors.sensor_discovery.{looked_for}", fails)
    found = sensor_discovery.find_sensors(tmp_path)
    assert [type(one).__name__ for one in found[-2:]] == ["Processes", "System"]
    assert any(
        f"failed: {type(fault).__name__}" in one.missing[0] for one in found if isinstance(one, Absent)
    )
    assert sensor_discovery.read_device_memory_bytes() is None


class Odd(Sensor):
    """A sensor that says what no sensor can."""

    def __init__(self, values: object) -> None:
        self.values = values

    def facts(self) -> dict[str, str]:
        return {"odd": "\x1b[2J"}

    def read(self, pids: Sequence[int]) -> Reading:
        return Reading(values=self.values) if self.values is not None else None  # type: ignore[arg-type, return-value]


@loop_over(("values", "kept"), [
    ({("power_w", "GPU 0"): float("nan"), ("sm_mhz", "GPU 0"): 1.0}, {("sm_mhz", "GPU 0"): 1.0}),
    ({("energy_j", "GPU 0"): float("inf")}, {}),
    ({("rss_bytes", ""): 10**400}, {}),
    ({("temperature_c", "x"): -20.0}, {("temperature_c", "x"): -20.0}),
    ({("temperature_c", "x"): "hot"}, {}),
    (None, {}),
    ([1], {}),
])  # fmt: skip
def test_what_a_sensor_cannot_mean_is_missing(values: object, kept: dict[tuple[str, str], float]) -> None:
    reading = Sampler([Odd(values)], list)._sample(()).reading
    assert reading.values == kept
    assert len(reading.missing) == (values != kept)
    assert collect_facts([Odd(values)]) == {"odd": "\ufffd[2J"}


@pytest.mark.whole
def test_processes_that_cannot_be_looked_for_cost_no_samples() -> None:
    def pids() -> Sequence[int]:
        raise RuntimeError("no")

    sensing = Sampler([System()], pids)
    with sensing.sampling():
        pass
    found = sensing.summarize(0, 1 << 62)
    assert found.system is not None
    assert "finding the server's processes failed: RuntimeError: no" in found.missing


def test_samples_of_days_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.features.sensors.sampler._MOST_SAMPLES", 8)
    sensing, over = Sampler([], list, period_s=0.5), threading.Event()
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 40:
            over.set()

    monkeypatch.setattr(over, "wait", wait)
    sensing._collect(sensing.samples, over, threading.Event())
    assert len(looks) == 40
    assert 4 < len(sensing.samples) <= 8
    assert sensing.period_s > 0.5
    times = [sample.at_ns for sample in sensing.samples]
    assert times == sorted(times)


@loop_over(("raw", "said"), [
    (b"schedutil\n", "schedutil"),
    (b"\xff\xfe\x00", "\ufffd\ufffd"),
    (b"NVIDIA Jetson\0", "NVIDIA Jetson"),
    (b"\x1b[2Jx", "\ufffd[2Jx"),
    (b"x" * 10_000, "x" * 299 + "…"),
    (b"", ""),
])  # fmt: skip
def test_a_file_of_the_system_may_hold_any_bytes(tmp_path: Path, raw: bytes, said: str) -> None:
    place = tmp_path / "file"
    place.write_bytes(raw)
    assert untrusted.read_text(files.read_system_text(place)) == said
    assert files.read_system_text(tmp_path) == ""
    assert files.read_system_text(Path("a\0b")) == ""


@loop_over("fault", [FAULTS[1], FAULTS[7]])
def test_an_os_release_that_cannot_be_read_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fails() -> dict[str, str]:
        raise fault

    monkeypatch.setattr("platform.freedesktop_os_release", fails)
    assert environment.describe_machine()["os"] == "Linux"


def test_a_board_of_any_bytes_has_strict_facts(tmp_path: Path) -> None:
    for name in ("proc/device-tree/model", "var/lib/nvpmodel/status", "etc/nv_tegra_release"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"\xff# R35 x REVISION: 1.2\npmode:" + b"9" * 5000)
    assert all(said.isprintable() and len(said) <= 300 for said in Board(tmp_path).facts().values())


def test_a_number_of_5000_digits_is_none_of_a_counter(tmp_path: Path) -> None:
    place = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    place.parent.mkdir(parents=True)
    for text, count in (("9" * 5000, 0), ("12", 12)):
        place.write_text(text)
        found = environment.read_throttling_state(tmp_path)
        assert found.counters == {str(place): count}


CACHES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a device": lambda place: place.symlink_to("/dev/zero"),
    "huge": lambda place: place.write_bytes(b"[" * (2 << 20)),
    "deep": lambda place: place.write_bytes(b'{"calibrations":' + b"[" * 100_000),
    "binary": lambda place: place.write_bytes(b"\xff\x00"),
}


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_that_is_none_is_ignored_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_selftests.cache_path().parent.mkdir(parents=True)
    CACHES[kind](kept_selftests.cache_path())
    assert kept_selftests.read_remembered("wire", "here") is None
    assert caplog.text.count("earlier self-tests are ignored") == 1


NUMBERS = [
    "interval_ms", "events_per_read", "capacity_tokens_per_s", "capacity_streams", "cpu_us_per_token",
    "tokens_per_message", "streams",
]  # fmt: skip


@loop_over("value", ["NaN", "Infinity", "-1", "1e400", '"x"'])
@loop_over("name", [*NUMBERS, "p99_us", "p99_percent"])
def test_a_remembered_number_that_cannot_be_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    good = calibrated(tokens_per_message=1)
    assert kept_selftests.remember([good])
    path = kept_selftests.cache_path()
    text = path.read_text("utf-8")
    head, _, rest = text.partition(f'"{name}": ')
    end = min(rest.index(sign) for sign in ",\n" if sign in rest)
    path.write_text(f'{head}"{name}": {value}{rest[end:]}', "utf-8")
    assert kept_selftests.read_remembered("wire", "here") is None


@loop_over("name", ["tokens_per_message", "interval_ms", "streams"])
def test_what_is_divided_by_is_not_0(name: str) -> None:
    zero: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=name):
        calibrated(**zero)


def test_a_client_that_held_no_load_is_beyond_its_capacity() -> None:
    known = measured(0, capacity_streams=0)
    case = run(calibration=known)
    said = beyond_capacity.find(case) or ""
    assert said.endswith("chunks/s; no load of the self-test had a P99 gap error under 5 %")
    assert headroom.find(case) is None
    assert (known.headroom(100.0), known.headroom(0.0)) == (0.0, float("inf"))
    assert capacity.make_transport_passage(known, "").facts[0] == (
        "capacity",
        "no load that was tried was held",
    )
