"""The sensors of a machine are those that it has; what they read is of the processes asked for, and whole."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.recorded_sensors import DATA, RecordedNvml, tree
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.sampler import Sampler, measure_copy_gb_per_s
from loadgen.features.sensors.sensor_discovery import Packages, Processes, System, find_packages
from loadgen.features.sensors.sensor_summary import describe_state
from loadgen.host.jetson import Board
from loadgen.host.machine_state import ClockState, GpuUse, MachineState, PowerCap, list_state_differences
from loadgen.host.nvml import Gpus
from loadgen.host.sensor import (
    Absent,
    PowerSource,
    Reading,
    Sensor,
    collect_facts,
    merge_states,
    read_machine_state,
)

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


def test_a_process_of_another_user_is_a_line_and_never_a_part_of_the_sum(memory: Memory) -> None:
    memory.error = psutil.AccessDenied(1)
    reading = Processes(lambda: 0).read([1, 2])
    assert reading.values == {("rss_bytes", ""): 600}
    assert reading.missing == ("a process of the server does not report its PSS: it is another user's",)


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


def test_its_zones_are_named_as_node_exporter_names_them(tmp_path: Path) -> None:
    write(tmp_path, SERVER)
    sensors = sensor_discovery.find_sensors(tmp_path)
    assert [type(sensor).__name__ for sensor in sensors][1:] == ["Packages", "Processes", "System"]
    assert isinstance(sensors[1], Packages)
    assert sensor_discovery.list_ids(sensors) == [f"/{ZONES}/{zone}" for zone in SERVER]


GIB = 1 << 30


PIDS = (41,)


def read_nvml(name: str) -> MachineState:
    return Gpus(RecordedNvml(name)).read_state(PIDS)


def read_board(root: Path, name: str) -> MachineState:
    return Board(tree(root, (DATA / f"{name}.txt").read_text("utf-8"))).read_state(PIDS)


def test_a_server_s_gpus_report_their_settings_and_what_runs_on_them() -> None:
    state = read_nvml("h200")
    assert state == MachineState(
        driver="570.124.06",
        firmware={"GPU 0": "96.00.99.00.01", "GPU 1": "96.00.99.00.01"},
        clocks={
            "GPU 0 SM": ClockState(now_mhz=1980, limit_mhz=1980, most_mhz=1980, pinned=False),
            "GPU 0 memory": ClockState(now_mhz=3201, limit_mhz=3201, most_mhz=3201),
            "GPU 1 SM": ClockState(now_mhz=345, limit_mhz=1980, most_mhz=1980),
            "GPU 1 memory": ClockState(now_mhz=3201, limit_mhz=3201, most_mhz=3201),
        },
        power_caps={
            name: PowerCap(now_w=700, default_w=700, least_w=200, most_w=700) for name in ("GPU 0", "GPU 1")
        },
        temperature_c={"GPU 0": 54, "GPU 1": 31},
        held_back=("GPU 0: power limit",),
        slowdown_us={"GPU 0 power": 2500, "GPU 0 heat": 2500, "GPU 1 power": 0, "GPU 1 heat": 0},
        gpus={
            "GPU 0": GpuUse(
                name="NVIDIA H200",
                used_bytes=135_000_000_000,
                total_bytes=150_754_820_096,
                others=1,
                others_bytes=500_000_000,
                busy_percent=98,
                memory_busy_percent=61,
                power_w=412.345,
            ),
            "GPU 1": GpuUse(
                name="NVIDIA H200",
                used_bytes=1_000_000_000,
                total_bytes=150_754_820_096,
                busy_percent=0,
                memory_busy_percent=0,
                power_w=76.0,
            ),
        },
    )


def test_a_recorded_h100_idles_at_a_clock_that_is_no_other_setting() -> None:
    state = Gpus(RecordedNvml("h100")).read_state((515,))
    idle, busy = state.clocks["GPU 0 SM"], state.clocks["GPU 1 SM"]
    assert idle == ClockState(now_mhz=345, limit_mhz=1980, most_mhz=1980)
    assert busy == ClockState(now_mhz=1980, limit_mhz=1980, most_mhz=1980, pinned=False)
    assert state.gpus["GPU 1"] == GpuUse(
        name="NVIDIA H100 80GB HBM3",
        used_bytes=74_177_118_208,
        total_bytes=85_520_809_984,
        others=0,
        others_bytes=0,
        busy_percent=31,
        memory_busy_percent=5,
        power_w=145.899,
    )
    as_idle, as_busy = (replace(state, clocks={"GPU 0 SM": clock}) for clock in (idle, busy))
    assert list(list_state_differences(as_idle, as_busy)) == []


def test_a_jetson_reports_its_mode_and_clocks_below_their_best(tmp_path: Path) -> None:
    assert read_board(tmp_path, "agx_orin") == MachineState(
        power_mode="MODE_30W (2)",
        firmware={"Jetson Linux": "R36.4.0"},
        clocks={"17000000.gpu": ClockState(now_mhz=407, limit_mhz=612, most_mhz=1300.5, pinned=False)},
        temperature_c={"gpu-thermal": 69.125, "tj-thermal": 77.281},
        held_back=(),
        unified=True,
    )


def test_jetson_clocks_pin_the_gpu(tmp_path: Path) -> None:
    state = read_board(tmp_path, "agx_thor")
    assert state.clocks == {
        "gpu-gpc-0": ClockState(now_mhz=1575, limit_mhz=1575, most_mhz=1575, pinned=True),
        "bwmgr": ClockState(now_mhz=4266),
    }
    assert (state.fans, state.held_back) == ({"pwmfan pwm1": 58}, ("gpu: throttle alert",))
    assert state.missing == ("the board does not report temperature gpu-thermal: No data available",)


def test_throttle_alerts_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    listing = re.sub(r"(/cur_state =).*", r"\1", (DATA / "agx_thor.txt").read_text("utf-8"))
    board = Board(tree(tmp_path, listing))
    assert board.alerts
    assert (board.read([]).held_back, board.read_state(PIDS).held_back) == (None, None)


def test_the_host_reports_clocks_heat_and_memory(tmp_path: Path) -> None:
    root = tree(tmp_path, (DATA / "dgx_spark.txt").read_text("utf-8"))
    assert System(root).read_state(PIDS) == MachineState(
        cpu_governor="performance (cppc_cpufreq)",
        firmware={"BIOS": "5.36_0ACUM018"},
        clocks={
            "CPU cores of 3.90 GHz": ClockState(now_mhz=3875, limit_mhz=1900, most_mhz=3900, pinned=False),
            "CPU cores of 2.81 GHz": ClockState(now_mhz=2808, limit_mhz=2808, most_mhz=2808, pinned=False),
        },
        temperature_c={"CPU acpitz": 47.2},
        fans={"acpi_fan fan1 rpm": 1500},
        memory_bytes=125513732 << 10,
        free_bytes=3 * GIB,
        available_bytes=88 * GIB,
        page_cache_bytes=(524288 + 93323264 - 1048576 - 2097152) << 10,
        swap_bytes=0,
    )


def test_a_host_without_any_of_it_reports_nothing(tmp_path: Path) -> None:
    assert System(tmp_path).read_state(PIDS) == MachineState()


class Raising(Sensor):
    def read(self, pids: Any) -> Reading:
        return Reading()

    def read_state(self, pids: Any) -> MachineState:
        raise ZeroDivisionError("a driver's fault")


def test_sources_of_one_machine_are_merged_and_one_that_raises_is_named() -> None:
    gone = Absent("no NVIDIA GPU: it is gone")
    state = read_machine_state([gone, Raising(), Gpus(RecordedNvml("gb10"))], PIDS)
    assert state.missing[:2] == (
        "no NVIDIA GPU: it is gone",
        "the sensor Raising failed: ZeroDivisionError: a driver's fault",
    )
    assert state.driver == "580.142"


@pytest.mark.parametrize(
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
    assert describe_state(read_nvml("gb10")) == "GPU 0 SM 513 of 3,003 MHz, 44 °C"
    state = merge_states(
        [
            MachineState(power_mode="MAXN (0)", cpu_governor="performance (acpi-cpufreq)"),
            MachineState(clocks={"CPU": ClockState(now_mhz=800, limit_mhz=1700, most_mhz=3400, pinned=True)}),
            MachineState(
                power_caps={"GPU 0": PowerCap(now_w=350, default_w=700)},
                page_cache_bytes=3 * GIB,
                unified=True,
            ),
            MachineState(temperature_c={"GPU 0": 40, "CPU acpitz": 60}, copy_gb_per_s=38.35),
        ]
    )
    assert describe_state(state) == (
        "MAXN (0), governor performance (acpi-cpufreq), CPU 800 of 1,700 MHz pinned, GPU 0 up to 350 W, "
        "40 °C, page cache 3.0 GiB, memory copied at 38.4 GB/s"
    )
    assert describe_state(MachineState()) == ""
