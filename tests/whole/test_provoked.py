"""Doubts of a worker, of several servers and of the CPUs: provoked by real runs, as virtual time has none."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from fakes.scripted_server import PATIENCE_S
from loadgen import cli
from loadgen.report.run_directory import REPORT, RESULT
from loadgen_servers.process.embedded import NULL, Embedded

pytestmark = pytest.mark.whole
_SPIN = "import time; over = time.monotonic() + 30\nwhile time.monotonic() < over: pass"
_SPINNER = f"""for i in {" ".join("xx" * len(os.sched_getaffinity(0)))}; do
{sys.executable} -c '{_SPIN}' > /dev/null 2>&1 & echo $!
done"""


@contextmanager
def started(*words: str) -> Iterator[str]:
    """The base URL of an embedded server, the null server unless it has a preset; 20 ms a token."""
    module = () if "--preset" in words else (NULL,)
    with Embedded(list(words), *module) as process:
        yield process.start().base_url


@contextmanager
def crowded() -> Iterator[None]:
    """Two busy processes a CPU, which are not this program's: the shell that started them has ended."""
    spinners = subprocess.run(["sh", "-c", _SPINNER], capture_output=True, check=True, text=True)
    try:
        yield
    finally:
        for pid in spinners.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@contextmanager
def killed() -> Iterator[None]:
    """The first process that a run forks, which has our own command line, is killed after a while."""
    over, own = threading.Event(), psutil.Process()

    def forks() -> list[psutil.Process]:
        found = []
        for child in own.children():
            with contextlib.suppress(psutil.Error):
                found += [child] if child.cmdline() == own.cmdline() else []
        return found

    def act() -> None:
        while not forks() and not over.wait(0.02):
            pass
        # What was there first may have been a short-lived child, before it became another program.
        while not over.wait(0.4):
            if found := forks():
                found[0].kill()
                return

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def bench(words: str, *base_urls: str) -> tuple[int, set[str], str]:
    """Run the command; its exit code, the doubts it found, and the level of its verdict."""
    servers = [word for url in base_urls for word in ("--base-url", url)]
    code = cli.main(["bench", "--quiet", *servers, *shlex.split(words)])
    (directory,) = Path("runs").iterdir()
    verdict = json.loads((directory / RESULT).read_text("utf-8"))["loadgen"]["verdict"]
    assert re.search(rf"\nverdict: .*\b{verdict['level']}\b", (directory / REPORT).read_text("utf-8"))
    return code, {doubt["name"] for doubt in verdict["doubts"]}, verdict["level"]


NULLS = "--ttft-ms 20 --interval-ms 20", "--ttft-ms 300 --interval-ms 20"
FORTY = "--random-input-len 8 --random-output-len 20 --num-prompts 40 --max-concurrency 4"
APART = "--random-input-len 8 --random-output-len 2 --num-prompts 240 --request-rate 60"
DIVIDED = "--num-warmups 0 --workers 2"


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("servers", "words", "next_to", "code", "doubts"), [
    pytest.param(NULLS[:1], f"{FORTY} {DIVIDED}", killed, 1, {"load-lost", "rest-of-the-load"},
                 id="a worker that dies"),
    pytest.param(NULLS, f"{APART} {DIVIDED}", contextlib.nullcontext, 0, {"targets-unequal"},
                 id="two servers, of which one takes longer"),
    pytest.param(NULLS[:1], FORTY, crowded, 0, {"other-processes"}, id="a machine whose CPUs others take"),
])  # fmt: skip
def test_a_run_whose_processes_suffer_says_so(
    servers: tuple[str, ...],
    words: str,
    next_to: Callable[[], AbstractContextManager[object]],
    code: int,
    doubts: set[str],
) -> None:
    """What else a busy machine makes of it is not asserted: in virtual time the doubts are exact."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(started(*flags.split())) for flags in servers]
        stack.enter_context(next_to())
        ended, found, _ = bench(words, *urls)
    assert (ended, doubts - found) == (code, set()), found
    with pytest.raises(ChildProcessError):  # no process is left behind
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("load", ["--max-concurrency 16", "--request-rate 15"])
def test_a_clean_run_is_checked_in_full_and_not_invalid(load: str) -> None:
    with started("--preset", "bench/1024x50") as base_url:
        words = f"--random-input-len 64 --random-output-len 5 --num-prompts 40 --num-warmups wave {load}"
        code, _, level = bench(f"{words} --strict", base_url)
    assert (code, level in ("VALID", "SUSPECT")) == (0, True)
