"""Sensor summary: memory, energy, heat and clocks over a run, from its samples, and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Float64
from loadgen.base.text import GIB
from loadgen.facts.run_facts import Energy, MemoryUse, SampleSpread, SensorSummary
from loadgen.host.machine_state import MachineState
from loadgen.host.sensor import COUNTERS, Key, PowerSource, Quantity, Sample
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions
from loadgen.server.sample_file import SampledSeries

_MOST_PARTS = 8  # of an energy that are listed: of more, those of several machines are by machine


def summarize_window(
    window: Window, idle: Sequence[Sample] = (), before_bytes: int | None = None
) -> SensorSummary:
    """Summarize the samples of a window; `idle` are those taken while the server was idle.

    `before_bytes` is the GPU memory in use before the server. GPUs without its processes are left out.
    """
    window, distrusted = distrust_counters(window)
    gpus, gpus_how = _choose_gpus(window)
    left_out = [where for where in window.list_places("device_bytes") if where not in gpus]
    spent, unspent = measure_energy(window, idle, gpus)
    known = [where for where in window.sources if where.startswith(CPU)]
    packages = list(dict.fromkeys((*window.list_places("package_j", ever=True), *known)))
    source = _name_sources(window, packages)
    by_cpu, uncounted = _add_up(window, idle, dict.fromkeys(packages, ("package_j",)), source)
    # If no GPU or board reports power, the CPU's is all there is.
    alone = not gpus and not window.list_places("board_w", ever=True)
    inside = window.inside
    missing = Counter(reason for s in inside for reason in dict.fromkeys(s.reading.missing))
    return SensorSummary(
        duration_s=window.duration_s,
        period_s=window.period_s,
        samples=len(inside),
        cpu_ms_per_sample=sum(s.cpu_ns for s in inside) / 1e6 / len(inside) if inside else 0.0,
        gpus=gpus,
        server_gpus=tuple(window.list_places("server_bytes", ever=True)),
        gpus_how=gpus_how,
        server=_measure_server(window, before_bytes),
        device=window.measure_memory("device_bytes", gpus, f"{_name_readers(window, gpus)}, all processes"),
        rss=window.measure_memory("rss_bytes", ("",), "summed over its processes"),
        pss=window.measure_memory("pss_bytes", ("",), "summed over its processes"),
        system=window.measure_memory("system_bytes", ("",), "what is not available"),
        energy=by_cpu if alone else spent,
        cpu_energy=by_cpu,
        temperature_c=window.measure_spreads("temperature_c", left_out),
        sm_mhz=window.measure_spreads("sm_mhz", left_out),
        memory_mhz=window.measure_spreads("memory_mhz", left_out),
        held_back=window.measure_held_back(left_out),
        missing=(
            *(
                why if count == len(inside) else f"{why} ({count} of {len(inside)} samples)"
                for why, count in missing.items()
            ),
            *distrusted,
            *unspent,
            *uncounted,
            *(() if inside else ("no sample was taken during the run",)),
        ),
    )


def _choose_gpus(window: Window) -> tuple[tuple[str, ...], str]:
    """Return the GPUs with the server's processes, or all if none is known, and in words which they are."""
    exported = [where for where, source in window.sources.items() if source.polled_s and _is_gpu(where)]
    ours = window.list_places("server_bytes", ever=True)
    if ours:
        owned = "with memory of the server"
        return (*ours, *exported), f"{owned}, and all of --power-url" if exported else owned
    every = window.list_places("device_bytes", "energy_j", "power_w", "sm_mhz", ever=True)
    here = [where for where in every if _is_gpu(where) and where not in exported]
    gpus, how = (
        (*here, *exported),
        ("all of the machine" if here else "", "all of --power-url" if exported else ""),
    )
    return gpus, ", ".join(filter(None, how))


def _name_readers(window: Window, places: Sequence[str]) -> str:
    """Name what reads these places: NVML, if nothing else says that it does."""
    names = (window.sources[where].name if where in window.sources else _NVML for where in places)
    return " and ".join(dict.fromkeys(names)) or _NVML


def _is_gpu(where: str) -> bool:
    return where.startswith("GPU ")


