"""Running: a server that was started is known, is stopped with all it started, and outlives no client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from builders.loops import loop_over
from fakes.supervised import (
    HAS_WORKER,
    IGNORES_SIGTERM,
    LEAVES_DAEMON,
    LEAVES_WORKERS,
    LISTENS,
    MARK,
    PATIENCE_S,
    listens,
    marked,
    nothing_is_left,
    server,
    text,
    until,
)
from loadgen_servers.launch.spec import Command, LaunchError
from loadgen_servers.process.running import Running, free_port, start

ROOT = Path(__file__).parents[3]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Everything started here bears it; what a failed test leaves is killed."""
    monkeypatch.setenv(MARK, str(tmp_path))
    yield str(tmp_path)
    for process in marked(str(tmp_path)):
        process.kill()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize(("given", "low", "high"), [
    ("32768\t60999\n", 20768, 32767), ("1034\t65535\n", 1024, 65535), ("1024\t65535\n", 1024, 65535),
    ("", 1024, 65535),
], ids=["usual", "ten below", "all are given", "unreadable"])  # fmt: skip
def test_a_free_port_is_none_that_connections_get_if_there_are_others(
    given: str, low: int, high: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ip_local_port_range"
    if given:
        path.write_text(given, "ascii")
    monkeypatch.setattr("loadgen_servers.process.running._GIVEN_PORTS", path)
    found = {free_port() for _ in range(20)}
    assert all(low <= port <= high for port in found)
    assert len(found) > 10


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def ready(running: Running) -> None:
    until(lambda: listens(running.port), "the server listens")


@pytest.mark.whole
def test_a_server_is_known_while_it_runs_and_gone_when_it_was_stopped(
    mark: str, port: int, log: Path
) -> None:
    log.write_text("before\n", "utf-8")
    with start(server(LISTENS, port), port, log) as running:
        ready(running)
        assert running.exit_code() is None
        (pid,) = running.pids()
        assert psutil.Process(pid).cmdline()[-1] == str(port)
        assert os.getpgid(pid) == pid
        running.stop()
        assert not marked(mark)
        assert running.pids() == []
        assert running.exit_code() == -signal.SIGTERM
        running.stop()
    assert running.tail() == ["before", "listening"]
    nothing_is_left(mark, port)


@pytest.mark.whole
@pytest.mark.parametrize(("code", "processes", "ends_with"), [
    (IGNORES_SIGTERM, 1, -signal.SIGKILL),
    (HAS_WORKER, 2, -signal.SIGTERM),
    (LEAVES_DAEMON, 2, -signal.SIGTERM),
])  # fmt: skip
def test_whatever_descends_from_it_is_stopped(
    mark: str, port: int, log: Path, code: str, processes: int, ends_with: int
) -> None:
    with start(server(code, port), port, log, grace_s=0.3) as running:
        ready(running)
        first = running.pids()[0]
        until(lambda: len(running.pids()) == processes, "orphans are among the server's processes")
        assert running.pids()[0] == first
    assert not marked(mark)
    assert running.exit_code() == ends_with
    nothing_is_left(mark, port)


@pytest.mark.whole
def test_what_a_server_that_dies_leaves_behind_is_cleared_away(mark: str, port: int, log: Path) -> None:
    with start(server(LEAVES_WORKERS, port), port, log, grace_s=0.3) as running:
        until(lambda: running.exit_code() == 7, "its end is told")
        until(lambda: not running.pids(), "its worker is gone, and nobody asked")
        nothing_is_left(mark, port)


@pytest.mark.whole
@loop_over(("code", "ends_with"), [("sys.exit(3)", 3), ("os.abort()", -signal.SIGABRT), ("sys.exit(0)", 0)])
def test_an_end_at_once_is_told(mark: str, port: int, log: Path, code: str, ends_with: int) -> None:
    with start(server(code, port), port, log) as running:
        until(lambda: running.exit_code() is not None, "its end is told")
    assert running.exit_code() == ends_with
    nothing_is_left(mark, port)


@pytest.mark.whole
def test_a_killed_supervisor_takes_the_server_along(mark: str, port: int, log: Path) -> None:
    with start(server(HAS_WORKER, port), port, log) as running:
        ready(running)
        running.supervisor.kill()
        until(lambda: running.exit_code() == -signal.SIGKILL, "it is noticed")
        assert not running.pids()
    nothing_is_left(mark, port)


@pytest.mark.whole
def test_stopping_clears_up_after_a_killed_supervisor(mark: str, port: int, log: Path) -> None:
    running = start(server(LEAVES_DAEMON, port), port, log)
    ready(running)
    until(lambda: len(running.pids()) == 2, "the daemon is seen")
    running.supervisor.kill()
    running.stop()
    nothing_is_left(mark, port)


@pytest.mark.whole
def test_the_server_finds_the_callers_world_and_its_own_variables(
    mark: str, port: int, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "of-the-caller")
    monkeypatch.setenv("REPLACED", "by the caller")
    monkeypatch.setitem(os.environb, b"NOT_UTF_8", b"\xff\xfe")
    code = """
print(os.environ["PYTHONPATH"], os.environ["REPLACED"], os.environb[b"NOT_UTF_8"], repr(sys.stdin.read()))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print([signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)])
print(os.sched_getscheduler(0) == os.SCHED_OTHER, flush=True)
"""
    command = server(code, port)
    with start(Command(command.argv, {"REPLACED": "by the command"}), port, log) as running:
        until(lambda: running.exit_code() == 0, "it has printed")
    found = r"of-the-caller by the command b'\xff\xfe' ''"
    assert running.tail() == [found, "True", "[True, True, True]", "True"]


@pytest.mark.whole
@pytest.mark.parametrize(("executable", "says"), [
    ("no-such-server", "no-such-server cannot be run, it does not exist: check the name"),
    ("{tmp}/plain.txt", "plain.txt cannot be run, permission denied: it must be an executable"),
    ("{tmp}", "cannot be run, permission denied"),
    ("{tmp}/script", "script cannot be run, it does not exist: check the name, PATH, and the first line"),
    ("{tmp}/binary", "binary cannot be run, Exec format error"),
    ("nul\0byte", "cannot be run, embedded null byte"),
])  # fmt: skip
def test_a_command_that_cannot_be_run_is_refused_in_a_line(
    mark: str, port: int, log: Path, tmp_path: Path, executable: str, says: str
) -> None:
    (tmp_path / "plain.txt").write_text("not a program", "utf-8")
    for name, content in (("script", "#!/no/such/interpreter\n"), ("binary", "\x7fELF")):
        (tmp_path / name).write_text(content, "utf-8")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(LaunchError) as refused:
        start(Command((executable.format(tmp=tmp_path), "serve"), {}), port, log)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    nothing_is_left(mark, port)


@pytest.mark.parametrize(
    ("name", "why"), [("nowhere/server.log", "No such file or directory"), ("server.log", ".*symbolic link")]
)
def test_a_log_that_cannot_be_written_is_said_before_anything_runs(
    name: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("own")
    (tmp_path / "server.log").symlink_to(tmp_path / "victim")
    with pytest.raises(LaunchError, match=rf"the server's log .* cannot be written: {why}"):
        start(server(LISTENS, 1), 1, tmp_path / name)
    assert (tmp_path / "victim").read_text() == "own"


@pytest.mark.whole
def test_a_port_that_stays_taken_is_said_and_hides_no_other_error(
    mark: str, log: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr("loadgen_servers.process.running._PORT_S", 0.0)
    monkeypatch.setattr("loadgen_servers.process.running._free", lambda port: False)
    running = start(server(LISTENS, port), port, log)
    with pytest.raises(LaunchError, match=f"port {port} is still taken"):
        running.stop()
    with pytest.raises(KeyError, match="first") as raised, start(server(LISTENS, port), port, log):
        raise KeyError("first")
    assert any("is still taken" in note for note in raised.value.__notes__)
    assert not marked(mark)


CLIENT = """
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = [{servers!r}, {tests!r}]
from fakes.supervised import {server}, listens, server
from loadgen_servers.process import running
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
port = {port}
{before}
started = running.start(server({server}, port), port, Path({log!r}), grace_s=0.3)
{after}
"""
UNTIL_LISTENING = """
while not listens(port):
    time.sleep(0.01)
"""


def client(port: int, log: Path, server: str, before: str = "", after: str = "") -> subprocess.Popen[bytes]:
    places = {"servers": str(ROOT / "servers"), "tests": str(ROOT / "tests"), "log": str(log)}
    script = CLIENT.format(server=server, port=port, before=before, after=after, **places)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)


@pytest.mark.whole
@pytest.mark.parametrize("code", ["LISTENS", "IGNORES_SIGTERM", "LEAVES_DAEMON"])
@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param("running.Running.begin = die", "", id="spawned"),
     pytest.param("running.Running._next_event = die", "", id="assigned"),
     pytest.param("", "die()", id="started"), pytest.param("", UNTIL_LISTENING + "die()", id="serving")],
)  # fmt: skip
def test_a_client_that_is_killed_leaves_nothing(
    mark: str, port: int, log: Path, code: str, before: str, after: str
) -> None:
    with client(port, log, code, before, after) as killed:
        assert killed.wait(PATIENCE_S) == -signal.SIGKILL
    nothing_is_left(mark, port)


