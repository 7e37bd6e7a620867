"""Exchange: a server's address, and one control request to it and its answer, bounded in time and size.

httpx's own limits are per read; a server that sends a byte now and then never exceeds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast
from urllib.parse import urlsplit

import httpx
import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import Secrets, hide_url_secrets
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.urls import VERSION, is_this_machine, read_port
from loadgen.transport.failure import explain_distrust
from loadgen.transport.network import Socket, read_losses
from loadgen.transport.sending.job import Target

MOST_BYTES = 8 << 20
_LONGEST_MESSAGE = 200  # characters
_POLL_S = 0.1
T = TypeVar("T")
_CONNECT_S = 3.0
_MOST_PEM_BYTES = 4 << 20
UNAUTHORIZED: Final = 401
DENIED: Final = (UNAUTHORIZED, 403)
REDIRECTS: Final = range(300, 400)
_LOG = logging.getLogger("loadgen")
_BUSY, _LONGEST_RETRY_S = (429, 503), 30.0
# Linux sends ten segments before the first acknowledgement, then twice as many in each round trip
# (RFC 6928; 1448 bytes are Ethernet's 1500 less IP, TCP and its timestamps).
_WINDOW_BYTES = 10 * 1448
_HANDSHAKE_ROUNDS = {"TLSv1.2": 2}  # of others one at least
_WAYS = "set OPENAI_API_KEY, or pass --api-key-file FILE (--header for other schemes)"


class ControlLoop:
    """The event loop of control requests: one inside its `with` block, else a new one for each.

    `new_loop` makes the event loop, with its network and timers; None: asyncio's own.
    """

    def __init__(
        self,
        interrupts: Interrupts = SIGNALS,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._interrupts, self._new_loop = interrupts, new_loop
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
            with ControlLoop(self._interrupts, self._new_loop) as alone:
                return alone.run(request)
        completed = False
        try:
            self._interrupts.poll()
            value = self._runner.run(self._interruptible(request))
            completed = True
            return value
        except asyncio.CancelledError:
            self._interrupts.poll()
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
            if self._interrupts.pending:
                task.cancel()
        return task.result()


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
            _read_pem("--client-cert", self.client_cert)
            flags = f"--client-cert {self.client_cert}"
            if self.client_key is not None:
                _read_pem("--client-key", self.client_key)
                flags += f" --client-key {self.client_key}"
            try:
                # OpenSSL would ask the terminal for a password that is not given.
                context.load_cert_chain(self.client_cert, self.client_key, password=lambda: "")
            except (OSError, ValueError) as error:  # SSLError is an OSError
                reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
                why = str(reason or "it cannot be read").lower().replace("_", " ")
                raise UsageError(
                    f"{flags}: give a certificate and its key, without a passphrase, in PEM format ({why})"
                ) from None
        return context

    def client(self, timeout_s: float) -> httpx.AsyncClient:
        """Open a client for control requests, each on a connection of its own.

        Raises UsageError for a header not in ASCII or an invalid proxy variable.
        """
        try:
            return httpx.AsyncClient(
                base_url=self.base_url,
                # A server that compresses for a scrape takes from what is measured.
                headers={"accept-encoding": "identity", **self.headers},
                verify=self.tls if self.tls is not None else False,
                trust_env=not is_this_machine(self.base_url),
                timeout=timeout_s,
                follow_redirects=False,
                # transformers serve resets a kept connection after a 500 (/v1/models without a hub cache).
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        except UnicodeError:
            raise UsageError("a header is not ASCII: check --header and OPENAI_API_KEY") from None
        except (ValueError, ImportError, httpx.InvalidURL):  # whose message may contain the proxy's password
            raise UsageError(
                f"{self.shown_url}: a proxy variable (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) is not a proxy's "
                "URL: correct it, or add this host to NO_PROXY"
            ) from None

    def target(self, path: str) -> Target:
        """Resolve the host and make the target of requests for `path`; MeasureError without an address.

        Of several addresses it has the first that accepts a connection, else the first.
        """
        parts = urlsplit(self.base_url)
        assert parts.hostname is not None
        port = read_port(self.base_url)
        # The name is passed as bytes: Python imports the tables of all alphabets to encode a text.
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


def _read_pem(flag: str, path: str) -> str:
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


class AnswerTime(msgspec.Struct, frozen=True):
    """The time of one answer in two parts, and the round trips in each; of several answers, the least.

    Where the round trip is not known it is 0, and the first part has the connection's making too.
    """

    first_s: float  # until the first byte
    rest_s: float = 0.0  # from then to the last
    rtt_s: float = 0.0
    first_rounds: int = 1
    rest_rounds: int = 0

    @property
    def server_s(self) -> float:
        """The most that the server can have spent, in seconds."""
        first_s = self.first_s - self.first_rounds * self.rtt_s
        return max(0.0, first_s) + max(0.0, self.rest_s - self.rest_rounds * self.rtt_s)

    @property
    def on_way_s(self) -> float:
        """The seconds that the network took to bring the answer's end from the server."""
        return self.rtt_s / 2 + min(self.rest_s, self.rest_rounds * self.rtt_s)

    def merge(self, other: AnswerTime) -> AnswerTime:
        """Return the least of two answers' parts; an answer without a round trip yields to one with it."""
        if (self.rtt_s > 0) != (other.rtt_s > 0):
            return self if self.rtt_s > 0 else other
        return AnswerTime(
            *(min(getattr(self, each), getattr(other, each)) for each in self.__struct_fields__)
        )


