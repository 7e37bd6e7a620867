"""Denied: what a 401 or a 403 means, by whether a key was sent and from where; no key is ever shown."""

from __future__ import annotations

from typing import Final

UNAUTHORIZED: Final = 401
DENIED: Final = (UNAUTHORIZED, 403)
_WAYS = "set OPENAI_API_KEY, or pass --api-key-file FILE (--header for other schemes)"


def why_denied(url: str, status: int, key_origin: str, message: str = "") -> str:
    """Why a server that is named by its URL answers 401 or 403, and what to do.

    `key_origin` is where the key came from, "" where none was sent. The server's message is left out of a
    401: it may repeat a part of the key.
    """
    if not key_origin:
        return f"{url} needs an API key and none was sent ({status}): {_WAYS}"
    if status == UNAUTHORIZED:
        return (
            f"{url} does not accept the key from {key_origin} ({status}): check that it is a key of this "
            "server, whole and not expired"
        )
    why = f": {message}" if message else ""
    return (
        f"{url} denies this to the key from {key_origin} ({status}{why}): check what the key may use, "
        "and --model"
    )
