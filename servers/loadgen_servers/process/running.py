"""Running: a server that was started here, its processes, its log, and its end."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil

from loadgen_servers import child_process
from loadgen_servers.launch.order import Command, LaunchError
from loadgen_servers.process.port_owner import alive, tree
from loadgen_servers.process.supervisor import Assignment, Ended, Refused, Started, Word

GRACE_S = 30.0  # vLLM and SGLang finish what they are asked before they end
_START_S = 30.0  # for the supervisor, a small Python process, on a busy machine
_MARGIN_S = 60.0  # beyond the grace, for the supervisor to clear everything away
_PORT_S = 5.0
_ASK_S = 10.0
_LOOK_S = 0.05
_TAIL_BYTES = 1 << 18
_LINE_CHARACTERS = 200
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host` that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


def start(
    command: Command, port: int, log: Path, grace_s: float = GRACE_S, withheld: Collection[str] = ()
) -> Running:
    """Start a server that is to listen on `port`, its output appended to `log`; it is not waited for.

    It has `grace_s` seconds to end when it is stopped; variables of the environment that are `withheld` it
    does not get, nor API keys. Raises LaunchError where it cannot be run.
    """
    try:
        # Engines print keys, prompts and answers.
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(f"the server's log {log} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "ab") as output, ExitStack() as undo:
        supervisor = subprocess.Popen(
            child_process.command("loadgen_servers.process.supervisor"),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=child_process.environment(withheld),  # its own: the server may be of another Python
            process_group=0,  # Ctrl-C is for the client alone; and no session, see supervisor.py
        )
        running = Running(command, port, log, grace_s, supervisor)
        undo.callback(running.dismiss)
        running.begin(child_process.inherited(withheld))
        undo.pop_all()
    return running


@dataclass
class Running:
    """A server under a supervisor, which ends it if this process cannot; leaving it as a context stops it."""

    command: Command
    port: int
    log: Path
    grace_s: float
    supervisor: subprocess.Popen[bytes]
    _first: psutil.Process | None = field(default=None, init=False)
    _seen: list[psutil.Process] = field(default_factory=list, init=False)
    _in_container: psutil.Process | None = field(default=None, init=False)
    _said: bytes = field(default=b"", init=False)
    _silent: bool = field(default=False, init=False)  # it has said its last word
    _code: int | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except LaunchError as trouble:
            if error is None:
                raise
            error.add_note(str(trouble))

    def begin(self, inherited: Mapping[str, str]) -> None:
        """Hand the supervisor its assignment; raises LaunchError where the system refuses the command."""
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
        with contextlib.suppress(BrokenPipeError):  # then it says nothing either
            unsent = memoryview(msgspec.json.encode(assignment) + b"\n")
            while unsent:
                unsent = unsent[self.supervisor.stdin.write(unsent) :]
        word = self._hear(_START_S)
        if isinstance(word, Refused):
            raise LaunchError(_refusal(self.command.argv[0], word))
        if not isinstance(word, Started):
            raise LaunchError(f"the server's supervisor does not run: {' '.join(self.tail(1)) or 'no word'}")
        with contextlib.suppress(psutil.NoSuchProcess):
            self._first = psutil.Process(word.pid)

    def pids(self) -> list[int]:
        """The live processes of the server, its first process first; of a container, those in it.

        [] before a container runs, and where its processes are not this machine's.
        """
        if self.command.root_pid:
            self._in_container = self._in_container or self._ask_container()
            return [process.pid for process in tree(self._in_container)] if self._in_container else []
        supervised = self._supervised()
        if supervised:
            self._seen = supervised
        return [process.pid for process in supervised or filter(alive, self._seen)]

    def exit_code(self) -> int | None:
        """How the server's first process ended, minus the signal where it was one; None: it runs."""
        while self._code is None and (word := self._hear(0)):
            if isinstance(word, Ended):
                self._code = word.code
        if self._code is None and self._silent:  # the supervisor was killed, and the first process with it
            self._kill_known()
            self._code = -signal.SIGKILL
        return self._code

    def tail(self, lines: int = 15) -> list[str]:
        """The last lines of the log that say something, clipped and printable, whatever is in it."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - _TAIL_BYTES))
                data = file.read(_TAIL_BYTES)
        except OSError:
            return []
        raw = data.decode(errors="replace").split("\n")
        if start and len(raw) > 1:
            raw = raw[1:]  # it begins somewhere in a line
        printable = filter(None, map(_printable, raw))
        return list(printable)[-lines:] if lines > 0 else []

    def stop(self) -> None:
        """End the server and all that descends from it, and wait until its port is free; again does nothing.

        Raises LaunchError where a process does not end or the port stays taken.
        """
        if self.supervisor.returncode is not None:
            return
        self.dismiss()
        if left := self._known():
            pids = ", ".join(str(process.pid) for process in left)
            raise LaunchError(f"the server's processes {pids} do not end: see what holds them, reset the GPU")
        deadline = time.monotonic() + _PORT_S
        while not _free(self.port):
            if time.monotonic() > deadline:
                raise LaunchError(f"port {self.port} is still taken, by a process that is not the server's")
            time.sleep(_LOOK_S)

    def dismiss(self) -> None:
        """Have the supervisor end everything, and do so oneself where it does not."""
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
        self._silent = True
        self.supervisor.stdout.close()

    def _hear(self, seconds: float) -> Word | None:
        """The supervisor's next word; None when none comes in time or it is gone."""
        assert self.supervisor.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._said:
            if self._silent:
                return None
            waiting = select.poll()
            waiting.register(self.supervisor.stdout, select.POLLIN)
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            more = self.supervisor.stdout.read(1 << 12)
            self._silent = not more
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        word: Word = msgspec.json.decode(line, type=Word)
        return word

    def _supervised(self) -> list[psutil.Process]:
        """What descends from the supervisor, whose children orphans become."""
        if self.supervisor.returncode is not None:
            return []
        try:
            found = tree(psutil.Process(self.supervisor.pid))[1:]
        except psutil.NoSuchProcess:  # collected just now, where another thread asks
            return []
        return sorted(found, key=lambda process: process != self._first)

    def _known(self) -> list[psutil.Process]:
        """What lives of the server, as far as it is known here: seen before, or of its group."""
        first = self._first
        if first is None:
            return []
        known = {process: None for process in [first, *self._seen] if alive(process)}
        # A zombie keeps its number, and so does a group with members; else it may be somebody else's.
        if first.is_running() or not psutil.pid_exists(first.pid):
            known |= dict.fromkeys(_group(first.pid))
        return list(known)

    def _kill_known(self) -> None:
        deadline = time.monotonic() + _ASK_S
        while (left := self._known()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(_LOOK_S)
        if self.command.kill:
            _asked(self.command.kill)

    def _ask_container(self) -> psutil.Process | None:
        pid = _asked(self.command.root_pid)
        try:
            return psutil.Process(int(pid)) if pid.isdecimal() and int(pid) else None  # 0: not yet
        except psutil.NoSuchProcess:
            return None


def _asked(command: Sequence[str]) -> str:
    """What a container engine answers; "" where it does not."""
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_S,
            check=False,
            env=child_process.inherited(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode(errors="replace").strip()


def _group(leader: int) -> list[psutil.Process]:
    """The live processes of a group; its number is not given again while one of them is left."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getpgid(process.pid) == leader and alive(process):
                found.append(process)
    return found


def _free(port: int) -> bool:
    """Whether a server could listen there; the connections of an earlier one do not matter."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _refusal(executable: str, word: Refused) -> str:
    advice = {
        errno.ENOENT: "it does not exist: check the name, PATH, and the first line of a script",
        errno.EACCES: "permission denied: it must be a file that may be executed (chmod +x)",
    }
    return f"{executable} cannot be run, {advice.get(word.number, word.why)}"


def _printable(line: str) -> str:
    """One line as a terminal would show it: without escapes, a progress bar in its last state."""
    shown = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2].expandtabs(4)
    shown = "".join(c if c.isprintable() else "\ufffd" for c in shown[: 2 * _LINE_CHARACTERS]).rstrip()
    return shown if len(shown) <= _LINE_CHARACTERS else f"{shown[: _LINE_CHARACTERS - 1]}…"