def _measure_server(window: Window, before_bytes: int | None) -> MemoryUse | None:
    """Measure the server's GPU memory: by process, else what is more than `before_bytes`; None without."""
    ours = window.list_places("server_bytes")
    if ours:
        return window.measure_memory("server_bytes", ours, f"{_name_readers(window, ours)}, by process")
    if before_bytes is None:
        return None
    places = window.list_places("device_bytes")
    readers, before_gib = _name_readers(window, places), before_bytes / GIB
    how = f"{readers}, all processes, less the {before_gib:.2f} GiB in use before it"
    every = window.measure_memory("device_bytes", places, how)
    if every is None:
        return None
    peak, steady = (max(n - before_bytes, 0) for n in (every.peak_bytes, every.steady_bytes))
    return MemoryUse(peak_bytes=peak, steady_bytes=steady, how=how)


_NVML = "NVML"
CPU = "CPU "  # how the names of its packages and of their memory begin
_LEAST_S = 1e-9
_UNREAD = 0.05  # of the window, or two periods: power may be unknown for this long at most between readings
_LEAST_READINGS, _APART = 10, 2.0  # of power that contradict a counter, by this factor
_SELDOM = "its exporter updated it less than twice: run longer, or have it update more often"
_LATE = 1.5  # times as long as between two updates of an exporter, until it is taken to have stopped


class Window(msgspec.Struct, frozen=True, dict=True):
    """A time window and the samples in and around it; those outside only serve to interpolate its ends."""

    samples: Sequence[Sample]
    begin_ns: int
    end_ns: int
    period_s: float

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    @cached_property
    def sources(self) -> dict[str, PowerSource]:
        """What reports each place, where it is not NVML, in the order of the places' names."""
        every = {where: each for sample in self.samples for where, each in sample.reading.sources.items()}
        return dict(sorted(every.items(), key=lambda pair: (len(pair[0]), pair[0])))

    def has_steps(self, where: str) -> bool:
        """Whether a place's counters only have a value where an exporter updated them."""
        return where in self.sources and self.sources[where].polled_s > 0

    @cached_property
    def inside(self) -> list[Sample]:
        """The samples in the window; if it is shorter than the period, the nearest one."""
        inside = [sample for sample in self.samples if self.begin_ns <= sample.at_ns <= self.end_ns]
        if inside or not self.samples:
            return inside
        return [min(self.samples, key=lambda s: max(self.begin_ns - s.at_ns, s.at_ns - self.end_ns))]

    def list_places(self, *quantities: Quantity, ever: bool = False) -> list[str]:
        """List the places (GPU, rail, zone) of these quantities, sampled inside, with `ever` at any time."""
        samples = self.samples if ever else self.inside
        places = {where for s in samples for what, where in s.reading.values if what in quantities}
        return sorted(places, key=lambda where: (len(where), where))

    def read_series(self, quantity: Quantity, where: str) -> tuple[Float64, Float64]:
        """Return seconds since the window's begin, and values, of all samples of a quantity at a place."""
        key = (quantity, where)
        pairs = [(s.at_ns, s.reading.values[key]) for s in self.samples if key in s.reading.values]
        at_s = np.array([(at_ns - self.begin_ns) / 1e9 for at_ns, _ in pairs], np.float64)
        return at_s, np.array([value for _, value in pairs], np.float64)

    def measure_memory(self, quantity: Quantity, places: Sequence[str], how: str) -> MemoryUse | None:
        """Return peak, and median of the second half, of the bytes summed over these places.

        Only samples with all places count; None if there is none. `how` is their source in words.
        """
        keys = [(quantity, where) for where in places]
        samples = [s for s in self.inside if keys and all(key in s.reading.values for key in keys)]
        if not samples:
            return None
        sums = np.array([sum(s.reading.values[key] for key in keys) for s in samples])
        late = np.array([2 * s.at_ns >= self.begin_ns + self.end_ns for s in samples])
        second_half = sums[late] if late.any() else sums
        return MemoryUse(peak_bytes=int(sums.max()), steady_bytes=int(np.median(second_half)), how=how)

    def measure_spreads(self, quantity: Quantity, left_out: Sequence[str] = ()) -> dict[str, SampleSpread]:
        """Compute mean, least and greatest of a quantity in the window, by place, without `left_out`."""
        spreads = {}
        for where in self.list_places(quantity):
            if where not in left_out:
                key = (quantity, where)
                values = np.array([s.reading.values[key] for s in self.inside if key in s.reading.values])
                low, mean, high = float(values.min()), float(values.mean()), float(values.max())
                spreads[where] = SampleSpread(min=low, mean=mean, max=high)
        return spreads

    def measure_held_back(self, left_out: Sequence[str] = ()) -> dict[str, float] | None:
        """Return the share of samples with each `PLACE: REASON`, without `left_out`; None if none reports."""
        reported = [s.reading.held_back for s in self.inside if s.reading.held_back is not None]
        if not reported:
            return None
        places = (pair for pairs in reported for pair in dict.fromkeys(pairs) if pair[0] not in left_out)
        reasons = Counter(f"{where}: {why}" for where, why in places)
        return {reason: n / len(reported) for reason, n in reasons.items()}


