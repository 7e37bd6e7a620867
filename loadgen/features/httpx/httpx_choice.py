"""Httpx choice: the row of the portable transport, taken on request, or where nothing else runs."""

from __future__ import annotations

from loadgen.transport.sending.job import TransportKind

HTTPX = TransportKind(
    "httpx",
    "loadgen.features.httpx.httpx_transport:HttpxTransport",
    needs_epoll=False,
    uses_httpx=True,
)
TRANSPORTS = {"after wire": (HTTPX,)}
