"""Sensor lines: memory, energy, heat and clocks of a run in words."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from loadgen.base.text import GIB
from loadgen.facts.machine_state import MachineState
from loadgen.facts.sensor_facts import Energy, MemoryUse, SampleSpread, SensorSummary
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions, Room, Section

_MOST_PARTS = 8  # of an energy that are listed: of more, those of several machines are by machine


def describe_sensors(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on this machine's memory, energy and GPU, and on what was not read.

    Nothing if not sensed.
    """
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
    """Return joules, mean and idle watts, joules per token, source and parts.

    "" without energy.
    """
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


SECTIONS = {
    "before cpus": (
        Section(
            "sensors",
            describe_sensors,
            attrgetter("sensed"),
            whole_load=True,
            room=Room.LAST,
            short=summarize_sensors,
            page="Environment",
        ),
    )
}
