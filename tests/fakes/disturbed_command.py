"""A command in a fork of this process, disturbed as one of its operations begins.

Operations are what changes a file below `runs`, and each request: `events` has them in their order, as
"os.rename runs/…" and "request 2/3", the third of the second run.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from fakes.scripted_server import Answer, Asked
from fakes.virtual_servers import EngineServer
from fakes.virtual_serving import VirtualServing, virtual_engines
from loadgen import cli
from loadgen.base import clock
from loadgen.features.sensors import sensor_discovery
from loadgen.run import launched_server
from loadgen_servers.process import running

_PATH_OF = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "open": 0}  # of an audit event's arguments
_WRITES = os.O_WRONLY | os.O_RDWR
SLOW = "jetson-thor/qwen3-8b-bf16"  # of an engine to which few requests are sent
_JOURNAL = "open */journal.bin"
_PATCH = pytest.MonkeyPatch()  # of a fork, which undoes nothing
Heed = Callable[[Asked], None]


class Ended(msgspec.Struct, frozen=True):
    """How a command ended, what it printed, and its operations; `!` stands before the disturbed one."""

    code: int
    out: str
    err: str
    events: tuple[str, ...]

    @property
    def runs(self) -> int:
        """How many runs it began."""
        return len({event for event in self.events if fnmatch(event, _JOURNAL)})


class Disturbance:
    """What happens to an operation, the last of some that match these patterns one after another."""

    def __init__(self, *stage: str) -> None:
        self.left, self.began = list(stage), False

    def heed(self, event: str) -> bool:
        """Note an operation that begins; return whether it is disturbed, as all that follow are."""
        if self.left and fnmatch(event, self.left[0]):
            del self.left[0]
            self.began = not self.left
            return self.began
        return False

    def act(self, event: str) -> None:
        """Disturb an operation."""


class Kill(Disturbance):
    """kill -9."""

    def act(self, event: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class CtrlC(Disturbance):
    """Ctrl-C, and once more at the next operation on a file."""

    times = 2

    def act(self, event: str) -> None:
        if self.times == 2 or (self.times and not event.startswith("request")):  # after the first is heard
            self.times -= 1
            os.kill(os.getpid(), signal.SIGINT)


class Terminate(Disturbance):
    """SIGTERM, once."""

    def act(self, event: str) -> None:
        self.began = False
        os.kill(os.getpid(), signal.SIGTERM)


class FullDisk(Disturbance):
    """No file can be begun, renamed or made any more."""

    def act(self, event: str) -> None:
        if not event.startswith(("os.remove", "request")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ClockStep(Disturbance):
    """The wall clock goes back by an hour; the next run is killed."""

    def act(self, event: str) -> None:
        class Back(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(UTC) - timedelta(hours=1)

        if fnmatch(event, _JOURNAL):
            os.kill(os.getpid(), signal.SIGKILL)
        _PATCH.setattr(clock, "datetime", Back)


class ServerDeath(Disturbance):
    """The server that the command found there answers no more."""

    def act(self, event: str) -> None:
        SERVERS[-1].refuses = SERVERS[-1].died = True


SERVERS: list[EngineServer] = []


@contextmanager
def attached(heed: Heed) -> Iterator[None]:
    """A virtual engine at `BASE_URL`, which no run starts."""
    SERVERS.append(EngineServer(lambda _: Answer([]), flags=["--preset", SLOW], heed=heed))
    with VirtualServing(SERVERS[-1]):
        yield


def taking(port: int) -> Callable[[Heed], AbstractContextManager[None]]:
    """Real servers, for which a port seems free first that another has by the time they want it."""

    @contextmanager
    def launching(_: Heed) -> Iterator[None]:
        given = [port, port]
        _PATCH.setattr(launched_server, "free_port", lambda: given.pop() if given else running.free_port())
        launched_server._POLL_S = sensor_discovery._IDLE_S = 0.02
        yield

    return launching


def play(
    words: Sequence[str],
    place: Path,
    disturbance: Disturbance | None = None,
    on: Callable[[Heed], AbstractContextManager[None]] = virtual_engines,
) -> Ended:
    """Run a command in a directory, on virtual engines or other servers, and wait until it has ended."""
    files = [place / f".{name}" for name in ("out", "err", "events")]
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _run(words, place, files, disturbance or Disturbance(), on)
        os._exit(99)
    _, status = os.waitpid(child, 0)
    out, err, events = (path.read_text("utf-8") for path in files)
    return Ended(os.waitstatus_to_exitcode(status), out, err, tuple(events.splitlines()))


def _run(
    words: Sequence[str],
    place: Path,
    files: Sequence[Path],
    disturbance: Disturbance,
    on: Callable[[Heed], AbstractContextManager[None]],
) -> NoReturn:
    os.chdir(place)
    out, err, events = (path.open("w", encoding="utf-8") for path in files)
    sys.stdout, sys.stderr, sys.argv = out, err, ["loadgen", *words]
    runs = asked = 0

    def note(event: str) -> None:
        nonlocal runs, asked
        mark = "!\n" if disturbance.heed(event) else ""
        os.write(events.fileno(), f"{mark}{event}\n".encode())
        if fnmatch(event, _JOURNAL):
            runs, asked = runs + 1, 0
        if disturbance.began:
            disturbance.act(event)

    def audit(event: str, given: tuple[Any, ...]) -> None:
        if event in _PATH_OF and (event != "open" or (isinstance(given[2], int) and given[2] & _WRITES)):
            path = given[_PATH_OF[event]]
            if isinstance(path, str | os.PathLike) and str(path).startswith("runs"):
                note(f"{event} {path}")

    def heed(request: Asked) -> None:
        nonlocal asked
        if request.head.startswith("POST"):
            asked += 1
            note(f"request {runs}/{asked}")

    sys.addaudithook(audit)
    with on(heed):
        cli.run()
