"""Values that nobody expects, put where some bytes say: into a JSON document, which stays one."""

from __future__ import annotations

import math
from typing import Any

MOST_LISTED = 3  # elements of a list that are kept: reports list every request
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *(2**31, 2**53 + 1, 2**63, 10**30, -(10**30), "", " ", "0", "-1", "1e400", "nan", "inf", "NaN", "x"),
    *("\0", "\x1b[2J", "\ud800", "é" * 600, "9" * 5000, "0x1", "20260102-030405", "99999999-999999"),
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", "a/b", "..", "\n", "٣"),
    *([], [None], [0], [-1.5], [[]], [{}], [1e308, 1e308], ["x"], {}, {"": None}, {"mean": {}}, {"x": [1]}),
)
_GONE = len(ODD)  # the number of no value: the key is taken away


def shortened(value: Any) -> Any:
    """A document with a few elements of each list."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    return [shortened(one) for one in value[:MOST_LISTED]] if isinstance(value, list) else value


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(spot for key, one in pairs for spot in spots(one, (*path, key)))]


def replaced(document: Any, every: list[tuple[Any, ...]], data: bytes) -> Any:
    """A document with the value at a spot replaced, for each three bytes: two say where, one by what."""
    for at in range(0, len(data) - 2, 3):
        spot = every[int.from_bytes(data[at : at + 2]) % len(every)]
        document = _with(document, spot, data[at + 2] % (_GONE + 1))
    return document


def _with(value: Any, spot: tuple[Any, ...], odd: int) -> Any:
    """A copy along the path; where an earlier replacement took the path away, the value as it is."""
    if not spot:
        return ODD[odd]
    key, *rest = spot
    if isinstance(value, dict) and key in value:
        if not rest and odd == _GONE:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: _with(value[key], tuple(rest), odd)}
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        kept = value[:key] + value[key + 1 :]
        return (
            kept
            if not rest and odd == _GONE
            else [*value[:key], _with(value[key], tuple(rest), odd), *value[key + 1 :]]
        )
    return value
