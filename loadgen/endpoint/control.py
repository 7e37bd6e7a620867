"""Control: what a server is asked to do between runs: forget its cache, trace itself, say how it runs."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.endpoint import exchange
from loadgen.endpoint.discovery import ServerAddress
from loadgen.endpoint.exchange import ControlAnswer
from loadgen.errors import MeasureError, UsageError
from loadgen.protocol.engines import Engine

_ANSWER_S = 10.0
_TRACE_S = 1800.0  # writing a trace takes seconds for a tiny model, many minutes for a large one
_BUSY_S = 5.0
_AGAIN_S = 0.25
_NO_SUCH_PATH = (404, 405)
_REFUSED = (401, 403)


def reset_cache(
    access: ServerAddress, tls: ssl.SSLContext | None, engine: Engine, busy_s: float = _BUSY_S
) -> str:
    """Empty the server's prefix cache; "" when it is done, else why not, in words.

    A server that is still busy is asked again for `busy_s` seconds.
    """
    if not engine.reset_path:
        return f"{engine.name} has no way to empty its cache"
    return access.loop.run(_reset(access, tls, engine, busy_s))


async def _reset(access: ServerAddress, tls: ssl.SSLContext | None, engine: Engine, busy_s: float) -> str:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + busy_s
    async with access.client(tls, _ANSWER_S) as client:
        while True:
            answer = await exchange.ask(client, "POST", engine.reset_path, _ANSWER_S)
            if answer.trouble:
                return answer.why
            busy = _busy(answer)
            if not busy:
                return "" if answer.status == 200 else _refusal(answer, engine, engine.reset_needs)
            if loop.time() >= deadline_s:
                return f"{engine.reset_path}: {busy}"
            await asyncio.sleep(_AGAIN_S)


def _busy(answer: ControlAnswer) -> str:
    """Why a server could not empty its cache now; vLLM says so in its body, older ones not at all."""
    if answer.status == 400:
        return answer.words or "requests are still running"
    if answer.object.get("success") is False:
        return "requests still hold a part of the cache"
    return ""


@dataclass
class Trace:
    """A server's trace of itself; `trouble` says why it may not be whole."""

    directory: str
    trouble: str = ""

    def __str__(self) -> str:
        return self.directory + (f" (not whole: {self.trouble})" if self.trouble else "")


@contextlib.contextmanager
def tracing(
    access: ServerAddress, tls: ssl.SSLContext | None, engine: Engine, directory: str
) -> Iterator[Trace]:
    """Let the server trace itself while the block runs, and wait until its trace is written.

    The directory is one of the server's machine. Where the engine takes it at its launch only, it is
    that one's. Raises UsageError where this server cannot be traced, MeasureError where it would not
    begin to: what was measured is not lost for a trace that does not end.
    """
    if not engine.trace_start_path:
        raise UsageError(f"{engine.name} has no way to trace itself: leave out --server-trace")
    body = {engine.trace_directory_field: directory} if engine.trace_directory_field else None
    _tell(access, tls, engine, (engine.trace_start_path, body))
    trace = Trace(directory)
    try:
        yield trace
    finally:
        try:
            _tell(access, tls, engine, (engine.trace_stop_path, None))
        except (UsageError, MeasureError) as error:
            trace.trouble = str(error)
        except KeyboardInterrupt:  # the wait for it is given up, not what was measured
            trace.trouble = "stopped by Ctrl-C before it was written"


def server_info(access: ServerAddress, tls: ssl.SSLContext | None, engine: Engine) -> dict[str, Any]:
    """What the server says of how it runs; empty where it does not say (vLLM: outside its dev mode)."""
    try:
        return access.loop.run(_info(access, tls, engine)) if engine.info_path else {}
    except OSError:  # not even a socket of ours
        return {}


async def _info(access: ServerAddress, tls: ssl.SSLContext | None, engine: Engine) -> dict[str, Any]:
    async with access.client(tls, _ANSWER_S) as client:
        return (await exchange.ask(client, "GET", engine.info_path, _ANSWER_S)).object


def _tell(
    access: ServerAddress,
    tls: ssl.SSLContext | None,
    engine: Engine,
    request: tuple[str, Mapping[str, str] | None],
) -> None:
    path, body = request

    async def post() -> ControlAnswer:
        async with access.client(tls, _TRACE_S) as client:
            return await exchange.ask(client, "POST", path, _TRACE_S, body=body)

    try:
        answer = access.loop.run(post())
    except OSError as error:  # not even a socket of ours
        raise MeasureError(f"{path} cannot be asked: {error.strerror}") from None
    if answer.trouble:
        raise MeasureError(f"{answer.why}; look into the server's log")
    if answer.status != 200:
        fault = UsageError if answer.status in _NO_SUCH_PATH else MeasureError
        raise fault(_refusal(answer, engine, engine.trace_needs))


def _refusal(answer: ControlAnswer, engine: Engine, needs: str) -> str:
    """Why a control request was refused, and what to do."""
    path, status = answer.path, answer.status
    if status in _REFUSED:
        return f"{path}: refused ({status}): set OPENAI_API_KEY or pass --header 'Authorization=Bearer …'"
    if status in _NO_SUCH_PATH and needs:
        return f"{engine.name} has no {path} ({status}): start it with {needs}"
    return f"{path} answers {status}" + (f": {said}" if (said := answer.words) else "")
