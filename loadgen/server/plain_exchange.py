"""Plain exchange: a GET of this machine over plain HTTP, without httpx, whose import takes 0.1 s.

Only an ordinary answer counts. What is unusual httpx is asked again, and its error is the one reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

import httptools
import msgspec

from loadgen.base.errors import UsageError
from loadgen.wire import http1
from loadgen.wire.address import is_loopback
from loadgen.wire.sent_headers import check_headers, check_path

_READ_BYTES = 1 << 18


class PlainServer(msgspec.Struct, frozen=True):
    """Where the requests go, and the rest of their heads."""

    host: str
    port: int
    root: str  # what the base URL has before every path
    lines: bytes  # the headers

    @classmethod
    def at(cls, base_url: str, headers: Mapping[str, str]) -> Self | None:
        """The server at a valid URL; None where it is elsewhere, behind TLS, or a header is not plain."""
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
            return None  # a proxy of the environment may apply
        root = parts.path.rstrip("/")
        try:
            check_headers(headers.items())
            check_path(root)
        except UsageError:
            return None
        return cls(parts.hostname or "", parts.port or 80, root, _lines(parts.netloc, headers))

    async def get(self, path: str, most_bytes: int) -> tuple[int, bytes] | None:
        """The status and body of an ordinary answer of at most `most_bytes`; None of any other, or none."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return None
        try:
            writer.write(f"GET {self.root}{path} HTTP/1.1\r\n".encode() + self.lines)
            return await _ordinary(reader, most_bytes)
        except OSError:
            return None
        finally:
            writer.transport.abort()  # the answer is whole, or of no use


async def _ordinary(reader: asyncio.StreamReader, most_bytes: int) -> tuple[int, bytes] | None:
    answer, received = http1.Response(), 0
    try:
        while not answer.complete:
            data = await reader.read(_READ_BYTES)
            received += len(data)
            if not data or received > most_bytes:
                return None
            answer.parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    finally:
        del answer.parser  # it refers to the answer, and cycles are not collected during a run
    if "location" in answer.headers or http1.compressed(answer.headers):
        return None
    return answer.status, b"".join(answer.pieces)


def _lines(host: str, headers: Mapping[str, str]) -> bytes:
    ours = {"host": host, "accept": "*/*", "accept-encoding": "identity", "connection": "close"}
    given = {name.lower() for name in headers}
    sent = {**{name: value for name, value in ours.items() if name not in given}, **headers}
    return "".join(f"{name}: {value}\r\n" for name, value in sent.items()).encode() + b"\r\n"
