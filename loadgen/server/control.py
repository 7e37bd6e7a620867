"""Control: requests outside the measured run: reset the prefix cache, profile the server, read its config."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from loadgen.base.errors import MeasureError, UsageError
from loadgen.engines.engine import Engine
from loadgen.server import exchange
from loadgen.server.discovery import ServerAddress
from loadgen.server.exchange import DENIED, ControlAnswer

_ANSWER_S = 10.0
_TRACE_S = 1800.0  # writing a trace takes seconds for a tiny model, many minutes for a large one
_BUSY_S = 5.0
_AGAIN_S = 0.25
_NO_SUCH_PATH = (404, 405)


def reset_cache(access: ServerAddress, engine: Engine, busy_s: float = _BUSY_S) -> str:
    """Empty the server's prefix cache; returns "" if done, else why not.

    A busy server is asked again for `busy_s` seconds.
    """
    if not engine.reset_path:
        return f"{engine.name} has no way to empty its cache"
    deadline_s = time.monotonic() + busy_s
    while True:
        answer = _exchange(access, ("POST", engine.reset_path))
        if answer.error:
            return answer.why
        busy = _explain_busy(answer)
        if not busy:
            return (
                "" if answer.status == 200 else _explain_refusal(access, answer, engine, engine.reset_needs)
            )
        if time.monotonic() >= deadline_s:
            return f"{engine.reset_path}: {busy}"
        time.sleep(_AGAIN_S)


def _explain_busy(answer: ControlAnswer) -> str:
    """Explain why a server could not empty its cache now; "" if it could. vLLM reports it in the body."""
    if answer.status == 400:
        return answer.message or "requests are still running"
    if answer.object.get("success") is False:
        return "requests still hold a part of the cache"
    return ""


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


def read_server_info(access: ServerAddress, engine: Engine) -> dict[str, Any]:
    """Read the server's own configuration; empty where it does not report it (vLLM: outside its dev mode)."""
    return _exchange(access, ("GET", engine.info_path)).object if engine.info_path else {}


def try_request(
    access: ServerAddress,
    path: str,
    body: Mapping[str, Any],
    limit_s: float,
) -> ControlAnswer:
    """Send a trial request before the run; return the whole error, or the beginning of the answer."""
    return _exchange(access, ("POST", path), limit_s, body, begin_only=True)


def send_request(access: ServerAddress, path: str, body: Mapping[str, Any], limit_s: float) -> ControlAnswer:
    """Send a request before the run; return the whole answer."""
    return _exchange(access, ("POST", path), limit_s, body)


def _exchange(
    access: ServerAddress,
    request: tuple[str, str],
    limit_s: float = _ANSWER_S,
    body: Mapping[str, Any] | None = None,
    begin_only: bool = False,
) -> ControlAnswer:
    """Send one control request, (method, path), and return its answer."""

    async def ask() -> ControlAnswer:
        async with access.client(limit_s) as client:
            return await exchange.ask_server(client, *request, limit_s, body=body, begin_only=begin_only)

    try:
        return access.loop.run(ask())
    except OSError as error:  # not even an event loop can be opened
        return ControlAnswer(request[1], error=f"cannot be requested: {error.strerror}")


def _post(
    access: ServerAddress,
    engine: Engine,
    path: str,
    body: Mapping[str, str] | None = None,
) -> None:
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
