"""Httpx exchange: control requests to any server: TLS, proxies, redirects; imported when one is needed."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import httpx
import msgspec

from loadgen.base import untrusted
from loadgen.base.urls import is_this_machine
from loadgen.server.answer_time import AnswerWatch
from loadgen.transport.failure import explain_distrust

_LONGEST_MESSAGE = 200  # characters


class Exchanged(NamedTuple):
    """What came of a request: the fields of a `ControlAnswer` that are of the exchange."""

    status: int = 0
    body: bytes = b""
    error: str = ""
    refused_certificate: bool = False
    broken: bool = False
    retry_after: str = ""


def open_client(
    base_url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, timeout_s: float
) -> httpx.AsyncClient:
    """Open a client whose requests each have a connection of their own.

    Raises UnicodeError for a header that is not ASCII, ValueError for a proxy variable that is not a URL.
    """
    try:
        return httpx.AsyncClient(
            base_url=base_url,
            headers=dict(headers),
            verify=tls if tls is not None else False,
            trust_env=not is_this_machine(base_url),
            timeout=timeout_s,
            follow_redirects=False,
            # transformers serve resets a kept connection after a 500 (/v1/models without a hub cache).
            limits=httpx.Limits(max_keepalive_connections=0),
        )
    except (ImportError, httpx.InvalidURL):
        raise ValueError("not the URL of a proxy") from None  # httpx's message may contain its password


async def exchange_request(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    most_bytes: int,
    watch: AnswerWatch,
    body: object,
    begin_only: bool = False,
) -> Exchanged:
    """Send a request and return what came of it.

    The body has at most `most_bytes`; `begin_only`: of one with status 200 only what comes first is read.
    """
    # As a plan's bodies are encoded: httpx's own JSON has no place for the values that a file has as bytes.
    content = None if body is None else msgspec.json.encode(body)
    kind = {} if body is None else {"content-type": "application/json"}
    follow = {"trace": partial(_note_connection, watch)}
    try:
        async with client.stream(method, path, content=content, headers=kind, extensions=follow) as answer:
            watch.note_first(answer.extensions["network_stream"].get_extra_info("socket"))
            data = bytearray()
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > most_bytes:
                    return Exchanged(error=f"answers more than {most_bytes >> 20} MiB")
                if begin_only and answer.status_code == httpx.codes.OK:
                    break
            watch.note_last(answer.num_bytes_downloaded)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            raise  # the whole exchange takes too long
        if distrust := explain_distrust(error):
            return Exchanged(error=distrust, refused_certificate=True)
        # A header or a URL that cannot be sent is no better the next time.
        broken = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | OSError)
        return Exchanged(error=_describe_error(error), broken=broken)
    # An answer and its stream reference each other, and the GC is disabled while a run is decoded.
    answer.stream = httpx.ByteStream(b"")
    place = _find_other_place(answer)
    redirect = f"redirects to {place} ({answer.status_code}): give the final URL" if place else ""
    retry_after = answer.headers.get("retry-after", "")
    return Exchanged(answer.status_code, bytes(data), redirect, retry_after=retry_after)


async def _note_connection(watch: AnswerWatch, event: str, found: Mapping[str, Any]) -> None:
    """Note a connection and its TLS handshake as httpcore reports them."""
    if event == "connection.connect_tcp.complete":
        watch.note_connected(found["return_value"].get_extra_info("socket"))
    elif event == "connection.start_tls.complete":
        tls = found["return_value"].get_extra_info("ssl_object")
        watch.note_tls(None if tls is None else tls.version())


def _find_other_place(answer: httpx.Response) -> str:
    """Return where a redirect leads, without its query; "" for any other answer.

    What a GET finds elsewhere on the same server is missing here: "" of that too.
    """
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
