"""Server text: what a server wrote, made safe to keep: without secrets, in one printable line, short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

LONGEST_DETAIL: Final = 300  # characters of an error's text
LONGEST_REASON: Final = 32  # characters of a finish reason; real ones have up to 28
# Whatever msgspec raises for bytes that are no JSON of the type asked for; nested too deep is one of these.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"

Hide = Callable[[str], str]  # a text with its secrets masked


def as_is(text: str) -> str:
    """The text itself: a Hide where there is no secret."""
    return text


def kept(text: str, hide: Hide, longest: int) -> str:
    """One line of at most `longest` characters, every one of them printable; secrets are masked first.

    A secret cut in half by the shortening would no longer be found.
    """
    short = " ".join(hide(text).split())[:longest]
    return short if short.isprintable() else "".join(c if c.isprintable() else _UNPRINTABLE for c in short)


def words(body: bytes) -> str:
    """What a server says of an error, out of whichever JSON it uses, else the text itself; not shortened."""
    try:
        return _said(msgspec.json.decode(body))
    except (*NOT_JSON, ValueError, OverflowError):  # these two: a number that cannot be written again
        return body.decode("utf-8", "replace")


def _said(said: Any) -> str:
    while isinstance(said, dict):
        inner = next((said[key] for key in ("error", "message", "detail") if said.get(key)), None)
        if inner is None:
            break
        said = inner
    return said if isinstance(said, str) else msgspec.json.encode(said).decode()
