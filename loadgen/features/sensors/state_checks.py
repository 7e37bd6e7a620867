"""State checks: the doubts on a machine whose state makes the server slow, or hides its memory."""

from __future__ import annotations

from functools import partial

from loadgen.base.rule import Evidence, join_evidence, note, suspect
from loadgen.base.text import GIB
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.host.sensor import LIMITS
from loadgen.verdict.evidence import RunEvidence, limit_doubts, percent

SLOWED = 0.05  # of the samples
STUCK, LEAST_CLOCKS = 0.5, 5  # of the greatest clock; samples: one clocks up within a second
CAPPED = 0.1  # of a limit: less is a maker's choice
CACHED, FREE = 0.25, 0.1  # of the memory that GPU and CPU share


@suspect(
    "gpu-clock-low",
    f"a GPU with the server's memory stayed below {percent(STUCK)} of its greatest SM clock in every sample "
    f"(of {LEAST_CLOCKS} or more), although nothing reported holds it back and its clocks are not pinned",
    "take it from the mains for a minute (a DGX Spark: its adapter too), look for a BIOS and driver update, "
    "and run again",
)
def gpu_clock_low(run: RunEvidence) -> Evidence | None:
    """Find evidence that a GPU of the server ran at a low clock for no reported reason."""
    state, sensed = run.facts.state_before, run.facts.sensed
    if state is None or sensed is None or sensed.samples < LEAST_CLOCKS:
        return None
    held = tuple(sensed.held_back or ())
    return join_evidence(
        f"{where} ran at {sensed.sm_mhz[where].max:,.0f} of {clock.most_mhz:,.0f} MHz at most, and reports "
        "no reason"
        for where in sensed.server_gpus
        if (clock := state.clocks.get(f"{where} SM")) is not None
        and where in sensed.sm_mhz
        and clock.most_mhz
        and sensed.sm_mhz[where].max < STUCK * clock.most_mhz
        and not clock.pinned
        and not any(reason.startswith(f"{where}:") for reason in held)
    )


@suspect(
    "gpu-throttled",
    f"a GPU of the server, or of --power-url, reported in over {percent(SLOWED)} of the samples that heat or "
    "its supply slowed it; its power limit is no fault",
    "cool it or check its supply (nvidia-smi -q names it), and run again",
)
def gpu_throttled(run: RunEvidence) -> Evidence | None:
    """Find evidence that a GPU was slowed by heat or its supply, where `throttled` does not name it."""
    sensed = run.facts.sensed
    if sensed is None or run.facts.throttled:
        return None
    return join_evidence(
        f"{reason} in {percent(share)} of samples"
        for reason, share in (sensed.held_back or {}).items()
        if reason.startswith("GPU ") and share > SLOWED and not reason.endswith(LIMITS)
    )


@suspect(
    "power-cap",
    f"a GPU's power limit is over {percent(CAPPED)} below its default",
    "set it back (nvidia-smi -pl), or compare only with runs under the same cap",
)
def power_capped(run: RunEvidence) -> Evidence | None:
    """Find evidence that a GPU may draw less power than by default."""
    caps = {} if run.facts.state_before is None else run.facts.state_before.power_caps
    return join_evidence(
        f"{where} may draw {cap.now_w:,.0f} W of {cap.default_w:,.0f} W by default"
        for where, cap in caps.items()
        if cap.now_w is not None and cap.default_w and cap.now_w < (1 - CAPPED) * cap.default_w
    )


@suspect(
    "board-clock",
    f"a Jetson's power mode keeps a clock of its GPU or memory over {percent(CAPPED)} below the greatest",
    "sudo nvpmodel -m 0 (MAXN), then sudo jetson_clocks, and run again",
)
def board_clock_limited(run: RunEvidence) -> Evidence | None:
    """Find evidence that a Jetson is in a power mode below its best, by its clocks' limits."""
    state = run.facts.state_before
    mode = "" if state is None or not state.power_mode else f" in power mode {state.power_mode}"
    return join_evidence(
        f"{name} may run at {clock.limit_mhz:,.0f} of {clock.most_mhz:,.0f} MHz{mode}"
        for name, clock in _list_board_clocks(state)
        if clock.limit_mhz and clock.most_mhz and clock.limit_mhz < (1 - CAPPED) * clock.most_mhz
    )


@note(
    "clocks-not-pinned",
    "a Jetson's GPU or memory clock follows the load (jetson_clocks was not run): short outputs and low "
    "concurrency are slower, and vary more",
    "sudo jetson_clocks, for figures that repeat",
)
def clocks_not_pinned(run: RunEvidence) -> Evidence | None:
    """Find evidence that a Jetson's clocks are not pinned at their limit."""
    return join_evidence(
        f"{name} is not pinned"
        for name, clock in _list_board_clocks(run.facts.state_before)
        if clock.pinned is False
    )


@suspect(
    "page-cache",
    f"GPU and CPU share the memory, and over {percent(CACHED)} of it is page cache while under "
    f"{percent(FREE)} is free: an engine that counts free memory takes a smaller KV cache, or fails",
    "sync, sudo sysctl vm.drop_caches=3, and start the server again",
)
def page_cache_full(run: RunEvidence) -> Evidence | None:
    """Find evidence that the page cache took memory that the GPU shares."""
    state = run.facts.state_before
    if state is None or not state.unified or not state.memory_bytes:
        return None
    cache, free = state.page_cache_bytes, state.free_bytes
    if (
        cache is None
        or free is None
        or cache < CACHED * state.memory_bytes
        or free > FREE * state.memory_bytes
    ):
        return None
    cache_gib, free_gib, all_gib = (size / GIB for size in (cache, free, state.memory_bytes))
    return (
        f"{cache_gib:.1f} of {all_gib:.1f} GiB of shared memory are page cache, {free_gib:.1f} GiB are free"
    )


@note(
    "gpu-memory-unknown",
    "a GPU shares the memory of the CPU and reports neither its use nor the server's",
    "take the memory of the machine (sensed.system in result.json), and what the engine logs of its weights "
    "and KV cache",
)
def gpu_memory_unknown(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server's GPU memory is unknown, on a GPU that has none of its own."""
    state, sensed = run.facts.state_before, run.facts.sensed
    if state is None or not state.unified or (sensed is not None and (sensed.server or sensed.device)):
        return None
    silent = [f"{where} ({use.name})" for where, use in state.gpus.items() if use.used_bytes is None]
    return f"{', '.join(silent) or 'the GPU of this board'} reports no memory in use"


def _list_board_clocks(state: MachineState | None) -> list[tuple[str, ClockState]]:
    """List a Jetson's own clocks, which are not named by CPU or GPU number; [] without state."""
    clocks = {} if state is None else state.clocks
    return [(name, clock) for name, clock in clocks.items() if not name.startswith(("CPU", "GPU "))]


limit = partial(
    limit_doubts,
    (
        "sensed.held_back",
        *(f"state_before.{name}" for name in ("clocks", "gpus", "power_caps", "unified")),
    ),
)
