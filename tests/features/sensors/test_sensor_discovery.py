"""The sensors of a machine are those that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.loops import loop_over
from builders.recorded_sensors import DATA, RecordedNvml, tree
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.nvml import Gpus
from loadgen.features.sensors.sensor import Absent, Queries, Reading, Sensor, collect_facts


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


@loop_over(("recorded", "used"), [("h200", 136_000_000_000), ("thor", None)])
def test_gpu_memory_in_use_is_one_number(
    monkeypatch: pytest.MonkeyPatch, recorded: str, used: int | None
) -> None:
    monkeypatch.setattr(
        "loadgen.features.sensors.sensor_discovery.find_gpus", lambda: Gpus(RecordedNvml(recorded))
    )
    assert sensor_discovery.read_device_memory_bytes() == used


@loop_over(
    ("refused", "missing"),
    [
        ([], ()),
        ([("a", "why")], ("it does not report a: why",)),
        ([("a", "why"), ("b", "why"), ("a", "why")], ("it does not report a and b: why",)),
        (
            [("a", "1"), ("b", "2"), ("c", "1"), ("d", "1")],
            ("it does not report a, c and d: 1", "it does not report b: 2"),
        ),
    ],
)
def test_refusals_are_one_line_a_reason(refused: list[tuple[str, str]], missing: tuple[str, ...]) -> None:
    queries = Queries("it", OSError)
    for what, why in refused:
        queries.refuse(what, why)
    assert queries.missing == missing


def test_a_question_has_several_ways_and_the_first_one_s_reason() -> None:
    def no(why: str) -> int:
        raise OSError(why)

    queries = Queries("it", OSError)
    assert queries.get("a", lambda: no("first"), lambda: 7) == 7
    assert queries.get("b", lambda: no("first"), lambda: no("second")) is None
    assert queries.missing == ("it does not report b: first",)


@pytest.mark.whole
def test_the_machine_at_hand_answers_without_a_fault() -> None:
    found: list[Sensor] = sensor_discovery.find_sensors()
    values = Reading.merge(sensor.read([]) for sensor in found).values
    assert values["system_bytes", ""] > 0
    assert isinstance(collect_facts(found), dict)
