"""The sensors of a machine are those that it has; what they read is of the processes asked for, and whole."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from builders.loops import loop_over
from builders.recorded_sensors import DATA, RecordedNvml, tree
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.sampler import Sampler, measure_copy_gb_per_s
from loadgen.features.sensors.sensor_discovery import Processes, System, find_packages
from loadgen.features.sensors.sensor_summary import describe_state
from loadgen.host.machine_state import ClockState, MachineState, PowerCap
from loadgen.host.nvml import Gpus
from loadgen.host.sensor import Absent, Reading, Sensor, collect_facts, merge_states, read_machine_state

GIB, ALLOCATED = 1 << 30, 64 << 20
GPUS = "loadgen.features.sensors.sensor_discovery.find_gpus"


def test_a_machine_without_a_gpu_says_so_and_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GPUS, lambda: Absent("no NVIDIA GPU"))
    found = sensor_discovery.find_sensors(tmp_path)
    reading = Reading.merge(sensor.read([]) for sensor in found)
    assert [type(sensor).__name__ for sensor in found] == ["Absent", "Processes", "System"]
    assert reading.missing == ("no NVIDIA GPU", "host memory: the server's processes are unknown")
    assert reading.held_back is None
    assert list(reading.values) == [("system_bytes", "")]
    assert collect_facts(found) == {}
    assert sensor_discovery.read_device_memory_bytes() is None


def test_a_thor_has_nvml_and_its_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPUS, lambda: Gpus(RecordedNvml("thor")))
    found = sensor_discovery.find_sensors(tree(tmp_path, (DATA / "agx_thor.txt").read_text("utf-8")))
    reading = Reading.merge(sensor.read([41]) for sensor in found[:2])
    assert reading.values["server_bytes", "GPU 0"] == 27_595_374_592
    assert reading.values["board_w", "VIN"] == 20.986
    assert reading.held_back == (("gpu", "throttle alert"),)
    facts = collect_facts(found)
    assert (facts["gpu"], facts["jetson_linux"]) == ("NVIDIA Thor", "R38.4.0")


@pytest.mark.whole
def test_the_machine_at_hand_answers_without_a_fault() -> None:
    """A process that holds 64 MiB has them, and the machine uses at least as much."""
    found: list[Sensor] = sensor_discovery.find_sensors()
    code = f"import sys; held = b'x' * {ALLOCATED}; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert require(process.stdout).readline() == b"ready\n"
        values = Reading.merge(sensor.read([process.pid]) for sensor in found).values
        require(process.stdin).close()
    assert ALLOCATED <= values["pss_bytes", ""] <= values["rss_bytes", ""] < 4 * ALLOCATED
    assert ALLOCATED <= values["system_bytes", ""] < psutil.virtual_memory().total
    assert isinstance(collect_facts(found), dict)


class Memory:
    """Processes as psutil shows them; 9 has ended, and others' PSS may not be read."""

    rss, pss, walks = 300, 100, 0
    error: psutil.Error | None = None

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


def test_memory_is_summed_and_that_of_another_user_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, at_ns = Memory(), iter([0, 0, 4_900_000_000, 5_000_000_000, 5_000_000_000])
    monkeypatch.setattr(psutil, "Process", memory)
    processes = Processes(lambda: next(at_ns))
    for walks in (2, 2, 4):  # that of PSS is slow: again after 5 s
        assert processes.read([1, 2, 9]).values == {("rss_bytes", ""): 600, ("pss_bytes", ""): 200}
        assert memory.walks == walks
    memory.error = psutil.AccessDenied(1)
    reading = Processes(lambda: 0).read([1, 2])
    assert reading.values == {("rss_bytes", ""): 600}
    assert reading.missing == ("a process of the server does not report its PSS: it is another user's",)


# RAPL.

ZONES, RANGE_UJ = "sys/class/powercap", 262_143_328_850
SERVER = {
    "intel-rapl:0": ("package-0", 5_000_000),
    "intel-rapl:0:0": ("dram", 1_000_000),
    "intel-rapl:1": ("package-1", 7_000_000),
    "intel-rapl:1:0": ("dram", 2_000_000),
}
LAPTOP = {
    "intel-rapl:0": ("package-0", 5_000_000),
    "intel-rapl:0:0": ("core", 3_000_000),
    "intel-rapl:0:1": ("uncore", 1_000_000),
    "intel-rapl:1": ("psys", 9_000_000),
    "intel-rapl-mmio:0": ("package-0", 5_000_000),
}


def write(root: Path, zones: Mapping[str, tuple[str, int]]) -> Path:
    """Zones with their names and µJ, as the kernel has them."""
    for zone, (what, energy_uj) in zones.items():
        at = f"{ZONES}/{zone}/"
        tree(root, f"{at}name = {what}\n{at}energy_uj = {energy_uj}\n{at}max_energy_range_uj = {RANGE_UJ}")
    return root


@loop_over(
    ("zones", "values"),
    [
        (SERVER, {"CPU package 0": 5.0, "CPU memory 0": 1.0, "CPU package 1": 7.0, "CPU memory 1": 2.0}),
        (LAPTOP, {"CPU package 0": 5.0}),
        ({"intel-rapl-mmio:0": ("package-0", 4_000_000)}, {"CPU package 0": 4.0}),
        ({"intel-rapl:0": ("package-0-die-1", 4_000_000)}, {"CPU package 0-die-1": 4.0}),
    ],
)
def test_packages_and_memory_are_read_and_nothing_within_them(
    tmp_path: Path, zones: Mapping[str, tuple[str, int]], values: dict[str, float]
) -> None:
    found = require(find_packages(write(tmp_path, zones)))
    reading = found.read(())
    assert reading.values == {("package_j", where): joules for where, joules in values.items()}
    assert {where: source.name for where, source in reading.sources.items()} == dict.fromkeys(values, "RAPL")
    names = [type(sensor).__name__ for sensor in sensor_discovery.find_sensors(tmp_path)]
    assert names[-3:] == ["Packages", "Processes", "System"]


