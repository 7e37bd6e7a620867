"""Exchange: one control request and its answer, bounded in total time and in size.

httpx's own limits are per read; a server that sends a byte now and then never exceeds them. It is imported
when a request needs it, as most runs measure a server of this machine: see `PlainServer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import httptools
import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.base.urls import check_headers, check_path, is_loopback
from loadgen.wire import http1

if TYPE_CHECKING:
    import httpx

MOST_BYTES = 8 << 20
_LONGEST_MESSAGE = 200  # characters
_POLL_S = 0.1
T = TypeVar("T")


class Interrupt(Protocol):
    """A request by another thread to end a wait for the server early."""

    @property
    def pending(self) -> bool:
        """Whether a stop request waits for `poll` to deliver it."""

    def poll(self) -> None:
        """Deliver a waiting stop request: raise, or note it."""


class ControlLoop:
    """The event loop of control requests: one inside its `with` block, else a new one for each.

    `new_loop` makes the event loop, with its network and timers; None: asyncio's own.
    """

    def __init__(
        self,
        interrupt: Interrupt | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._interrupt, self._new_loop = interrupt, new_loop
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner(loop_factory=self._new_loop)
        return self

    def __exit__(self, *error: object) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def run(self, request: Coroutine[Any, Any, T]) -> T:
        """Run a request to its result; raises OSError if no socket is free, and what `poll` raises."""
        if self._runner is None:
            with ControlLoop(self._interrupt, self._new_loop) as alone:
                return alone.run(request)
        completed = False
        try:
            self._poll()
            value = self._runner.run(self._interruptible(request))
            completed = True
            return value
        except asyncio.CancelledError:
            self._poll()
            raise
        finally:
            if not completed:  # what was under way must not go on with the next request
                self._runner.close()
                self._runner = asyncio.Runner(loop_factory=self._new_loop)
            request.close()  # one that never began; a task is only ever ended by its own loop

    async def _interruptible(self, request: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(request)
        while not (await asyncio.wait([task], timeout=_POLL_S))[0]:
            if self._interrupt is not None and self._interrupt.pending:
                task.cancel()
        return task.result()

    def _poll(self) -> None:
        if self._interrupt is not None:
            self._interrupt.poll()


class ControlAnswer(msgspec.Struct, frozen=True):
    """The outcome of one control request: status and body, or an error."""

    path: str
    status: int = 0
    body: bytes = b""
    error: str = ""  # as the end of a sentence that begins with the path
    refused_certificate: bool = False  # which no waiting changes
    timed_out: bool = False

    @property
    def object(self) -> dict[str, Any]:
        """The JSON object of an answer with status 200; {} for any other."""
        return untrusted.parse_json_object(self.body) if self.status == 200 and not self.error else {}

    @property
    def why(self) -> str:
        """The error, after the request's path; "" if the server answered."""
        return f"{self.path} {self.error}" if self.error else ""

    @property
    def message(self) -> str:
        """The server's error message, else its body, on one line of 200 characters."""
        error = untrusted.parse_json_object(self.body).get("error")
        message = error.get("message") if isinstance(error, dict) else error
        if not isinstance(message, str):
            message = self.body[: 8 * _LONGEST_MESSAGE].decode("utf-8", "replace")
        return untrusted.read_line(message[: 8 * _LONGEST_MESSAGE], _LONGEST_MESSAGE)


class ControlClient:
    """Sends control requests, each on a connection of its own."""

    def __init__(self, open_full: Callable[[], httpx.AsyncClient], plain: PlainServer | None) -> None:
        self.plain = plain
        self._open_full = open_full
        self._full = None if plain is not None else open_full()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._full is not None:
            await self._full.aclose()

    @property
    def full(self) -> httpx.AsyncClient:
        """The httpx client, for what plain sockets cannot do; raises UsageError."""
        if self._full is None:
            self._full = self._open_full()
        return self._full


async def ask_server(
    client: ControlClient,
    method: str,
    path: str,
    limit_s: float,
    most_bytes: int = MOST_BYTES,
    body: object = None,
    begin_only: bool = False,
) -> ControlAnswer:
    """Send a control request and return its answer: an error if later than `limit_s` or over `most_bytes`.

    `begin_only`: of an answer with status 200 only what comes first is read.
    """
    shown = path.partition("?")[0]
    try:
        async with asyncio.timeout(limit_s):
            if method == "GET" and client.plain is not None:
                answer = await client.plain.get(path, most_bytes)
                if answer is not None:
                    return ControlAnswer(shown, *answer)
            from loadgen.server import httpx_exchange

            return ControlAnswer(
                shown,
                *await httpx_exchange.exchange_request(
                    client.full, method, path, most_bytes, body, begin_only
                ),
            )
    except TimeoutError:
        return ControlAnswer(shown, error=f"does not answer within {limit_s:g} s", timed_out=True)


UNAUTHORIZED: Final = 401
DENIED: Final = (UNAUTHORIZED, 403)
_WAYS = "set OPENAI_API_KEY, or pass --api-key-file FILE (--header for other schemes)"


def explain_denial(url: str, status: int, key_origin: str, message: str = "") -> str:
    """Explain why the server at a URL answers 401 or 403, and what to do.

    `key_origin` is where the key came from, "" where none was sent. The server's message is left out of a
    401: it may repeat a part of the key.
    """
    if not key_origin:
        return f"{url} needs an API key and none was sent ({status}): {_WAYS}"
    if status == UNAUTHORIZED:
        return (
            f"{url} does not accept the key from {key_origin} ({status}): check that it is a key of this "
            "server, whole and not expired"
        )
    why = f": {message}" if message else ""
    return (
        f"{url} denies this to the key from {key_origin} ({status}{why}): check what the key may use, "
        "and --model"
    )


_READ_BYTES = 1 << 18


class PlainServer(msgspec.Struct, frozen=True):
    """A server for plain-socket requests: its address, and the rest of each request's head."""

    host: str
    port: int
    root: str  # what the base URL has before every path
    lines: bytes  # the headers

    @classmethod
    def parse_url(cls, base_url: str, headers: Mapping[str, str]) -> Self | None:
        """Make it of a URL; None if the server is remote, behind TLS, or a header is unusual."""
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
            return None  # a proxy of the environment may apply
        root = parts.path.rstrip("/")
        try:
            check_headers(headers.items())
            check_path(root)
        except UsageError:
            return None
        return cls(parts.hostname or "", parts.port or 80, root, _format_headers(parts.netloc, headers))

    async def get(self, path: str, most_bytes: int) -> tuple[int, bytes] | None:
        """Return (status, body) of an ordinary answer up to `most_bytes`; None for any other, or none."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return None
        try:
            writer.write(f"GET {self.root}{path} HTTP/1.1\r\n".encode() + self.lines)
            return await _read_ordinary(reader, most_bytes)
        except OSError:
            return None
        finally:
            writer.transport.abort()  # the answer is whole, or of no use


async def _read_ordinary(reader: asyncio.StreamReader, most_bytes: int) -> tuple[int, bytes] | None:
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
    if "location" in answer.headers or http1.explain_compression(answer.headers):
        return None
    return answer.status, b"".join(answer.pieces)


def _format_headers(host: str, headers: Mapping[str, str]) -> bytes:
    ours = {"host": host, "accept": "*/*", "accept-encoding": "identity", "connection": "close"}
    names = {name.lower() for name in headers}
    sent = {**{name: value for name, value in ours.items() if name not in names}, **headers}
    return "".join(f"{name}: {value}\r\n" for name, value in sent.items()).encode() + b"\r\n"
