"""RAPL's counters are those of packages and memory, each once, across their wraps."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from builders.loops import loop_over
from builders.recorded_sensors import tree
from builders.required import require
from loadgen.features.sensors import sensor_discovery
from loadgen.features.sensors.sensor_discovery import Packages, find_packages
from loadgen.host.sensor import PowerSource, Reading

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
