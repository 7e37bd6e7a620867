"""The runner: a process of its own, which ends with its parent and whose death loses nothing."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from builders.required import require
from fakes.scripted_server import HEAD, Answer, Asked, ScriptedServer, chunk, job_of, stream, target_of, token
from loadgen.transport import capture_process
from loadgen.transport.capture import Capture
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Job, Limits, Target

pytestmark = [
    pytest.mark.whole,
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
SERVERS = Path(__file__).parents[2] / "servers"


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    command = [sys.executable, "-m", "loadgen_servers.null", "--ttft-ms", "5", "--interval-ms", "5"]
    environment = {**os.environ, "PYTHONPATH": str(SERVERS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        base_url = msgspec.json.decode(require(process.stdout).readline())["base_url"]
        yield target_of("127.0.0.1", int(base_url.rpartition(":")[2]))
        process.terminate()


@pytest.fixture(autouse=True)
def _reaped() -> Iterator[None]:
    """No process is left behind."""
    yield
    capture_process.reap_ended()


def job(server: Target, count: int, tokens: int = 4, concurrency: int = 4) -> Job:
    body = b'{"stream":true,"prompt":[1,2],"max_tokens":%d}' % tokens
    return job_of(server, count, concurrency, body=lambda _: body)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_run_delivers_every_capture_and_its_health(server: Target, transport: str) -> None:
    run = capture_process.start_capture(job(server, 12), transport)
    captures = [capture for capture in run.captures() if capture is not None]
    assert sorted(capture.index for capture in captures) == list(range(12))
    assert run.health is not None
    assert run.health.started_ns <= run.health.ended_ns
    assert run.died == ""
    assert (run.counters.sent, run.counters.ended) == (12, 12)


def test_a_run_is_over_before_its_process_has_exited(server: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def linger(code: int, leave: Callable[[int], NoReturn] = os._exit) -> NoReturn:
        """Exit as a process does whose packet ring the kernel is slow to close, its other files closed."""
        os.closerange(3, 256)
        time.sleep(1.0)
        leave(code)

    monkeypatch.setattr(os, "_exit", linger)
    run = capture_process.start_capture(job(server, 4), "wire")
    pid = run.pid
    assert len([capture for capture in run.captures() if capture is not None]) == 4
    assert alive(pid)
    capture_process.reap_ended()
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_capturing_process_leaves_finished_requests(server: Target) -> None:
    run = capture_process.start_capture(job(server, 1000, 8), "wire")
    captures: list[Capture] = []
    for capture in run.captures():
        if capture is None:
            continue
        captures.append(capture)
        if len(captures) == 8 and run.pid:
            os.kill(run.pid, signal.SIGKILL)
    finished = [capture for capture in captures if capture.failure is None]
    lost = [capture for capture in captures if capture.failure is not None]
    assert 8 <= len(finished) < 1000
    assert {capture.failure and capture.failure.kind for capture in lost} == {FailureKind.LOST}
    assert sorted(capture.index for capture in captures) == list(range(run.counters.sent))
    assert run.lost == len(lost) >= 1
    assert run.health is None
    assert run.died == "the capturing process died (status -9)"


@pytest.mark.parametrize("heard", [True, False])
def test_a_fault_in_the_capturing_process_is_told(
    server: Target, heard: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a standard error and without one."""

    def body(index: int) -> bytes:
        raise RuntimeError("no body today")

    if not heard:
        monkeypatch.setattr(sys, "stderr", None)
    run = capture_process.start_capture(job_of(server, 3, 1, body=body), "wire" if heard else "httpx")
    assert [capture for capture in run.captures() if capture is not None and not capture.failure] == []
    assert run.died == "the capturing process died (status 1): RuntimeError: no body today"
    assert ("no body today" in capfd.readouterr().err) is heard


