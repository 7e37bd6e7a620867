"""Client doubts: this machine, not the server, made the figures."""

from __future__ import annotations

from loadgen.validity import client_checks as client
from loadgen.validity import roofline_checks as roofline
from loadgen.validity.doubt import INVALID, SUSPECT, Doubt
from loadgen.validity.evidence import LATE_GAPS, EvidenceSource, percent

_CLOCK_REMEDY = "run again once the clock is in step (chronyc tracking, timedatectl)"
_STOPPED_REMEDY = "run again on a machine that stays awake; pause neither the client nor its container"
CLIENT = (
    Doubt(
        "clock-unusable",
        INVALID,
        client.clock_unusable,
        f"the wall clock stepped by more than {client.FAR_STEP_MS / 1000:.0f} s, or kernel timestamps that "
        f"cannot be (later than the client had the read, or long before) are more than "
        f"{percent(client.IMPOSSIBLE)} of the reads, or tokens come before what they follow in more than "
        f"{percent(client.IMPOSSIBLE)} of the answers",
        _CLOCK_REMEDY,
    ),
    Doubt(
        "stopped-unstamped",
        INVALID,
        client.stopped_unstamped,
        f"without kernel timestamps, the client did not run for more than {client.STOPPED_S:.0f} s "
        "(suspended, or its container paused): that time is in the latencies",
        _STOPPED_REMEDY,
    ),
    Doubt(
        "client-stopped",
        SUSPECT,
        client.client_stopped,
        f"the client did not run for more than {client.STOPPED_S:.0f} s (suspended, or its container "
        "paused): kernel timestamps stay true, but nothing was sent meanwhile",
        _STOPPED_REMEDY,
    ),
    Doubt(
        "reads-late",
        SUSPECT,
        client.reads_late,
        f"more than {percent(client.SHARED)} of the messages shared a read with an earlier one, or enough "
        "that mean TTFT or P99 ITL is that much too long, and the client was late (mean lag, of all or of "
        f"these reads, over {percent(LATE_GAPS)} of the mean gap; for P99, once over a gap) or is unstamped",
        "leave the client a core (taskset), or share by process: sysctl kernel.sched_autogroup_enabled=0",
    ),
    Doubt(
        "client-busy",
        SUSPECT,
        client.client_busy,
        f"without kernel stamps, the client used {client.CORES} of a core or more: one loop is one core, "
        "and reads wait for it",
        "use --transport wire, or spread the load over several clients",
    ),
    Doubt(
        "beyond-capacity",
        SUSPECT,
        client.beyond_capacity,
        "more messages per second than the self-test could measure with P99 gap error under 5 %",
        "use --transport wire, a machine with more cores, or several clients",
        EvidenceSource.SELFTEST,
    ),
    Doubt(
        "impossible-timestamps",
        SUSPECT,
        client.impossible_timestamps,
        f"up to {percent(client.IMPOSSIBLE)} of the reads have a kernel timestamp that cannot be, or of the "
        "answers a token before what it follows: the wall clock stepped, and reads near them may be off "
        "unnoticed",
        _CLOCK_REMEDY,
    ),
    Doubt(
        "clock-stepped",
        SUSPECT,
        client.clock_stepped,
        f"the wall clock stepped against the monotonic one by more than {client.STEP_MS:.0f} ms, and "
        "kernel stamps are wall-clock: latencies across the step are off by it",
        _CLOCK_REMEDY,
    ),
    Doubt(
        "throttled",
        SUSPECT,
        client.throttled,
        "this machine, which the server shares, was held back: a governor or power mode below its best, "
        "or a count of throttling that rose in the run",
        "cool it, set governor and power mode (cpupower, nvpmodel, jetson_clocks), and run again",
    ),
    Doubt(
        "slow-kernel",
        SUSPECT,
        roofline.slow_kernel,
        f"under {percent(roofline.SLOW)} of the roofline by TPOT at concurrency 1, else by median ITL if few "
        f"steps prefill; not below {roofline.LEAST_MS:.0f} ms a step: healthy small models reach 12 to 27 %",
        "look in the server's log for a fallback kernel or eager mode; see that --hardware is right",
        EvidenceSource.ROOFLINE,
    ),
)
