"""The endpoint: who answers at a URL, whether it is ready, and which model it serves.

This is the control plane: httpx, at most a few requests a second, never while a stamp is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import msgspec
from asyncio_throttle.throttler import Throttler

from loadgen import clock, engines
from loadgen.engines import Engine
from loadgen.errors import MeasureError, UsageError
from loadgen.job import Target
from loadgen.portable import is_loopback
from loadgen.secrecy import Secrets

_ANSWER_S = 10.0
_CONNECT_S = 3.0
_LONGEST_WAIT_S = 1e9
_LOOKS_PER_S = 2
Address = tuple[int, Any]  # family and sockaddr


class Access(msgspec.Struct, frozen=True):
    """How to reach a server: its base URL and what every request carries."""

    base_url: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    insecure: bool = False
    secrets: Secrets = msgspec.field(default_factory=Secrets)  # whatever is written must not hold them

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
            whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none, half an IPv6 address
            whole = False
        if not whole:
            raise UsageError(f"--base-url {self.base_url!r} is no URL: write it like http://localhost:8000")

    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings, or None for plain HTTP."""
        if urlsplit(self.base_url).scheme != "https":
            return None
        context = ssl.create_default_context()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def client(self, tls: ssl.SSLContext | None, timeout_s: float) -> httpx.AsyncClient:
        """A client for control requests, each on a connection of its own."""
        return httpx.AsyncClient(
            base_url=self.base_url,
            headers=dict(self.headers),
            verify=tls if tls is not None else False,
            trust_env=not is_loopback(urlsplit(self.base_url).hostname or ""),
            timeout=timeout_s,
            follow_redirects=False,
            # transformers serve resets a kept connection after a 500 (its /v1/models without a hub cache).
            limits=httpx.Limits(max_keepalive_connections=0),
        )

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


def _first_that_answers(found: list[Address]) -> Address:
    """The first address that takes a connection: `localhost` is often ::1 first, and served on 127.0.0.1."""
    for family, address in found if len(found) > 1 else ():
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_CONNECT_S)
            with contextlib.suppress(OSError):
                sock.connect(address)
                return family, address
    return found[0]


class Served(msgspec.Struct, frozen=True):
    """What was found at an endpoint; empty strings and 0 where the server does not say."""

    engine: Engine
    version: str
    model: str
    model_root: str = ""
    max_model_len: int = 0
    models: tuple[str, ...] = ()


class Inquiry:
    """The questions put to one server before a run."""

    def __init__(self, access: Access, tls: ssl.SSLContext | None) -> None:
        self.access, self.tls = access, tls
        self.throttle = Throttler(rate_limit=_LOOKS_PER_S, period=1.0, retry_interval=0.05)

    def ask(self, model: str | None, wait_s: float) -> Served:
        """Wait until the server is ready and say who it is; raises MeasureError when it is not."""
        if not 0 <= wait_s < _LONGEST_WAIT_S:
            raise UsageError(f"--ready-check-timeout-sec {wait_s:g}: give seconds, 0 or more")
        return asyncio.run(self._ask(model, wait_s))

    def look(self) -> str | None:
        """Why the server is not ready at this moment; None where it is."""
        return asyncio.run(self._look())

    async def _look(self) -> str | None:
        async with self.access.client(self.tls, _ANSWER_S) as client:
            return await self._trouble(client)

    async def _ask(self, model: str | None, wait_s: float) -> Served:
        async with self.access.client(self.tls, _ANSWER_S) as client:
            await self._until_ready(client, wait_s)
            try:
                return await self._identify(client, model)
            except httpx.HTTPError as error:
                said = str(error) or type(error).__name__
                raise MeasureError(f"{self.access.base_url} stopped answering: {said}") from None

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
                    f"{self.access.base_url} is not ready{waited}: {trouble}; "
                    "is this the server's address? --ready-check-timeout-sec N waits for it"
                )

    async def _trouble(self, client: httpx.AsyncClient) -> str | None:
        """Why the server is not ready, or None. /health is the truth where there is one: SGLang
        answers /v1/models seconds before it can serve."""
        try:
            answer = await client.get("/health")
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        if answer.status_code >= 500:
            return f"/health says {answer.status_code}"
        return None

    async def _identify(self, client: httpx.AsyncClient, model: str | None) -> Served:
        listing = await client.get("/v1/models")
        if listing.status_code in (401, 403):
            raise MeasureError(
                f"{self.access.base_url} refuses us ({listing.status_code}): "
                "set OPENAI_API_KEY or pass --header 'Authorization=Bearer …'"
            )
        cards = _cards(listing)
        first = cards[0] if cards else {}
        engine = engines.by_owner(str(first.get("owned_by", "")))
        if engine is None:
            paths = _json(await client.get("/openapi.json")).get("paths", {})
            engine = engines.by_paths(set(paths)) or engines.UNKNOWN
        version = _json(await client.get(engine.version_path))
        return self._served(engine, str(version.get("version", "")), cards, model)

    def _served(self, engine: Engine, version: str, cards: list[dict[str, Any]], model: str | None) -> Served:
        names = tuple(str(card.get("id", "")) for card in cards)
        if model is None:
            if not names or not engine.lists_its_model:
                raise MeasureError(
                    f"{self.access.base_url}/v1/models names no model that is served: pass --model"
                    + ("" if names else " (or is the base URL wrong?)")
                )
            model = names[0]
        elif engine.checks_model and engine.lists_its_model and names and model not in names:
            raise MeasureError(
                f"{engine.name} does not serve {model!r}; it serves {', '.join(names)}: pass --model"
            )
        card = next((card for card in cards if card.get("id") == model), {})
        return Served(
            engine=engine,
            version=version,
            model=model,
            model_root=str(card.get("root") or ""),
            max_model_len=int(card.get("max_model_len") or 0),
            models=names,
        )


def _json(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 200 or not answer.content:
        return {}
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _cards(answer: httpx.Response) -> list[dict[str, Any]]:
    cards = _json(answer).get("data", [])
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
