"""Sensing: memory, energy, heat and clocks of the server beside a run, and what they come to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from loadgen import clock
from loadgen.telemetry.aggregate import Energy, MemoryUse, Sample, SampleSpread, Window, energy
from loadgen.telemetry.sensor import Quantity, Reading, Sensor, asked, guarded

_LEAST_PERIOD_S = 0.1
_POWER: frozenset[Quantity] = frozenset(("energy_j", "power_w", "board_w"))
_MOST_SAMPLES = 1 << 15  # with more, every other one is dropped, and they are taken half as often
_PIDS_S = 5.0  # to look for processes costs a walk through all of the machine's
_LEAVE_S = 2.0
_GIB = 1 << 30
WITH_SERVER = "with memory of the server"  # how it is known which GPUs serve


class Sensed(BaseModel):
    """Memory, energy, heat and clocks over the measured window; of what is None, `missing` says why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    duration_s: float
    period_s: float
    samples: int  # in the window
    cpu_ms_per_sample: float
    gpus: tuple[str, ...] = ()  # those with memory of the server, or all where that is not told
    gpus_how: str = ""
    server: MemoryUse | None = None  # GPU memory of the server
    device: MemoryUse | None = None  # GPU memory in use by everybody on those GPUs
    rss: MemoryUse | None = None  # host memory of the server's processes
    pss: MemoryUse | None = None
    system: MemoryUse | None = None  # memory of the machine in use
    energy: Energy | None = None
    temperature_c: dict[str, SampleSpread] = {}
    sm_mhz: dict[str, SampleSpread] = {}
    memory_mhz: dict[str, SampleSpread] = {}
    held_back: dict[str, float] | None = None  # reason → share of the samples; None: not told
    missing: tuple[str, ...] = ()  # what could not be read, and why

    def joules_per_token(self, output_tokens: int) -> float | None:
        """Energy of the window over the output tokens of the window."""
        return self.energy.joules / output_tokens if self.energy is not None and output_tokens > 0 else None


class Sensing:
    """Looks at the sensors of this machine at rest and beside a run; whatever they say, the run goes on.

    `before_bytes` is the GPU memory in use before the server was started: where no GPU tells memory by
    process, the server's is what came on top of it.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        pids: Callable[[], Sequence[int]],
        period_s: float = 0.5,
        before_bytes: int | None = None,
    ) -> None:
        self.sensors, self.pids = tuple(sensors), pids
        self.period_s = max(period_s, _LEAST_PERIOD_S)
        self.before_bytes = before_bytes
        self.rested: list[Sample] = []
        self.samples: list[Sample] = []
        self.trouble: tuple[str, ...] = ()

    def rest(self, seconds: float) -> None:
        """Look for that long, the server being idle; nobody waits where nothing tells power."""
        self.rested = [self._look(())]
        if {quantity for quantity, _ in self.rested[0].reading.values} & _POWER:
            with self._sampling(self.rested):
                time.sleep(seconds)

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Look at once and every `period_s`, in a thread of its own, which a fork must not follow."""
        self.samples = []
        with self._sampling(self.samples):
            yield

    def sensed(self, begin_ns: int, end_ns: int) -> Sensed:
        """What the samples between two times of CLOCK_MONOTONIC come to."""
        window = Window(tuple(self.samples), begin_ns, end_ns, self.period_s)

        def failed(why: str) -> Sensed:
            return Sensed(
                duration_s=window.duration_s,
                period_s=self.period_s,
                samples=len(self.samples),
                cpu_ms_per_sample=0.0,
                missing=(why,),
            )

        rested = tuple(self.rested)
        found = guarded("to sum the samples up", lambda: summary(window, rested, self.before_bytes), failed)
        return found.model_copy(update={"missing": (*self.trouble, *found.missing)})

    @contextlib.contextmanager
    def _sampling(self, into: list[Sample]) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._sample, args=(into, over), name="sensing", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.trouble = (f"the sensors were not read: {error}",)
            yield
            return
        try:
            yield
        finally:
            over.set()
            thread.join(_LEAVE_S)
            if thread.is_alive():
                self.trouble = (*self.trouble, f"a sensor did not answer within {_LEAVE_S:g} s of the end")

    def _sample(self, into: list[Sample], over: threading.Event) -> None:
        """Look at begin + n periods, missing those that a slow sensor slept through, and once at the end."""
        began_ns = clock.now_ns()
        pids, pids_due_ns = self._server(()), began_ns + int(_PIDS_S * 1e9)
        while True:
            into.append(self._look(pids))
            if len(into) > _MOST_SAMPLES:
                del into[1::2]
                self.period_s *= 2
            period_ns = int(self.period_s * 1e9)
            if over.is_set():
                return
            now_ns = clock.now_ns()
            if now_ns >= pids_due_ns:
                pids, pids_due_ns = self._server(pids), now_ns + int(_PIDS_S * 1e9)
            over.wait((period_ns - (clock.now_ns() - began_ns) % period_ns) / 1e9)

    def _server(self, known: tuple[int, ...]) -> tuple[int, ...]:
        """The server's processes now; those that are known already where to look for them fails."""

        def failed(why: str) -> tuple[int, ...]:
            if why not in self.trouble:
                self.trouble = (*self.trouble, why)
            return known

        return guarded("to look for the server's processes", lambda: tuple(self.pids()), failed)

    def _look(self, pids: tuple[int, ...]) -> Sample:
        # Stamped before: the sensors of power come first, and one of memory may take long after them.
        at_ns, cpu_ns = clock.now_ns(), time.thread_time_ns()
        reading = Reading.merged(asked(sensor, pids) for sensor in self.sensors)
        return Sample(at_ns, time.thread_time_ns() - cpu_ns, reading)


