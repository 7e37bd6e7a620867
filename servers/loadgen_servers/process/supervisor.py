"""Supervisor: a process that starts a server and ends all of its processes, even when the client dies.

`python -m loadgen_servers.process.supervisor` reads an `Assignment`, one line of JSON, from standard input
and reports events on standard output, one line of JSON each: `ServerStarted`, `StartFailed`, `ServerEnded`.
The server writes to the supervisor's standard error. It is stopped when standard input ends, on SIGTERM, and
when the client is gone. The supervisor ends once no descendant of the server is left.

All of it is in a process group of its own, but in the client's session: where sched_autogroup is on, Linux
shares the CPU out between sessions, and on a machine with few cores an engine with spinning threads would
starve a client of another session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import psutil

from loadgen_servers.child_process import share_cores_evenly

_PRCTL: Callable[[int, int], int] = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: 0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LEFTOVERS_S = 5.0  # for processes that outlive the first one, before they are killed
_COMMAND_S = 30.0  # for a container engine's command
_POLL_S = 0.1  # there is no signal for the end of a grandchild
_CLIENT_POLL_S = 1.0  # for the end of the client, where the system has no pidfd


class Assignment(msgspec.Struct):
    """The command to run, for which client, and how to end it; bytes, as an environment may not be UTF-8."""

    client: int  # its pid
    argv: list[bytes]
    environment: list[tuple[bytes, bytes]]
    grace_s: float
    end: list[str] = []
    kill: list[str] = []


class ServerStarted(msgspec.Struct, tag="started"):
    """The server's first process is running."""

    pid: int


class StartFailed(msgspec.Struct, tag="refused"):
    """The system did not run the command."""

    number: int  # errno; 0: not an error of the system
    why: str


class ServerEnded(msgspec.Struct, tag="ended"):
    """The server's first process has ended; a negative code is the signal that ended it."""

    code: int


Event = ServerStarted | StartFailed | ServerEnded


class _Signals:
    """What a supervisor waits for: the end of a child, SIGTERM, the end of its client."""

    def __init__(self) -> None:
        self.terminations = 0  # times SIGTERM came
        self.stop = False
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        # Handlers that do nothing rather than SIG_IGN, which the server would inherit.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    def watch(self, client: int) -> None:
        """Stop from now on when standard input ends or the client does."""
        self._poll.register(0, select.POLLIN)
        self._client = client
        self._poll_s: float | None = _CLIENT_POLL_S
        # A fork of the client keeps the pipe open when the client is killed.
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._poll.register(os.pidfd_open(client), select.POLLIN)
                self._poll_s = None
        self.stop = os.getppid() != client

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something happens, at most `seconds`."""
        limits = [limit for limit in (seconds, self._poll_s) if limit is not None]
        for fd, _ in self._poll.poll(min(limits) * 1000 if limits else None):
            if fd == self._woken:
                self.terminations += os.read(fd, 4096).count(signal.SIGTERM)
            else:
                self._poll.unregister(fd)  # what has ended stays readable
                self.stop = True
        self.stop = self.stop or self.terminations > 0 or os.getppid() != self._client


class _Supervision:
    """One server, from its start until none of its processes is left."""

    def __init__(self, assignment: Assignment, events: _Signals) -> None:
        self._assignment, self._events = assignment, events
        self._children: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        """Start the server, wait until it ends or is to be stopped, end what is left."""
        try:
            server = self._start_server()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            number = (error.errno or 0) if isinstance(error, OSError) else 0
            _report(StartFailed(number, os.strerror(number) if number else str(error)))
            return
        _report(ServerStarted(server.pid))
        self._reap()
        while server.returncode is None and not self._events.stop:
            self._events.wait()
            self._reap()
        if server.returncode is None:
            if not self._run(self._assignment.end):
                server.terminate()
            self._until(lambda: server.returncode is not None, self._assignment.grace_s)
        # `docker run` may be gone while the container still runs.
        if killing := self._run(self._assignment.kill):
            self._until(lambda: killing.returncode is not None, _COMMAND_S)
            self._until(lambda: server.returncode is not None, _LEFTOVERS_S)
        self._clear(gently=server.returncode is not None)

    def _start_server(self) -> subprocess.Popen[bytes]:
        server = subprocess.Popen(
            self._assignment.argv,
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=dict(self._assignment.environment),
            process_group=0,
            preexec_fn=_tied_to(os.getpid()),  # there is no other thread here
        )
        self._children.append(server)
        return server

    def _run(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Start a container engine's command; None if there is no command, or it cannot be run."""
        if not command:
            return None
        quiet = subprocess.DEVNULL
        try:
            child = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, process_group=0)
        except OSError:
            return None
        self._children.append(child)
        return child

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for child in self._children:
                    if child.pid == ended[0] and child.returncode is None:
                        child.returncode = os.waitstatus_to_exitcode(ended[1])
                        if child is self._children[0]:
                            _report(ServerEnded(child.returncode))

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until it is done, `seconds` are over, or SIGTERM has come twice."""
        deadline = time.monotonic() + seconds
        while not done() and self._events.terminations < 2 and (left := deadline - time.monotonic()) > 0:
            self._events.wait(min(left, _POLL_S))
            self._reap()

    def _clear(self, gently: bool) -> None:
        """End what is left: SIGTERM first, since a killed worker leaks shared memory; then SIGKILL."""
        if gently:
            _each(self._left(), psutil.Process.terminate)
            self._until(lambda: not self._left(), min(_LEFTOVERS_S, self._assignment.grace_s))
        if sys.platform != "linux":  # no subreaper: processes whose parent has ended are not found below
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._children[0].pid, signal.SIGKILL)
        while left := self._left():
            _each(left, psutil.Process.kill)
            self._events.wait(_POLL_S)

    def _left(self) -> list[psutil.Process]:
        self._reap()
        return psutil.Process().children(recursive=True)


def _each(processes: list[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            act(process)


def _report(event: Event) -> None:
    with contextlib.suppress(BrokenPipeError):  # the client is gone
        os.write(1, msgspec.json.encode(event) + b"\n")


def _tied_to(parent: int) -> Callable[[], None]:
    """Called in a child before it becomes the server: makes it die with its parent."""

    def tie() -> None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            os._exit(1)

    return tie


def main() -> None:
    """Supervise the server that standard input assigns, until none of its processes is left."""
    events = _Signals()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return
    share_cores_evenly()
    _PRCTL(_PR_SET_CHILD_SUBREAPER, 1)
    assignment = msgspec.json.decode(line, type=Assignment)
    events.watch(assignment.client)
    if not events.stop:
        _Supervision(assignment, events).run()


if __name__ == "__main__":
    main()