def distrust_counters(window: Window) -> tuple[Window, tuple[str, ...]]:
    """Return the window without the energy counters that contradict their GPU's power, and why in words.

    They differ by more than a factor of 2 over at least 10 readings of power, on some cards of AMD.
    """
    reasons = {}
    for where in window.list_places("energy_j"):
        at_s, power_w = window.read_series("power_w", where)
        counted_j = measure_joules(window, where, ("energy_j",))
        if len(at_s) < _LEAST_READINGS or window.has_steps(where) or isinstance(counted_j, str):
            continue
        drawn_j = _integrate_power(at_s, power_w, window.duration_s, where)
        if not counted_j < _APART * drawn_j < _APART**2 * counted_j:
            reasons[where] = (
                f"energy of {where}: its counter rose by {counted_j:,.0f} J and its power makes "
                f"{drawn_j:,.0f} J, which counts"
            )
    if not reasons:
        return window, ()
    dropped = {("energy_j", where) for where in reasons}
    samples = []
    for sample in window.samples:
        kept = {key: value for key, value in sample.reading.values.items() if key not in dropped}
        samples.append(replace(sample, reading=replace(sample.reading, values=kept)))
    return replace(window, samples=samples), tuple(reasons.values())


def measure_joules(window: Window, where: str, quantities: Sequence[Quantity]) -> float | str:
    """Compute the joules of a GPU or rail over the window by the first quantity sampled; or say why not.

    A counter is interpolated to the window's ends, power is integrated by the trapezoid rule over the times
    at which it was read, unless it was not for long. Where it was never read the result is "": the sensor
    has reported why.
    """
    steps = window.has_steps(where)
    for quantity in quantities:
        at_s, values = window.read_series(quantity, where)
        if not len(at_s) or (steps and quantity in COUNTERS and len(at_s) < 2):
            continue
        edges_s = np.concatenate(([min(at_s[0], 0.0)], at_s, [max(at_s[-1], window.duration_s)]))
        gaps_s = np.diff(edges_s)
        if quantity in COUNTERS:
            gaps_s[1:-1] = 0.0  # it went on counting
        inside_s = np.diff(edges_s.clip(0.0, window.duration_s))
        longest_s = max(2 * window.period_s, _UNREAD * window.duration_s)
        if steps and len(at_s) > 1:
            longest_s = max(longest_s, _LATE * float(np.diff(at_s).max()))
        unread_s = inside_s[gaps_s > longest_s].sum()
        if unread_s > 0:
            read_s = window.duration_s - unread_s
            return f"energy of {where}: read for {read_s:.1f} of {window.duration_s:.1f} s"
        return _OF[quantity](at_s, values, window.duration_s, where)
    return f"energy of {where}: {_SELDOM}" if steps else ""


def _extend_counter(at_s: Float64, counter_j: Float64, duration_s: float, where: str) -> float | str:
    """Return a counter's rise from 0 s to the window's end, extrapolated at its first and last pace.

    Or why it is unknown: read once, or it went backwards.
    """
    if len(at_s) < 2:
        return f"energy of {where}: its counter was read only once"
    if (np.diff(counter_j) < 0).any():
        return f"energy of {where}: its counter went backwards"
    first_w, last_w = (np.diff(counter_j) / np.diff(at_s).clip(_LEAST_S))[[0, -1]]
    began_j = np.interp(0.0, at_s, counter_j) - max(at_s[0], 0.0) * first_w
    ended_j = np.interp(duration_s, at_s, counter_j) + max(duration_s - at_s[-1], 0.0) * last_w
    return float(ended_j - began_j)


