"""Exchange: a server's address, and one control request to it and its answer, bounded in time and size.

httpx's own limits are per read; a server that sends a byte now and then never exceeds them. It is imported
when a request needs it, as most runs measure a server of this machine: see `PlainServer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import Secrets, hide_url_secrets
from loadgen.base.urls import VERSION, check_headers, check_path, is_loopback, read_port
from loadgen.server.answer_time import AnswerTime, AnswerWatch
from loadgen.transport.sending.job import Target
from loadgen.wire import http1

if TYPE_CHECKING:
    import httpx

MOST_BYTES = 8 << 20
_LONGEST_MESSAGE = 200  # characters
_POLL_S = 0.1
T = TypeVar("T")
_READ_BYTES = 1 << 18
_CONNECT_S = 3.0
_MOST_PEM_BYTES = 4 << 20
UNAUTHORIZED: Final = 401
DENIED: Final = (UNAUTHORIZED, 403)
REDIRECTS: Final = range(300, 400)
_LOG = logging.getLogger("loadgen")
_BUSY, _LONGEST_RETRY_S = (429, 503), 30.0
_WAYS = "set OPENAI_API_KEY, or pass --api-key-file FILE (--header for other schemes)"


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
        """Await a request's result, cancelling it while a stop request waits, seen 0.1 s later at most."""
        task = asyncio.ensure_future(request)
        while not (await asyncio.wait([task], timeout=_POLL_S))[0]:
            if self._interrupt is not None and self._interrupt.pending:
                task.cancel()
        return task.result()

    def _poll(self) -> None:
        if self._interrupt is not None:
            self._interrupt.poll()


