"""Servers in the place of real ones: commands run as they do, in virtual time and within the process.

Nothing listens, no process is forked, and no pause takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pytest

from fakes.scripted_server import Answer, Asked
from fakes.virtual_network import PORT, VirtualServer
from fakes.virtual_run import BASE_URL, run_on
from fakes.virtual_servers import EngineServer
from fakes.virtual_time import VirtualTime
from loadgen.host import environment
from loadgen.run import embedded_engine
from loadgen.transport.sending import sender
from loadgen_servers.engine import cli as engine_cli
from loadgen_servers.process.embedded import Listening


def _run_on(server: VirtualServer, patch: pytest.MonkeyPatch) -> None:
    """Have every run of this process on a virtual server, and nothing of this machine in it."""
    run_on(server, patch)
    patch.setattr(sender, "_MOST_READY", 64)  # no time passes while a body is built
    patch.setattr(environment, "read_throttling_state", environment.ThrottlingState)


class VirtualServing:
    """A virtual server, given or made of its script, with all runs of the process on it.

    A context manager that stands where a `ScriptedServer` would.
    """

    base_url, port = BASE_URL, PORT

    def __init__(self, server: VirtualServer | Callable[[Asked], Answer]) -> None:
        self.server = server if isinstance(server, VirtualServer) else VirtualServer(server)
        self._patch = pytest.MonkeyPatch()

    @property
    def asked(self) -> list[Asked]:
        """Every request so far."""
        return self.server.asked

    def __enter__(self) -> Self:
        _run_on(self.server, self._patch)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


class _Latest:
    """The virtual server that was begun last; all have one clock."""

    def __init__(self, heed: Callable[[Asked], None]) -> None:
        self.time, self.heed = VirtualTime(), heed
        self.server: VirtualServer | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def begin(self, flags: Sequence[str]) -> None:
        """Begin an embedded engine."""
        flags = ["--preset", engine_cli.parser().get_default("preset"), *flags]
        self.server = EngineServer(lambda _: Answer([]), flags=flags, time=self.time, heed=self.heed)


@contextmanager
def virtual_engines(heed: Callable[[Asked], None] = lambda asked: None) -> Iterator[None]:
    """Have each run that starts an embedded engine take place on a virtual one, which calls `heed`."""
    latest: Any = _Latest(heed)

    class Embedded:
        """As the real one, which is a process."""

        def __init__(self, arguments: Sequence[str]) -> None:
            self.arguments = arguments

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def begin(self) -> None:
            latest.begin(self.arguments)

        def listening(self) -> Listening:
            return Listening(BASE_URL)

    with pytest.MonkeyPatch.context() as patch:
        _run_on(latest, patch)
        patch.setattr(embedded_engine, "Embedded", Embedded)
        yield
