"""Discovery: the server that answers at a URL, whether it is ready, and its model.

This is the control plane: at most a few requests a second, never during the measured run.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec
from asyncio_throttle.throttler import Throttler

from loadgen.base import clock, untrusted
from loadgen.base.errors import MeasureError, NotReady, UsageError
from loadgen.base.secrecy import Secrets, hide_url_secrets
from loadgen.base.text import list_first
from loadgen.base.urls import VERSION, is_public, read_port
from loadgen.engines import engines
from loadgen.engines.engine import Engine, SelfDescription
from loadgen.server import exchange
from loadgen.server.exchange import (
    DENIED,
    UNAUTHORIZED,
    ControlAnswer,
    ControlClient,
    ControlLoop,
    PlainServer,
    explain_denial,
)
from loadgen.transport.sending.job import Target

if TYPE_CHECKING:
    import httpx

_ANSWER_S = 10.0
_CONNECT_S = 3.0
_LONGEST_WAIT_S = 1e9
_POLLS_PER_S = 2
_MOST_PEM_BYTES = 4 << 20
_MOST_NAMES = 10  # of models, in a message
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # characters; no file system allows more


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
        """Explain why the server answers 401 or 403 at `place` (default its URL), and what to do."""
        message = self.secrets.hide(answer.message)
        return explain_denial(place or self.shown_url, answer.status, self.key_origin, message)

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


class ServerInfo(msgspec.Struct, frozen=True):
    """A server's report about itself before a run; "" and 0 for what it does not report."""

    engine: Engine
    version: str
    model: str
    model_root: str = ""
    max_model_len: int = 0
    models: tuple[str, ...] = ()
    slots: int = 0  # requests that it runs at once
    without_tools: bool = False  # it may leave them out of a prompt


