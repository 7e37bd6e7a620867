"""Port server: HTTP at a port of this machine, by a few threads that answer while a run is measured."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from loadgen.base.errors import UsageError

_POLL_S = 0.1  # how soon the thread sees that it is to stop


class PortServer(ThreadingHTTPServer):
    """A server at the HOST:PORT of a flag; raises UsageError if it cannot listen there.

    It answers between `serve` and `stop`: what comes at other times waits in the kernel. Of more than
    `most_open` connections the oldest, which may never end, makes room.
    """

    request_queue_size = 128

    def __init__(
        self, flag: str, address: str, handler: type[BaseHTTPRequestHandler], most_open: int
    ) -> None:
        host, _, port = address.rpartition(":")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.address, self._most_open = address, most_open
        self._open: list[socket.socket] = []  # the oldest first
        self._accepting: threading.Thread | None = None
        try:
            super().__init__((host.strip("[]"), int(port)), handler)
        except OSError as error:
            why = f"cannot listen there ({error.strerror or error})"
            raise UsageError(f"{flag} {address}: {why}: choose another port or address") from None

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, which may take seconds."""
        TCPServer.server_bind(self)

    def serve(self) -> None:
        """Answer in threads until `stop`; call it after the last fork."""
        self._answering = ThreadPoolExecutor(self._most_open, "telemetry")
        self._accepting = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """Answer no more, and end all connections and threads; nothing if nothing is answered."""
        if self._accepting is not None:
            self.shutdown()
            self._accepting.join()
            self._accepting = None
            for connection in tuple(self._open):
                _end(connection)
            self._answering.shutdown()

    def close(self) -> None:
        """Stop, and give the port back; a second call does nothing."""
        self.stop()
        HTTPServer.server_close(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Have a thread answer a connection."""
        self._open.append(request)
        if len(self._open) > self._most_open:
            _end(self._open.pop(0))
        self._answering.submit(self.process_request_thread, request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, which is open no more."""
        with suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing where a client goes away: the terminal is the run's."""


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # its thread ends by it
        connection.shutdown(socket.SHUT_RDWR)
