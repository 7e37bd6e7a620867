"""The endpoint: who answers at a URL, whether it is ready, and which model it serves.

This is the control plane: httpx, at most a few requests a second, never while a stamp is due.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import msgspec
from asyncio_throttle.throttler import Throttler

from loadgen import clock
from loadgen.endpoint import exchange
from loadgen.endpoint.exchange import ControlAnswer, ControlLoop, shown_url
from loadgen.endpoint.secrecy import Secrets
from loadgen.errors import MeasureError, UsageError
from loadgen.protocol import engines, untrusted
from loadgen.protocol.address import is_loopback
from loadgen.protocol.engines import Engine
from loadgen.transport.job import Target

_ANSWER_S = 10.0
_CONNECT_S = 3.0
_LONGEST_WAIT_S = 1e9
_LOOKS_PER_S = 2
_MOST_PEM_BYTES = 4 << 20
_NAMED = 10  # models, in a message
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # characters; no file system has longer ones
Address = tuple[int, Any]  # family and sockaddr


class ServerAddress(msgspec.Struct, frozen=True):
    """How to reach a server: its base URL, what every request carries, and whose certificates count."""

    base_url: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    insecure: bool = False
    ca_cert: str | None = None  # a file of authorities that are trusted besides the system's
    client_cert: str | None = None  # a file with our own certificate, and its key unless client_key has it
    client_key: str | None = None
    secrets: Secrets = msgspec.field(default_factory=Secrets)  # whatever is written must not hold them
    loop: ControlLoop = msgspec.field(default_factory=ControlLoop)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            if parts.query or parts.fragment:
                raise UsageError(
                    "--base-url: leave out what follows the ? or #; a key goes into --api-key-env or --header"
                )
            if parts.username or parts.password:
                raise UsageError(
                    "--base-url: put the credentials into --header, where they are never written"
                )
            if parts.query or parts.fragment:
                raise UsageError(
                    "--base-url: leave out what follows ? or #: requests do not carry it, and a key belongs "
                    "into --header, where it is never written"
                )
            whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none, half an IPv6 address
            whole = False
        if not whole or not self.base_url.isprintable():
            raise UsageError(f"--base-url {self.shown_url!r} is no URL: write it like http://localhost:8000")

    @property
    def shown_url(self) -> str:
        """The base URL as messages show it: no credentials, no query."""
        return shown_url(self.base_url)

    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings, or None for plain HTTP; raises UsageError where a file of theirs is of no use."""
        files = {
            "--ca-cert": self.ca_cert,
            "--client-cert": self.client_cert,
            "--client-key": self.client_key,
        }
        given = [flag for flag, path in files.items() if path is not None]
        if urlsplit(self.base_url).scheme != "https":
            if given:
                raise UsageError(f"{given[0]} is for TLS: it needs an https base URL")
            return None
        if self.client_key is not None and self.client_cert is None:
            raise UsageError("--client-key belongs to a certificate: pass --client-cert too")
        context = ssl.create_default_context()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.ca_cert is not None:
            _trust(context, self.ca_cert)
        if self.client_cert is not None:
            _identify_as(context, self.client_cert, self.client_key)
        return context

    def client(self, tls: ssl.SSLContext | None, timeout_s: float) -> httpx.AsyncClient:
        """A client for control requests, each on a connection of its own; raises UsageError."""
        try:
            return httpx.AsyncClient(
                base_url=self.base_url,
                headers=dict(self.headers),
                verify=tls if tls is not None else False,
                trust_env=not is_loopback(urlsplit(self.base_url).hostname or ""),
                timeout=timeout_s,
                follow_redirects=False,
                # transformers serve resets a kept connection after a 500 (/v1/models without a hub cache).
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        except UnicodeError:
            raise UsageError("a header is not ASCII: check --header and OPENAI_API_KEY") from None
        except (ValueError, ImportError, httpx.InvalidURL):  # its words may hold the proxy's password
            raise UsageError(
                f"{self.shown_url}: a proxy variable (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) holds no URL of a "
                "proxy that can be used: correct it, or name this host in NO_PROXY"
            ) from None

    def target(self, path: str, tls: ssl.SSLContext | None) -> Target:
        """Where requests for `path` go; raises MeasureError when the name does not resolve."""
        parts = urlsplit(self.base_url)
        assert parts.hostname is not None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise MeasureError(f"{parts.hostname} does not resolve: {said}; check --base-url") from None
        family, address = _first_that_answers([(entry[0], entry[4]) for entry in found])
        return Target(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            path=parts.path.rstrip("/") + path,
            address=(family, cast("tuple[str | int, ...]", address)),
            headers=tuple(self.headers.items()),
            tls=tls,
        )


def _trust(context: ssl.SSLContext, path: str) -> None:
    """Trust the authorities in a PEM file; raises UsageError."""
    try:
        context.load_verify_locations(cadata=_pem("--ca-cert", path))
    except (ssl.SSLError, ValueError):
        raise UsageError(f"--ca-cert {path}: there is no certificate in it (PEM is read)") from None


def _identify_as(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Show our certificate to a server that asks for one; raises UsageError."""
    _pem("--client-cert", certificate)
    if key is not None:
        _pem("--client-key", key)
    named = f"--client-cert {certificate}" + ("" if key is None else f" --client-key {key}")
    try:
        # Without a password OpenSSL would ask the terminal for it.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "it cannot be read"
        said = str(reason).lower().replace("_", " ")
        raise UsageError(
            f"{named}: no certificate with its own key, without a passphrase, in PEM ({said})"
        ) from None


def _pem(flag: str, path: str) -> str:
    """A file's text; raises UsageError that names its flag."""
    try:
        return untrusted.file_bytes(Path(path).absolute(), _MOST_PEM_BYTES).decode("ascii", "ignore")
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None


def _first_that_answers(found: list[Address]) -> Address:
    """The first address that takes a connection: `localhost` is often ::1 first, and served on 127.0.0.1."""
    for family, address in found if len(found) > 1 else ():
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_CONNECT_S)
            with contextlib.suppress(OSError):
                sock.connect(address)
                return family, address
    return found[0]


class ServerInfo(msgspec.Struct, frozen=True):
    """What was found at an endpoint; empty strings and 0 where the server does not say."""

    engine: Engine
    version: str
    model: str
    model_root: str = ""
    max_model_len: int = 0
    models: tuple[str, ...] = ()


class ServerProbe:
    """The questions put to one server before a run."""

    def __init__(self, access: ServerAddress, tls: ssl.SSLContext | None) -> None:
        self.access, self.tls = access, tls
        self.throttle = Throttler(rate_limit=_LOOKS_PER_S, period=1.0, retry_interval=0.05)

    def ask(self, model: str | None, wait_s: float) -> ServerInfo:
        """Wait until the server is ready and say who it is; raises MeasureError when it is not."""
        if not 0 <= wait_s < _LONGEST_WAIT_S:
            raise UsageError(f"--ready-check-timeout-sec {wait_s:g}: give seconds, 0 or more")
        return self.access.loop.run(self._ask(model, wait_s))

    def look(self) -> str | None:
        """Why the server is not ready at this moment; None where it is."""
        return self.access.loop.run(self._look())

    async def _look(self) -> str | None:
        async with self.access.client(self.tls, _ANSWER_S) as client:
            return await self._trouble(client)

    async def _ask(self, model: str | None, wait_s: float) -> ServerInfo:
        async with self.access.client(self.tls, _ANSWER_S) as client:
            await self._until_ready(client, wait_s)
            return await self._identify(client, model)

    async def _until_ready(self, client: httpx.AsyncClient, wait_s: float) -> None:
        deadline_ns = clock.now_ns() + int(wait_s * 1e9)
        while True:
            async with self.throttle:
                trouble = await self._trouble(client)
            if trouble is None:
                return
            if clock.now_ns() >= deadline_ns:
                waited = f" after {wait_s:g} s" if wait_s else ""
                raise MeasureError(
                    f"{self.access.shown_url} is not ready{waited}: {trouble}; "
                    "is this the server's address? --ready-check-timeout-sec N waits for it"
                )

    async def _trouble(self, client: httpx.AsyncClient) -> str | None:
        """Why the server is not ready, or None. /health is the truth where there is one: SGLang
        answers /v1/models seconds before it can serve."""
        answer = await exchange.ask(client, "GET", "/health", _ANSWER_S)
        if answer.status >= 500:
            return f"/health says {answer.status}"
        return answer.why or None

    async def _identify(self, client: httpx.AsyncClient, model: str | None) -> ServerInfo:
        listing = await self._answer(client, "/v1/models")
        if listing.status in (401, 403):
            raise MeasureError(
                f"{self.access.shown_url} refuses us ({listing.status}): "
                "set OPENAI_API_KEY or pass --header 'Authorization=Bearer …'"
            )
        cards = _cards(listing)
        first = cards[0] if cards else {}
        engine = engines.by_owner(untrusted.text(first.get("owned_by")))
        if engine is None:
            paths = (await self._answer(client, "/openapi.json")).object.get("paths")
            engine = engines.by_paths(set(paths) if isinstance(paths, dict) else set()) or engines.UNKNOWN
        version = (await self._answer(client, engine.version_path)).object
        return self._served(engine, untrusted.text(version.get("version")), cards, model)

    async def _answer(self, client: httpx.AsyncClient, path: str) -> ControlAnswer:
        """What a ready server answers; raises MeasureError where it does not, or sends us elsewhere."""
        answer = await exchange.ask(client, "GET", path, _ANSWER_S)
        if answer.trouble:
            raise MeasureError(f"{self.access.shown_url} stopped answering: {answer.why}")
        return answer

    def _served(
        self, engine: Engine, version: str, cards: list[dict[str, Any]], model: str | None
    ) -> ServerInfo:
        names = tuple(card["id"] for card in cards)
        if model is None:
            if not names or not engine.lists_its_model:
                raise MeasureError(
                    f"{self.access.shown_url}/v1/models names no model that is served: pass --model"
                    + ("" if names else " (or is the base URL wrong?)")
                )
            model = names[0]
        elif engine.checks_model and engine.lists_its_model and names and model not in names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise MeasureError(
                f"{engine.name} does not serve {model!r}; it serves {', '.join(names[:_NAMED])}{more}: "
                "pass --model"
            )
        card = next((card for card in cards if card["id"] == model), {})
        return ServerInfo(
            engine=engine,
            version=version,
            model=model,
            model_root=_root(card.get("root")),
            max_model_len=untrusted.whole(card.get("max_model_len")) or 0,
            models=names,
        )


def _cards(answer: ControlAnswer) -> list[dict[str, Any]]:
    """The models that are listed under a name that a request can carry."""
    cards = answer.object.get("data")
    listed = [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
    return [card for card in listed if (name := card.get("id")) and untrusted.text(name) == name]


def _root(said: object) -> str:
    """The path or name that a model was loaded from; "" where none could be called so."""
    if not isinstance(said, str) or untrusted.text(said, _LONGEST_PATH) != said:
        return ""
    return said if all(len(name.encode()) <= _LONGEST_NAME for name in said.split("/")) else ""