class ServerProbe:
    """Finds out before a run whether a server is ready, and what it serves."""

    def __init__(self, access: ServerAddress) -> None:
        self.access, self.tls = access, access.tls
        self.reason = ""  # why the server is not ready yet, as of the last poll
        self.throttle = Throttler(rate_limit=_POLLS_PER_S, period=1.0, retry_interval=0.05)

    def ask(self, model: str | None, wait_s: float) -> ServerInfo:
        """Wait until the server is ready and identify it; raises MeasureError after `wait_s` seconds."""
        if not 0 <= wait_s < _LONGEST_WAIT_S:
            raise UsageError(f"--ready-check-timeout-sec {wait_s:g}: give seconds, 0 or more")
        return self.access.loop.run(self._ask(model, wait_s))

    def poll(self) -> str | None:
        """Ask once whether the server is ready; returns why it is not, or None."""
        return self.access.loop.run(self._poll())

    async def _poll(self) -> str | None:
        async with self.access.client(_ANSWER_S) as client:
            return await self._explain_not_ready(client)

    async def _ask(self, model: str | None, wait_s: float) -> ServerInfo:
        async with self.access.client(_ANSWER_S) as client:
            if self._is_public() and (hosted := await self._identify_hosted(client, model)) is not None:
                return hosted
            deadline_ns = clock.now_ns() + int(wait_s * 1e9)
            while True:
                async with self.throttle:
                    reason = await self._explain_not_ready(client)
                self.reason = reason or ""
                if reason is None:
                    return await self._identify(client, model)
                if clock.now_ns() >= deadline_ns:
                    waited = f" after {wait_s:g} s" if wait_s else ""
                    raise NotReady(
                        f"{self.access.shown_url} is not ready{waited}: {reason}",
                        "; check the address, or wait for the server with --ready-check-timeout-sec N",
                    )

    def _is_public(self) -> bool:
        """Whether the server is behind TLS at a global internet address."""
        return self.tls is not None and is_public(self.access.base_url)

    async def _identify_hosted(self, client: ControlClient, model: str | None) -> ServerInfo | None:
        """Identify a hosted API; None if an engine owns the models or nothing answers; raises MeasureError.

        It is asked for its models alone: it has no /health, and may have no list, or not for every key.
        """
        listing = await exchange.ask_server(client, "GET", self._models_path(), _ANSWER_S)
        if listing.error or listing.status >= 500:
            return None
        if listing.status == UNAUTHORIZED or (listing.status in DENIED and model is None):
            raise MeasureError(self.access.explain_denial(listing))
        cards = _list_cards(listing)
        if cards and engines.find_by_owner(untrusted.read_text(cards[0].get("owned_by"))) is not None:
            return None  # a gateway that passes on what the engine reports
        return self._describe_served(engines.HOSTED, SelfDescription(), cards, model)

    async def _explain_not_ready(self, client: ControlClient) -> str | None:
        """Ask /health and return why the server is not ready; None if it is.

        SGLang answers /v1/models seconds too early. Raises MeasureError for a certificate that is not
        trusted.
        """
        answer = await exchange.ask_server(client, "GET", "/health", _ANSWER_S)
        if answer.refused_certificate:
            raise MeasureError(f"{self.access.shown_url} {answer.error}")
        if answer.status >= 500:
            return f"/health answers {answer.status}"
        return answer.why or None

    async def _identify(self, client: ControlClient, model: str | None) -> ServerInfo:
        listing = await self._answer(client, self._models_path())
        if listing.status in DENIED:
            raise MeasureError(self.access.explain_denial(listing))
        cards = _list_cards(listing)
        first = cards[0] if cards else {}
        engine = engines.find_by_owner(untrusted.read_text(first.get("owned_by")))
        if engine is None:
            paths = (await self._answer(client, "/openapi.json")).object.get("paths")
            engine = (
                engines.find_by_paths(set(paths) if isinstance(paths, dict) else set()) or engines.UNKNOWN
            )
        own = engine.describe((await self._answer(client, engine.version_path)).object)
        return self._describe_served(engine, own, cards, model)

    def _models_path(self) -> str:
        return f"{self.access.prefix}/models{self.access.query}"

    async def _answer(self, client: ControlClient, path: str) -> ControlAnswer:
        """Ask a ready server for a path; raises MeasureError if it does not answer."""
        answer = await exchange.ask_server(client, "GET", path, _ANSWER_S)
        if answer.error:
            raise MeasureError(f"{self.access.shown_url} stopped answering: {answer.why}")
        return answer

    def _describe_served(
        self, engine: Engine, own: SelfDescription, cards: list[dict[str, Any]], model: str | None
    ) -> ServerInfo:
        """Describe `model`, by default the first listed; raises MeasureError if unclear or not served."""
        names = tuple(card["id"] for card in cards)
        if model is None:
            if not names or not engine.lists_its_model:
                raise MeasureError(
                    f"{self.access.shown_url}{self.access.prefix}/models lists no served model: pass --model"
                    + ("" if names else ", or check --base-url")
                )
            if engine.hosted and len(names) > 1:
                raise MeasureError(
                    f"{self.access.shown_url} serves {list_first(names, _MOST_NAMES)}: pass --model NAME"
                )
            model = names[0]
        elif engine.checks_model and engine.lists_its_model and names and model not in names:
            raise MeasureError(
                f"{engine.name} does not serve {model!r}; it serves {list_first(names, _MOST_NAMES)}: pass "
                "--model"
            )
        card = next((card for card in cards if card["id"] == model), {})
        return ServerInfo(
            engine=engine,
            version=own.version,
            model=model,
            model_root=_read_root(card.get("root") or own.model_root),
            max_model_len=untrusted.read_count(card.get("max_model_len")) or own.max_model_len,
            models=names,
            slots=own.slots,
            without_tools=own.without_tools,
        )


def _list_cards(answer: ControlAnswer) -> list[dict[str, Any]]:
    """List the model entries of /v1/models whose name a request can carry."""
    cards = answer.object.get("data")
    listed = [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
    return [card for card in listed if (name := card.get("id")) and untrusted.read_text(name) == name]


def _read_root(value: object) -> str:
    """Read the path or name that a model was loaded from; "" if the value cannot be one."""
    if not isinstance(value, str) or untrusted.read_text(value, _LONGEST_PATH) != value:
        return ""
    return value if all(len(name.encode()) <= _LONGEST_NAME for name in value.split("/")) else ""
