"""Sent headers: what a user may put into a request's head; nothing that would make two requests of one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from loadgen.base.errors import UsageError

# What a user may not set: the transport decides where a request ends, where it goes, and what becomes of the
# connection; two of one of these, and server and client disagree.
_FRAMING = {"content-length", "transfer-encoding", "te", "trailer", "expect"}
_CONNECTION = {"host", "connection", "keep-alive", "proxy-connection", "upgrade"}
_OURS = _FRAMING | _CONNECTION | {"content-type", "x-request-id"}
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2
_VALUE = re.compile(r"[\t -~]*")
_PATH = re.compile(r"[!-~]*")
_ID = re.compile(r"[ -~]*")


def check_headers(headers: Iterable[tuple[str, str]], origin: str = "--header") -> None:
    """Raises UsageError that names the header, never its value, where one cannot be sent as it is meant."""
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{origin} {name!r}: not a valid header name: use letters, digits and hyphens")
        if name.lower() in _OURS:
            raise UsageError(f"{origin} {name}: the client sets this header itself: leave it out")
        if not _VALUE.fullmatch(value):
            raise UsageError(
                f"{origin} {name}: the value has a control character or is not ASCII "
                "(a line end from a key file?): give one line of ASCII"
            )


def check_path(path: str, origin: str = "--endpoint") -> None:
    """Raises UsageError where a path cannot stand in a request line as it is."""
    if not _PATH.fullmatch(path):
        raise UsageError(f"{origin} {path!r}: has a space or a non-ASCII character: percent-encode it (%20)")


def check_request_id_prefix(prefix: str) -> None:
    """Raises UsageError where a prefix of x-request-id cannot stand in a header."""
    if not _ID.fullmatch(prefix):
        raise UsageError(
            f"--request-id-prefix {prefix!r} has a character that no header may hold: use printable ASCII"
        )
