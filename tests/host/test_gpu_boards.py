"""Sensors: NVML's and amdsmi's GPUs and Jetson's boards, as they were recorded, become readings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.recorded_sensors import DATA, RecordedNvml, tree
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.host.amd import AmdGpus, find_amd_gpus
from loadgen.host.jetson import Board, find_board
from loadgen.host.machine_state import ClockState, GpuUse, MachineState, PowerCap
from loadgen.host.nvml import Gpus, find_gpus
from loadgen.host.sensor import Absent, Key, Reading

TABLES = read_tables("nvml")


def test_a_server_s_gpus_tell_everything() -> None:
    reading = Gpus(RecordedNvml("h200")).read([40, 41])
    assert reading == Reading(
        values={
            ("device_bytes", "GPU 0"): 135_000_000_000,
            ("server_bytes", "GPU 0"): 134_000_000_000,
            ("energy_j", "GPU 0"): 123456.789,
            ("temperature_c", "GPU 0"): 54,
            ("sm_mhz", "GPU 0"): 1980,
            ("memory_mhz", "GPU 0"): 3201,
            ("device_bytes", "GPU 1"): 1_000_000_000,
            ("energy_j", "GPU 1"): 23456.789,
            ("temperature_c", "GPU 1"): 31,
            ("sm_mhz", "GPU 1"): 345,
            ("memory_mhz", "GPU 1"): 3201,
        },
        held_back=(("GPU 0", "power limit"),),
        missing=(),
    )


def test_a_thor_tells_memory_by_process_and_says_what_it_does_not_tell() -> None:
    reading = Gpus(RecordedNvml("thor")).read([41])
    assert reading == Reading(
        values={("server_bytes", "GPU 0"): 27_595_374_592},
        held_back=None,
        missing=(
            "GPU 0 does not report memory in use, energy or power, temperature, SM clock, memory clock and "
            "why its clocks are held back: Not Supported",
        ),
    )


def test_without_an_energy_counter_power_is_read_instances_are_summed() -> None:
    reading = Gpus(RecordedNvml("mig_old")).read([41])
    assert reading.values["power_w", "GPU 0"] == 90.5
    assert reading.values["server_bytes", "GPU 0"] == 19_000_000_000
    assert ("energy_j", "GPU 0") not in reading.values
    assert (reading.held_back, reading.missing) == ((), ())


@loop_over(("recorded", "facts"), TABLES["facts"])
def test_facts_are_what_is_told(recorded: str, facts: dict[str, str]) -> None:
    assert Gpus(RecordedNvml(recorded)).facts() == facts


@loop_over(("recorded", "used"), [("h200", 136_000_000_000), ("thor", None)])
def test_memory_in_use_is_of_all_gpus_or_not_known(recorded: str, used: int | None) -> None:
    assert Gpus(RecordedNvml(recorded)).read_used_bytes() == used


def test_processes_that_no_gpu_lists_are_said_to_be_unlisted() -> None:
    reading = Gpus(RecordedNvml("h200")).read([1234])
    assert ("server_bytes", "GPU 0") not in reading.values
    assert reading.missing == (
        "no GPU lists a process of the server, so its GPU memory is unknown by process",
    )
    assert Gpus(RecordedNvml("h200")).read([]).missing == ()


def test_a_list_without_memory_is_not_a_list_of_none() -> None:
    nvml = RecordedNvml("h200")
    nvml.said["devices"][0]["ComputeRunningProcesses"][0]["usedGpuMemory"] = None
    reading = Gpus(nvml).read([41])
    assert ("server_bytes", "GPU 0") not in reading.values
    assert (
        reading.missing[0]
        == "GPU 0 does not report memory by process: it lists the processes without their memory"
    )


@loop_over("words", ["GPU is lost", "Insufficient Permissions", "Unknown Error"])
def test_a_gpu_that_falls_off_is_a_line_and_no_exception(words: str) -> None:
    nvml = RecordedNvml("thor")
    devices = Gpus(nvml)
    nvml.refuse(words)
    reading = devices.read([41])
    assert reading.values == {}
    assert reading.missing[0] == (
        "GPU 0 does not report memory in use, memory by process, energy or power, temperature, SM clock, "
        f"memory clock and why its clocks are held back: {words}"
    )
    assert devices.facts()["gpus"] == "1"
    assert devices.read_used_bytes() is None


def test_a_gpu_that_cannot_be_opened_is_named() -> None:
    nvml = RecordedNvml("h200")
    nvml.said["devices"][1] = "GPU is lost"
    reading = Gpus(nvml).read([41])
    assert reading.missing == ("NVML does not report GPU 1: GPU is lost",)
    assert reading.values["server_bytes", "GPU 0"] == 134_000_000_000


def test_a_driver_without_a_gpu_says_so() -> None:
    nvml = RecordedNvml("h200")
    nvml.said["devices"] = []
    assert Gpus(nvml).read([]).missing == ("NVML does not report any GPU: it finds none",)
    assert Gpus(nvml).facts() == {}


def test_a_machine_without_nvml_has_no_gpu() -> None:
    missing = "no NVIDIA GPU: libno-such-library.so.1 cannot be loaded"
    assert find_gpus("libno-such-library.so.1").missing == (missing,)


def test_a_library_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)
    assert find_gpus().missing == ("no NVIDIA GPU: NVML does not start: Driver Not Loaded",)


NOT, MIB = "N/A", 1 << 20


class AmdSmiException(Exception):
    """As amdsmi raises."""


class FakeAmdSmi(ModuleType):
    """Answers like amdsmi from one table a GPU: by function, without amdsmi_get_; missing: not supported."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiMemoryType = SimpleNamespace(VRAM="VRAM")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="HOTSPOT")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="CURRENT")

    def __init__(self, *gpus: dict[str, Any]) -> None:
        super().__init__("amdsmi")
        self.gpus = list(gpus)

    def amdsmi_init(self) -> None:
        return None

    def amdsmi_get_processor_handles(self) -> list[dict[str, Any]]:
        return self.gpus

    def __getattr__(self, name: str) -> Callable[..., Any]:
        what = name.removeprefix("amdsmi_get_")
        if what == name:
            raise AttributeError(name)

        def ask(handle: Mapping[str, Any], *kind: str) -> Any:
            found = handle.get(what)
            found = found.get(kind[0]) if kind and isinstance(found, dict) else found
            if found is None:
                raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
            return found

        return ask


