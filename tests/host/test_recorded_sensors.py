"""Sensors as they were recorded: NVML's and amdsmi's GPUs, Jetson's boards and hosts become readings."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pynvml
import pytest
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named, read_tables
from builders.recorded_sensors import DATA, RecordedNvml, tree
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.sensor_discovery import System
from loadgen.host.amd import AmdGpus, find_amd_gpus
from loadgen.host.jetson import Board, find_board
from loadgen.host.machine_state import MachineState, list_state_differences
from loadgen.host.nvml import Gpus, find_gpus
from loadgen.host.sensor import Absent, Reading, Sensor

TABLES = read_tables("recorded_sensors")
# An MI300X under load by ROCm 6.4; an MI210 by ROCm 6.0: the energy's name, and a temperature in thousandths;
# a Radeon: its energy reads 0 for ever, what is not supported 65535.
SHAPES: dict[str, dict[str, Any]] = json.loads((DATA / "amdsmi.json").read_text("utf-8"))
FOUND = "loadgen.features.sensors.sensor_discovery.find_gpus"


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
        if not self.gpus:
            raise AmdSmiException("AMDSMI_STATUS_DRIVER_NOT_LOADED")

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


def list_text(name: str) -> str:
    return (DATA / f"{name}.txt").read_text("utf-8")


def make_sensor(sort: str, name: str, changes: Sequence[tuple[list[Any], Any]], root: Path) -> Sensor:
    """A recorded sensor, some of whose answers are others: by the keys that lead to each."""
    if sort == "board":
        return require(find_board(tree(root, list_text(name))))
    nvml = RecordedNvml(name) if sort == "nvml" else None
    amd = {} if nvml else json.loads(json.dumps(SHAPES.get(name, {})))
    for path, value in changes:
        place = nvml.said if nvml else amd
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return Gpus(nvml) if nvml else AmdGpus(FakeAmdSmi(amd))


@loop_over_named(("sensor", "pids", "facts", "values", "reading", "state"), TABLES["sensors"])
def test_a_recorded_sensor_is_read_whole(
    sensor: tuple[str, str, list[Any]], pids: list[int], facts: dict[str, str],
    values: dict[str, dict[str, float]], reading: dict[str, Any], state: dict[str, Any], tmp_path: Path,
) -> None:  # fmt: skip
    made = make_sensor(*sensor, tmp_path)
    read = made.read(pids)
    assert made.facts() == facts
    assert read.values == {(what, at): value for at, found in values.items() for what, value in found.items()}
    assert replace(read, values={}) == msgspec.convert(reading, Reading)
    assert made.read_state(pids) == msgspec.convert(state, MachineState)


@loop_over(("listing", "state"), [(list_text("dgx_spark"), TABLES["host"]), ("", {})])
def test_a_host_reports_clocks_heat_and_memory(listing: str, state: dict[str, Any], tmp_path: Path) -> None:
    assert System(tree(tmp_path, listing)).read_state([]) == msgspec.convert(state, MachineState)


@loop_over(("recorded", "used"), [("h200", 136_000_000_000), ("thor", None)])
def test_memory_in_use_is_of_all_gpus_or_not_known(recorded: str, used: int | None) -> None:
    assert Gpus(RecordedNvml(recorded)).read_used_bytes() == used


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


def test_a_machine_without_nvml_or_its_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "no NVIDIA GPU: libno-such-library.so.1 cannot be loaded"
    assert find_gpus("libno-such-library.so.1").missing == (missing,)

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)
    assert find_gpus().missing == ("no NVIDIA GPU: NVML does not start: Driver Not Loaded",)


def test_a_clock_that_idles_is_no_other_setting() -> None:
    state = Gpus(RecordedNvml("h100")).read_state((515,))
    as_idle, as_busy = (replace(state, clocks={"GPU 0 SM": state.clocks[f"GPU {n} SM"]}) for n in (0, 1))
    assert as_idle != as_busy
    assert list(list_state_differences(as_idle, as_busy)) == []


# AMD's GPUs.


@loop_over(("mask", "held"), TABLES["throttling by bits"])
def test_throttling_is_by_bits_without_that_of_the_hotspot(mask: object, held: list[str] | None) -> None:
    """The hotspot's bit is always set on some."""
    metrics = {"throttle_status": 2, "indep_throttle_status": mask}
    found = AmdGpus(FakeAmdSmi({**SHAPES["radeon"], "gpu_metrics_info": metrics})).read(()).held_back
    assert found == (None if held is None else tuple(("GPU 0", why) for why in held))


