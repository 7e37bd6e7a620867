"""Running: a server that was started here: its processes, its log, and its end."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
import psutil

from loadgen_servers import child_process
from loadgen_servers.launch.spec import Command, LaunchError
from loadgen_servers.log_file import open_log
from loadgen_servers.process.port_owner import alive, tree
from loadgen_servers.process.supervisor import Assignment, Event, ServerEnded, ServerStarted, StartFailed

GRACE_S = 30.0  # vLLM and SGLang finish their running requests before they end
_START_S = 30.0  # for the supervisor, a small Python process, on a busy machine
_MARGIN_S = 60.0  # beyond the grace, for the supervisor to clear everything away
_PORT_S = 5.0
_GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORTS_BELOW, _PORT_TRIES = 12000, 20  # below the first of them, usually 32768
_COMMAND_S = 10.0
_POLL_S = 0.05
_TAIL_BYTES = 1 << 18
_LINE_CHARACTERS = 200
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


def free_port(host: str = "127.0.0.1") -> int:
    """Find a free port of `host`, where possible one that the kernel does not give to connections.

    Until the server listens, only another server can take such a port.
    """
    with contextlib.suppress(OSError, ValueError):
        lowest_given = int(_GIVEN_PORTS.read_text("ascii").split()[0])
        for port in random.sample(range(max(lowest_given - _PORTS_BELOW, 1024), lowest_given), _PORT_TRIES):
            with contextlib.suppress(OSError), socket.socket() as listener:
                listener.bind((host, port))
                return port
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def start(
    command: Command, port: int, log: Path, grace_s: float = GRACE_S, withheld: Collection[str] = ()
) -> Running:
    """Start a server that is to listen on `port`, its output appended to `log`; does not wait for it.

    It has `grace_s` seconds to end when it is stopped. It gets neither the `withheld` variables of the
    environment nor API keys. Raises LaunchError where it cannot be run.
    """
    for directory in command.directories:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"{directory} cannot be created for the container: {error.strerror}") from None
    try:
        descriptor = open_log(log, append=True)
    except OSError as error:
        raise LaunchError(f"the server's log {log} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "ab") as output, ExitStack() as undo:
        supervisor = subprocess.Popen(
            child_process.command("loadgen_servers.process.supervisor"),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=child_process.environment(withheld),  # not the server's, which may run another Python
            process_group=0,  # Ctrl-C is for the client alone; not a session of its own, see supervisor.py
        )
        running = Running(command, port, log, grace_s, supervisor)
        undo.callback(running.end_all)
        running.begin(child_process.inherited(withheld))
        undo.pop_all()
    return running


@dataclass
class Running:
    """A server under a supervisor, which ends it if this process cannot; as a context manager it stops it."""

    command: Command
    port: int
    log: Path
    grace_s: float
    supervisor: subprocess.Popen[bytes]
    _first: psutil.Process | None = field(default=None, init=False)
    _seen: list[psutil.Process] = field(default_factory=list, init=False)
    _in_container: psutil.Process | None = field(default=None, init=False)
    _unread: bytes = field(default=b"", init=False)
    _closed: bool = field(default=False, init=False)  # no more events will come
    _code: int | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.stop()
        except LaunchError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def begin(self, inherited: Mapping[str, str]) -> None:
        """Give the supervisor its assignment; raises LaunchError where the system refuses the command."""
        environment = {**inherited, **self.command.environment}
        assignment = Assignment(
            client=os.getpid(),
            argv=[os.fsencode(word) for word in self.command.argv],
            environment=[(os.fsencode(name), os.fsencode(value)) for name, value in environment.items()],
            grace_s=self.grace_s,
            end=list(self.command.end),
            kill=list(self.command.kill),
        )
        assert self.supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then no event comes either
            unsent = memoryview(msgspec.json.encode(assignment) + b"\n")
            while unsent:
                unsent = unsent[self.supervisor.stdin.write(unsent) :]
        event = self._next_event(_START_S)
        if isinstance(event, StartFailed):
            raise LaunchError(_start_failure(self.command.argv[0], event))
        if not isinstance(event, ServerStarted):
            raise LaunchError(
                f"the server's supervisor does not run: {' '.join(self.tail(1)) or 'no output'}"
            )
        with contextlib.suppress(psutil.NoSuchProcess):
            self._first = psutil.Process(event.pid)

    def pids(self) -> list[int]:
        """The live processes of the server, its first process first; of a container, those in it.

        [] before a container runs, and where its processes are not on this machine.
        """
        if self.command.root_pid:
            self._in_container = self._in_container or self._container_process()
            return [process.pid for process in tree(self._in_container)] if self._in_container else []
        supervised = self._supervised()
        if supervised:
            self._seen = supervised
        return [process.pid for process in supervised or filter(alive, self._seen)]

    def exit_code(self) -> int | None:
        """The exit code of the server's first process, negative for a signal; None while it runs."""
        while self._code is None and (event := self._next_event(0)):
            if isinstance(event, ServerEnded):
                self._code = event.code
        if self._code is None and self._closed:  # the supervisor was killed, and the first process with it
            self._kill_known()
            self._code = -signal.SIGKILL
        return self._code

    def tail(self, lines: int = 15) -> list[str]:
        """The last lines of the log that are not empty, clipped and made printable."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - _TAIL_BYTES))
                data = file.read(_TAIL_BYTES)
        except OSError:
            return []
        raw = data.decode(errors="replace").split("\n")
        if start and len(raw) > 1:
            raw = raw[1:]  # the first is not whole
        printable = filter(None, map(_printable, raw))
        return list(printable)[-lines:] if lines > 0 else []

    def stop(self) -> None:
        """End the server and its descendants, and wait until its port is free; a second call does nothing.

        Raises LaunchError where a process does not end or the port stays taken.
        """
        if self.supervisor.returncode is not None:
            return
        self.end_all()
        if left := self._known():
            pids = ", ".join(str(process.pid) for process in left)
            raise LaunchError(
                f"the server's processes {pids} do not end: see what blocks them, reset the GPU"
            )
        deadline = time.monotonic() + _PORT_S
        while not _free(self.port):
            if time.monotonic() > deadline:
                raise LaunchError(f"port {self.port} is still taken, by a process that is not the server's")
            time.sleep(_POLL_S)

    def end_all(self) -> None:
        """Have the supervisor end every process; kill them from here if it fails to."""
        self.supervisor.terminate()
        assert self.supervisor.stdin is not None
        assert self.supervisor.stdout is not None
        self.supervisor.stdin.close()
        try:
            self.supervisor.wait(self.grace_s + _MARGIN_S)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()
            self.supervisor.wait()
        except KeyboardInterrupt:
            self.supervisor.terminate()  # the second time: without grace
            raise
        self.exit_code()
        if self.supervisor.returncode != 0:
            self._kill_known()
        self._closed = True
        self.supervisor.stdout.close()

    def _next_event(self, seconds: float) -> Event | None:
        """The supervisor's next event; None if none comes in time or the supervisor is gone."""
        assert self.supervisor.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            if self._closed:
                return None
            waiting = select.poll()
            waiting.register(self.supervisor.stdout, select.POLLIN)
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            more = self.supervisor.stdout.read(1 << 12)
            self._closed = not more
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        event: Event = msgspec.json.decode(line, type=Event)
        return event

    def _supervised(self) -> list[psutil.Process]:
        """The descendants of the supervisor, which adopts orphans."""
        if self.supervisor.returncode is not None:
            return []
        try:
            descendants = tree(psutil.Process(self.supervisor.pid))[1:]
        except psutil.NoSuchProcess:  # collected just now by another thread
            return []
        return sorted(descendants, key=lambda process: process != self._first)

    def _known(self) -> list[psutil.Process]:
        """The server's live processes that are known here: seen before, or of its process group."""
        first = self._first
        if first is None:
            return []
        processes = {process: None for process in [first, *self._seen] if alive(process)}
        # A zombie keeps its pid, and so does a group with members; otherwise the pid may have been reused.
        if first.is_running() or not psutil.pid_exists(first.pid):
            processes |= dict.fromkeys(_group(first.pid))
        return list(processes)

    def _kill_known(self) -> None:
        deadline = time.monotonic() + _COMMAND_S
        while (left := self._known()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(_POLL_S)
        if self.command.kill:
            child_process.output(self.command.kill, _COMMAND_S)

    def _container_process(self) -> psutil.Process | None:
        pid = child_process.output(self.command.root_pid, _COMMAND_S).strip()
        try:
            return psutil.Process(int(pid)) if pid.isdecimal() and int(pid) else None  # 0: not yet
        except psutil.NoSuchProcess:
            return None


def _group(leader: int) -> list[psutil.Process]:
    """The live processes of a process group, whose number is not reused while one of them is left."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getpgid(process.pid) == leader and alive(process):
                members.append(process)
    return members


def _free(port: int) -> bool:
    """Whether a server could listen on the port; lingering connections of an earlier one do not count."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _start_failure(executable: str, event: StartFailed) -> str:
    advice = {
        errno.ENOENT: "it does not exist: check the name, PATH, and the first line of a script",
        errno.EACCES: "permission denied: it must be an executable file (chmod +x)",
    }
    return f"{executable} cannot be run, {advice.get(event.number, event.why)}"


def _printable(line: str) -> str:
    """A line as a terminal would show it: without escapes, a progress bar in its last state."""
    shown = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2].expandtabs(4)
    shown = "".join(c if c.isprintable() else "\ufffd" for c in shown[: 2 * _LINE_CHARACTERS]).rstrip()
    return shown if len(shown) <= _LINE_CHARACTERS else f"{shown[: _LINE_CHARACTERS - 1]}…"
