"""Span receiver: listens for what a server exports by OTLP over HTTP, in a thread of the decoding process."""

from __future__ import annotations

import asyncio
import socket
import threading

from loadgen.base.errors import UsageError
from loadgen.features.telemetry.span_exports import ExportConnection, ReceivedSpans


class SpanReceiver:
    """Listens at HOST:PORT; raises UsageError if it cannot.

    It reads between `serve` and `stop`; what is sent at other times waits in the kernel.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address, self.spans = address, ReceivedSpans()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host.strip("[]"), int(port)), family=family)
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while ")[0]  # Python adds the address
            why = f"cannot listen there ({reason})"
            raise UsageError(f"--receive-spans {address}: {why}: choose another port or address") from None
        self._thread: threading.Thread | None = None
        self._open_ones: dict[ExportConnection, None] = {}
        self._loop = asyncio.new_event_loop()
        accepting = self._loop.create_server(
            lambda: ExportConnection(self.spans, self._open_ones), sock=listening
        )
        self._server = self._loop.run_until_complete(accepting)

    def serve(self) -> None:
        """Read in a thread until `stop`; call it after the last fork."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="spans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more; nothing if nothing is read."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Stop, end all connections and give the port back; a second call does nothing."""
        self.stop()
        if self._loop.is_closed():
            return
        self._server.close()
        for connection in tuple(self._open_ones):
            connection.abort()
        self._loop.run_until_complete(asyncio.sleep(0))  # transports close a turn later
        self._loop.close()
        self.spans.forget()
