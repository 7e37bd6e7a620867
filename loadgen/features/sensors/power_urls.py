"""Power URLs: power, energy, heat and clocks of other machines, from the exporters of their metrics.

`FAMILIES` is the table of exporters: what each calls a quantity, of what place, and in which unit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from loadgen.base import clock, untrusted
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.text import list_first
from loadgen.base.urls import is_this_machine
from loadgen.engines.engine import METRICS_PATH
from loadgen.host.amd import AMD_BLANKS, VIOLATIONS
from loadgen.host.machine_state import MachineState
from loadgen.host.nvml import name_reasons
from loadgen.host.sensor import COUNTERS, Key, PowerSource, Quantity, Reading, Sensor, make_state
from loadgen.run.command.options import Options
from loadgen.server import exchange
from loadgen.server.exchange import ControlAnswer, ControlLoop, ServerAddress
from loadgen.server.prometheus import explain_cut, explain_excess, explain_other_text, parse_line, read_name

HELD_BACK: Literal["held_back"] = "held_back"
# DCGM reports these for a missing value, one for each width of its numbers.
_DCGM_BLANKS = tuple(float(base + n) for base in (0x7FFFFFF0, 1 << 47, 0x7FFFFFFFFFFFFFF0) for n in range(4))
_MOST_NAMES, _LONGEST_HOST = 5, 100


class PowerMetric(msgspec.Struct, frozen=True):
    """What a name means: a quantity, and its unit in ours; or, of HELD_BACK, why if it is above 0."""

    quantity: Quantity | Literal["held_back"]
    scale: float = 1.0
    place: str = "GPU"  # before the index of what it is of
    label: str = ""  # whose value is the key of `kinds`: quantities of one name; of others it is left out
    kinds: Mapping[str, Quantity] = {}
    why: str = ""  # "": the value is a mask of NVML's reasons


class PowerFamily(msgspec.Struct, frozen=True):
    """An exporter: its names and what they mean; of several for one quantity the first counts."""

    name: str
    port: int  # where it listens by default
    marks: tuple[str, ...]  # beginnings of its names
    metrics: Mapping[str, PowerMetric]
    index: str  # the label with the number of a GPU or package
    unit: str  # the label that tells it from all others
    host: str = ""  # the label of its machine; "": the URL's
    left_out: str = ""  # in the unit, of lines that repeat others
    blanks: tuple[float, ...] = ()
    query: str = ""  # by which it leaves out what costs it time
    wraps: bool = False  # a counter that falls has wrapped at an unknown greatest value
    advice: str = ""  # where it reports neither energy nor power


_AMD = {
    "gpu_energy_consumed": PowerMetric("energy_j", 1e-6),
    "gpu_package_power": PowerMetric("power_w"),
    "gpu_average_package_power": PowerMetric("power_w"),
    "gpu_power_usage": PowerMetric("power_w"),
    "gpu_junction_temperature": PowerMetric("temperature_c"),
    "gpu_clock": PowerMetric(
        "sm_mhz",
        label="clock_type",
        kinds={"GPU_CLOCK_TYPE_SYSTEM": "sm_mhz", "GPU_CLOCK_TYPE_MEMORY": "memory_mhz"},
    ),
    **{
        f"gpu_violation_{name}_residency_percentage": PowerMetric(HELD_BACK, why=why)
        for (_, name), why in VIOLATIONS.items()
    },
}

FAMILIES = (
    PowerFamily(
        "DCGM's exporter",
        9400,
        ("DCGM_FI_",),
        {
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": PowerMetric("energy_j", 1e-3),
            "DCGM_FI_DEV_POWER_USAGE": PowerMetric("power_w"),
            "DCGM_FI_DEV_GPU_TEMP": PowerMetric("temperature_c"),
            "DCGM_FI_DEV_SM_CLOCK": PowerMetric("sm_mhz"),
            "DCGM_FI_DEV_MEM_CLOCK": PowerMetric("memory_mhz"),
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": PowerMetric(HELD_BACK),
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": PowerMetric(HELD_BACK),
        },
        index="gpu",
        unit="UUID",
        host="Hostname",
        blanks=_DCGM_BLANKS,
        advice="add DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION to its counters (-f FILE.csv)",
    ),
    PowerFamily(
        "node_exporter",
        9100,
        ("node_",),
        {
            "node_rapl_package_joules_total": PowerMetric("package_j", place="CPU package"),
            "node_rapl_dram_joules_total": PowerMetric("package_j", place="CPU memory"),
        },
        index="index",
        unit="path",
        left_out="intel-rapl-mmio",
        query="?collect%5B%5D=rapl",
        wraps=True,
        advice="it has no node_rapl_package_joules_total: only root may read RAPL, so run it as root",
    ),
    PowerFamily(
        "AMD's device-metrics-exporter",
        5000,
        ("gpu_", "amd_gpu_"),
        # Its operator may add a prefix.
        {f"{prefix}{name}": metric for prefix in ("", "amd_") for name, metric in _AMD.items()},
        index="gpu_id",
        unit="serial_number",
        host="hostname",
        blanks=AMD_BLANKS,
        advice="add GPU_ENERGY_CONSUMED and GPU_PACKAGE_POWER to the fields of its configuration",
    ),
)
_BY_NAME = {
    name: (family, metric, rank)
    for family in FAMILIES
    for rank, (name, metric) in enumerate(family.metrics.items())
}


class ExportedValue(msgspec.Struct, frozen=True):
    """One sample of an exposition: what it is of, and its value in our unit."""

    family: PowerFamily
    metric: PowerMetric
    quantity: Quantity | Literal["held_back"]
    rank: int  # of its name among those of its family
    host: str  # "": the exporter does not name it
    unit: str  # of its machine, or of the world: a GPU's UUID
    index: str
    value: float


def read_values(answer: ControlAnswer) -> tuple[tuple[ExportedValue, ...], str]:
    """Return an answer's values and "", else () and why, as the end of a sentence begun by the URL."""
    text = answer.body.decode("utf-8", "replace")
    lines = text.splitlines()
    selected = tuple(line for line in lines if read_name(line) in _BY_NAME)
    why = answer.error or (f"answers {answer.status}" if answer.status != 200 else "")
    why = why or explain_other_text(text) or explain_cut(text) or explain_excess(selected, "power")
    quantities = {_BY_NAME[read_name(line)][1].quantity for line in selected}
    if not why and not quantities & {*COUNTERS, "power_w"}:
        why = _explain_no_power(lines)
    if why:
        return (), why
    try:
        return _parse_lines(selected), ""
    except ValueError:
        return (), "has a malformed line"