class AnswerWatch:
    """Notes when a request's connection and its answer come; made as the request begins."""

    def __init__(self) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._began_s = self._first_s = self._now_s()
        self._rtt_ns, self._rounds = 0, 1
        self.time: AnswerTime | None = None  # once the answer is whole

    async def note(self, event: str, found: Mapping[str, Any]) -> None:
        """Note httpcore's events: a TCP connection restarts the time, a TLS handshake adds round trips."""
        if event == "connection.connect_tcp.complete":
            # The round trip is the kernels' alone by now: a later one may have waited for the server.
            if (rtt_ns := read_losses(found["return_value"].get_extra_info("socket")).rtt_ns) > 0:
                self._began_s, self._rtt_ns = self._now_s(), rtt_ns
        elif event == "connection.start_tls.complete":
            tls = found["return_value"].get_extra_info("ssl_object")
            self._rounds += _HANDSHAKE_ROUNDS.get("" if tls is None else tls.version() or "", 1)

    def note_first(self, sock: Socket | None) -> None:
        """Note the answer's first byte; the socket's least round trip may be less by now."""
        self._first_s = self._now_s()
        if self._rtt_ns and 0 < (rtt_ns := read_losses(sock).rtt_ns) < self._rtt_ns:
            self._rtt_ns = rtt_ns

    def note_last(self, size: int) -> None:
        """Note that the answer is whole, of `size` bytes on the way."""
        rest_s = self._now_s() - self._first_s
        rest_rounds = max(0, math.ceil(math.log2(size / _WINDOW_BYTES + 1)) - 1)
        first_s = self._first_s - self._began_s
        self.time = AnswerTime(first_s, rest_s, self._rtt_ns / 1e9, self._rounds, rest_rounds)


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


class Repeats(msgspec.Struct, frozen=True):
    """How often a request that changes nothing is sent again, and after how many seconds each time.

    It is where the connection was refused, reset or broken, and after 429 and 503, which say when by
    Retry-After. `note` gets why, each time.
    """

    waits_s: tuple[float, ...]
    note: Callable[[str], None]


# A run or a person waits for such a request.
SOON = Repeats((0.1, 0.4), partial(_LOG.warning, "sent again: %s"))


