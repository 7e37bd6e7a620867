"""A virtual server that closes idle connections, as uvicorn does after five seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fakes.virtual_network import Connection, VirtualServer


@dataclass
class KeepAliveServer(VirtualServer):
    """Closes a connection that was idle for so long after an answer."""

    keep_alive_s: float = 5.0

    def receive(self, connection: Connection, data: bytes) -> None:
        """Take what a client sent; without data an answer is over."""
        super().receive(connection, data)
        if not data:
            idle = partial(self._close_idle, connection, self._on_connection[connection.number])
            self.time.after(round(self.keep_alive_s * 1e9), idle)

    def _close_idle(self, connection: Connection, answered: int) -> None:
        if self._on_connection[connection.number] == answered and connection.number not in self._gone:
            self.leave(connection, reset=False)
