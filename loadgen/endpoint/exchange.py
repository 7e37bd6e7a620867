"""Exchange: one control request and its answer, bounded in time and size, whatever the server does.

httpx's own limits are for each read; a server that drips holds them off for ever.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import httpx
import msgspec

from loadgen.protocol import untrusted

MOST_BYTES = 8 << 20
_SAID = 200  # characters of an answer's own words
_TO_CERTIFICATES = "--insecure accepts any certificate"
_TO_AUTHORITIES = f"--ca-cert FILE names the authority to trust, {_TO_CERTIFICATES}"
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            request.close()
            if not completed:  # what was under way must not go on with the next request
                self._runner.close()
                self._runner = asyncio.Runner()

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
    """What came of one control request: status and body, or in words why there is none."""

    path: str
    status: int = 0
    body: bytes = b""
    moved: str = ""  # the origin that a redirect to another server names
    trouble: str = ""  # what is wrong, as the end of a sentence that begins with the path

    @property
    def ok(self) -> bool:
        """Whether it is a whole answer of 200."""
        return self.status == 200 and not self.trouble

    @property
    def object(self) -> dict[str, Any]:
        """The JSON object of an answer of 200; empty where it is anything else."""
        return untrusted.json_object(self.body) if self.ok else {}

    @property
    def why(self) -> str:
        """What is wrong, with the path; "" where the server answered."""
        return f"{self.path} {self.trouble}" if self.trouble else ""

    @property
    def words(self) -> str:
        """The server's own words, of an error above all, on one line of 200 characters."""
        error = untrusted.json_object(self.body).get("error")
        said = error.get("message") if isinstance(error, dict) else error
        whole = said if isinstance(said, str) else self.body[: 8 * _SAID].decode("utf-8", "replace")
        return untrusted.text(" ".join(whole[: 8 * _SAID].split()), _SAID)


async def ask(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    limit_s: float,
    most_bytes: int = MOST_BYTES,
    body: object = None,
) -> ControlAnswer:
    """One request, answered in `limit_s` in all and in at most so many bytes, or in words why not."""
    shown = path.partition("?")[0]
    try:
        async with asyncio.timeout(limit_s), client.stream(method, path, json=body) as answer:
            found = bytearray()
            async for piece in answer.aiter_bytes():
                found += piece
                if len(found) > most_bytes:
                    return ControlAnswer(shown, trouble=f"answers more than {most_bytes >> 20} MiB")
    except TimeoutError:
        return ControlAnswer(shown, trouble=f"does not answer within {limit_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return ControlAnswer(shown, trouble=_fault(error))
    # An answer holds itself by its stream, and while a run is decoded nothing collects cycles.
    answer.stream = httpx.ByteStream(b"")
    moved = _moved(answer)
    trouble = (
        f"redirects to {moved} ({answer.status_code}): give the URL that answers itself" if moved else ""
    )
    return ControlAnswer(shown, answer.status_code, bytes(found), moved, trouble)


def _moved(answer: httpx.Response) -> str:
    """The origin to which an answer redirects, where it is not the one that was asked: never followed."""
    location = answer.headers.get("location", "")
    if not 300 <= answer.status_code < 400 or not location:
        return ""
    try:
        there = answer.request.url.join(location)
    except (httpx.InvalidURL, ValueError):
        return "what is no URL"
    here = answer.request.url
    if (there.scheme, there.host, there.port) == (here.scheme, here.host, here.port):
        return ""
    return untrusted.text(f"{there.scheme}://{there.netloc.decode('ascii', 'replace')}")


def _fault(error: Exception) -> str:
    """Why there is no answer; never httpx's word for a header, which holds its value."""
    refused = _refused(error)
    if refused is not None:
        return f"is behind a certificate that {_certificate(refused)}"
    if isinstance(error, httpx.LocalProtocolError | UnicodeError):
        return "cannot be asked: a header or the URL is not valid HTTP; check --header and OPENAI_API_KEY"
    said = untrusted.text(" ".join(str(error).split()), _SAID)
    return f"does not answer: {said or type(error).__name__}"


def _refused(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The refusal of a certificate that stands behind an error."""
    for _ in range(8):
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _certificate(refused: ssl.SSLCertVerificationError) -> str:
    """What is wrong with a server's certificate, and what to do."""
    said = untrusted.text(refused.verify_message or refused.reason or "is not valid").rstrip(".")
    if refused.verify_code in _DATES:
        return f"is out of date ({said}): renew it, or {_TO_CERTIFICATES} (--ca-cert does not help)"
    if refused.verify_code in _NAMES:
        return (
            f"is another host's ({said}): check --base-url, or {_TO_CERTIFICATES} (--ca-cert does not help)"
        )
    return f"nobody known has signed ({said}): {_TO_AUTHORITIES}"


def shown_url(url: str) -> str:
    """Scheme, host, port and path of a URL, whatever it is: no credentials, no query."""
    front = url.partition("?")[0].partition("#")[0]
    scheme, slashes, rest = front.rpartition("//")
    authority, slash, path = rest.partition("/")
    return untrusted.text(f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path}")
