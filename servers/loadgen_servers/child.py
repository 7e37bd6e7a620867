"""Child: what a Python process of ours is started with, whatever it is to do."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def environment() -> dict[str, str]:
    """The caller's, in which this package can be imported."""
    source = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}


def share_cores_evenly(pid: int = 0) -> None:
    """Undo what a caller that steps back for its server (SCHED_BATCH) hands down to it."""
    if hasattr(os, "SCHED_OTHER"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