def _integrate_power(at_s: Float64, power_w: Float64, duration_s: float, where: str) -> float:
    """Integrate power (W) over the window, linear between samples and constant beyond them."""
    inner = at_s[(at_s > 0) & (at_s < duration_s)]
    times = np.concatenate(([0.0], inner, [duration_s]))
    power = np.interp(times, at_s, power_w)
    return float(((power[1:] + power[:-1]) / 2 * np.diff(times)).sum())


_OF: Mapping[Quantity, Callable[[Float64, Float64, float, str], float | str]] = {
    "energy_j": _extend_counter,
    "package_j": _extend_counter,
    "power_w": _integrate_power,
    "board_w": _integrate_power,
    "rail_w": _integrate_power,
}
_GPU: tuple[Quantity, ...] = ("energy_j", "power_w")
Wanted = Mapping[str, Sequence[Quantity]]


def measure_energy(
    window: Window, idle: Sequence[Sample], gpus: Sequence[str]
) -> tuple[Energy | None, tuple[str, ...]]:
    """Return the energy of the board if it has monitors, else of these GPUs, with idle power if sampled.

    A board's energy includes its GPU's, and not that of other machines' GPUs. None, and what is missing, if a
    part of the total is unknown.
    """
    rails = window.list_places("board_w", ever=True)
    of_gpus: Wanted = dict.fromkeys(gpus, _GPU)
    if not rails:
        return _add_up(window, idle, of_gpus, _name_sources(window, gpus))
    exported: Wanted = {where: _GPU for where in gpus if window.has_steps(where)}
    quantities: Wanted = {**dict.fromkeys(rails, ("board_w",)), **exported}
    under = {where: wanted for where, wanted in of_gpus.items() if where not in exported}
    within: Wanted = {**dict.fromkeys(window.list_places("rail_w"), ("rail_w",)), **under}
    named = f"rail{'s' if len(rails) > 1 else ''} {' + '.join(rails)}, sampled every {window.period_s:g} s"
    sources = filter(None, (named, _name_sources(window, list(exported))))
    spent, missing = _add_up(window, idle, quantities, "; ".join(sources))
    return spent and spent.model_copy(update={"under": _measure_parts(window, within)[0]}), missing


def _add_up(
    window: Window, idle: Sequence[Sample], quantities: Wanted, source: str
) -> tuple[Energy | None, tuple[str, ...]]:
    """Sum the energies of places; None, and what is missing, if there is none or one is unknown."""
    parts, missing = _measure_parts(window, quantities)
    if not parts or len(parts) < len(quantities) or window.duration_s <= 0:
        return None, missing
    total = sum(parts.values())
    spent = Energy(joules=total, mean_w=total / window.duration_s, source=source, parts=parts)
    if len(idle) > 1:
        before = replace(window, samples=idle, begin_ns=idle[0].at_ns, end_ns=idle[-1].at_ns)
        idle_parts, _ = _measure_parts(before, quantities)
        if len(idle_parts) == len(quantities) and before.duration_s > 0:
            spent = spent.model_copy(update={"idle_w": sum(idle_parts.values()) / before.duration_s})
    return spent, ()


def _measure_parts(window: Window, wanted: Wanted) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the joules by place, and the reasons why those of other places are unknown, if reported."""
    results = {where: measure_joules(window, where, quantities) for where, quantities in wanted.items()}
    energies_j = {where: energy_j for where, energy_j in results.items() if not isinstance(energy_j, str)}
    return energies_j, tuple(why for why in results.values() if isinstance(why, str) and why)


def _name_sources(window: Window, places: Sequence[str]) -> str:
    """Return the sources of places' energies in words: of each its counter, its power, or both."""
    of_source: dict[str, list[str]] = {}
    for where in places:
        of_source.setdefault(_name_readers(window, (where,)), []).append(where)
    counted = window.list_places(*COUNTERS, ever=True)
    sampled, named = f"sampled every {window.period_s:g} s", []
    for name, its in of_source.items():
        counters = [where for where in its if where in counted]
        how = "energy counter" if counters else "power"
        whose = f"{how} of {name}" if window.has_steps(its[0]) else f"{name} {how}"
        mixed = ", else power" if counters and len(counters) < len(its) else ""
        power = f", {sampled}" if mixed or not counters else ""
        named.append(f"{whose}{_describe_steps(window, counters)}{mixed}{power}")
    return "; ".join(named)


