"""Shard actor: what runs on a node for one shard: it starts the shard's process, and answers about it.

What the shard is asked to do comes as data, an order. Its process is started and not forked: Ray's threads
would not survive that. It ends with the actor.
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
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.base import clock
from loadgen.base.files import open_refusing_link
from loadgen.engines.refusals import Adaptation
from loadgen.features.shards.shard_clocks import find_boot_id
from loadgen.plan.request_sources import Seed, WordCounts
from loadgen.run.command.credentials import NO_KEY
from loadgen.run.command.options import Options
from loadgen.run.command.progress import LiveTotals, Totals
from loadgen.settings.run_settings import Tolerance
from loadgen.settings.shard_settings import Share

EVENTS, OUTPUT, RUNS, TOTALS = "events", "output", "runs", "totals"
MODULE = "loadgen.fleet.shard_process"
LENGTH_BYTES = 8
_LAST_WORDS = 400
_ENDS_S = 10.0


# A shard needs these options; the driver does the rest itself, or not at all.
SENT = (
    "more_urls", "endpoint", "model", "served_model_name", "tokenizer", "vocab_size", "insecure", "ca_cert",
    "client_cert", "client_key", "transport", "http2", "workers", "max_consecutive_failures",
    "max_duration_s", "drain_timeout_s", "gpus", "save_detailed", "metadata", "label",
)  # fmt: skip


class ShardOrder(msgspec.Struct, frozen=True):
    """One part of a plan, and all that its process must know of it.

    It may hold keys: it travels in messages and pipes, and is in no file and on no command line.
    """

    share: Share
    digest: str  # of the only plan that may be sent
    base_url: str
    headers: dict[str, str]
    request_id_prefix: str
    given: dict[str, Any]  # those options in SENT that were given
    max_failures: str  # "": no such rule
    profile: dict[str, Any]
    seed: Seed
    adaptation: Adaptation = Adaptation()  # what of the requests the server refuses
    word_counts: dict[str, WordCounts] = {}

    def pack(self) -> bytes:
        """Return the order as msgpack bytes; infinities stay infinite."""
        return msgspec.msgpack.encode(self)

    def options(self, run_dir: str, totals: str) -> Options:
        """Return the options of the shard's process, with its run below `run_dir` and its counts in `totals`.

        It observes no server, and sends no plan but the one of the order's digest.
        """
        lists = ("metadata", "more_urls")
        values = {**self.given, **{name: tuple(self.given.get(name, ())) for name in lists}}
        return Options(
            base_url=self.base_url,
            headers=self.headers,
            api_key_env=NO_KEY,
            request_id_prefix=self.request_id_prefix,
            max_failures=Tolerance.parse(self.max_failures) if self.max_failures else None,
            run_dir=run_dir,
            seed=self.seed.value,
            quiet=True,
            observe=False,
            live_totals=totals,
            shard=self.share,
            expect_plan=self.digest,
            **values,
        )


def pick_options(options: Options) -> dict[str, Any]:
    """Return the options that a shard needs, by name, without those that equal the defaults."""
    default = Options()
    values = {name: getattr(options, name) for name in SENT if hasattr(options, name)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


class ShardStatus(msgspec.Struct, frozen=True):
    """How a shard stands: what its process has reported, and what it has counted."""

    ready: bool = False
    failed: str = ""  # why it measured nothing
    measured: bool = False  # its last request has ended
    done: bool = False  # its run directory is whole
    rule: str = ""  # that ended it
    ended: str = ""  # how its process ended; "": it runs
    beats: int = 0  # how often it has published its totals
    totals: Totals = Totals()


class ShardActor:
    """One shard on its node; no method waits for what its process does."""

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="loadgen-shard-"))
        self._totals = LiveTotals(self._place / TOTALS)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, order: bytes) -> str:
        """Start the shard's process in a session of its own, write its order to it; return the boot's id."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_refusing_link(self._place / OUTPUT, flags), "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(self._place)],
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
        ended, code = "", None if self._process is None else self._process.poll()
        if code is not None:  # before what it wrote last is read
            tail = (self._place / OUTPUT).read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace")
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            last = f": {' '.join(tail.split())}" if tail.strip() else ""
            ended = f"its process was {how}{last}"
        events: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError):
            lines = (self._place / EVENTS).read_text("utf-8").splitlines()
            events = {name: value for name, _, value in (line.partition(" ") for line in lines)}
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
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `status` says how
            self._process.stdin.write(data)
            self._process.stdin.flush()