def test_throttling_of_an_mi300_is_what_its_accumulators_rose_by() -> None:
    smi = FakeAmdSmi(json.loads(json.dumps(SHAPES["mi300"])))
    gpus, held = AmdGpus(smi), []
    for ppt in (100, 100, 130):
        smi.gpus[0]["gpu_metrics_info"]["ppt_residency_acc"] = ppt
        held.append(gpus.read(()).held_back)
    assert held == [None, (), (("GPU 0", "power limit"),)]


def test_of_a_gpu_in_partitions_the_first_reports_for_all() -> None:
    parts = [{**SHAPES["mi300"], "gpu_kfd_info": {"current_partition_id": n}} for n in range(3)]
    other = {**SHAPES["mi200"], "gpu_kfd_info": {"current_partition_id": "N/A"}}
    reading = AmdGpus(FakeAmdSmi(*parts, other)).read(())
    assert {where for _, where in reading.values} == {"GPU 0", "GPU 3"}


def test_gpus_next_to_others_are_numbered_on_and_have_ids() -> None:
    gpus = AmdGpus(FakeAmdSmi(SHAPES["mi300"], SHAPES["mi300"]), first=1)
    assert gpus.facts() == {"gpu": "2 × AMD Instinct MI300X", "gpus": "2", "gpu_driver": "6.12.12"}
    assert {where for _, where in gpus.read(()).values} == {"GPU 1", "GPU 2"}
    assert gpus.list_ids() == ["u-0", "0xA1", "SN-0"] * 2
    assert AmdGpus(FakeAmdSmi()).read(()).missing == ("amdsmi does not report any GPU: it finds none",)


@loop_over_named(
    ("amdsmi", "missing"),
    {
        "no package": (None, "the package amdsmi of ROCm is not installed: pip install amdsmi"),
        "no driver": (FakeAmdSmi(), "amdsmi does not start: AMDSMI_STATUS_DRIVER_NOT_LOADED"),
    },
)
def test_without_the_package_or_its_driver_a_line_says_why(
    amdsmi: ModuleType | None, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    assert find_amd_gpus(tmp_path) is None  # without ROCm's driver it is not imported
    tree(tmp_path, "dev/kfd =")
    assert require(find_amd_gpus(tmp_path)).missing == (f"AMD GPU: {missing}",)


def test_its_gpus_stand_in_place_of_nvidia_s_that_there_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FOUND, lambda: Absent("no NVIDIA GPU"))
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdSmi(SHAPES["mi300"]))
    sensors = sensor_discovery.find_sensors(tree(tmp_path, "dev/kfd ="))
    assert [type(sensor).__name__ for sensor in sensors] == ["AmdGpus", "Processes", "System"]


# Jetson's boards.


def test_thor_without_its_board_s_monitor_sums_the_module_s_rails(tmp_path: Path) -> None:
    listing = "\n".join(line for line in list_text("agx_thor").splitlines() if "/hwmon4/" not in line)
    assert Board(tree(tmp_path, listing)).total == ["VDD_CPU_SOC_MSS", "VDD_GPU", "VIN_SYS_5V0"]


def test_a_monitor_that_stops_to_answer_is_named(tmp_path: Path) -> None:
    found = make_sensor("board", "agx_thor", [], tmp_path)
    (tmp_path / "sys/class/hwmon/hwmon4/power1_input").unlink()
    (tmp_path / "sys/class/hwmon/hwmon5/curr1_input").write_text("broken\n", "utf-8")
    reading = found.read([])
    assert ("board_w", "VIN") not in reading.values
    assert reading.missing[0] == "the board does not report rail VIN: No such file or directory"
    assert reading.missing[1].startswith("the board does not report rail VDD_GPU: invalid literal")


@loop_over_named(("listing", "missing"), TABLES["without a total"])
def test_without_a_known_rail_there_is_no_total(listing: str, missing: str, tmp_path: Path) -> None:
    reading = Board(tree(tmp_path, listing)).read([])
    assert not any(what == "board_w" for what, _ in reading.values)
    assert reading.missing == (missing,)


@loop_over_named(("listing", "missing"), TABLES["no board"])
def test_another_machine_has_no_board(listing: str, missing: list[str] | None, tmp_path: Path) -> None:
    board = find_board(tree(tmp_path, listing))
    assert (board and [*board.missing]) == missing


def test_throttle_alerts_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    board = Board(tree(tmp_path, re.sub(r"(/cur_state =).*", r"\1", list_text("agx_thor"))))
    assert board.alerts
    assert (board.read([]).held_back, board.read_state([]).held_back) == (None, None)
