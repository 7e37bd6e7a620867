"""Supervisor: a process that starts a server and leaves nothing of it behind, whatever becomes of its client.

`python -m loadgen_servers.process.supervisor` reads an `Assignment`, one line of JSON, from standard input
and says on standard output what happens, one line of JSON each: `Started`, `Refused` or `Ended`. The server
writes to the supervisor's standard error. It is stopped when standard input ends, on SIGTERM, and when
the client is gone. The supervisor ends once nothing is left that descends from the server.

Everything is of a process group of its own, and of the client's session: where sched_autogroup is on,
Linux weighs sessions against each other, and an engine whose threads spin would starve a client that is of
another session on a machine with few cores.
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

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LEFTOVERS_S = 5.0  # for what outlives the first process, before it is killed
_COMMAND_S = 30.0  # for a container engine to do as it is told
_LOOK_S = 0.1  # no signal tells that a grandchild has ended
_CLIENT_S = 1.0  # between looks for the client, where the system has no pidfd


class Assignment(msgspec.Struct):
    """What is to be run, for whom, and how it is ended; bytes, since an environment need not be UTF-8."""

    client: int  # its pid
    argv: list[bytes]
    environment: list[tuple[bytes, bytes]]
    grace_s: float
    end: list[str] = []
    kill: list[str] = []


class Started(msgspec.Struct, tag="started"):
    """The server's first process runs."""

    pid: int


class Refused(msgspec.Struct, tag="refused"):
    """The system would not run it."""

    number: int  # errno; 0: no error of the system
    why: str


class Ended(msgspec.Struct, tag="ended"):
    """The server's first process has ended; a negative code is the signal that ended it."""

    code: int


Word = Started | Refused | Ended


class _Events:
    """What can happen to a supervisor: a child ends, it is told to stop, its client is gone."""

    def __init__(self) -> None:
        self.asked = 0  # times SIGTERM came
        self.stop = False
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        # Handlers that do nothing, not SIG_IGN: that the server would inherit.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    def watch(self, client: int) -> None:
        """From now on, standard input's end and the client's say stop."""
        self._poll.register(0, select.POLLIN)
        self._client = client
        self._look_s: float | None = _CLIENT_S
        # A fork of the client holds the pipe open when the client is killed.
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._poll.register(os.pidfd_open(client), select.POLLIN)
                self._look_s = None
        self.stop = os.getppid() != client

    def wait(self, seconds: float | None = None) -> None:
        """Until something happens, or `seconds` are over."""
        limits = [limit for limit in (seconds, self._look_s) if limit is not None]
        for fd, _ in self._poll.poll(min(limits) * 1000 if limits else None):
            if fd == self._woken:
                said = os.read(fd, 4096)
                self.asked += said.count(signal.SIGTERM)
            else:
                self._poll.unregister(fd)  # an end stays readable
                self.stop = True
        self.stop = self.stop or self.asked > 0 or os.getppid() != self._client


class _Supervision:
    """One server, from its start until nothing of it is left."""

    def __init__(self, assignment: Assignment, events: _Events) -> None:
        self._assignment, self._events = assignment, events
        self._children: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        """Start the server, wait until it ends or is to end, clear everything away."""
        try:
            server = self._start_server()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            number = (error.errno or 0) if isinstance(error, OSError) else 0
            _say(Refused(number, os.strerror(number) if number else str(error)))
            return
        _say(Started(server.pid))
        self._reap()
        while server.returncode is None and not self._events.stop:
            self._events.wait()
            self._reap()
        if server.returncode is None:
            if not self._run(self._assignment.end):
                server.terminate()
            self._until(lambda: server.returncode is not None, self._assignment.grace_s)
        # The client of a container engine may be gone, and the container not.
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
        """Begin a container engine's command; None where there is none, or it cannot be run."""
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
        """Collect every child that has ended, those it was made the parent of too."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                for child in self._children:
                    if child.pid == found[0] and child.returncode is None:
                        child.returncode = os.waitstatus_to_exitcode(found[1])
                        if child is self._children[0]:
                            _say(Ended(child.returncode))

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until it is done, `seconds` are over, or SIGTERM has come twice."""
        deadline = time.monotonic() + seconds
        while not done() and self._events.asked < 2 and (left := deadline - time.monotonic()) > 0:
            self._events.wait(min(left, _LOOK_S))
            self._reap()

    def _clear(self, gently: bool) -> None:
        """End what is left: asked first, since a worker that is killed leaks shared memory; then killed."""
        if gently:
            _each(self._left(), psutil.Process.terminate)
            self._until(lambda: not self._left(), min(_LEFTOVERS_S, self._assignment.grace_s))
        if sys.platform != "linux":  # no subreaper there: those whose parent has ended are not found below
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._children[0].pid, signal.SIGKILL)
        while left := self._left():
            _each(left, psutil.Process.kill)
            self._events.wait(_LOOK_S)

    def _left(self) -> list[psutil.Process]:
        self._reap()
        return psutil.Process().children(recursive=True)


def _each(processes: list[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            act(process)


def _say(word: Word) -> None:
    with contextlib.suppress(BrokenPipeError):  # the client is gone: nobody to tell
        os.write(1, msgspec.json.encode(word) + b"\n")


def _prctl() -> Callable[[int, int], int] | None:
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _tied_to(parent: int) -> Callable[[], None]:
    """What a child does before it becomes the server, so that it dies with its parent."""
    prctl = _prctl()

    def tie() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            os._exit(1)

    return tie


def _read_line() -> bytes:
    """The first line of standard input, b"" when it ends before."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1 << 16)
        if not more:
            return b""
        line += more
    return line


def main() -> None:
    """Supervise the server that standard input names, until nothing of it is left."""
    events = _Events()
    line = _read_line()
    if not line:
        return
    share_cores_evenly()
    if prctl := _prctl():
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    assignment = msgspec.json.decode(line, type=Assignment)
    events.watch(assignment.client)
    if not events.stop:
        _Supervision(assignment, events).run()


if __name__ == "__main__":
    main()
