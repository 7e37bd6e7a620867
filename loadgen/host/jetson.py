"""Jetson: power rails, heat and clocks from its INA monitors and other files of sysfs."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from loadgen.base import untrusted
from loadgen.base.files import read_system_text
from loadgen.base.structs import replace
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.host.sensor import Absent, Quantity, Queries, Reading, Sensor, make_state

_LABEL = re.compile(r"in(\d+)_label")
# A rail through which all power comes: Thor's board, the modules Orin NX and Nano, and their ancestors.
_TOTALS = ("VIN", "VDD_IN", "5V_IN", "POM_5V_IN")
# AGX Orin: the memory's rail is fed from the 5 V rail, whose power includes it.
_UNDER = {"VDDQ_VDD2_1V8AO": "VIN_SYS_5V0"}
_ZONES = ("gpu-thermal", "GPU-therm", "tj-thermal")
# Thor's; Orin's and Xavier's, by driver: JetPack 6 calls it 17000000.gpu.
_GPU_CLOCKS = re.compile(r"gpu-gpc-\d+|.+\.(gpu|ga10b|gv11b)")
_MEMORY_CLOCK = "bwmgr"
_ALERT = "-throttle-alert"


class Rail(msgspec.Struct, frozen=True):
    """A power rail of an INA monitor; `label` is the board's name of it."""

    label: str
    known: bool  # the label is the board's; else it only names the chip
    power: Path | None  # µW
    voltage: Path  # mV
    current: Path  # mA

    def read_watts(self) -> float:
        """Read the rail's power in watts; raises OSError or ValueError."""
        if self.power is not None:
            return _read_number(self.power, 1e6)
        return _read_number(self.voltage) * _read_number(self.current) / 1e6


def find_board(root: Path = Path("/")) -> Board | Absent | None:
    """Find a Jetson's sensors; Absent if it is one without sensors, None on another machine."""
    here = Board(root)
    if here.rails or here.clocks or (here.zones and here.model):
        return here
    return Absent(f"{here.model} shows no sensor under /sys") if "Jetson" in here.model else None


