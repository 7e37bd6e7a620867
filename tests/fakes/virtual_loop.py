"""An asyncio event loop in virtual time: its timers jump, and its connections lead to a `VirtualServer`."""

from __future__ import annotations

import asyncio
import math
import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any

from fakes.virtual_network import Connection, VirtualServer
from fakes.virtual_time import NEVER_NS

READ_BYTES = 262_144  # asyncio's


class VirtualSelector(selectors.BaseSelector):
    """A selector of real files that never waits for them: it lets virtual time pass instead."""

    def __init__(self, server: VirtualServer) -> None:
        self.server, self.time, self.real = server, server.time, selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self.real.get_map()

    def close(self) -> None:
        self.real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if found := self.real.select(0):
            return found
        if timeout == 0:
            self.server.pass_poll()
        elif not self.time.step(NEVER_NS if timeout is None else self.time.ns + math.ceil(timeout * 1e9)):
            return self.real.select(None if timeout is None else 0)
        return self.real.select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a server's virtual time."""

    def __init__(self, server: VirtualServer) -> None:
        self.server = server
        super().__init__(VirtualSelector(server))

    def time(self) -> float:
        return self.server.time.ns / 1e9

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], *_: Any, **__: Any
    ) -> tuple[VirtualTransport, asyncio.Protocol]:
        """Connect to the server, whatever the address."""
        made: asyncio.Future[Connection] = self.create_future()

        def answered(connection: Connection) -> None:
            if not made.done():
                made.set_result(connection)

        connection = self.server.connect(answered)
        try:
            await made
        except asyncio.CancelledError:
            connection.close()
            raise
        if connection.refused:
            raise ConnectionRefusedError(111, "Connect call failed")
        protocol = protocol_factory()
        transport = VirtualTransport(self, connection, protocol)
        protocol.connection_made(transport)
        return transport, protocol


class _Mirror(socket.socket):
    """A real file, which reports what the server's kernel does of a connection."""

    def __init__(self, connection: Connection, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self.connection = connection

    def getsockopt(self, level: int, option: int, length: int = 0, /) -> Any:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO):
            return self.connection.server.tcp_info(self.connection)
        return super().getsockopt(level, option, length)


class VirtualTransport(asyncio.Transport):
    """A connection's end as asyncio has it.

    httpcore asks a real file whether an idle connection was closed: `mirror` is readable when this is.
    """

    def __init__(self, loop: VirtualLoop, connection: Connection, protocol: asyncio.Protocol) -> None:
        self.loop, self.connection, self.protocol = loop, connection, protocol
        self.reading = True
        self.closing = self.ended = self.mirrors = False
        near, self.mirrored = socket.socketpair()
        self.mirror = _Mirror(connection, near.detach())
        super().__init__({"socket": self.mirror})
        connection.on_change = self._changed

    def _changed(self) -> None:
        if self.closing:
            return
        connection = self.connection
        if self.reading and connection.unread:
            data, _ = connection.read(READ_BYTES)
            self.loop.call_soon(self.protocol.data_received, data)
        if self.reading and connection.broken and not connection.unread:
            self._lose(ConnectionResetError(104, "Connection reset by peer"))
        elif self.reading and connection.ended and not connection.unread and not self.ended:
            self.ended = True
            self.loop.call_soon(self.protocol.eof_received)
        if not self.closing and connection.readable != self.mirrors:
            self.mirrors = connection.readable
            if self.mirrors:
                self.mirrored.send(b"x")
            else:
                self.mirror.recv(1)

    def _lose(self, error: Exception | None) -> None:
        if not self.closing:
            self.closing = True
            self.connection.close()
            self.mirrored.close()
            self.loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        self.protocol.connection_lost(error)
        self.mirror.close()

    def write(self, data: Any) -> None:
        if self.closing:
            return
        try:
            self.connection.write(bytes(data))
        except OSError as error:
            self._lose(error)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self._changed()

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self._lose(None)

    def close(self) -> None:
        self._lose(None)
