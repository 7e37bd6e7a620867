"""Refused flags: those of `loadgen bench` that a series of runs would not heed."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.base.errors import UsageError
from loadgen.run.options import Options


def refuse(options: Options, series: str, own: Mapping[str, tuple[bool, str]]) -> None:
    """Raises UsageError for a flag that does not apply to `series`, with what to do instead.

    `own` has more of them: whether each was given, and the advice.
    """
    advice = {
        **own,
        "--export-requests": (options.export_requests is not None, "`loadgen bench` writes one plan"),
        "--shard": (options.shard is not None, "`loadgen bench` sends one plan from several commands"),
        "--start-at": (options.start_at is not None, "`loadgen bench` begins one run at an instant"),
        "--expect-plan": (options.expect_plan is not None, "each run has a plan of its own"),
        "--print-request": (options.print_request, "`loadgen bench` shows one"),
        "--live-totals": (options.live_totals is not None, "`loadgen bench` publishes those of one run"),
        "--selftest": (options.selftest, "run `loadgen selftest` at the highest load first"),
    }
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} does not apply to {series}: {what_to_do}")
