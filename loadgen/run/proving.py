"""Proving: what a client finds out about itself between warm-up and run, at the load to come."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.figures.record import Records
from loadgen.plan.plan import Plan
from loadgen.run.measure import TransportOptions
from loadgen.run.options import Options
from loadgen.run.progress import Display
from loadgen.settings.run_settings import AUTO


def proved(
    asked: Options, made: Plan, options: TransportOptions, warmed: Records, display: Display
) -> TransportOptions:
    """How a warmed-up plan is sent: in as many workers as it needs, and after the self-test asked for."""
    if asked.workers == AUTO:
        options = _automatic(made, options, warmed, display)
    if asked.selftest:
        from loadgen.run.selftest import capacity  # no other run pays for it

        with display.waiting("self-test of this client, against a null server", forks=True):
            capacity.at_the_pace_of(made.profile, options.transport, warmed, options.workers)
    return options


def _automatic(made: Plan, options: TransportOptions, warmed: Records, display: Display) -> TransportOptions:
    """The options with the workers of `--workers auto`."""
    from loadgen.run import automatic_workers
    from loadgen.run.selftest import capacity
    from loadgen.run.workers import worker_count
    from loadgen.verdict.calibration import Calibration

    def calibrated() -> Calibration:
        with display.waiting("self-test of one worker, once on this machine: --workers auto", forks=True):
            return capacity.of_one_worker(made.profile, options.transport, warmed)

    targets = max(len(options.targets), 1)
    chosen = automatic_workers.automatic(made, warmed, calibrated, options.part.share.of, targets)
    return replace(worker_count.spread(options, made, chosen.workers), why_workers=chosen.why)