async def ask_again(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    limit_s: float,
    most_bytes: int = MOST_BYTES,
    body: object = None,
    repeats: Repeats | None = None,
) -> ControlAnswer:
    """Send a control request, again by `repeats` if it broke or got 429 or 503; return the last answer."""
    repeats = repeats or SOON
    for wait_s in (*repeats.waits_s, None):
        answer = await ask_server(client, method, path, limit_s, most_bytes, body)
        if wait_s is None or not (answer.broken or answer.status in _BUSY):
            break
        repeats.note(answer.why or f"{answer.path} answers {answer.status}")
        own_s = untrusted.read_digits(answer.retry_after) or 0
        await asyncio.sleep(max(wait_s, min(own_s, _LONGEST_RETRY_S)))
    return answer


async def ask_server(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    limit_s: float,
    most_bytes: int = MOST_BYTES,
    body: object = None,
    begin_only: bool = False,
) -> ControlAnswer:
    """Send a control request; return its answer: an error if broken, redirected, too large or too late.

    What had come of an answer that takes over `limit_s` is its body.
    `begin_only`: of an answer with status 200 only what comes first is read.
    """
    shown = path.partition("?")[0]
    # msgspec encodes it like a plan's bodies: httpx's own JSON takes no values that a file has as bytes.
    content = None if body is None else msgspec.json.encode(body)
    kind = {} if body is None else {"content-type": "application/json"}
    watch = AnswerWatch()
    follow = {"trace": watch.note}
    data = bytearray()
    try:
        async with (
            asyncio.timeout(limit_s),
            client.stream(method, path, content=content, headers=kind, extensions=follow) as answer,
        ):
            watch.note_first(answer.extensions["network_stream"].get_extra_info("socket"))
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > most_bytes:
                    return ControlAnswer(shown, error=f"answers more than {most_bytes >> 20} MiB")
                if begin_only and answer.status_code == httpx.codes.OK:
                    break
            watch.note_last(answer.num_bytes_downloaded)
    except TimeoutError:
        error = f"does not answer within {limit_s:g} s"
        return ControlAnswer(shown, body=bytes(data), error=error, timed_out=True)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        if distrust := explain_distrust(error):
            return ControlAnswer(shown, error=distrust, refused_certificate=True)
        # A header or a URL that cannot be sent is no better the next time.
        broken = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | OSError)
        return ControlAnswer(shown, error=_describe_error(error), broken=broken)
    # An answer and its stream reference each other, and the GC is disabled while a run is decoded.
    answer.stream = httpx.ByteStream(b"")
    place = _find_other_place(answer)
    return ControlAnswer(
        shown,
        answer.status_code,
        bytes(data),
        error=f"redirects to {place} ({answer.status_code}): give the final URL" if place else "",
        retry_after=answer.headers.get("retry-after", ""),
        time=watch.time,
    )


def _find_other_place(answer: httpx.Response) -> str:
    """Return where a redirect leads, without its query; "" for other answers, or a GET on the same server."""
    location = answer.headers.get("location", "")
    if not 300 <= answer.status_code < 400 or not location:
        return ""
    try:
        there = answer.request.url.join(location)
    except (httpx.InvalidURL, ValueError):
        return "an invalid URL"
    here = answer.request.url
    origin = f"{there.scheme}://{there.netloc.decode('ascii', 'replace')}"
    if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
        return untrusted.read_text(origin)
    return "" if answer.request.method == "GET" else untrusted.read_text(f"{origin}{there.path}")


def _describe_error(error: Exception) -> str:
    """Describe why there is no answer; never httpx's message about a header, which contains its value."""
    if isinstance(error, httpx.LocalProtocolError | UnicodeError):
        return "cannot be requested: a header or the URL is not valid HTTP; check --header and OPENAI_API_KEY"
    message = untrusted.read_line(str(error), _LONGEST_MESSAGE)
    return f"does not answer: {message or type(error).__name__}"
