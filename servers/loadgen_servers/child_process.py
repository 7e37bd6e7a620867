"""Child: what a Python process of ours is started with, whatever it is to do."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

# What a Python process needs of its caller's environment, and the like of it by their beginnings.
_NEEDED = ("PATH", "HOME", "USER", "TMPDIR", "TZ", "LANG", "LANGUAGE", "VIRTUAL_ENV", "COLUMNS", "LINES")
_NEEDED_ALIKE = ("LC_", "LD_", "DYLD_", "PYTHON", "XDG_", "LOADGEN_", "OMP_", "OPENBLAS_")
# A key for somebody else's server: no server that is started here has a use for it.
_KEY = re.compile(r"(?!VLLM_|SGLANG_).*API_?KEY", re.IGNORECASE)


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours; -P: nothing in the current directory is imported."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(withheld: Collection[str] = ()) -> dict[str, str]:
    """The caller's without API keys and what is withheld, in which this package can be imported."""
    return {**inherited(withheld), "PYTHONPATH": _path()}


def needed() -> dict[str, str]:
    """What a server of our own needs of the caller's environment, which may hold secrets of any name."""
    kept = {
        name: value
        for name, value in inherited().items()
        if name in _NEEDED or name.startswith(_NEEDED_ALIKE)
    }
    return {**kept, "PYTHONPATH": _path()}


def inherited(withheld: Collection[str] = ()) -> dict[str, str]:
    """The caller's environment without the variables withheld and without API keys.

    HF_TOKEN stays, since engines download with it, and so do the keys that engines ask of their clients.
    """
    return {
        name: value for name, value in os.environ.items() if name not in withheld and not _KEY.fullmatch(name)
    }


def _path() -> str:
    """Where modules are looked for: here first; an empty or relative entry would be the current directory."""
    source = str(Path(__file__).resolve().parents[1])
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([source, *filter(os.path.isabs, entries)])


def share_cores_evenly(pid: int = 0) -> None:
    """Undo what a caller that steps back for its server (SCHED_BATCH) hands down to it."""
    if hasattr(os, "SCHED_OTHER"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