# An MI300X under load by ROCm 6.4; an MI210 by ROCm 6.0: the energy's name, and a temperature in thousandths;
# a Radeon: its energy reads 0 for ever, what is not supported 65535.
SHAPES = (Path(__file__).parents[1] / "data" / "sensors" / "amdsmi.json").read_text("utf-8")


def gpu_of(shape: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SHAPES)[shape]
    return found


def radeon(mask: object, watts: object = 20) -> dict[str, Any]:
    power = {"socket_power": watts, "current_socket_power": 65535}
    metrics = {"throttle_status": 2, "indep_throttle_status": mask}
    return {**gpu_of("radeon"), "power_info": power, "gpu_metrics_info": metrics}


def at(where: str, **values: float) -> dict[tuple[str, str], float]:
    return {(name, where): value for name, value in values.items()}


@loop_over(
    ("gpu", "values", "missing"),
    [
        pytest.param(
            gpu_of("mi300"),
            at("GPU 0", device_bytes=160 << 30, server_bytes=151 << 30, energy_j=15259.0, power_w=717,
               temperature_c=76, sm_mhz=1533, memory_mhz=1300),
            (),
            id="MI300",
        ),
        pytest.param(
            gpu_of("mi200"),
            at("GPU 0", device_bytes=MIB, energy_j=15.3, power_w=94, temperature_c=41, sm_mhz=800,
               memory_mhz=1600),
            (),
            id="MI200",
        ),
        pytest.param(
            radeon(0),
            at("GPU 0", device_bytes=MIB, power_w=20, temperature_c=37, sm_mhz=14),
            ("GPU 0 does not report memory clock: Not Supported",),
            id="Radeon",
        ),
        pytest.param(radeon(0, 18_500),
                     at("GPU 0", device_bytes=MIB, power_w=18.5, temperature_c=37, sm_mhz=14),
                     ("GPU 0 does not report memory clock: Not Supported",), id="an APU in mW"),
        pytest.param(
            {},
            {},
            ("GPU 0 does not report memory in use, memory by process, power, temperature, clock, memory "
             "clock and why its clocks are held back: AMDSMI_STATUS_NOT_SUPPORTED",),
            id="nothing",
        ),
        pytest.param(
            {"power_info": NOT, "gpu_memory_usage": {"VRAM": "1"}, "gpu_process_list": [7, {"pid": 41}],
             "temp_metric": {"HOTSPOT": "9" * 400}, "gpu_metrics_info": [],
             "clock_info": {"GFX": [], "MEM": {"clk": -5}}},
            {},
            ("GPU 0 does not report memory in use, power, temperature, clock and memory clock: Not "
             "Supported",),
            id="what is no table and no number",
        ),
    ],
)  # fmt: skip
def test_a_gpu_is_read_in_the_shape_of_its_release(
    gpu: dict[str, Any], values: dict[Key, float], missing: tuple[str, ...]
) -> None:
    reading = AmdGpus(FakeAmdSmi(gpu)).read((41, 42))
    assert reading.values == pytest.approx(values)
    assert reading.missing == missing
    assert list(reading.sources) == (["GPU 0"] if values else [])