def _explain_no_power(lines: Sequence[str]) -> str:
    """Explain that lines have no power: by the advice for their exporter, else by their first names."""
    names = list(dict.fromkeys(read_name(line) for line in lines if line and line[0] != "#"))
    for family in FAMILIES:
        if any(name.startswith(family.marks) for name in names):
            return f"is {family.name} without power or energy: {family.advice}"
    listed = list_first([untrusted.read_text(name, _LONGEST_HOST) for name in names], _MOST_NAMES)
    known = ", ".join(f"{family.name} (port {family.port})" for family in FAMILIES)
    found = f"only {listed}" if names else "no metric"
    return f"has no power or energy, {found}: give the URL of {known}"


@lru_cache(maxsize=64)  # many exporters answer with the same for seconds
def _parse_lines(lines: tuple[str, ...]) -> tuple[ExportedValue, ...]:
    """Parse selected lines, without repeated zones, blanks and zeros; raises ValueError for other lines."""
    rows = []
    for line in lines:
        sample = parse_line(line)
        family, metric, rank = _BY_NAME[sample.name]
        labels = {name: untrusted.read_text(text, _LONGEST_HOST) for name, text in sample.labels.items()}
        quantity = metric.kinds.get(labels.get(metric.label, "")) if metric.kinds else metric.quantity
        if quantity is None:
            continue
        index = labels.get(family.index, "")
        unit = labels.get(family.unit, "") or index
        value = untrusted.read_number(sample.value * metric.scale)
        if value is None or sample.value in family.blanks or (family.left_out and family.left_out in unit):
            continue
        # A counter at 0 is one that does not count.
        if value == 0 and quantity != HELD_BACK:
            continue
        host = labels.get(family.host, "")
        rows.append(ExportedValue(family, metric, quantity, rank, host, unit, index, value))
    return tuple(rows)


def choose_values(rows: Sequence[ExportedValue]) -> dict[Quantity, float]:
    """Choose each quantity's value of the rows of one GPU, by the first name that has one.

    Of several rows of a name, as of MIG's instances or a clock's domains, it is the greatest. Power is left
    out where there is a counter of energy.
    """
    chosen: dict[Quantity, tuple[int, float]] = {}
    for row in rows:
        quantity = row.quantity
        if quantity != HELD_BACK:
            rank, value = chosen.get(quantity, (row.rank, row.value))
            if row.rank <= rank:
                chosen[quantity] = row.rank, max(value, row.value) if row.rank == rank else row.value
    if "energy_j" in chosen:
        chosen.pop("power_w", None)
    return {quantity: value for quantity, (_, value) in chosen.items()}


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

        Where it wrapped, it is taken to have gone on at its pace. A fall without wraps lowers the total.
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
    """Ask all exporters for their metrics at once, `limit_s` at most; a failure is an answer too."""

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

    def read_state(self, pids: Sequence[int]) -> MachineState:
        """Read the GPUs' heat, clocks and what slows them, by a poll if one is due, else as last polled."""
        return make_state(self.read(pids))

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
                taken: float | None = value
                if quantity in COUNTERS:
                    counter = unit.counters.setdefault(quantity, Counter(value, at_ns))
                    taken = counter.add(value, at_ns, of_unit[0].family.wraps)
                if taken is not None:
                    values[quantity, unit.where] = taken
            for row in of_unit:
                if row.quantity == HELD_BACK:
                    reports = True
                    whys = (row.metric.why,) * (row.value > 0) if row.metric.why else name_reasons(row.value)
                    held += [(unit.where, each) for each in whys]
        return Reading(values, tuple(dict.fromkeys(held)) if reports else None, (), sources)

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
