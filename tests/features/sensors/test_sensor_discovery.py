"""The sensors of a machine are those that it has; host memory is of the processes asked for."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from builders.loops import loop_over
from builders.recorded_sensors import DATA, RecordedNvml, tree
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.sensor_discovery import Packages, Processes, System, find_packages
from loadgen.host.nvml import Gpus
from loadgen.host.sensor import Absent, PowerSource, Reading, Sensor, collect_facts

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


ZONES = "sys/class/powercap"
RANGE_UJ = 262_143_328_850
MISSING_RIGHTS = (
    "only root may read it: sudo chmod a+r /sys/class/powercap/intel-rapl*/energy_uj, until the next start"
)


def write(root: Path, zones: Mapping[str, tuple[str, int]]) -> Path:
    """Zones with their names and µJ, as the kernel has them."""
    lines = [
        f"{ZONES}/{zone}/{name} = {value}"
        for zone, (what, energy_uj) in zones.items()
        for name, value in (("name", what), ("energy_uj", energy_uj), ("max_energy_range_uj", RANGE_UJ))
    ]
    return tree(root, "\n".join(lines))


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
    found = require(find_packages(write(Path(tempfile.mkdtemp(dir=tmp_path)), zones)))
    assert found.read(()) == Reading(
        {("package_j", where): joules for where, joules in values.items()},
        sources={where: PowerSource("RAPL") for where in values},
    )


@loop_over(
    ("counted_uj", "range_uj", "joules"),
    [
        ([1_000_000, 3_000_000], RANGE_UJ, [1.0, 3.0]),
        ([RANGE_UJ - 1_328_850, 2_000_000], RANGE_UJ, [262_142.0, 262_145.32885]),
        ([9_000_000, 1_000_000, 500_000], 10_000_000, [9.0, 11.0, 20.5]),
        ([9_000_000, 1_000_000], "?", [9.0, 10.0]),
    ],
)  # fmt: skip
def test_a_counter_goes_on_across_its_wraps(
    tmp_path: Path, counted_uj: Sequence[int], range_uj: object, joules: Sequence[float]
) -> None:
    write(tmp_path, {"intel-rapl:0": ("package-0", 0)})
    zone = tmp_path / ZONES / "intel-rapl:0"
    (zone / "max_energy_range_uj").write_text(f"{range_uj}\n")
    found, read = find_packages(tmp_path), []
    for energy_uj in counted_uj:
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
        read.append(require(found).read(()).values["package_j", "CPU package 0"])
    assert read == joules


def test_missing_rights_are_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = require(find_packages(write(tmp_path, SERVER)))

    def refuse(*_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert found.read(()) == Reading(
        missing=(
            "RAPL does not report CPU package 0, CPU memory 0, CPU package 1 and CPU memory 1: "
            f"{MISSING_RIGHTS}",
        )
    )
    assert found.list_ids() == []


@loop_over(
    ("text", "why"),
    [
        ("", "'' is no count"),
        ("-5", "'-5' is no count"),
        ("9" * 30, f"'{'9' * 30}' is no count"),
        ("x\x1b", "'x"),
    ],
)
def test_what_is_no_count_is_a_line(tmp_path: Path, text: str, why: str) -> None:
    found = require(find_packages(write(tmp_path, {"intel-rapl:0": ("package-0", 0)})))
    (tmp_path / ZONES / "intel-rapl:0/energy_uj").write_text(text)
    (line,) = found.read(()).missing
    assert line.startswith(f"RAPL does not report CPU package 0: {why}")
    assert line.isprintable()


def test_a_machine_without_powercap_has_none(tmp_path: Path) -> None:
    assert find_packages(tmp_path) is None
    assert find_packages(write(tmp_path, {"intel-rapl:0": ("psys", 1)})) is None


def test_its_zones_are_named_as_node_exporter_names_them(tmp_path: Path) -> None:
    write(tmp_path, SERVER)
    sensors = sensor_discovery.find_sensors(tmp_path)
    assert [type(sensor).__name__ for sensor in sensors][1:] == ["Packages", "Processes", "System"]
    assert isinstance(sensors[1], Packages)
    assert sensor_discovery.list_ids(sensors) == [f"/{ZONES}/{zone}" for zone in SERVER]