def summary(window: Window, rest: Sequence[Sample] = (), before_bytes: int | None = None) -> Sensed:
    """What samples come to over their window; `rest` are those taken while the server was idle."""
    gpus, gpus_how = _gpus(window)
    left_out = [where for where in window.wheres("device_bytes") if where not in gpus]
    spent, unspent = energy(window, rest, gpus)
    inside = window.inside
    return Sensed(
        duration_s=window.duration_s,
        period_s=window.period_s,
        samples=len(inside),
        cpu_ms_per_sample=sum(s.cpu_ns for s in inside) / 1e6 / len(inside) if inside else 0.0,
        gpus=gpus,
        gpus_how=gpus_how,
        server=_server(window, before_bytes),
        device=window.level("device_bytes", gpus, "NVML, all processes"),
        rss=window.level("rss_bytes", ("",), "summed over its processes"),
        pss=window.level("pss_bytes", ("",), "summed over its processes"),
        system=window.level("system_bytes", ("",), "what is not available"),
        energy=spent,
        temperature_c=window.spreads("temperature_c", left_out),
        sm_mhz=window.spreads("sm_mhz", left_out),
        memory_mhz=window.spreads("memory_mhz", left_out),
        held_back=window.held_back(left_out),
        missing=(*window.missing(), *unspent, *(() if inside else ("no sample fell into the run",))),
    )


def _gpus(window: Window) -> tuple[tuple[str, ...], str]:
    ours = window.wheres("server_bytes")
    if ours:
        return tuple(ours), WITH_SERVER
    quantities: tuple[Quantity, ...] = ("device_bytes", "energy_j", "power_w", "sm_mhz")
    every = {
        where for quantity in quantities for where in window.wheres(quantity) if where.startswith("GPU ")
    }
    return tuple(sorted(every, key=lambda where: (len(where), where))), "all of the machine" if every else ""


def _server(window: Window, before_bytes: int | None) -> MemoryUse | None:
    """GPU memory of the server: by process, or what came on top of what was in use before it."""
    ours = window.wheres("server_bytes")
    if ours:
        return window.level("server_bytes", ours, "NVML, by process")
    if before_bytes is None:
        return None
    how = f"NVML, all processes, less the {before_bytes / _GIB:.2f} GiB before it"
    every = window.level("device_bytes", window.wheres("device_bytes"), how)
    if every is None:
        return None
    peak, steady = (max(n - before_bytes, 0) for n in (every.peak_bytes, every.steady_bytes))
    return MemoryUse(peak_bytes=peak, steady_bytes=steady, how=how)


def render(sensed: Sensed, output_tokens: int) -> list[str]:
    """Memory, energy, GPU and what could not be read, a line each; to be wrapped."""
    lines = [
        f"memory: {', '.join(_memory(sensed)) or 'not known'}",
        f"energy: {_energy(sensed, output_tokens)}",
    ]
    heat = _heat(sensed)
    if heat:
        lines.append(f"GPU: {heat}")
    if sensed.missing:
        lines.append(f"not read: {'; '.join(sensed.missing)}")
    return lines


def _memory(sensed: Sensed) -> Iterator[str]:
    gpus = f" on {', '.join(sensed.gpus)}" if len(sensed.gpus) > 1 else ""
    if (server := sensed.server) is not None:
        steady = f"{server.steady_bytes / _GIB:.2f}"
        yield f"server {_gib(server)} of GPU memory{gpus} at peak (steady {steady}; {server.how})"
    elif (device := sensed.device) is not None:
        yield f"{_gib(device)} of GPU memory{gpus} in use at peak ({device.how})"
    if sensed.rss is not None:
        yield f"host RSS {_gib(sensed.rss)}"
    if sensed.pss is not None:
        yield f"PSS {_gib(sensed.pss)}"
    if sensed.system is not None:
        yield f"{_gib(sensed.system)} of the machine's in use"


def _gib(level: MemoryUse) -> str:
    return f"{level.peak_bytes / _GIB:.2f} GiB"


def _energy(sensed: Sensed, output_tokens: int) -> str:
    spent = sensed.energy
    if spent is None:
        return "not known"
    idle = "" if spent.idle_w is None else f" (idle {spent.idle_w:,.1f})"
    each = sensed.joules_per_token(output_tokens)
    token = "" if each is None else f", {each:,.3f} J per output token"
    shares = spent.under or (spent.parts if len(spent.parts) > 1 else {})
    of_it = (
        ", of it ".join(("", ", ".join(f"{where} {j:,.0f} J" for where, j in shares.items())))
        if shares
        else ""
    )
    return f"{spent.joules:,.0f} J, {spent.mean_w:,.1f} W mean{idle}{token} ({spent.source}){of_it}"


def _heat(sensed: Sensed) -> str:
    told = []
    if sensed.temperature_c:
        told.append(f"{max(spread.max for spread in _of_gpus(sensed.temperature_c)):.0f} °C at most")
    if sensed.sm_mhz:
        means = [spread.mean for spread in _of_gpus(sensed.sm_mhz)]
        told.append(f"SM {sum(means) / len(means):,.0f} MHz mean")
    said = ", ".join(told)
    if sensed.held_back is None:
        return said
    held = [f"{reason} in {100 * share:.0f} % of samples" for reason, share in sensed.held_back.items()]
    return "; ".join(filter(None, (said, ", ".join(held) or "no throttling")))


def _of_gpus(spreads: dict[str, SampleSpread]) -> list[SampleSpread]:
    """NVML's where it tells, else the board's of its GPU, else what there is."""
    for prefix in ("GPU ", "gpu", ""):
        found = [spread for where, spread in spreads.items() if where.startswith(prefix)]
        if found:
            return found
    return []