class Board(Sensor):
    """A Jetson's sensors, read from sysfs below `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.model = read_system_text(root / "proc/device-tree/model")
        self.rails = _find_rails(root / "sys/class/hwmon")
        zones = _list_children(root / "sys/class/thermal", "thermal_zone*")
        self.zones = {
            kind: zone / "temp" for zone in zones if (kind := read_system_text(zone / "type")) in _ZONES
        }
        self.clocks: dict[str, tuple[Path, Quantity]] = {
            clock.name: (clock, "memory_mhz" if clock.name == _MEMORY_CLOCK else "sm_mhz")
            for clock in _list_children(root / "sys/class/devfreq", "*")
            if clock.name == _MEMORY_CLOCK or _GPU_CLOCKS.fullmatch(clock.name)
        }
        coolers = _list_children(root / "sys/class/thermal", "cooling_device*")
        self.alerts = {
            kind: cooler / "cur_state"
            for cooler in coolers
            if (kind := read_system_text(cooler / "type")).endswith("throttle-alert")
        }
        labels = {rail.label for rail in self.rails if rail.known}
        whole = [label for label in _TOTALS if label in labels][:1]
        self.total = whole or sorted(labels - {under for under, over in _UNDER.items() if over in labels})

    def facts(self) -> dict[str, str]:
        """Return model, release of Jetson Linux and JetPack, power mode, and the rails in the total."""
        packages = read_system_text(self.root / "var/lib/dpkg/status")
        jetpack = re.search(r"^Package: nvidia-jetpack\n(?:.+\n)*?Version: (.+)$", packages, re.M)
        facts = {
            "jetson": self.model,
            "jetson_linux": self._read_release(),
            "jetpack": jetpack[1] if jetpack else "",
            "jetson_power_mode": self.read_power_mode(),
            "power_rails": " + ".join(self.total),
        }
        return {name: untrusted.read_text(text) for name, text in facts.items() if text}

    def read(self, pids: Sequence[int]) -> Reading:
        """Read each rail's power, temperatures, clocks and throttle alerts now, a file each.

        `missing` has what cannot be read. Memory is not read: `pids` have no effect.
        """
        queries = Queries("the board", OSError, ValueError)
        for rail in self.rails:
            drawn: Quantity = "board_w" if rail.label in self.total else "rail_w"
            queries.note((drawn, rail.label), f"rail {rail.label}", rail.read_watts)
        if self.rails and not self.total:
            queries.refuse("its total power", "its monitors do not name their rails")
        if not self.rails:
            queries.refuse("its power", "there is no INA monitor under /sys/class/hwmon")
        for zone, path in self.zones.items():
            queries.note(("temperature_c", zone), f"temperature {zone}", partial(_read_number, path, 1e3))
        for name, (path, quantity) in self.clocks.items():
            queries.note((quantity, name), f"clock {name}", partial(_read_number, path / "cur_freq", 1e6))
        held = self._read_held_back(queries)
        return Reading(queries.values, held, queries.missing)

    def read_state(self, pids: Sequence[int]) -> MachineState:
        """Read power mode, clocks with their bounds, heat, fans and throttle alerts now; `pids` are not used.

        A clock is pinned, as by jetson_clocks, where its least and greatest value are one.
        """
        release = untrusted.read_text(self._read_release())
        return replace(
            make_state(self.read(pids)),
            power_mode=self.read_power_mode(),
            firmware={"Jetson Linux": release} if release else {},
            clocks=self.read_clocks(),
            fans={
                f"{read_system_text(path.parent / 'name')} {path.name}": float(level)
                for path in _list_children(self.root / "sys/class/hwmon", "hwmon*/pwm1")
                if (level := untrusted.read_digits(read_system_text(path))) is not None
            },
            unified=True,
        )

    def read_clocks(self) -> dict[str, ClockState]:
        """Read each clock now, with its bounds."""
        return {name: _read_clock(path) for name, (path, _) in self.clocks.items()}

    def _read_held_back(self, queries: Queries) -> tuple[tuple[str, str], ...] | None:
        """List (part, "throttle alert") for each part that has one now; None if no alert can be read."""
        states = {kind: queries.get(kind, partial(_read_number, path)) for kind, path in self.alerts.items()}
        alerts = {kind.removesuffix(_ALERT): state for kind, state in states.items() if state is not None}
        held = tuple((kind, "throttle alert") for kind, state in alerts.items() if state > 0)
        return held if alerts else None

    def _read_release(self) -> str:
        """Return the release of Jetson Linux, as R36.4.0; "" if unknown."""
        text = read_system_text(self.root / "etc/nv_tegra_release")
        release = re.match(r"# R(\d+) .*?REVISION: ([\d.]+)", text)
        return f"R{release[1]}.{release[2]}" if release else ""

    def read_power_mode(self) -> str:
        """Return the power mode as "NAME (number)" or number, "" if unknown; reading it needs no rights."""
        match = re.search(r"pmode:(\d{1,9})\b", read_system_text(self.root / "var/lib/nvpmodel/status"))
        if match is None:
            return ""
        number, modes = int(match[1]), read_system_text(self.root / "etc/nvpmodel.conf")
        name = re.search(rf"POWER_MODEL\s+ID={number}\s+NAME=(\S+)", modes)
        return f"{name[1]} ({number})" if name else str(number)


def _find_rails(hwmon: Path) -> list[Rail]:
    """List the channels in use of every INA chip that have a power or a current, with their labels.

    A channel that is not connected (NC) or not enabled is left out; one without a label has the chip's name.
    """
    rails = []
    for chip in _list_children(hwmon, "hwmon*"):
        name = read_system_text(chip / "name")
        if not name.startswith("ina"):
            continue
        labels = {
            m[1]: read_system_text(path)
            for path in _list_children(chip, "in*_label")
            if (m := _LABEL.fullmatch(path.name))
        }
        # The INA238 and others of one channel bear their label themselves, and in0 is their shunt's.
        own = read_system_text(chip / "label")
        for channel, label in (labels or {"1": own}).items():
            paths = [chip / f"{kind}{channel}_input" for kind in ("power", "in", "curr")]
            power = paths[0] if paths[0].exists() else None
            used = label != "NC" and read_system_text(chip / f"in{channel}_enable") != "0"
            if used and (power or paths[2].exists()):
                rails.append(Rail(label or f"{name} {chip.name}", bool(label), power, *paths[1:]))
    return rails


def _read_clock(device: Path) -> ClockState:
    """Read a clock of devfreq in MHz, with its bounds and the greatest that it may have."""
    steps = read_system_text(device / "available_frequencies").split()
    now, least, limit, most = (
        hertz / 1e6 if (hertz := untrusted.read_digits(text)) is not None else None
        for text in (
            *(read_system_text(device / f"{name}_freq") for name in ("cur", "min", "max")),
            steps[-1] if steps else "",
        )
    )
    pinned = None if least is None or limit is None else least == limit
    return ClockState(now_mhz=now, limit_mhz=limit, most_mhz=most, pinned=pinned)


def _list_children(directory: Path, pattern: str) -> list[Path]:
    """List matching files, sorted, so that rails have the same order in every run."""
    return sorted(directory.glob(pattern))


def _read_number(path: Path, unit: float = 1) -> float:
    """Read the number in a sysfs file, in multiples of `unit`; raises OSError or ValueError."""
    text = path.read_text("ascii", "replace").strip()
    if not text:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
    number = int(text)
    if abs(number) > untrusted.MOST:
        raise ValueError(f"{untrusted.read_text(text, 40)} is beyond what it can be")
    return number / unit