def _describe_steps(window: Window, counters: Sequence[str]) -> str:
    """Describe how seldom an exporter updated its counters, and which share of the run that leaves unknown.

    It is what lies beyond the first and last update, and a poll for each; "" if no counter has two updates.
    """
    quantities: dict[str, Quantity] = {
        where: "package_j" if where.startswith(CPU) else "energy_j" for where in counters
    }
    stepped = [where for where in counters if window.has_steps(where)]
    times = [window.read_series(quantities[where], where)[0] for where in stepped]
    times = [at_s for at_s in times if len(at_s) > 1]
    if not times or window.duration_s <= 0:
        return ""
    every_s = max(float(np.median(np.diff(at_s))) for at_s in times)
    beyond_s = max(max(at_s[0], 0.0) + max(window.duration_s - at_s[-1], 0.0) for at_s in times)
    polled_s = max(window.sources[where].polled_s for where in counters)
    # Each of these two was up to a poll before it was seen, if they are not made by the poll itself.
    beyond_s += polled_s * (2 if every_s > _LATE * polled_s else 1)
    share = min(beyond_s / window.duration_s, 1.0)
    coarse = f", so {100 * share:.0f} % of the run is estimated by its pace" if share > _UNREAD else ""
    return f", updated every {every_s:.1f} s{coarse}"


def list_series(samples: Sequence[Sample]) -> list[SampledSeries]:
    """Return the series of every sampled quantity and place; energy counters become power between readings.

    Left out are readings at which a counter fell or no time had passed, and power where energy is counted.
    """
    taken: dict[Key, list[tuple[int, float]]] = {}
    for sample in samples:
        for key, value in sample.reading.values.items():
            taken.setdefault(key, []).append((sample.at_ns, value))
    series = []
    for (quantity, where), pairs in taken.items():
        if quantity == "power_w" and ("energy_j", where) in taken:
            continue  # its counter is finer
        at_ns = np.array([at for at, _ in pairs], np.int64)
        values = np.array([value for _, value in pairs], np.float64)
        if quantity in COUNTERS:  # the mean power since the sample before, where the counter did not fall
            spent_j, passed_s = np.diff(values), np.diff(at_ns) / 1e9
            usable = (spent_j >= 0) & (passed_s > 0)
            at_ns, values = at_ns[1:][usable], spent_j[usable] / passed_s[usable]
        series.append(SampledSeries(COUNTERS.get(quantity, quantity), where, at_ns, values))
    return series


