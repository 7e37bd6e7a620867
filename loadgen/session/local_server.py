"""Local: a server on this machine, as far as its processes, its log and its end are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadgen.validity.run_metadata import Launched


def _nothing(wait_s: float) -> None:
    """Nobody knows whether a server lives that was not started here."""


class Local(msgspec.Struct, frozen=True):
    """A server on this machine: its processes, and, where it was started for the run, its log and its end."""

    pids: Callable[[], Sequence[int]]
    log: Path | None = None
    launched: Launched | None = None
    # Raises ServerDied where it has ended; a server that just failed may need so many seconds to.
    check_alive: Callable[[float], None] = _nothing
    gone: Callable[[], bool] = lambda: False  # whether it has ended
    device_before_bytes: int | None = None  # GPU memory in use before it was started
