"""Sensor summary: memory, energy, heat and clocks over a run, from the samples taken during it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from loadgen.host.aggregate import Energy, MemoryUse, SampleSpread, Window, energy
from loadgen.host.sensor import Sample

_GIB = 1 << 30
WITH_SERVER = "with memory of the server"  # how it is known which GPUs serve


class SensorSummary(BaseModel, extra="forbid", frozen=True):
    """Memory, energy, heat and clocks over the measured window; `missing` has the reason for each None."""

    duration_s: float
    period_s: float
    samples: int  # in the window
    cpu_ms_per_sample: float
    gpus: tuple[str, ...] = ()  # those with memory of the server, or all where that is not reported
    gpus_how: str = ""
    server: MemoryUse | None = None  # GPU memory of the server
    device: MemoryUse | None = None  # GPU memory in use by all processes on those GPUs
    rss: MemoryUse | None = None  # host memory of the server's processes
    pss: MemoryUse | None = None
    system: MemoryUse | None = None  # memory of the machine in use
    energy: Energy | None = None
    temperature_c: dict[str, SampleSpread] = {}
    sm_mhz: dict[str, SampleSpread] = {}
    memory_mhz: dict[str, SampleSpread] = {}
    held_back: dict[str, float] | None = None  # reason → share of the samples; None: not reported
    missing: tuple[str, ...] = ()  # what could not be read, and why

    def joules_per_token(self, output_tokens: int) -> float | None:
        """Energy of the window over the output tokens of the window."""
        return self.energy.joules / output_tokens if self.energy is not None and output_tokens > 0 else None


def summary(window: Window, idle: Sequence[Sample] = (), before_bytes: int | None = None) -> SensorSummary:
    """The samples of a window as figures; `idle` are those taken while the server was idle."""
    gpus, gpus_how = _gpus(window)
    left_out = [where for where in window.wheres("device_bytes") if where not in gpus]
    spent, unspent = energy(window, idle, gpus)
    inside = window.inside
    return SensorSummary(
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
        missing=(*window.missing(), *unspent, *(() if inside else ("no sample was taken during the run",))),
    )


def _gpus(window: Window) -> tuple[tuple[str, ...], str]:
    ours = window.wheres("server_bytes")
    if ours:
        return tuple(ours), WITH_SERVER
    every = window.wheres("device_bytes", "energy_j", "power_w", "sm_mhz")
    gpus = tuple(where for where in every if where.startswith("GPU "))
    return gpus, "all of the machine" if gpus else ""


def _server(window: Window, before_bytes: int | None) -> MemoryUse | None:
    """GPU memory of the server: by process, or what was added to the memory in use before it."""
    ours = window.wheres("server_bytes")
    if ours:
        return window.level("server_bytes", ours, "NVML, by process")
    if before_bytes is None:
        return None
    how = f"NVML, all processes, less the {before_bytes / _GIB:.2f} GiB in use before it"
    every = window.level("device_bytes", window.wheres("device_bytes"), how)
    if every is None:
        return None
    peak, steady = (max(n - before_bytes, 0) for n in (every.peak_bytes, every.steady_bytes))
    return MemoryUse(peak_bytes=peak, steady_bytes=steady, how=how)


def render(sensed: SensorSummary, output_tokens: int) -> list[str]:
    """Memory, energy, GPU and what could not be read, a line each, unwrapped."""
    parts = {
        "memory": ", ".join(_memory(sensed)) or "unknown",
        "energy": _energy(sensed, output_tokens),
        "GPU": _heat(sensed),
        "not read": "; ".join(sensed.missing),
    }
    return [f"{name}: {text}" for name, text in parts.items() if text]


def _memory(sensed: SensorSummary) -> Iterator[str]:
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
        yield f"{_gib(sensed.system)} of the machine in use"


def _gib(level: MemoryUse) -> str:
    return f"{level.peak_bytes / _GIB:.2f} GiB"


def _energy(sensed: SensorSummary, output_tokens: int) -> str:
    spent = sensed.energy
    if spent is None:
        return "unknown"
    idle = "" if spent.idle_w is None else f" (idle {spent.idle_w:,.1f})"
    each = sensed.joules_per_token(output_tokens)
    token = "" if each is None else f", {each:,.3f} J per output token"
    parts = spent.under or (spent.parts if len(spent.parts) > 1 else {})
    listed = ", ".join(f"{where} {joules:,.0f} J" for where, joules in parts.items())
    shares = f", of it {listed}" if parts else ""
    return f"{spent.joules:,.0f} J, {spent.mean_w:,.1f} W mean{idle}{token} ({spent.source}){shares}"


def _heat(sensed: SensorSummary) -> str:
    figures = []
    if sensed.temperature_c:
        figures.append(f"{max(spread.max for spread in _of_gpus(sensed.temperature_c)):.0f} °C max")
    if sensed.sm_mhz:
        means = [spread.mean for spread in _of_gpus(sensed.sm_mhz)]
        figures.append(f"SM {sum(means) / len(means):,.0f} MHz mean")
    levels = ", ".join(figures)
    if sensed.held_back is None:
        return levels
    held = [f"{reason} in {100 * share:.0f} % of samples" for reason, share in sensed.held_back.items()]
    return "; ".join(filter(None, (levels, ", ".join(held) or "no throttling")))


def _of_gpus(spreads: dict[str, SampleSpread]) -> list[SampleSpread]:
    """NVML's where it reports them, else the board's of its GPU, else what there is."""
    prefix = next(prefix for prefix in ("GPU ", "gpu", "") if any(key.startswith(prefix) for key in spreads))
    return [spread for where, spread in spreads.items() if where.startswith(prefix)]