@loop_over(
    ("counted_uj", "range_uj", "joules"),
    [
        ([1_000_000, 3_000_000], RANGE_UJ, [1.0, 3.0]),
        ([RANGE_UJ - 1_328_850, 2_000_000], RANGE_UJ, [262_142.0, 262_145.32885]),
        ([9_000_000, 1_000_000, 500_000], 10_000_000, [9.0, 11.0, 20.5]),
        ([9_000_000, 1_000_000], "?", [9.0, 10.0]),
        ([""], 1, ["'' is no count"]),
        (["-5"], 1, ["'-5' is no count"]),
        (["9" * 30], 1, [f"'{'9' * 30}' is no count"]),
        (["x\x1b"], 1, ["'x\ufffd' is no count"]),
    ],
)
def test_a_counter_goes_on_across_its_wraps_and_what_is_none_is_a_line(
    tmp_path: Path, counted_uj: Sequence[object], range_uj: object, joules: Sequence[float | str]
) -> None:
    write(tmp_path, {"intel-rapl:0": ("package-0", 0)})
    zone = tmp_path / ZONES / "intel-rapl:0"
    (zone / "max_energy_range_uj").write_text(f"{range_uj}\n")
    found, read = require(find_packages(tmp_path)), list[object]()
    for energy_uj in counted_uj:
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
        reading = found.read(())
        missing = (line.removeprefix("RAPL does not report CPU package 0: ") for line in reading.missing)
        read += [*reading.values.values(), *missing]
    assert read == joules


def test_missing_rights_are_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = require(find_packages(write(tmp_path, SERVER)))

    def refuse(*_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    assert sensor_discovery.list_ids([Processes(), found]) == [f"/{ZONES}/{zone}" for zone in SERVER]
    monkeypatch.setattr(Path, "read_text", refuse)
    assert found.read(()).missing == (
        "RAPL does not report CPU package 0, CPU memory 0, CPU package 1 and CPU memory 1: only root may "
        "read it: sudo chmod a+r /sys/class/powercap/intel-rapl*/energy_uj, until the next start",
    )
    assert found.list_ids() == []


# The state.


class Raising(Sensor):
    def read_state(self, pids: Any) -> MachineState:
        raise ZeroDivisionError("a driver's fault")


def test_sources_of_one_machine_are_merged_and_one_that_raises_is_named() -> None:
    gone = Absent("no NVIDIA GPU: it is gone")
    state = read_machine_state([gone, Raising(), Gpus(RecordedNvml("gb10"))], [41])
    assert state.missing[:2] == (
        "no NVIDIA GPU: it is gone",
        "the sensor Raising failed: ZeroDivisionError: a driver's fault",
    )
    assert state.driver == "580.142"
    assert describe_state(state) == "GPU 0 SM 513 of 3,003 MHz, 44 °C"


@loop_over(
    ("steps_ms", "available", "gb_per_s"),
    [
        ([0, 0, 100, 100, 100, 140, 140, 140, 200, 200], 64 * GIB, 2 * (128 << 20) / 40e6),
        ([0, 0, 1500, 1500], 64 * GIB, 2 * (128 << 20) / 1500e6),  # another pass would take too long
        ([0, 0, 10, 10, 10], 1 * GIB, None),
        ([], None, None),
    ],
)
def test_the_probe_is_the_fastest_copy_within_its_time(
    steps_ms: list[int], available: int | None, gb_per_s: float | None
) -> None:
    times = iter(step * 1_000_000 for step in steps_ms)
    assert measure_copy_gb_per_s(available, 0.21, lambda: next(times)) == gb_per_s


def test_the_probe_is_made_only_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = "loadgen.features.sensors.sampler.measure_copy_gb_per_s"
    monkeypatch.setattr(module, lambda available: available / GIB)
    root = tree(tmp_path, (DATA / "dgx_spark.txt").read_text("utf-8"))
    sampler = Sampler([System(root)], list)
    assert [sampler.read_state(probe).copy_gb_per_s for probe in (False, True)] == [None, 88.0]


def test_the_report_shows_the_state_before_a_run() -> None:
    clock = ClockState(now_mhz=800, limit_mhz=1700, most_mhz=3400, pinned=True)
    cap = PowerCap(now_w=350, default_w=700)
    states = [
        MachineState(power_mode="MAXN (0)", cpu_governor="performance (acpi-cpufreq)"),
        MachineState(clocks={"CPU": clock}),
        MachineState(power_caps={"GPU 0": cap}, page_cache_bytes=3 * GIB, unified=True),
        MachineState(temperature_c={"GPU 0": 40, "CPU acpitz": 60}, copy_gb_per_s=38.35),
    ]
    assert describe_state(merge_states(states)) == (
        "MAXN (0), governor performance (acpi-cpufreq), CPU 800 of 1,700 MHz pinned, GPU 0 up to 350 W, "
        "40 °C, page cache 3.0 GiB, memory copied at 38.4 GB/s"
    )
    assert describe_state(MachineState()) == ""
