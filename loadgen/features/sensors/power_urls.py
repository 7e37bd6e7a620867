"""Power URLs: power, energy, heat and clocks of other machines, from the exporters of their metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

import msgspec

from loadgen.base import clock
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.urls import is_this_machine
from loadgen.engines.engine import METRICS_PATH
from loadgen.features.sensors.power_metrics import HELD_BACK, ExportedValue, choose_values, read_values
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.host.nvml import name_reasons
from loadgen.host.sensor import COUNTERS, Key, PowerSource, Quantity, Reading, Sensor
from loadgen.run.command.options import Options
from loadgen.server import exchange
from loadgen.server.exchange import ControlAnswer, ControlLoop, ServerAddress

_FIRST_ANSWER_S, _ANSWER_S = 5.0, 1.0
_EVERY_S, _EARLY_S = 1.0, 0.1  # the sampler's turn may come a little early: the next would be much too late
_CPU_SHARE = 0.01  # of the time that polling may take of this process
_WAITING = 10  # times as long as an answer took, until the next is asked for: other sensors wait meanwhile
_LARGEST_BYTES = 1 << 24
_MOST_UNITS = 1024  # GPUs and packages behind all URLs
Place = tuple[ServerAddress, str]  # an exporter, and the path of its metrics
Ask = Callable[[Sequence[Place], float], Sequence[ControlAnswer]]


class Unit(msgspec.Struct):
    """A GPU or CPU package: its name, and its counters so far."""

    where: str
    source: PowerSource
    counters: dict[Quantity, Counter] = {}


class Counter(msgspec.Struct):
    """A counter of energy in an exposition, which may be updated seldom, and may wrap at an unknown value."""

    last_j: float
    at_ns: int
    total_j: float = 0.0
    pace_w: float = 0.0

    def add(self, value_j: float, at_ns: int, wraps: bool) -> float | None:
        """Add a reading; return the total since the first, None if it was not updated since the last.

        Where it wrapped, it is taken to have gone on at its pace. One that falls and does not wrap falls.
        """
        rise_j, passed_s = value_j - self.last_j, (at_ns - self.at_ns) / 1e9
        if rise_j == 0 or passed_s <= 0:
            return None
        if rise_j < 0 and wraps:
            rise_j = self.pace_w * passed_s
        else:
            self.pace_w = max(rise_j, 0.0) / passed_s
        self.last_j, self.at_ns, self.total_j = value_j, at_ns, self.total_j + rise_j
        return self.total_j


def ask_all(places: Sequence[Place], limit_s: float) -> Sequence[ControlAnswer]:
    """Ask all exporters for their metrics at once, for `limit_s` at most."""

    async def ask(address: ServerAddress, path: str) -> ControlAnswer:
        async with address.client(limit_s) as client:
            return await exchange.ask_server(client, "GET", path, limit_s, _LARGEST_BYTES)

    async def ask_each() -> Sequence[ControlAnswer]:
        return await asyncio.gather(*(ask(*place) for place in places))

    try:
        return ControlLoop().run(ask_each())
    except OSError as error:  # not even an event loop can be opened
        return [ControlAnswer(METRICS_PATH, error=f"cannot be requested: {error.strerror}") for _ in places]


class PowerUrls(Sensor):
    """The GPUs and CPU packages that exporters report, asked about once a second at most.

    `own` are the UUIDs, serial numbers and RAPL zones that this machine's sensors read themselves: they are
    left out. A counter has a value where it was updated, so that its times are those of its updates.
    """

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        own: Collection[str] = (),
        ask: Ask = ask_all,
        now_ns: Callable[[], int] = clock.now_ns,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.addresses, self.own = addresses, frozenset(own)
        self._paths = [METRICS_PATH] * len(addresses)
        self._ask, self._now_ns, self._cpu_ns = ask, now_ns, cpu_ns
        self._due_ns = 0
        self._units: dict[tuple[str, str, str], Unit] = {}
        self._reading = Reading()

    def facts(self) -> dict[str, str]:
        """Return the URLs of the exporters."""
        return {"power_urls": ", ".join(address.shown_url for address in self.addresses)}

    def read(self, pids: Sequence[int]) -> Reading:
        """Read what the exporters report; `pids` have no effect.

        Between two polls levels are as at the last, and counters have no value.
        """
        began_ns = self._now_ns()
        if began_ns < self._due_ns:
            levels = {key: value for key, value in self._reading.values.items() if key[0] not in COUNTERS}
            return msgspec.structs.replace(self._reading, values=levels)
        cpu_ns = self._cpu_ns()
        answers = self._ask(list(zip(self.addresses, self._paths, strict=True)), _ANSWER_S)
        at_ns = self._now_ns()
        self._reading = Reading.merge(
            self._read_answer(number, answer, at_ns) for number, answer in enumerate(answers)
        )
        most_ns = max((self._cpu_ns() - cpu_ns) / _CPU_SHARE, _WAITING * (at_ns - began_ns))
        self._due_ns = began_ns + int(max((_EVERY_S - _EARLY_S) * 1e9, most_ns))
        return self._reading

    def read_state(self, pids: Callable[[], Sequence[int]]) -> MachineState:
        """Read the GPUs' heat, clocks and what slows them, as last polled."""
        reading = self.read(())
        clocks = {"sm_mhz": "SM", "memory_mhz": "memory"}
        return MachineState(
            clocks={
                f"{where} {clocks[what]}": ClockState(now_mhz=value)
                for (what, where), value in reading.values.items()
                if what in clocks
            },
            temperature_c={
                where: value for (what, where), value in reading.values.items() if what == "temperature_c"
            },
            held_back=None if reading.held_back is None else tuple(map(": ".join, reading.held_back)),
            missing=reading.missing,
        )

    def explain_failures(self) -> list[str]:
        """Ask each exporter once, and return why those that report no power do not."""
        answers = self._ask([(address, METRICS_PATH) for address in self.addresses], _FIRST_ANSWER_S)
        return [
            f"{address.shown_url} {why}"
            for address, answer in zip(self.addresses, answers, strict=True)
            if (why := read_values(answer)[1])
        ]

    def _read_answer(self, number: int, answer: ControlAnswer, at_ns: int) -> Reading:
        """Read the answer of one exporter; without values, and with the reason, if it has none."""
        (rows, why), address = read_values(answer), self.addresses[number]
        if why:
            return Reading(missing=(f"{address.shown_url} {why}",))
        queries = {row.family.query for row in rows}
        self._paths[number] = METRICS_PATH + (queries.pop() if len(queries) == 1 else "")
        here, units = is_this_machine(address.base_url), dict[tuple[str, str, str], list[ExportedValue]]()
        for row in rows:
            # A zone of RAPL has the same name on each machine.
            if row.unit in self.own and (row.family.host or here):
                continue
            host = row.host or ("" if here else urlsplit(address.base_url).hostname or "")
            units.setdefault((row.metric.place, host, row.unit), []).append(row)
        values, held, reports, sources = dict[Key, float](), list[tuple[str, str]](), False, {}
        for key, of_unit in units.items():
            unit = self._find_unit(key, of_unit, address)
            if unit is None:
                return Reading(missing=(f"{address.shown_url} has more than {_MOST_UNITS} GPUs",))
            sources[unit.where] = unit.source
            for quantity, value in choose_values(of_unit).items():
                taken = self._count(unit, quantity, value, at_ns, of_unit[0].family.wraps)
                if taken is not None:
                    values[quantity, unit.where] = taken
            for row in of_unit:
                if row.quantity == HELD_BACK:
                    reports = True
                    whys = (row.metric.why,) * (row.value > 0) if row.metric.why else name_reasons(row.value)
                    held += [(unit.where, each) for each in whys]
        return Reading(values, tuple(dict.fromkeys(held)) if reports else None, (), sources)

    def _count(self, unit: Unit, quantity: Quantity, value: float, at_ns: int, wraps: bool) -> float | None:
        """Return a level as it is, and of a counter its total where it was updated since it was last read."""
        if quantity not in COUNTERS:
            return value
        counter = unit.counters.get(quantity)
        if counter is None:
            unit.counters[quantity] = Counter(value, at_ns)
            return None
        return counter.add(value, at_ns, wraps)

    def _find_unit(
        self, key: tuple[str, str, str], rows: Sequence[ExportedValue], address: ServerAddress
    ) -> Unit | None:
        """Find a GPU or package, or add it under a name that no other has; None if there are too many."""
        if key in self._units or len(self._units) >= _MOST_UNITS:
            return self._units.get(key)
        place, host, unit = key
        of_host = f" of {host}" if host else ""
        index = min((row.index for row in rows), key=lambda text: (len(text), text))
        where = f"{place} {index}{of_host}"
        if any(other.where == where for other in self._units.values()):
            where = f"{place} {unit}{of_host}"
        source = PowerSource(f"{rows[0].family.name} at {urlsplit(address.base_url).netloc}", _EVERY_S)
        self._units[key] = Unit(where, source)
        return self._units[key]


def make_power_urls(options: Options, own: Collection[str] = ()) -> PowerUrls:
    """Make the sensor of the exporters that a command names."""
    addresses = []
    for url in options.power_url:
        trust = (options.insecure, options.ca_cert) if url.startswith("https:") else ()
        addresses.append(ServerAddress(url, {}, *trust))  # without the server's key
    return PowerUrls(addresses, own)


def check_exporters(options: Options) -> None:
    """Ask each exporter once; raises UsageError for a wrong URL, MeasureError if one reports no power."""
    try:
        failures = make_power_urls(options).explain_failures()
    except LoadgenError as error:
        raise UsageError(f"--power-url: {error}") from None
    if failures:
        raise MeasureError(f"--power-url: {'; '.join(failures)}; or leave the flag out")
