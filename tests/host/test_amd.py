"""What amdsmi reports of AMD's GPUs, in the shapes of its releases, becomes readings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from builders.loops import loop_over
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.host.amd import AmdGpus, find_amd_gpus
from loadgen.host.machine_state import ClockState, GpuUse, MachineState, PowerCap
from loadgen.host.sensor import Absent, Key, Reading

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
