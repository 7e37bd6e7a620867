"""The supervisor as a process: what it is told, what it says, when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil
import pytest

from fakes.supervised import (
    HAS_WORKER,
    IGNORES_SIGTERM,
    LISTENS,
    MARK,
    PATIENCE_S,
    listens,
    marked,
    server,
    until,
)
from loadgen_servers.process.running import free_port
from loadgen_servers.process.supervisor import Assignment, Event, ServerEnded, ServerStarted

SERVERS = str(Path(__file__).parents[3] / "servers")

pytestmark = pytest.mark.whole


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": SERVERS, MARK: str(tmp_path)}
    argv = [sys.executable, "-m", "loadgen_servers.process.supervisor"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            for left in marked(str(tmp_path)):
                left.kill()


def assignment(argv: list[str], client: int | None = None, mark: str = "", **more: list[str]) -> bytes:
    """A line for it: by default from this process, with all the time in the world to end."""
    environment = {**os.environ, MARK: mark}
    asked = Assignment(
        client=os.getpid() if client is None else client,
        argv=[os.fsencode(word) for word in argv],
        environment=[(os.fsencode(name), os.fsencode(value)) for name, value in environment.items()],
        grace_s=10 * PATIENCE_S,
        **more,
    )
    return msgspec.json.encode(asked) + b"\n"


def tell(supervisor: subprocess.Popen[bytes], line: bytes) -> None:
    pipe(supervisor.stdin).write(line)


def serve(
    supervisor: subprocess.Popen[bytes], port: int, mark: Path, code: str = LISTENS, **more: Any
) -> int:
    """Have it start a server of this code, wait until that listens, and return its pid."""
    tell(supervisor, assignment([*server(code, port).argv], mark=str(mark), **more))
    started = word(supervisor)
    assert isinstance(started, ServerStarted)
    until(lambda: listens(port), "the server listens")
    return started.pid


def word(supervisor: subprocess.Popen[bytes]) -> Event | None:
    """Its next; None when it has none any more."""
    line = pipe(supervisor.stdout).readline()
    return msgspec.json.decode(line, type=Event) if line else None


def pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None
    return end


@pytest.mark.parametrize(("share", "client"), [(0.0, None), (0.5, None), (1.0, None), (1.0, 1)])
def test_half_an_assignment_or_a_client_that_is_gone_starts_nothing(
    supervisor: subprocess.Popen[bytes], share: float, client: int | None, tmp_path: Path
) -> None:
    line = assignment([sys.executable, "-c", "print('started')"], client)
    tell(supervisor, line if client else line[: int(share * len(line[:-1]))])
    if client is None:
        pipe(supervisor.stdin).close()
    assert supervisor.wait(PATIENCE_S) == 0
    assert word(supervisor) is None
    assert (tmp_path / "log").read_bytes() == b""


def test_it_tells_the_start_and_the_end(supervisor: subprocess.Popen[bytes], tmp_path: Path) -> None:
    tell(supervisor, assignment([sys.executable, "-c", "import os; print(os.getpid()); raise SystemExit(3)"]))
    started = word(supervisor)
    assert isinstance(started, ServerStarted)
    assert word(supervisor) == ServerEnded(3)
    assert word(supervisor) is None
    assert supervisor.wait(PATIENCE_S) == 0
    assert (tmp_path / "log").read_text("utf-8") == f"{started.pid}\n"


@pytest.mark.parametrize("how", ["the end of standard input", "SIGTERM", "more on standard input"])
def test_it_stops_the_server_and_ends(
    supervisor: subprocess.Popen[bytes], port: int, tmp_path: Path, how: str
) -> None:
    """Other signals do not reach it."""
    serve(supervisor, port, tmp_path)
    supervisor.send_signal(signal.SIGINT)
    supervisor.send_signal(signal.SIGHUP)
    if how == "SIGTERM":
        supervisor.terminate()
    elif how == "more on standard input":
        tell(supervisor, b"\n")
    else:
        pipe(supervisor.stdin).close()
    assert word(supervisor) == ServerEnded(-signal.SIGTERM)
    assert supervisor.wait(PATIENCE_S) == 0
    assert not marked(str(tmp_path))


@pytest.mark.parametrize("code", [IGNORES_SIGTERM, HAS_WORKER])
def test_sigterm_a_second_time_ends_the_grace(
    supervisor: subprocess.Popen[bytes], port: int, tmp_path: Path, code: str
) -> None:
    serve(supervisor, port, tmp_path, code)
    supervisor.terminate()
    until(lambda: pending(supervisor.pid, signal.SIGTERM) == 0, "the first has come")
    supervisor.terminate()
    assert isinstance(word(supervisor), ServerEnded)
    assert supervisor.wait(PATIENCE_S) == 0
    assert not marked(str(tmp_path))


def pending(pid: int, number: int) -> int:
    """Whether a signal has been sent and not yet been taken (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    masks = [
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))
    ]
    return sum(mask >> (number - 1) & 1 for mask in masks)


def test_orphans_are_collected_while_the_server_runs(
    supervisor: subprocess.Popen[bytes], port: int, tmp_path: Path
) -> None:
    code = """
for _ in range(5):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
listen()
wait()
"""
    pid = serve(supervisor, port, tmp_path, code)
    children = psutil.Process(supervisor.pid).children
    until(lambda: [child.pid for child in children(recursive=True)] == [pid], "no zombie is left")


@pytest.mark.parametrize("end", [["no-such-engine", "stop"], []])
def test_without_a_working_engine_a_container_is_ended_as_a_process(
    supervisor: subprocess.Popen[bytes], port: int, tmp_path: Path, end: list[str]
) -> None:
    serve(supervisor, port, tmp_path, end=end, kill=["no-such-engine", "rm"])
    supervisor.terminate()
    assert word(supervisor) == ServerEnded(-signal.SIGTERM)
    assert supervisor.wait(PATIENCE_S) == 0
