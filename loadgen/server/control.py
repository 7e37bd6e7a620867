"""Control: all that a server is asked outside the measured run, at most a few times a second.

Whether it is ready, which engine and model it is, its configuration, to empty its prefix cache, to profile
itself, to answer a trial request.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec
from asyncio_throttle.throttler import Throttler

from loadgen.base import clock, untrusted
from loadgen.base.errors import MeasureError, NotReady, UsageError
from loadgen.base.text import list_first
from loadgen.base.urls import is_public
from loadgen.engines import engines
from loadgen.engines.engine import Engine, SelfDescription
from loadgen.server import exchange
from loadgen.server.exchange import DENIED, UNAUTHORIZED, ControlAnswer, ServerAddress

EMPTIED = "emptied before the run"
_ANSWER_S = 10.0
_TRACE_S = 1800.0  # writing a trace takes seconds for a tiny model, many minutes for a large one
_BUSY_S = 5.0
_AGAIN_S = 0.25
_NO_SUCH_PATH = (404, 405)
_LONGEST_WAIT_S = 1e9
_POLLS_PER_S = 2
_MOST_NAMES = 10  # of models, in a message
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # characters; no file system allows more


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
        self.models_path = f"{access.prefix}/models{access.query}"
        self.reason = ""  # why the server is not ready yet, as of the last poll
        self.throttle = Throttler(rate_limit=_POLLS_PER_S, period=1.0, retry_interval=0.05)

    def ask(self, model: str | None, wait_s: float) -> ServerInfo:
        """Wait `wait_s` seconds at most for the server and identify it; raises MeasureError, UsageError."""
        if not 0 <= wait_s < _LONGEST_WAIT_S:
            raise UsageError(f"--ready-check-timeout-sec {wait_s:g}: give seconds, 0 or more")
        return self.access.loop.run(self._ask(model, wait_s))

    def poll(self) -> str | None:
        """Ask once why the server is not ready, None if it is; MeasureError for an untrusted certificate."""

        async def ask_once() -> str | None:
            async with self.access.client(_ANSWER_S) as client:
                return await self._explain_not_ready(client)

        return self.access.loop.run(ask_once())

    async def _ask(self, model: str | None, wait_s: float) -> ServerInfo:
        """Poll until the server is ready and identify it, a hosted API at once; raises MeasureError."""
        async with self.access.client(_ANSWER_S) as client:
            behind_tls = self.tls is not None and is_public(self.access.base_url)
            if behind_tls and (hosted := await self._identify_hosted(client, model)) is not None:
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

    async def _identify_hosted(self, client: httpx.AsyncClient, model: str | None) -> ServerInfo | None:
        """Identify a hosted API; None if an engine owns its models or it fails; raises MeasureError.

        It is asked for its models alone: it has no /health, and may have no list, or not for every key.
        """
        listing = await exchange.ask_again(client, "GET", self.models_path, _ANSWER_S)
        if listing.error or listing.status >= 500:
            return None
        if listing.status == UNAUTHORIZED or (listing.status in DENIED and model is None):
            raise MeasureError(self.access.explain_denial(listing))
        cards = _list_cards(listing)
        if cards and engines.find_by_owner(untrusted.read_text(cards[0].get("owned_by"))) is not None:
            return None  # a gateway that passes on what the engine reports
        return self._describe_served(engines.HOSTED, SelfDescription(), cards, model)

    async def _explain_not_ready(self, client: httpx.AsyncClient) -> str | None:
        """Ask /health why the server is not ready, None if it is; MeasureError for an untrusted certificate.

        SGLang answers /v1/models seconds too early.
        """
        answer = await exchange.ask_server(client, "GET", "/health", _ANSWER_S)
        if answer.refused_certificate:
            raise MeasureError(f"{self.access.shown_url} {answer.error}")
        if answer.status >= 500:
            return f"/health answers {answer.status}"
        return answer.why or None

    async def _identify(self, client: httpx.AsyncClient, model: str | None) -> ServerInfo:
        """Identify the engine, by its models' owner, else its paths, and the model; raises MeasureError."""
        listing = await self._answer(client, self.models_path)
        if listing.status in DENIED:
            raise MeasureError(self.access.explain_denial(listing))
        cards = _list_cards(listing)
        first = cards[0] if cards else {}
        engine = engines.find_by_owner(untrusted.read_text(first.get("owned_by")))
        if engine is None:
            paths = untrusted.read_mapping((await self._answer(client, "/openapi.json")).object.get("paths"))
            engine = next((each for each in engines.ENGINES if each.own_path in paths), engines.UNKNOWN)
        own = engine.describe((await self._answer(client, engine.version_path)).object)
        return self._describe_served(engine, own, cards, model)

    async def _answer(self, client: httpx.AsyncClient, path: str) -> ControlAnswer:
        """Ask a ready server for a path; raises MeasureError if it does not answer."""
        answer = await exchange.ask_again(client, "GET", path, _ANSWER_S)
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
    """List the model entries of /v1/models whose name is printable and has 300 characters at most."""
    listed = [card for card in untrusted.read_list(answer.object.get("data")) if isinstance(card, dict)]
    return [card for card in listed if (name := card.get("id")) and untrusted.read_text(name) == name]


