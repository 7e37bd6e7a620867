"""Local server: one on this machine, with what is known of its processes, its log and its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadgen.verdict.run_facts import Launched


class Local(msgspec.Struct, frozen=True):
    """A server on this machine: its processes, and, where it was started for the run, its log and its end."""

    pids: Callable[[], Sequence[int]]
    log: Path | None = None
    launched: Launched | None = None
    # Raises ServerDied where it has ended; one that just failed may take that many seconds to end. Of a
    # server that was not started here it is unknown.
    check_alive: Callable[[float], None] = lambda wait_s: None
    gone: Callable[[], bool] = lambda: False  # whether it has ended
    device_before_bytes: int | None = None  # GPU memory in use before it was started
