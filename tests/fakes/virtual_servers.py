"""The embedded engine and the null server in virtual time: their own code, without a socket or a wait."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fakes.scripted_server import Answer, Asked
from fakes.virtual_network import Connection, VirtualServer
from loadgen_servers.engine import cli as engine_flags
from loadgen_servers.engine.server import Engine
from loadgen_servers.http_server import Request
from loadgen_servers.null.messages import Shape
from loadgen_servers.null.server import NullServer

MS = 1_000_000
_BENCH = "bench/1024x50"  # 20 ms a step
_HEADER = re.compile(r"^([^:\s]+): *(.*?)\r?$", re.M)


def request_of(asked: Asked, received_ns: int) -> Request:
    """A request as the servers' own parser gives it."""
    method, path = asked.head.split(" ")[:2]
    close = re.search(r"^connection: *close\r?$", asked.head, re.M | re.I) is not None
    headers = {name.lower(): value for name, value in _HEADER.findall(asked.head)}
    return Request(method, path, headers, asked.body, received_ns, close)


class _Client:
    """A connection as a server has it; it always has room."""

    pending = b""

    def __init__(self, server: VirtualServer, connection: Connection) -> None:
        self.server, self.connection = server, connection

    def send(self, data: bytes) -> bool:
        self.server.write(self.connection, data)
        return not self.connection.closed


@dataclass
class EngineServer(VirtualServer):
    """The embedded engine, as its flags set it up."""

    flags: Sequence[str] = ()
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        options = engine_flags.parser().parse_args(["--preset", _BENCH, *self.flags])
        self.engine = engine_flags.engine_of(options)(cast(Any, self), now_ns=self.time.now_ns)
        self._clients: dict[int, _Client] = {}
        self._begins = False

    def answer(self, connection: Connection, asked: Asked) -> None:
        """Give a request to the engine, which begins a step with all that come at this instant."""
        client = self._clients.setdefault(connection.number, _Client(self, connection))
        self.engine.handle(cast(Any, client), request_of(asked, self.time.ns))
        if self.engine.step is None and not self._begins:
            self._begins = True
            self.time.after(0, self._begin)

    def left_by(self, connection: Connection) -> None:
        """Have the engine abort what it had for a client that is gone."""
        client = self._clients.pop(connection.number, None)
        if client is not None:
            self.engine.gone(cast(Any, client))

    def _begin(self) -> None:
        self._begins = False
        if self.engine.step is None:
            self.engine.step = self.engine.scheduler.begin(self.time.ns)
            self._await_step()

    def _await_step(self) -> None:
        step, wakes_ns = self.engine.step, self.engine.scheduler.wakes_ns()
        if step is not None:
            self.time.after(step.end_ns - self.time.ns, self._end_step)
        elif wakes_ns is not None:
            self.time.after(wakes_ns - self.time.ns, self._begin)

    def _end_step(self) -> None:
        assert self.engine.step is not None
        self.engine.end_step(self.engine.step)
        self._await_step()

    # As the engine's port.

    def drop(self, client: Any) -> None:
        """Forget a client."""
        self._clients.pop(client.connection.number, None)

    def close_when_sent(self, client: Any) -> None:
        """Close a connection, as its client wished."""
        self.drop(client)
        self.leave(client.connection, reset=False)


def engine_server(*flags: str) -> EngineServer:
    """The embedded engine at 20 ms a step unless a preset says otherwise."""
    return EngineServer(lambda _: Answer([]), flags=flags)


def null_server(ttft_ms: float = 20, interval_ms: float = 20, shapes: Sequence[Shape] = ()) -> VirtualServer:
    """The null server, which has no /metrics; each stream has a clock of its own."""

    def script(asked: Asked) -> Answer:
        server = NullServer(cast(Any, _NoPort()), round(ttft_ms * MS), round(interval_ms * MS), shapes)
        sent: list[bytes] = []
        server.handle(cast(Any, _Sent(sent)), request_of(asked, 0))
        if not server.streams:
            return Answer(sent)
        first, *others = (write.data % ((0,) * write.messages) for write in server.streams[0].writes)
        pieces = [piece for data in others for piece in (interval_ms / 1e3, data)]
        return Answer([ttft_ms / 1e3, first, *pieces])

    return VirtualServer(script)


class _NoPort:
    nagle = False


class _Sent:
    """A connection whose server's bytes are kept."""

    def __init__(self, sent: list[bytes]) -> None:
        self.sent = sent

    def send(self, data: bytes) -> bool:
        self.sent.append(data)
        return True
