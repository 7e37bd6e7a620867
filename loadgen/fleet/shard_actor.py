"""Shard actor: what runs on a node for one shard: it starts the shard's process, and answers about it.

The process is started and not forked: Ray's threads would not survive that. It ends with the actor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.base import clock
from loadgen.base.files import open_refusing_link
from loadgen.features.shards.shard_clocks import find_boot_id
from loadgen.fleet.shard_order import ShardStatus
from loadgen.run.command.progress import LiveTotals

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EVENTS, OUTPUT, RUNS, TOTALS = "events", "output", "runs", "totals"
MODULE = "loadgen.fleet.shard_process"
LENGTH_BYTES = 8
_LAST_WORDS = 400
_ENDS_S = 10.0


class ShardActor:
    """One shard on its node; no method waits for what its process does."""

    def __init__(self, command: tuple[str, ...] = ()) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="loadgen-shard-"))
        self._totals = LiveTotals(self._place / TOTALS)
        self._command = command or (sys.executable, "-m", MODULE)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, order: bytes) -> str:
        """Start the shard's process in a session of its own, write its order to it; return the boot's id."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_refusing_link(self._place / OUTPUT, flags), "wb") as output:
            self._process = subprocess.Popen(
                [*self._command, str(self._place)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._write(len(order).to_bytes(LENGTH_BYTES, "little") + order)
        return find_boot_id()

    def clock_ns(self) -> int:
        """Read CLOCK_MONOTONIC of this node."""
        return clock.now_ns()

    def start(self, instant_ns: int) -> None:
        """Write the instant at which it begins, ns of this node's CLOCK_MONOTONIC, to the process."""
        self._write(instant_ns.to_bytes(LENGTH_BYTES, "little"))

    def status(self) -> ShardStatus:
        """Return the shard's progress and counts, read from its files, and how its process ended."""
        ended = self._explain_end()  # before what it wrote last is read
        events = dict(map(_split_event, _read_lines(self._place / EVENTS)))
        return ShardStatus(
            ready="ready" in events,
            failed=events.get("failed", ""),
            measured="measured" in events,
            done="done" in events,
            rule=events.get("done", ""),
            ended=ended,
            beats=self._totals.beats,
            totals=self._totals.read(),
        )

    def stop(self, number: int = signal.SIGINT) -> None:
        """Send the process a signal if it runs; on a first SIGINT it ends its run and writes what it has."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def fetch(self) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the files of the last run directory that the process wrote, by name; {} without one."""
        import numpy as np

        directories = sorted((self._place / RUNS).glob("*/"))
        return {
            file.name: np.fromfile(file, dtype=np.uint8)
            for directory in directories[-1:]
            for file in sorted(directory.iterdir())
            if file.is_file()
        }

    def close(self) -> None:
        """Kill the process and its group, wait for it 10 s, and remove its directory on this node."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_ENDS_S)
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _write(self, data: bytes) -> None:
        """Write to the process's standard input; nothing happens if it has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `status` says how
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _explain_end(self) -> str:
        """Return how the process ended, with the last 400 bytes of its output; "" unless it has ended."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        tail = (self._place / OUTPUT).read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace")
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        last = f": {' '.join(tail.split())}" if tail.strip() else ""
        return f"its process was {how}{last}"


def _read_lines(path: Path) -> list[str]:
    """Return a file's lines; [] if there is no file."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text("utf-8").splitlines()
    return []


def _split_event(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value


def make_actor_class(ray: Any) -> Any:
    """Make Ray's actor class of `ShardActor`, never restarted or called again."""
    return ray.remote(max_restarts=0, max_task_retries=0)(ShardActor)
