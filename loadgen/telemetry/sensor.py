"""Reading: what the sensors of this machine say at one look, and what each cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from loadgen.protocol import untrusted

T = TypeVar("T")

# To be looked at may cost the server: vLLM's API process writes its metrics or its tokens, and who maps
# memory waits for a walk through it. Such looks take this share of a run at most, and so lengthen no greater
# share of a stream's gaps: a fifth of what P99 leaves out.
LOOKING = 0.002

Quantity = Literal[
    "server_bytes",  # GPU memory of the server's processes, by GPU
    "device_bytes",  # GPU memory in use by anybody, by GPU
    "rss_bytes",  # host memory of the server's processes, a shared page counted in each
    "pss_bytes",  # the same, a shared page counted once
    "system_bytes",  # memory of the machine that is not available
    "energy_j",  # a counter that only rises, by GPU
    "power_w",  # by GPU
    "board_w",  # by rail: those that make up the total, none of them under another
    "rail_w",  # by rail: those under them
    "temperature_c",
    "sm_mhz",
    "memory_mhz",
]
Key = tuple[Quantity, str]  # what, and where: "GPU 0", "VIN", "gpu-thermal", or ""


class Reading(msgspec.Struct, frozen=True):
    """One look; what is not known is not in `values`, and `missing` says why."""

    values: Mapping[Key, float] = msgspec.field(default_factory=dict)
    held_back: tuple[tuple[str, str], ...] | None = None  # where, and what slows it now; None: not told
    missing: tuple[str, ...] = ()

    @classmethod
    def merged(cls, readings: Iterable[Reading]) -> Reading:
        """Several sensors' readings as one."""
        looks = tuple(readings)
        told = [look.held_back for look in looks if look.held_back is not None]
        return cls(
            values={key: value for look in looks for key, value in look.values.items()},
            held_back=tuple(pair for pairs in told for pair in pairs) if told else None,
            missing=tuple(reason for look in looks for reason in look.missing),
        )


class Sensor(Protocol):
    """A source of readings; nothing that it lacks or is refused raises; its own faults cost it alone."""

    def facts(self) -> dict[str, str]:
        """What stays as it is, for the environment."""
        ...

    def read(self, pids: Sequence[int]) -> Reading:
        """One look; `pids` are the server's processes, () where they are not known."""
        ...


class Absent(msgspec.Struct, frozen=True):
    """A sensor that this machine does not have."""

    why: str

    def facts(self) -> dict[str, str]:
        return {}

    def read(self, pids: Sequence[int]) -> Reading:
        return Reading(missing=(self.why,))


def guarded(what: str, ask: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """What a sensor says; where it raises, whatever it raises, `otherwise` of the reason in words.

    The only place where a sensor is asked, and one of few that catch everything: drivers and libraries
    raise exceptions of their own, and none of them is worth a run.
    """
    try:
        return ask()
    except Exception as error:
        said = untrusted.text(" ".join(str(error).split()), 200)
        return otherwise(f"{what} failed: {type(error).__name__}" + (f": {said}" if said else ""))


def named(sensor: object) -> str:
    """A sensor as messages name it."""
    return f"the sensor {type(sensor).__name__}"


def asked(sensor: Sensor, pids: Sequence[int]) -> Reading:
    """One sensor's reading of finite numbers; what it fails at, or says beyond them, is missing."""

    def failed(why: str) -> Reading:
        return Reading(missing=(why,))

    return guarded(named(sensor), lambda: _possible(sensor, sensor.read(pids)), failed)


def _possible(sensor: Sensor, reading: Reading) -> Reading:
    odd = [key for key, value in reading.values.items() if not _plausible(value)]
    if not odd:
        return reading
    known = {key: value for key, value in reading.values.items() if key not in odd}
    what = ", ".join(" of ".join(filter(None, key)) for key in odd)
    impossible = f"{named(sensor)} says what cannot be: {untrusted.text(what)}"
    return Reading(known, reading.held_back, (*reading.missing, impossible))


def _plausible(value: object) -> bool:
    """Whether it is a number that a sensor can show: finite, and no further from 0 than 2⁵³."""
    return isinstance(value, int | float) and untrusted.number(abs(value)) is not None


class Questions:
    """Questions put to one thing, and those it refused, by reason."""

    def __init__(self, to: str, *refusals: type[BaseException]) -> None:
        self.to, self.refusals = to, refusals
        self.refused: dict[str, list[str]] = {}

    def ask(self, what: str, *ways: Callable[[], T]) -> T | None:
        """The answer by the first way that gives one; None, and the first way's reason kept, if none does."""
        reasons = []
        for way in ways:
            try:
                return way()
            except self.refusals as error:
                reasons.append(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        self.refuse(what, reasons[0])
        return None

    def refuse(self, what: str, why: str) -> None:
        """Note that `what` is not known, and why."""
        whats = self.refused.setdefault(why, [])
        if what not in whats:
            whats.append(what)

    @property
    def missing(self) -> tuple[str, ...]:
        """One line for each reason."""
        return tuple(
            f"{self.to} does not tell {' and '.join(filter(None, (', '.join(whats[:-1]), whats[-1])))}: {why}"
            for why, whats in self.refused.items()
        )
