"""NVML's answers become readings, and its refusals words."""

from __future__ import annotations

import pynvml
import pytest

from builders.loops import loop_over, read_tables
from builders.recorded_sensors import RecordedNvml
from loadgen.host.nvml import Gpus, find_gpus
from loadgen.host.sensor import Reading

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
