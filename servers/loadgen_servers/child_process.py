"""Child process: the command line and the environment that the servers' Python processes are started with."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

# The variables that a Python process needs of its caller's environment, and prefixes of others.
_NEEDED = ("PATH", "HOME", "USER", "TMPDIR", "TZ", "LANG", "LANGUAGE", "VIRTUAL_ENV", "COLUMNS", "LINES")
_NEEDED_PREFIXES = ("LC_", "LD_", "DYLD_", "PYTHON", "XDG_", "LOADGEN_", "OMP_", "OPENBLAS_")
# A key for another server: a server that is started here has no use for it.
_KEY = re.compile(r"(?!VLLM_|SGLANG_).*API_?KEY", re.IGNORECASE)


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module; with -P nothing is imported from the current directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(withheld: Collection[str] = ()) -> dict[str, str]:
    """The caller's environment without API keys and withheld variables; this package is importable in it."""
    return {**inherited(withheld), "PYTHONPATH": _path()}


def needed() -> dict[str, str]:
    """The variables an embedded server needs of the caller's environment, which may hold any secret."""
    kept = {
        name: value
        for name, value in inherited().items()
        if name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
    }
    return {**kept, "PYTHONPATH": _path()}


def inherited(withheld: Collection[str] = ()) -> dict[str, str]:
    """The caller's environment without the variables withheld and without API keys.

    HF_TOKEN stays, since engines download with it, and so do the keys that engines ask of their clients.
    """
    return {
        name: value for name, value in os.environ.items() if name not in withheld and not _KEY.fullmatch(name)
    }


def output(command: Sequence[str], timeout_s: float, **variables: str) -> str:
    """What a command prints, run with these variables and without API keys; "" where it fails."""
    quiet, environment = subprocess.DEVNULL, {**inherited(), **variables}
    try:
        printed = subprocess.check_output(
            command, stdin=quiet, stderr=quiet, timeout=timeout_s, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return printed.decode(errors="replace")


def _path() -> str:
    """PYTHONPATH: this package first; no empty or relative entry, which would be the current directory."""
    source = str(Path(__file__).resolve().parents[1])
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([source, *filter(os.path.isabs, entries)])


def share_cores_evenly(pid: int = 0) -> None:
    """Undo SCHED_BATCH, which a child inherits from a client that lets its server go first."""
    if hasattr(os, "SCHED_OTHER"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