@pytest.mark.whole
def test_a_fork_of_a_killed_client_does_not_keep_the_server(mark: str, port: int, log: Path) -> None:
    """As the process that captures the answers: it has the pipe too."""
    after = UNTIL_LISTENING + "if os.fork() == 0:\n    time.sleep(1000)\ndie()"
    with client(port, log, "LISTENS", after=after) as killed:
        assert killed.wait(PATIENCE_S) == -signal.SIGKILL
        until(lambda: not listens(port), "the server is stopped")
        until(lambda: len(marked(mark)) == 1, "only the fork is left")
        (fork,) = marked(mark)
        fork.kill()
    nothing_is_left(mark, port)


@pytest.mark.whole
def test_ctrl_c_reaches_the_client_alone(mark: str, port: int, log: Path) -> None:
    after = f"""
with started:
    {UNTIL_LISTENING.strip().replace(chr(10), chr(10) + "    ")}
    try:
        print("up", flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        pass
    print(started.exit_code(), os.getpgid(started.pids()[0]) == os.getpgrp(), listens(port), flush=True)
"""
    with client(port, log, "LISTENS", after=after) as interrupted:
        assert interrupted.stdout is not None
        assert interrupted.stdout.readline() == b"up\n"
        os.killpg(interrupted.pid, signal.SIGINT)
        assert interrupted.stdout.readline() == b"None False True\n"
        assert interrupted.wait(PATIENCE_S) == 0
    nothing_is_left(mark, port)