def _read_root(value: object) -> str:
    """Read the path or name that a model was loaded from; "" if the value cannot be one."""
    if not isinstance(value, str) or untrusted.read_text(value, _LONGEST_PATH) != value:
        return ""
    return value if all(len(name.encode()) <= _LONGEST_NAME for name in value.split("/")) else ""


def read_server_info(access: ServerAddress, engine: Engine) -> dict[str, Any]:
    """Read the server's own configuration at its path, else at its older one; {} if neither reports it."""
    for path in filter(None, (engine.info_path, engine.older_info_path)):
        if found := _exchange(access, ("GET", path)).object:
            return found
    return {}


def send_request(
    access: ServerAddress, path: str, body: Mapping[str, Any], limit_s: float, begin_only: bool = False
) -> ControlAnswer:
    """Post a request outside the run and return the answer; `begin_only`: the first bytes of a 200."""
    return _exchange(access, ("POST", path), limit_s, body, begin_only)


def reset_cache(access: ServerAddress, engine: Engine, busy_s: float = _BUSY_S) -> str:
    """Empty the server's prefix cache, asking a busy one for `busy_s`; returns "" if done, else why not."""
    if not engine.reset_path:
        return f"{engine.name} has no way to empty its cache"
    deadline_s = time.monotonic() + busy_s
    while True:
        answer = _exchange(access, ("POST", engine.reset_path))
        if answer.error:
            return answer.why
        if answer.status == 400:
            busy = answer.message or "requests are still running"
        elif answer.object.get("success") is False:  # as vLLM reports it
            busy = "requests still hold a part of the cache"
        elif answer.status == 200:
            return ""
        else:
            return _explain_refusal(access, answer, engine, engine.reset_needs)
        if time.monotonic() >= deadline_s:
            return f"{engine.reset_path}: {busy}"
        time.sleep(_AGAIN_S)


class Trace(msgspec.Struct):
    """A server's profiler trace: where it lies, and in `error` why it may be incomplete."""

    directory: str
    error: str = ""

    def __str__(self) -> str:
        return self.directory + (f" (incomplete: {self.error})" if self.error else "")


@contextlib.contextmanager
def trace_server(access: ServerAddress, engine: Engine, directory: str) -> Iterator[Trace]:
    """Have the server profile itself while the block runs, and wait until its trace is written.

    The directory is on the server's machine; some engines only take it at launch. Raises UsageError where
    this server cannot be profiled, MeasureError where profiling does not start. A failure to stop is kept in
    `Trace.error`, so that the measurement is not lost.
    """
    if not engine.trace_start_path:
        raise UsageError(f"{engine.name} cannot profile itself: leave out --server-trace")
    body = {engine.trace_directory_field: directory} if engine.trace_directory_field else None
    _post(access, engine, engine.trace_start_path, body)
    trace = Trace(directory)
    try:
        yield trace
    finally:
        try:
            _post(access, engine, engine.trace_stop_path)
        except (UsageError, MeasureError) as error:
            trace.error = str(error)
        except KeyboardInterrupt as stop:  # ends the wait for the trace; the measurement is kept
            trace.error = f"{str(stop) or 'stopped by Ctrl-C'} before it was written"


def _exchange(
    access: ServerAddress,
    request: tuple[str, str],
    limit_s: float = _ANSWER_S,
    body: Mapping[str, Any] | None = None,
    begin_only: bool = False,
) -> ControlAnswer:
    """Send one control request, (method, path); return its answer, whatever fails as the answer's error."""

    async def ask() -> ControlAnswer:
        async with access.client(limit_s) as client:
            return await exchange.ask_server(client, *request, limit_s, body=body, begin_only=begin_only)

    try:
        return access.loop.run(ask())
    except OSError as error:  # not even an event loop can be opened
        return ControlAnswer(request[1], error=f"cannot be requested: {error.strerror}")


def _post(access: ServerAddress, engine: Engine, path: str, body: Mapping[str, str] | None = None) -> None:
    """Post to the server, for up to half an hour; raises UsageError or MeasureError unless it answers 200."""
    answer = _exchange(access, ("POST", path), _TRACE_S, body)
    if answer.error:
        raise MeasureError(f"{answer.why}; see the server's log")
    if answer.status != 200:
        error = UsageError if answer.status in _NO_SUCH_PATH else MeasureError
        raise error(_explain_refusal(access, answer, engine, engine.trace_needs))


def _explain_refusal(access: ServerAddress, answer: ControlAnswer, engine: Engine, needs: str) -> str:
    """Explain why a control request was refused, and what to do; `needs` is the server's missing flag."""
    path, status = answer.path, answer.status
    if status in DENIED:
        return access.explain_denial(answer, path)
    if status in _NO_SUCH_PATH and needs:
        return f"{engine.name} has no {path} ({status}): start it with {needs}"
    return f"{path} answers {status}" + (f": {answer.message}" if answer.message else "")