@loop_over(
    ("mask", "held"),
    [
        (0, ()),
        (1, ("power limit",)),
        (1 << 36, ()),  # the hotspot's, always set on some
        (1 << 36 | 1 << 17, ("current limit",)),
        (1 << 32 | 1 << 34 | 1 << 47, ("thermal slowdown", "hardware thermal slowdown")),
        (1 << 63, ()),
        (NOT, None),
        ((1 << 64) - 1, None),
    ],
)
def test_throttling_is_by_bits_without_that_of_the_hotspot(
    mask: object, held: tuple[str, ...] | None
) -> None:
    found = AmdGpus(FakeAmdSmi(radeon(mask))).read(()).held_back
    assert found == (None if held is None else tuple(("GPU 0", why) for why in held))


def test_throttling_of_an_mi300_is_what_its_accumulators_rose_by() -> None:
    smi = FakeAmdSmi(gpu_of("mi300"))
    gpus, held = AmdGpus(smi), []
    for ppt in (100, 100, 130):
        smi.gpus[0]["gpu_metrics_info"]["ppt_residency_acc"] = ppt
        held.append(gpus.read(()).held_back)
    assert held == [None, (), (("GPU 0", "power limit"),)]


def test_of_a_gpu_in_partitions_the_first_reports_for_all() -> None:
    parts = [{**gpu_of("mi300"), "gpu_kfd_info": {"current_partition_id": n}} for n in range(3)]
    reading = AmdGpus(
        FakeAmdSmi(*parts, {**gpu_of("mi200"), "gpu_kfd_info": {"current_partition_id": NOT}})
    ).read(())
    assert {where for _, where in reading.values} == {"GPU 0", "GPU 3"}