ENGINE = """#!{python}
# A container engine: what runs in the container is no child of it.
import os, pathlib, signal, subprocess, sys, time
directory = pathlib.Path({directory!r})
with (directory / "calls").open("a") as calls:
    print(sys.argv[1], file=calls)
pid = directory / "pid"
if sys.argv[1] == "run":
    first = subprocess.Popen(sys.argv[2:], start_new_session=True)
    (directory / "new").write_text(str(first.pid))
    (directory / "new").rename(pid)
    sys.exit(first.wait() % 256)
elif sys.argv[1] == "inspect":
    print(pid.read_text() if pid.exists() else 0)
elif {works} or sys.argv[1] == "rm":
    try:
        os.kill(int(pid.read_text()), signal.SIGTERM if sys.argv[1] == "stop" else signal.SIGKILL)
    except ProcessLookupError:
        sys.exit("No such container")
"""


def contained(directory: Path, port: int, works: bool) -> Command:
    """A server in a container of the engine above, whose `stop` may do nothing."""
    engine = directory / "engine"
    engine.write_text(ENGINE.format(python=sys.executable, directory=str(directory), works=works), "utf-8")
    engine.chmod(0o755)
    inside = server(LISTENS, port)
    end, kill, root_pid = ((str(engine), verb) for verb in ("stop", "rm", "inspect"))
    argv = (str(engine), "run", *inside.argv)
    return Command(argv, inside.environment, end=end, kill=kill, root_pid=root_pid)