class ServerAddress(msgspec.Struct, frozen=True, dict=True):
    """How to reach a server: its base URL, the headers of every request, and TLS certificates."""

    base_url: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    insecure: bool = False
    ca_cert: str | None = None  # a file of authorities that are trusted in addition to the system's
    client_cert: str | None = None  # a file with the client's certificate, and its key unless in client_key
    client_key: str | None = None
    secrets: Secrets = msgspec.field(default_factory=Secrets)  # to be hidden in all that is written
    loop: ControlLoop = msgspec.field(default_factory=ControlLoop)
    plain: bool = True  # whether a request may do without httpx where it can
    prefix: str = VERSION  # before the paths of OpenAI's API
    query: str = ""  # after them
    key_origin: str = ""  # where the key in the headers came from, in words; "": none is sent

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            if "unix" in parts.scheme.split("+"):
                raise UsageError(
                    "--base-url: a Unix socket has no TCP to measure: have the server listen on a port"
                )
            if parts.query or parts.fragment:
                raise UsageError(
                    "--base-url: leave out what follows the ? or #; a key goes into --api-key-env or --header"
                )
            if parts.username or parts.password:
                raise UsageError(
                    "--base-url: put the credentials into --header, where they are never written"
                )
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # an invalid port, half an IPv6 address
            valid = False
        if not valid or not self.base_url.isprintable():
            raise UsageError(
                f"--base-url {self.shown_url!r} is not a valid URL: write it like http://localhost:8000"
            )

    @property
    def shown_url(self) -> str:
        """The base URL for messages, without credentials and query."""
        return hide_url_secrets(self.base_url)

    def explain_denial(self, answer: ControlAnswer, place: str | None = None) -> str:
        """Explain why the server answers 401 or 403 at `place` (default its URL), and what to do.

        The server's message is left out of a 401: it may repeat a part of the key.
        """
        url, status, origin = place or self.shown_url, answer.status, self.key_origin
        if not origin:
            return f"{url} needs an API key and none was sent ({status}): {_WAYS}"
        if status == UNAUTHORIZED:
            return (
                f"{url} does not accept the key from {origin} ({status}): check that it is a key of this "
                "server, whole and not expired"
            )
        message = self.secrets.hide(answer.message)
        why = f": {message}" if message else ""
        return (
            f"{url} denies this to the key from {origin} ({status}{why}): check what the key may use, "
            "and --model"
        )

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings, None for plain HTTP; raises UsageError for an unusable certificate file."""
        if urlsplit(self.base_url).scheme != "https":
            for name in ("ca_cert", "client_cert", "client_key"):
                if getattr(self, name) is not None:
                    raise UsageError(f"--{name.replace('_', '-')} is for TLS: it needs an https base URL")
            return None
        if self.client_key is not None and self.client_cert is None:
            raise UsageError("--client-key needs the certificate that it belongs to: pass --client-cert too")
        context = ssl.create_default_context()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.ca_cert is not None:
            try:
                context.load_verify_locations(cadata=_read_pem("--ca-cert", self.ca_cert))
            except (ssl.SSLError, ValueError):
                raise UsageError(
                    f"--ca-cert {self.ca_cert}: no certificate in it: give a file in PEM format"
                ) from None
        if self.client_cert is not None:
            _load_client_certificate(context, self.client_cert, self.client_key)
        return context

    def client(self, timeout_s: float) -> ControlClient:
        """Make a client for control requests; raises UsageError, now or when a request needs httpx."""
        plain = PlainServer.parse_url(self.base_url, self.headers) if self.plain else None
        return ControlClient(lambda: self._full_client(timeout_s), plain)

    def _full_client(self, timeout_s: float) -> httpx.AsyncClient:
        """Open httpx's client; raises UsageError for a header not in ASCII or an invalid proxy variable."""
        from loadgen.server import httpx_exchange  # see exchange

        try:
            return httpx_exchange.open_client(self.base_url, self.headers, self.tls, timeout_s)
        except UnicodeError:
            raise UsageError("a header is not ASCII: check --header and OPENAI_API_KEY") from None
        except ValueError:
            raise UsageError(
                f"{self.shown_url}: a proxy variable (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) is not a proxy's "
                "URL: correct it, or add this host to NO_PROXY"
            ) from None

    def target(self, path: str) -> Target:
        """Resolve where requests for `path` go, of more addresses one that accepts; raises MeasureError."""
        parts = urlsplit(self.base_url)
        assert parts.hostname is not None
        port = read_port(self.base_url)
        # As bytes, or Python imports the tables of all alphabets to encode a name that needs none of them.
        name = parts.hostname.encode() if parts.hostname.isascii() else parts.hostname
        try:
            entries = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MeasureError(f"{parts.hostname} does not resolve: {reason}; check --base-url") from None
        family, address = _find_reachable([(entry[0], entry[4]) for entry in entries])
        return Target(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            path=parts.path.rstrip("/") + path,
            address=(family, cast("tuple[str | int, ...]", address)),
            headers=tuple(self.headers.items()),
            tls=self.tls,
        )


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Load the client's own certificate into a TLS context; raises UsageError."""
    _read_pem("--client-cert", certificate)
    if key is not None:
        _read_pem("--client-key", key)
    flags = f"--client-cert {certificate}" + ("" if key is None else f" --client-key {key}")
    try:
        # Without a password OpenSSL would ask the terminal for it.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "it cannot be read"
        why = str(reason).lower().replace("_", " ")
        raise UsageError(
            f"{flags}: give a certificate and its key, without a passphrase, in PEM format ({why})"
        ) from None


def _read_pem(flag: str, path: str) -> str:
    """Read a certificate file; raises UsageError that names its flag."""
    try:
        return untrusted.read_file_bytes(Path(path).absolute(), _MOST_PEM_BYTES).decode("ascii", "ignore")
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None


def _find_reachable(addresses: list[tuple[int, Any]]) -> tuple[int, Any]:
    """Return the first address that accepts a connection, else the first; `localhost` may be ::1 first."""
    for family, address in addresses if len(addresses) > 1 else ():
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_CONNECT_S)
            with contextlib.suppress(OSError):
                sock.connect(address)
                return family, address
    return addresses[0]


class ControlAnswer(msgspec.Struct, frozen=True):
    """The outcome of one control request: status and body, or an error."""

    path: str
    status: int = 0
    body: bytes = b""
    error: str = ""  # as the end of a sentence that begins with the path
    refused_certificate: bool = False  # which no waiting changes
    timed_out: bool = False
    broken: bool = False  # no connection, or one that ended before the answer did: the next may be better
    retry_after: str = ""  # the header
    time: AnswerTime | None = None  # None of an error

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


