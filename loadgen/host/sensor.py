"""Sensor: the readings of this machine's sensors at one moment, and what each cannot report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import call_guarded
from loadgen.host.machine_state import ClockState, MachineState

T = TypeVar("T")

Quantity = Literal[
    "server_bytes",  # GPU memory of the server's processes, by GPU
    "device_bytes",  # GPU memory in use by all processes, by GPU
    "rss_bytes",  # host memory of the server's processes, a shared page counted in each
    "pss_bytes",  # the same, a shared page counted once
    "system_bytes",  # memory of the machine that is not available
    "energy_j",  # a counter that only rises, by GPU
    "package_j",  # the same, by CPU package and its memory
    "power_w",  # by GPU
    "board_w",  # by rail: those that make up the total, none of them under another
    "rail_w",  # by rail: those under them
    "temperature_c",
    "sm_mhz",
    "memory_mhz",
]
HEAT = "thermal slowdown"
LIMITS = ("power limit", "current limit")  # a GPU under full load is at one, which is not a fault
# Counters of energy, and how their rise over time is called.
COUNTERS: Mapping[Quantity, str] = {"energy_j": "power_w", "package_j": "package_w"}
_CLOCKS: Mapping[Quantity, str] = {"sm_mhz": "SM", "memory_mhz": "memory"}  # by their names in a state
Key = tuple[Quantity, str]  # what, and where: "GPU 0", "VIN", "gpu-thermal", or ""


class PowerSource(msgspec.Struct, frozen=True):
    """What reports the energy or power of a place, in words."""

    name: str
    # Seconds between polls of an exporter, whose counters have a value only where it updated them; 0: none.
    polled_s: float = 0.0


class Reading(msgspec.Struct, frozen=True):
    """The values of sensors at one moment; unknown ones are left out, with the reason in `missing`."""

    values: Mapping[Key, float] = msgspec.field(default_factory=dict)
    held_back: tuple[tuple[str, str], ...] | None = None  # where, and what slows it now; None: not reported
    missing: tuple[str, ...] = ()
    sources: Mapping[str, PowerSource] = msgspec.field(default_factory=dict)  # by place, where it is not NVML

    @classmethod
    def merge(cls, readings: Iterable[Reading]) -> Reading:
        """Merge the readings of several sensors into one; a later value of a key replaces an earlier one."""
        parts = tuple(readings)
        held_back = [part.held_back for part in parts if part.held_back is not None]
        return cls(
            values={key: value for part in parts for key, value in part.values.items()},
            held_back=tuple(pair for pairs in held_back for pair in pairs) if held_back else None,
            missing=tuple(reason for part in parts for reason in part.missing),
            sources={where: source for part in parts for where, source in part.sources.items()},
        )


class Sample(msgspec.Struct, frozen=True):
    """One reading of all sensors, with its time and the CPU time that it took."""

    at_ns: int
    cpu_ns: int
    reading: Reading


class Sensor:
    """A source of readings; what it cannot read is listed in `missing`, and it never raises."""

    missing: tuple[str, ...] = ()

    def facts(self) -> dict[str, str]:
        """Return what does not change (model, driver, limits), for the report's environment."""
        return {}

    def list_ids(self) -> list[str]:
        """List the ids by which exporters name what it reads: UUIDs, serial numbers, paths of zones."""
        return []

    def read(self, pids: Sequence[int]) -> Reading:
        """Read the values now; `pids` are the server's processes, () if unknown."""
        return Reading(missing=self.missing)

    def read_state(self, pids: Sequence[int]) -> MachineState:
        """Read its part of the machine's state now; `pids` are the server's processes, () if unknown."""
        return MachineState(missing=self.missing)


class Absent(Sensor):
    """A sensor that this machine lacks, and why."""

    def __init__(self, why: str) -> None:
        self.missing = (why,)


def make_state(reading: Reading) -> MachineState:
    """Make of a reading its part of the machine's state: clocks, heat, and what slows it."""
    levels = reading.values.items()
    return MachineState(
        clocks={
            f"{where} {_CLOCKS[what]}": ClockState(now_mhz=mhz)
            for (what, where), mhz in levels
            if what in _CLOCKS
        },
        temperature_c={where: heat for (what, where), heat in levels if what == "temperature_c"},
        held_back=None if reading.held_back is None else tuple(map(": ".join, reading.held_back)),
        missing=reading.missing,
    )