def test_a_fault_amid_the_run_loses_only_what_was_under_way(server: Target) -> None:
    def body(index: int) -> bytes:
        if index == 20:
            raise RuntimeError("no body today")
        return b'{"stream":true,"prompt":[1,2],"max_tokens":4}'

    run = capture_process.start_capture(
        job_of(server, 100, 2, body=body), "httpx"
    )  # the wire builds far ahead
    captures = [capture for capture in run.captures() if capture is not None]
    assert run.died == "the capturing process died (status 1): RuntimeError: no body today"
    assert sorted(capture.index for capture in captures) == list(range(run.counters.sent))
    found = [capture.failure and capture.failure.kind for capture in captures]
    assert found.count(None) >= 18
    assert FailureKind.LOST in found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_a_terminal_sends_to_all_is_for_the_parent_to_decide(server: Target, number: int) -> None:
    run = capture_process.start_capture(job(server, 12, 40), "wire")
    captures = []
    for capture in run.captures():
        if capture is None and run.pid and run.counters.sent:
            os.kill(run.pid, number)
        elif capture is not None:
            captures.append(capture)
    assert run.died == ""
    assert [capture.failure for capture in captures] == [None] * 12


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_process_that_was_stopped_blames_nobody(server: Target, transport: str) -> None:
    limits = Limits(stall_timeout_ns=1_500_000_000, request_timeout_ns=2_500_000_000)
    run = capture_process.start_capture(replace(job(server, 4, 100), limits=limits), transport)
    captures, stopped = [], False
    for capture in run.captures():
        if capture is not None:
            captures.append(capture)
        elif not stopped and run.counters.reads:
            stopped = True
            os.kill(run.pid, signal.SIGSTOP)
            time.sleep(3.5)
            os.kill(run.pid, signal.SIGCONT)
    assert [capture.failure for capture in captures] == [None] * 4
    assert 3_000_000_000 < require(run.health).stopped_ns < 5_000_000_000


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_tokens_for_ever_fill_no_memory(transport: str) -> None:
    """At the speed of loopback, beside requests that are answered; the peak is the kernel's figure.

    The process is forked of this one, whose own memory it begins with.
    """
    own_kb = psutil.Process().memory_info().rss >> 10
    endless = chunk(token() * 100) * 50

    def script(asked: Asked) -> Answer:
        # The others take a second: where all is over within 0.25 s, no turn below finds the process alive.
        return Answer([HEAD, *[endless] * 5000]) if asked.number == 1 else stream(3, gap_s=0.03)

    with ScriptedServer(script) as flooding:
        run = capture_process.start_capture(job_of(flooding.target(), 10, 2), transport)
        captures, peak_kb = [], 0
        for capture in run.captures():
            if capture is not None:
                captures.append(capture)
            elif run.pid and alive(run.pid):
                said = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{run.pid}/status").read_text())
                peak_kb = max(peak_kb, int(said[1]) if said else 0)
    failures = [capture.failure for capture in captures if capture.failure is not None]
    assert [(failure.kind, failure.detail) for failure in failures] == [
        (FailureKind.MALFORMED, "larger than the limit of 64 MiB for one response")
    ]
    assert len(captures) == 10
    assert 0 < peak_kb < own_kb + (400 << 10)


@pytest.mark.parametrize("closed", [None, "closed"])
def test_closed_standard_streams_keep_nobody_from_starting(
    server: Target, closed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        stream = None
        if closed:
            stream = io.StringIO()
            stream.close()
        monkeypatch.setattr(sys, name, stream)
    run = capture_process.start_capture(job(server, 4), "wire")
    assert len([capture for capture in run.captures() if capture is not None]) == 4
    assert run.died == ""


def test_a_stop_ends_the_run_with_its_health(server: Target) -> None:
    run = capture_process.start_capture(job(server, 1000, 200), "wire")
    captures = []
    for capture in run.captures():
        if capture is None:
            run.stop()
        else:
            captures.append(capture)
    assert len(captures) < 1000
    assert run.health is not None


def test_a_kill_ends_it_at_once_and_may_be_said_twice(server: Target) -> None:
    run = capture_process.start_capture(job(server, 1000, 1000), "wire")
    pid = run.pid
    run.kill()
    run.kill()
    assert not alive(pid)


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_the_capturing_process_ends_with_its_parent(server: Target, transport: str) -> None:
    """A process in between starts a run, says its id and is killed."""
    said, says = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            run = capture_process.start_capture(job(server, 100_000, 100), transport)
            os.write(says, b"%d\n" % run.pid)
            time.sleep(60)
        finally:
            os._exit(0)
    os.close(says)
    with os.fdopen(said) as pipe:
        pid = int(pipe.readline())
    assert alive(pid)
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_a_signal_in_a_fork_comes_after_what_python_calls_there() -> None:
    order: list[str] = []
    armed = [True]

    def called() -> None:
        if armed:
            signal.raise_signal(signal.SIGTERM)
            order.append("called")

    os.register_at_fork(after_in_parent=called)
    before = signal.signal(signal.SIGTERM, lambda *_: order.append("signal"))
    try:
        pid = capture_process.fork_process()
        if not pid:
            os._exit(0)
    finally:
        armed.clear()
        signal.signal(signal.SIGTERM, before)
    assert order == ["called", "signal"]
    assert os.waitpid(pid, 0) == (pid, 0)
