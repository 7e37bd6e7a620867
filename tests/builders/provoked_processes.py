"""Runs of real processes that go wrong, as virtual time has no processes and no kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from fakes.scripted_server import (
    HEAD,
    PATIENCE_S,
    Answer,
    End,
    ScriptedServer,
    api,
    chunk,
    stream,
    token,
    whole,
)
from loadgen_servers.process.embedded import NULL, Embedded

_SPIN = "import time; over = time.monotonic() + 30\nwhile time.monotonic() < over: pass"
_SPINNER = f"""for i in {" ".join("xx" * len(os.sched_getaffinity(0)))}; do
{sys.executable} -c '{_SPIN}' > /dev/null 2>&1 & echo $!
done"""
Server = Callable[[], AbstractContextManager[str]]
Next = Callable[[], AbstractContextManager[object]]


@contextmanager
def _process(words: list[str], *module: str) -> Iterator[str]:
    with Embedded(words, *module) as process:
        yield process.start().base_url


def engine() -> AbstractContextManager[str]:
    """The embedded engine, 20 ms a step; it and the others yield their base URL."""
    return _process(["--preset", "bench/1024x50"])


def null(ttft_ms: float = 20) -> Server:
    """The null server, which has no /metrics; 20 ms a token."""
    return lambda: _process(["--ttft-ms", f"{ttft_ms:g}", "--interval-ms", "20"], NULL)


@contextmanager
def hanging() -> Iterator[str]:
    """Twelve requests are answered; each other one gets one token and no end."""
    number, endless = count(1), Answer([HEAD, chunk(token())], End.HANG)
    with ScriptedServer(api(lambda _: stream(3, 0.02) if next(number) <= 12 else endless)) as server:
        yield server.base_url


@contextmanager
def refusing() -> Iterator[str]:
    """Every request gets a 500."""
    with ScriptedServer(api(lambda _: Answer([whole(b"{}", "500 Internal Server Error")]))) as server:
        yield server.base_url


# What happens next to a run.


def killed() -> AbstractContextManager[object]:
    """The capturing process dies."""
    return _acting(lambda pid, over: os.kill(pid, signal.SIGKILL))


def interrupted() -> AbstractContextManager[object]:
    """Someone presses Ctrl-C."""
    return _acting(lambda pid, over: os.kill(os.getpid(), signal.SIGINT))


def stalled() -> AbstractContextManager[object]:
    """The capturing process hardly gets to run, in no step with the server's 20 ms."""
    return _acting(partial(_stall, stopped_s=0.047, running_s=0.017))


@contextmanager
def crowded() -> Iterator[None]:
    """Two busy processes a CPU, which are not this program's: the shell that started them has ended."""
    started = subprocess.run(["sh", "-c", _SPINNER], capture_output=True, check=True, text=True)
    try:
        yield
    finally:
        for pid in started.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@contextmanager
def _acting(act: Callable[[int, threading.Event], None]) -> Iterator[None]:
    """Act on the capturing process when it has been there for a while."""
    over = threading.Event()

    def wait() -> None:
        while not _forks() and not over.wait(0.02):
            pass
        # What was there first may have been a short-lived child, before it became another program.
        while not over.wait(0.4):
            if found := _forks():
                act(found[0], over)
                return

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def _stall(pid: int, over: threading.Event, stopped_s: float, running_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(stopped_s)
            os.kill(pid, signal.SIGCONT)
            over.wait(running_s)


def _forks() -> list[int]:
    """The children of this process with its own command line: a run forks one."""
    own, found = Path("/proc/self/cmdline").read_bytes(), []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and (place / "cmdline").read_bytes() == own:
                found.append(int(place.name))
    return found


@dataclass(frozen=True)
class ProcessRun:
    """A real run, the doubts that it must raise, and what happens next to it."""

    server: Server
    words: str
    doubts: set[str]
    next_to: Next = contextlib.nullcontext
    code: int = 0
    other: Server | None = None  # another --base-url


_SHORT = "--random-input-len 8 --random-output-len 20 --num-prompts 16 --max-concurrency 4"
_HANGING = "--random-input-len 5 --random-output-len 3 --num-prompts 20 --max-concurrency 4"
_DIVIDED = "--random-input-len 8 --num-warmups 0 --workers 2"
PROCESS_RUNS = {
    "Ctrl-C": ProcessRun(hanging, _HANGING, {"interrupted"}, interrupted, code=130),
    "a client that dies": ProcessRun(hanging, _HANGING, {"cut-short"}, killed, code=1),
    "a worker that dies": ProcessRun(
        null(),
        f"{_DIVIDED} --random-output-len 20 --num-prompts 40 --max-concurrency 4",
        {"load-lost", "rest-of-the-load"},
        killed,
        code=1,
    ),
    "two servers, of which one takes longer": ProcessRun(
        null(),
        f"{_DIVIDED} --random-output-len 2 --num-prompts 240 --request-rate 60",
        {"targets-unequal"},
        other=null(ttft_ms=300),
    ),
    "a rule that ends the run": ProcessRun(
        refusing, f"{_HANGING} --num-prompts 1000 --max-failures 3", {"stopped-by-rule"}, code=1
    ),
    "a machine whose CPUs others take": ProcessRun(
        null(), f"{_SHORT} --num-prompts 40", {"other-processes"}, crowded
    ),
    "a client that hardly runs": ProcessRun(null(), f"{_SHORT} --transport wire", {"reads-late"}, stalled),
}
# Of them those that no run in virtual time has.
PROCESSES_ALONE = {
    "interrupted", "cut-short", "load-lost", "rest-of-the-load", "targets-unequal", "stopped-by-rule",
    "other-processes",
}  # fmt: skip