def test_facts_ids_and_state() -> None:
    gpus = AmdGpus(FakeAmdSmi(gpu_of("mi300"), gpu_of("mi300")), first=1)
    assert gpus.facts() == {"gpu": "2 × AMD Instinct MI300X", "gpus": "2", "gpu_driver": "6.12.12"}
    assert gpus.list_ids() == ["u-0", "0xA1", "SN-0"] * 2
    assert AmdGpus(FakeAmdSmi(gpu_of("mi300"))).read_state(()) == MachineState(
        driver="6.12.12",
        clocks={
            "GPU 0 SM": ClockState(now_mhz=1533, most_mhz=2100),
            "GPU 0 memory": ClockState(now_mhz=1300, most_mhz=1300),
        },
        power_caps={"GPU 0": PowerCap(now_w=750, default_w=750, least_w=0, most_w=750)},
        temperature_c={"GPU 0": 76},
        gpus={"GPU 0": GpuUse(name="AMD Instinct MI300X", power_w=717)},
    )
    assert AmdGpus(FakeAmdSmi()).read(()) == Reading(
        missing=("amdsmi does not report any GPU: it finds none",)
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    return tmp_path


def test_without_rocm_s_driver_it_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert find_amd_gpus(tmp_path) is None


def test_without_the_package_a_line_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert require(find_amd_gpus(root)).missing == (
        "AMD GPU: the package amdsmi of ROCm is not installed: pip install amdsmi",
    )


def test_what_does_not_start_says_why(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = FakeAmdSmi()

    def refuse() -> None:
        raise AmdSmiException("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    monkeypatch.setattr(smi, "amdsmi_init", refuse)
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    assert require(find_amd_gpus(root)).missing == (
        "AMD GPU: amdsmi does not start: AMDSMI_STATUS_DRIVER_NOT_LOADED",
    )


def test_its_gpus_stand_in_place_of_nvidia_s_that_there_are_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "loadgen.features.sensors.sensor_discovery.find_gpus", lambda: Absent("no NVIDIA GPU")
    )
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdSmi(gpu_of("mi300")))
    sensors = sensor_discovery.find_sensors(root)
    assert [type(sensor).__name__ for sensor in sensors] == ["AmdGpus", "Processes", "System"]


BOARDS = read_tables("jetson")


def recorded_board(root: Path, name: str) -> Board:
    found = find_board(tree(root, (DATA / f"{name}.txt").read_text("utf-8")))
    assert isinstance(found, Board)
    return found


@loop_over_named(("name", "total", "under"), BOARDS["rails"])
def test_the_total_counts_each_rail_once(
    tmp_path: Path, name: str, total: dict[str, float], under: dict[str, float]
) -> None:
    values = recorded_board(tmp_path, name).read([]).values
    found = {(what, where): round(value, 3) for (what, where), value in values.items() if what.endswith("_w")}
    assert found == {
        **{("board_w", rail): watts for rail, watts in total.items()},
        **{("rail_w", rail): watts for rail, watts in under.items()},
    }


def test_thor_without_its_board_s_monitor_sums_the_module_s_rails(tmp_path: Path) -> None:
    listing = (DATA / "agx_thor.txt").read_text("utf-8")
    found = Board(tree(tmp_path, "\n".join(x for x in listing.splitlines() if "/hwmon4/" not in x)))
    assert found.total == ["VDD_CPU_SOC_MSS", "VDD_GPU", "VIN_SYS_5V0"]


def test_thor_tells_heat_clocks_and_throttling_and_what_it_does_not_tell(tmp_path: Path) -> None:
    reading = recorded_board(tmp_path, "agx_thor").read([])
    levels = {key: value for key, value in reading.values.items() if not key[0].endswith("_w")}
    assert levels == {
        ("temperature_c", "tj-thermal"): 55.1,
        ("sm_mhz", "gpu-gpc-0"): 1575,
        ("memory_mhz", "bwmgr"): 4266,
    }
    assert reading.held_back == (("gpu", "throttle alert"),)
    assert reading.missing == ("the board does not report temperature gpu-thermal: No data available",)


def test_orin_tells_the_gpu_s_own_heat_and_clock(tmp_path: Path) -> None:
    reading = recorded_board(tmp_path, "agx_orin").read([])
    assert reading.values["temperature_c", "gpu-thermal"] == 69.125
    assert reading.values["sm_mhz", "17000000.gpu"] == 407
    assert (reading.held_back, reading.missing) == ((), ())


@loop_over(("name", "facts"), BOARDS["facts"])
def test_facts_name_the_board_its_mode_and_its_total(
    tmp_path: Path, name: str, facts: dict[str, str]
) -> None:
    assert recorded_board(tmp_path, name).facts() == facts


def test_a_monitor_that_stops_to_answer_is_named(tmp_path: Path) -> None:
    found = recorded_board(tmp_path, "agx_thor")
    (tmp_path / "sys/class/hwmon/hwmon4/power1_input").unlink()
    (tmp_path / "sys/class/hwmon/hwmon5/curr1_input").write_text("broken\n", "utf-8")
    reading = found.read([])
    assert ("board_w", "VIN") not in reading.values
    assert reading.missing[0] == "the board does not report rail VIN: No such file or directory"
    assert reading.missing[1].startswith("the board does not report rail VDD_GPU: invalid literal")


@loop_over_named(
    ("listing", "missing"),
    {
        "no monitor": (
            "sys/class/devfreq/17000000.gpu/cur_freq = 1",
            "the board does not report its power: there is no INA monitor under /sys/class/hwmon",
        ),
        "a monitor without a label": (
            "sys/class/hwmon/hwmon0/name = ina226\nsys/class/hwmon/hwmon0/power1_input = 5000000",
            "the board does not report its total power: its monitors do not name their rails",
        ),
    },
)
def test_without_a_known_rail_there_is_no_total(tmp_path: Path, listing: str, missing: str) -> None:
    reading = Board(tree(tmp_path, listing)).read([])
    assert not any(what == "board_w" for what, _ in reading.values)
    assert reading.missing == (missing,)


@loop_over_named(
    ("listing", "found"),
    {
        "another board": ("proc/device-tree/model = Raspberry Pi 5", None),
        "a server": ("", None),
        "a container without /sys": (
            "proc/device-tree/model = NVIDIA Jetson Nano",
            ("NVIDIA Jetson Nano shows no sensor under /sys",),
        ),
    },
)
def test_another_machine_has_no_board(tmp_path: Path, listing: str, found: tuple[str] | None) -> None:
    board = find_board(tree(tmp_path, listing))
    assert (None if board is None else board.missing) == found
