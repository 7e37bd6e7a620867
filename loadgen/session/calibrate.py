"""Calibrate: the client measures itself before a run, at the load to come."""

from __future__ import annotations

import sys

from msgspec.structs import replace

from loadgen.metrics.metrics import compute
from loadgen.metrics.record import Records
from loadgen.results.printing import printed
from loadgen.validity import calibration
from loadgen.validity.run_metadata import asked
from loadgen.workload.profile import Profile

_LEAST_INTERVAL_MS = 0.5  # of the self-test's messages: one process writes them all


def at_the_pace_of(workload: Profile, transport: str, warmed: Records) -> None:
    """Let the client measure itself at the load to come, with the warm-up's pace; the result is cached."""
    from loadgen.session.selftest import SelftestLoad, measure_client, table  # no other run pays for it

    pace = compute(warmed, asked(workload))
    load = SelftestLoad.of(workload)
    if pace.itl.n:
        tokens = round(pace.total_output_tokens / pace.health.messages)
        interval_ms = max(pace.itl.mean_ms, _LEAST_INTERVAL_MS)
        load = replace(load, interval_ms=interval_ms, tokens_per_message=max(tokens, 1))
    measured = measure_client(load, [transport])
    calibration.remember(measured.values())
    printed("\n".join((f"self-test at {load.words}:", *table(measured[transport]))), sys.stdout)