class Repeats(msgspec.Struct, frozen=True):
    """How often a request that changes nothing is sent again, and after how many seconds each time.

    It is where the connection was refused, reset or broken, and after 429 and 503, which say when by
    Retry-After. `note` gets why, each time.
    """

    waits_s: tuple[float, ...]
    note: Callable[[str], None]

    def find_wait_s(self, answer: ControlAnswer, tried: int) -> float | None:
        """Find how long to wait before the request is sent again; None: the answer stands."""
        if tried >= len(self.waits_s) or not (answer.broken or answer.status in _BUSY):
            return None
        own = untrusted.read_digits(answer.retry_after) or 0
        return max(self.waits_s[tried], min(own, _LONGEST_RETRY_S))


def warn_of_repeat(why: str) -> None:
    """Log that a request is sent again."""
    _LOG.warning("sent again: %s", why)


SOON = Repeats((0.1, 0.4), warn_of_repeat)  # of a request for which a run or a person waits


async def ask_again(
    client: ControlClient,
    method: str,
    path: str,
    limit_s: float,
    most_bytes: int = MOST_BYTES,
    body: object = None,
    repeats: Repeats | None = None,
) -> ControlAnswer:
    """Send a control request that may be done twice, as often as `repeats` has it; return the last answer."""
    tried, repeats = 0, repeats or SOON
    while True:
        answer = await ask_server(client, method, path, limit_s, most_bytes, body)
        wait_s = repeats.find_wait_s(answer, tried)
        if wait_s is None:
            return answer
        tried += 1
        repeats.note(answer.why or f"{answer.path} answers {answer.status}")
        await asyncio.sleep(wait_s)


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

    A GET goes over a plain socket where that can be, else httpx sends it. `begin_only`: of an answer with
    status 200 only what comes first is read.
    """
    shown = path.partition("?")[0]
    try:
        async with asyncio.timeout(limit_s):
            if method == "GET" and client.plain is not None:
                now_s = asyncio.get_running_loop().time
                began_s = now_s()
                answer = await client.plain.get(path, most_bytes)
                if answer is not None:
                    time = AnswerTime(now_s() - began_s)
                    return ControlAnswer(shown, *answer[:2], time=time, retry_after=answer[2])
            from loadgen.server import httpx_exchange

            exchange_request = httpx_exchange.exchange_request
            watch = AnswerWatch()
            outcome = await exchange_request(client.full, method, path, most_bytes, watch, body, begin_only)
            return ControlAnswer(shown, **outcome._asdict(), time=watch.time)
    except TimeoutError:
        return ControlAnswer(shown, error=f"does not answer within {limit_s:g} s", timed_out=True)


class PlainServer(msgspec.Struct, frozen=True):
    """A server for plain-socket requests: its address, and the rest of each request's head."""

    host: str
    port: int
    root: str  # what the base URL has before every path
    lines: bytes  # the headers

    @classmethod
    def parse_url(cls, base_url: str, headers: Mapping[str, str]) -> Self | None:
        """Make a plain server of a URL; None if remote or behind TLS, or with an unusual header or path."""
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

    async def get(self, path: str, most_bytes: int) -> tuple[int, bytes, str] | None:
        """Return (status, body, Retry-After) of an ordinary answer up to `most_bytes`; None for any other."""
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


async def _read_ordinary(reader: asyncio.StreamReader, most_bytes: int) -> tuple[int, bytes, str] | None:
    """Read (status, body, Retry-After) of an answer.

    None if it is cut, too long, malformed, compressed or a redirect.
    """
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
    return answer.status, b"".join(answer.pieces), answer.headers.get("retry-after", "")


def _format_headers(host: str, headers: Mapping[str, str]) -> bytes:
    ours = {"host": host, "accept": "*/*", "accept-encoding": "identity", "connection": "close"}
    names = {name.lower() for name in headers}
    sent = {**{name: value for name, value in ours.items() if name not in names}, **headers}
    return "".join(f"{name}: {value}\r\n" for name, value in sent.items()).encode() + b"\r\n"
