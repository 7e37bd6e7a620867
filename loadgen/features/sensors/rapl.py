"""RAPL: the energy of CPU packages and their memory, from the kernel's counters of Intel's and AMD's CPUs."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadgen.base import untrusted
from loadgen.base.files import read_system_text
from loadgen.features.sensors.sensor import Key, PowerSource, Queries, Reading, Sensor

_ZONES = "sys/class/powercap"
_SOURCE = PowerSource("RAPL")
# Packages and their memory are all: cores are in packages, and psys, of the board, is rare.
_KINDS = {"package": "CPU package", "dram": "CPU memory"}
_HOW = "only root may read it: sudo chmod a+r /sys/class/powercap/intel-rapl*/energy_uj, until the next start"


class Zone(msgspec.Struct):
    """A counter of energy that begins again at 0 beyond its range."""

    where: str
    path: Path
    range_uj: int  # 0: unknown
    last_uj: int | None = None
    wrapped_uj: int = 0

    def read_joules(self) -> float:
        """Read the energy so far, across the wraps since the first reading; raises OSError, ValueError."""
        text = (self.path / "energy_uj").read_text("ascii", "replace").strip()
        value_uj = untrusted.read_digits(text)
        if value_uj is None:
            raise ValueError(f"{untrusted.read_text(text, 40)!r} is no count")
        if self.last_uj is not None and value_uj < self.last_uj:
            # Without a range it goes on from where it was: what was spent meanwhile is lost.
            self.wrapped_uj += self.range_uj or self.last_uj
        self.last_uj = value_uj
        return (value_uj + self.wrapped_uj) / 1e6


def find_packages(root: Path = Path("/")) -> Packages | None:
    """Find the machine's RAPL counters; None if it has none, as virtual machines."""
    zones = {zone.where: zone for zone in reversed(_list_zones(root / _ZONES))}
    return Packages(sorted(zones.values(), key=lambda zone: zone.path.name)) if zones else None


def _list_zones(directory: Path) -> list[Zone]:
    """List the zones of packages and memory: those of MSRs, then those of MMIO, mostly the same ones."""
    zones = []
    for kind in ("intel-rapl", "intel-rapl-mmio"):
        for path in sorted(directory.glob(f"{kind}:*")):
            name = read_system_text(path / "name")
            what, _, index = name.partition("-")
            if what in _KINDS:
                # Memory has no number of its own: it is in the package's zone.
                index = index or read_system_text(directory / path.name.rpartition(":")[0] / "name")
                number = untrusted.read_text(index.removeprefix("package-"), 40)
                greatest = untrusted.read_digits(read_system_text(path / "max_energy_range_uj"))
                zones.append(Zone(f"{_KINDS[what]} {number}", path, greatest or 0))
    return zones


class Packages(Sensor):
    """The CPU packages and their memory, as far as RAPL counts their energy."""

    def __init__(self, zones: Sequence[Zone]) -> None:
        self.zones = zones

    def list_ids(self) -> list[str]:
        """List the zones that can be read, as node_exporter names them."""
        readable = self.read(()).sources
        return [f"/{_ZONES}/{zone.path.name}" for zone in self.zones if zone.where in readable]

    def read(self, pids: Sequence[int]) -> Reading:
        """Read each zone's energy so far; `pids` have no effect. Rights that are missing are one line."""
        queries, values = Queries("RAPL", OSError, ValueError), dict[Key, float]()
        for zone in self.zones:
            try:
                values["package_j", zone.where] = zone.read_joules()
            except (OSError, ValueError) as error:
                code = getattr(error, "errno", None)
                queries.refuse(
                    zone.where,
                    _HOW if code == errno.EACCES else getattr(error, "strerror", None) or str(error),
                )
        sources = {zone.where: _SOURCE for zone in self.zones if ("package_j", zone.where) in values}
        return Reading(values, None, queries.missing, sources)