def called(directory: Path) -> list[str]:
    """What the engine was told to do."""
    return [call for call in text(directory / "calls").split() if call != "inspect"]


@pytest.mark.whole
@pytest.mark.parametrize(("works", "ends_with"), [(True, 256 - 15), (False, 256 - 9)])
def test_a_container_is_stopped_by_its_engine(
    mark: str, port: int, log: Path, tmp_path: Path, works: bool, ends_with: int
) -> None:
    with start(contained(tmp_path, port, works), port, log, grace_s=1.0) as running:
        ready(running)
        until(lambda: running.pids() != [], "its first process is known")
        assert running.pids() == [int(text(tmp_path / "pid"))]
        running.stop()
        assert running.exit_code() == ends_with
    assert called(tmp_path) == ["run", "stop", "rm"]
    nothing_is_left(mark, port)


@pytest.mark.whole
def test_a_container_is_removed_when_its_engines_client_is_killed(
    mark: str, port: int, log: Path, tmp_path: Path
) -> None:
    with start(contained(tmp_path, port, True), port, log, grace_s=1.0) as running:
        ready(running)
        (client,) = [process for process in marked(mark) if "run" in process.cmdline()]
        client.kill()
        until(lambda: running.exit_code() == -signal.SIGKILL, "its end is told")
        until(lambda: "rm" in called(tmp_path), "the container is removed")
        nothing_is_left(mark, port)
        assert running.pids() == []
    assert called(tmp_path) == ["run", "rm"]


def kept(log: Path) -> Running:
    """Enough of one to read its log."""
    return Running(Command((), {}), 0, log, 0.0, None)  # type: ignore[arg-type]


@loop_over(("written", "shown"), [
    (b"", []),
    (b"one\ntwo\n", ["one", "two"]),
    (b"one\n\n   \ntwo", ["one", "two"]),
    (b"windows\r\nlines\r\n", ["windows", "lines"]),
    (b"load:   0%|\rload:  50%|\rload: 100%|#\nready", ["load: 100%|#", "ready"]),
    (b"\x1b[1;32mINFO\x1b[0m up\x1b[K\x1b]0;title\x07!", ["INFO up!"]),
    (b"tab\there", ["tab here"]),
    (b"\x00\x01\xff\xfe", ["\ufffd" * 4]),
    (b"half \xe2\x82", ["half \ufffd"]),
    (b"x" * 300, ["x" * 199 + "…"]),
    (b"".join(b"%d\n" % i for i in range(100)), [str(i) for i in range(85, 100)]),
])  # fmt: skip
def test_the_tail_is_printable_whatever_the_log_holds(
    tmp_path: Path, written: bytes, shown: list[str]
) -> None:
    log = tmp_path / "log"
    log.write_bytes(written)
    assert kept(log).tail() == shown


def test_of_a_large_log_only_the_end_is_read_and_counts_as_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(200 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast words\n")
    assert kept(log).tail(1) == ["last words"]
    log.write_bytes(os.urandom(1 << 20).replace(b"\n", b"") + b"\rend")
    assert kept(log).tail() == ["end"]


def test_random_bytes_are_printable_and_no_log_has_no_tail(tmp_path: Path) -> None:
    assert kept(tmp_path / "log").tail() == []
    (tmp_path / "log").write_bytes(os.urandom(1 << 16))
    shown = kept(tmp_path / "log").tail(1000)
    assert all(line.isprintable() and 0 < len(line) <= 200 for line in shown)
