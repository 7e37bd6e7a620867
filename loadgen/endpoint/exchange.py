"""Exchange: one control request and its answer, bounded in total time and in size.

httpx's own limits are per read; a server that sends a byte now and then never exceeds them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any, Protocol, Self, TypeVar

import httpx
import msgspec

from loadgen.protocol import untrusted

MOST_BYTES = 8 << 20
_LONGEST_MESSAGE = 200  # characters
_INSECURE = "pass --insecure to accept any certificate (--ca-cert does not help)"
# OpenSSL's verify codes: expired and not yet valid; of another name, or address.
_DATES, _NAMES = (9, 10), (62, 64)
_POLL_S = 0.1
T = TypeVar("T")


class Interrupt(Protocol):
    """A request by another thread to end what is under way."""

    @property
    def pending(self) -> bool:
        """Whether `poll` has something to deliver."""

    def poll(self) -> None:
        """Raise, or note, a request that was made since the last time."""


class ControlLoop:
    """Where control requests run: in its `with` block all on one event loop, elsewhere each on its own."""

    def __init__(self, interrupt: Interrupt | None = None) -> None:
        self._interrupt = interrupt
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        return self

    def __exit__(self, *error: object) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def run(self, request: Coroutine[Any, Any, T]) -> T:
        """What a request comes to; raises OSError where no socket is left for it, and what `poll` raises."""
        if self._runner is None:
            with ControlLoop(self._interrupt) as alone:
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
                self._runner = asyncio.Runner()
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

    @property
    def object(self) -> dict[str, Any]:
        """The JSON object of an answer with status 200; empty if it is anything else."""
        return untrusted.json_object(self.body) if self.status == 200 and not self.error else {}

    @property
    def why(self) -> str:
        """The error with the path; "" if the server answered."""
        return f"{self.path} {self.error}" if self.error else ""

    @property
    def message(self) -> str:
        """The server's error message, else its body, on one line of 200 characters."""
        error = untrusted.json_object(self.body).get("error")
        message = error.get("message") if isinstance(error, dict) else error
        if not isinstance(message, str):
            message = self.body[: 8 * _LONGEST_MESSAGE].decode("utf-8", "replace")
        return untrusted.line(message[: 8 * _LONGEST_MESSAGE], _LONGEST_MESSAGE)


async def ask(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    limit_s: float,
    most_bytes: int = MOST_BYTES,
    body: object = None,
) -> ControlAnswer:
    """Send one request; its answer must arrive within `limit_s` and have at most `most_bytes`."""
    shown = path.partition("?")[0]
    try:
        async with asyncio.timeout(limit_s), client.stream(method, path, json=body) as answer:
            data = bytearray()
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > most_bytes:
                    return ControlAnswer(shown, error=f"answers more than {most_bytes >> 20} MiB")
    except TimeoutError:
        return ControlAnswer(shown, error=f"does not answer within {limit_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return ControlAnswer(shown, error=_described(error))
    # An answer and its stream reference each other, and the GC is disabled while a run is decoded.
    answer.stream = httpx.ByteStream(b"")
    origin = _other_origin(answer)
    redirect = f"redirects to {origin} ({answer.status_code}): give the final URL" if origin else ""
    return ControlAnswer(shown, answer.status_code, bytes(data), redirect)


def _other_origin(answer: httpx.Response) -> str:
    """The origin of a redirect to another server, which is never followed; "" of any other answer."""
    location = answer.headers.get("location", "")
    if not 300 <= answer.status_code < 400 or not location:
        return ""
    try:
        there = answer.request.url.join(location)
    except (httpx.InvalidURL, ValueError):
        return "an invalid URL"
    here = answer.request.url
    if (there.scheme, there.host, there.port) == (here.scheme, here.host, here.port):
        return ""
    return untrusted.text(f"{there.scheme}://{there.netloc.decode('ascii', 'replace')}")


def _described(error: Exception) -> str:
    """Why there is no answer; not httpx's own message for a header, which contains its value."""
    refusal = _certificate_error(error)
    if refusal is not None:
        return f"has a TLS certificate that {_certificate(refusal)}"
    if isinstance(error, httpx.LocalProtocolError | UnicodeError):
        return "cannot be requested: a header or the URL is not valid HTTP; check --header and OPENAI_API_KEY"
    message = untrusted.line(str(error), _LONGEST_MESSAGE)
    return f"does not answer: {message or type(error).__name__}"


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The certificate error among an error's causes."""
    for _ in range(8):
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _certificate(refusal: ssl.SSLCertVerificationError) -> str:
    """What is wrong with a server's certificate, and what to do."""
    reason = untrusted.text(refusal.verify_message or refusal.reason or "is not valid").rstrip(".")
    if refusal.verify_code in _DATES:
        return f"is out of date ({reason}): renew it, or {_INSECURE}"
    if refusal.verify_code in _NAMES:
        return f"is for another host ({reason}): check --base-url, or {_INSECURE}"
    return (
        f"no trusted authority has signed ({reason}): name the authority with --ca-cert FILE, or pass "
        "--insecure to accept any certificate"
    )