def describe_sensors(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on this machine's memory, energy and GPU, and on what was not read; none if not sensed."""
    if result.facts.sensed is not None:
        yield from render_summary(result.facts.sensed, result.whole.total_output_tokens)
    if result.facts.state_before is not None and (words := describe_state(result.facts.state_before)):
        yield f"before: {words}"


def summarize_sensors(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on GPU memory at peak, mean watts, joules per token and throttling, as far as known."""
    sensed = result.facts.sensed
    if sensed is None:
        return
    parts, whose = [], "CPU" if sensed.energy is not None and sensed.energy.is_of_cpu else "GPU"
    if (memory := sensed.server or sensed.device) is not None:
        parts.append(f"{memory.peak_bytes / GIB:.2f} GiB at peak")
    if sensed.energy is not None:
        parts.append(f"{sensed.energy.mean_w:,.0f} W mean")
    if (each := sensed.joules_per_token(result.whole.total_output_tokens)) is not None:
        parts.append(f"{each:,.3f} J per output token")
    if sensed.held_back:
        parts.append(f"throttled: {', '.join(sensed.held_back)}")
    if parts:
        yield f"{whose}: {', '.join(parts)}"


def render_summary(sensed: SensorSummary, output_tokens: int) -> list[str]:
    """Describe memory, energy, GPU and what could not be read, in lines not yet wrapped."""
    is_all = sensed.energy is not None and sensed.energy.is_of_cpu
    parts = {
        "memory": ", ".join(_render_memory(sensed)) or "unknown",
        "energy": _render_energy(sensed, sensed.energy, output_tokens) or "unknown",
        "CPU energy, apart from it": _render_energy(
            sensed, None if is_all else sensed.cpu_energy, output_tokens
        ),
        "GPU": _render_heat(sensed),
        "not read": "; ".join(sensed.missing),
    }
    return [f"{name}: {text}" for name, text in parts.items() if text]


def describe_state(state: MachineState) -> str:
    """Describe the machine's settings, heat and memory in one line; "" where nothing of them is reported.

    A clock is there as now, of its limit or else its maximum, in MHz; idle clocks are low. The page cache is
    there only where the GPU shares the memory.
    """
    parts = [state.power_mode, state.cpu_governor and f"governor {state.cpu_governor}"]
    for name, clock in state.clocks.items():
        most, pinned = clock.limit_mhz or clock.most_mhz, " pinned" if clock.pinned else ""
        if clock.now_mhz is not None and most is not None:
            parts.append(f"{name} {clock.now_mhz:,.0f} of {most:,.0f} MHz{pinned}")
    for name, cap in state.power_caps.items():
        parts.append("" if cap.now_w is None else f"{name} up to {cap.now_w:,.0f} W")
    hottest = state.find_hottest_c() if state.temperature_c else None
    parts.append("" if hottest is None else f"{hottest:.0f} °C")
    cache = state.page_cache_bytes if state.unified else None
    parts.append("" if cache is None else f"page cache {cache / GIB:.1f} GiB")
    copied = state.copy_gb_per_s
    parts.append("" if copied is None else f"memory copied at {copied:.1f} GB/s")
    return ", ".join(filter(None, parts))


def _render_memory(sensed: SensorSummary) -> Iterator[str]:
    """Yield phrases on the memory of the server (else of all on its GPUs), the host and the machine."""
    gpus = f" on {', '.join(sensed.gpus)}" if len(sensed.gpus) > 1 else ""
    if (server := sensed.server) is not None:
        steady = f"{server.steady_bytes / GIB:.2f}"
        yield f"server {_format_gib(server)} of GPU memory{gpus} at peak (steady {steady}; {server.how})"
    elif (device := sensed.device) is not None:
        yield f"{_format_gib(device)} of GPU memory{gpus} in use at peak ({device.how})"
    if sensed.rss is not None:
        yield f"host RSS {_format_gib(sensed.rss)}"
    if sensed.pss is not None:
        yield f"PSS {_format_gib(sensed.pss)}"
    if sensed.system is not None:
        yield f"{_format_gib(sensed.system)} of the machine in use"


def _format_gib(level: MemoryUse) -> str:
    return f"{level.peak_bytes / GIB:.2f} GiB"


def _render_energy(sensed: SensorSummary, spent: Energy | None, output_tokens: int) -> str:
    """Return joules, mean and idle watts, joules per token, source and parts; "" without energy."""
    if spent is None:
        return ""
    idle = "" if spent.idle_w is None else f" (idle {spent.idle_w:,.1f})"
    each = sensed.joules_per_token(output_tokens) if spent is sensed.energy else None
    token = "" if each is None else f", {each:,.3f} J per output token"
    parts = spent.under or (spent.parts if len(spent.parts) > 1 else {})
    if len(parts) > _MOST_PARTS and len(by_host := spent.sum_by_host()) > 1:
        parts = {host or "this machine": joules for host, joules in by_host.items()}
    listed = ", ".join(f"{where} {joules:,.0f} J" for where, joules in parts.items())
    shares = f", of it {listed}" if parts else ""
    return f"{spent.joules:,.0f} J, {spent.mean_w:,.1f} W mean{idle}{token} ({spent.source}){shares}"


def _render_heat(sensed: SensorSummary) -> str:
    """Return the GPU's highest temperature, mean SM clock and throttling, as far as they were reported."""
    figures = []
    if sensed.temperature_c:
        figures.append(
            f"{max(spread.max for spread in _select_gpu_spreads(sensed.temperature_c)):.0f} °C max"
        )
    if sensed.sm_mhz:
        means = [spread.mean for spread in _select_gpu_spreads(sensed.sm_mhz)]
        figures.append(f"SM {sum(means) / len(means):,.0f} MHz mean")
    levels = ", ".join(figures)
    if sensed.held_back is None:
        return levels
    held = [f"{reason} in {100 * share:.0f} % of samples" for reason, share in sensed.held_back.items()]
    return "; ".join(filter(None, (levels, ", ".join(held) or "no throttling")))


def _select_gpu_spreads(spreads: dict[str, SampleSpread]) -> list[SampleSpread]:
    """Select NVML's values if it reports them, else the board's GPU's, else whichever there are."""
    prefix = next(prefix for prefix in ("GPU ", "gpu", "") if any(key.startswith(prefix) for key in spreads))
    return [spread for where, spread in spreads.items() if where.startswith(prefix)]