def name_sensor(sensor: object) -> str:
    """Return a sensor's name for messages."""
    return f"the sensor {type(sensor).__name__}"


def collect_facts(sensors: Sequence[Sensor]) -> dict[str, str]:
    """Return the sensors' unchanging facts by name, as printable texts; a sensor that raises has none."""
    each = (call_guarded(name_sensor(sensor), sensor.facts, lambda _: {}) for sensor in sensors)
    return {name: untrusted.read_text(value) for facts in each for name, value in facts.items()}


def read_safely(sensor: Sensor, pids: Sequence[int]) -> Reading:
    """Read a sensor; an exception, or values that are impossible, are left out with a line in `missing`."""
    return call_guarded(
        name_sensor(sensor),
        lambda: _keep_possible(sensor, sensor.read(pids)),
        lambda why: Reading(missing=(why,)),
    )


def _keep_possible(sensor: Sensor, reading: Reading) -> Reading:
    """Return the reading without impossible values, which `missing` then names."""
    # No sensor can measure a value beyond 2⁵³, or one that is not finite or not a number.
    values = reading.values.items()
    odd = [
        key
        for key, value in values
        if not isinstance(value, int | float) or untrusted.read_number(abs(value)) is None
    ]
    if not odd:
        return reading
    what = untrusted.read_text(", ".join(" of ".join(filter(None, key)) for key in odd))
    return Reading(
        {key: value for key, value in values if key not in odd},
        reading.held_back,
        (*reading.missing, f"{name_sensor(sensor)} reports an impossible value: {what}"),
        reading.sources,
    )


def merge_states(states: Iterable[MachineState]) -> MachineState:
    """Merge states of one machine: mappings and lists are joined, else the last value not empty counts."""
    merged = MachineState()
    for state in states:
        changes = {}
        for name in MachineState.__struct_fields__:
            own, other = getattr(merged, name), getattr(state, name)
            if isinstance(other, dict):
                changes[name] = own | other
            elif isinstance(other, tuple):
                changes[name] = (*(own or ()), *other)
            else:
                changes[name] = own if other is None or other is False or other == "" else other
        merged = MachineState(**changes)
    return merged


def read_machine_state(sensors: Sequence[Sensor], pids: Sequence[int] = ()) -> MachineState:
    """Read the machine's state from all its sensors; one that raises is a line in `missing`."""
    return merge_states(
        call_guarded(
            name_sensor(sensor), partial(sensor.read_state, pids), lambda why: MachineState(missing=(why,))
        )
        for sensor in sensors
    )


class Queries:
    """The values queried from one source, and for those it refused, why."""

    def __init__(self, source: str, *refusals: type[BaseException]) -> None:
        self.source, self.refusals = source, refusals
        self.refused: dict[str, dict[str, None]] = {}
        self.values: dict[Key, float] = {}

    def get(self, what: str, *ways: Callable[[], T]) -> T | None:
        """Return the value by the first of `ways` that works; else None, and note the first's error.

        What is not worth a remark has the name "".
        """
        reasons = []
        for way in ways:
            try:
                return way()
            except self.refusals as error:
                reasons.append(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        if what:
            self.refuse(what, reasons[0])
        return None

    def note(self, key: Key, what: str, *ways: Callable[[], float]) -> None:
        """Store in `values` the value by the first of `ways` that works; else note the first's error."""
        if (value := self.get(what, *ways)) is not None:
            self.values[key] = value

    def refuse(self, what: str, why: str) -> None:
        """Note that `what` cannot be read, and why."""
        self.refused.setdefault(why, {})[what] = None

    @property
    def missing(self) -> tuple[str, ...]:
        """One line per reason, naming the values it concerns."""
        lines = []
        for why, (*names, last) in self.refused.items():
            listed = f"{', '.join(names)} and {last}" if names else last
            lines.append(f"{self.source} does not report {listed}: {why}")
        return tuple(lines)
