"""Documents: the JSON objects of a file, one or many, and their parts, whatever these turn out to be."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from loadgen.errors import UsageError
from loadgen.workload import bounds

_BEGINS = re.compile(r"[\s,]*")
_UNSET = "max_concurrency"  # told to be none: there was no limit
_FIGURE = re.compile(r"_ms$|throughput|speed")
_TIMED = ("ttft", "tpot", "itl", "e2el")
_NEXT = re.compile(r"\n[^\S\n]*(?=[{\[])")
_MOST_BROKEN = 200  # parts of a file that are no JSON: each is looked for an end again
_LONGEST_WORD = 1000  # characters of a name
_MOST_DIGITS = 18  # of a count that is written as text


class JsonDocument(msgspec.Struct, frozen=True):
    """One object, and the line it begins at; `trouble` says why it could not be read."""

    line: int
    value: dict[str, Any]
    trouble: str = ""
    last: bool = False  # nothing behind it was read


def documents(text: str) -> Iterator[JsonDocument]:
    """Every object of a text: one, a list of them, or one behind the other; NaN and Infinity are numbers.

    What is cut off is a document with a trouble, and those behind it are still read, up to 200 such.
    """
    decoder, at, line, counted, broken = json.JSONDecoder(parse_int=_parsed), 0, 1, 0, 0
    while (at := _skipped(text, at)) < len(text):
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            said = str(error).partition(":")[0].lower()
            broken += 1
            following = _NEXT.search(text, at)
            if broken == _MOST_BROKEN and following is not None:
                yield JsonDocument(
                    line, {}, f"the {broken}th part that is no JSON: the rest was not read", last=True
                )
                return
            yield JsonDocument(line, {}, f"no JSON, or cut off: {said}")
            if following is None:
                return
            at = following.end()
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield JsonDocument(line, one)


def _parsed(digits: str) -> int | float:
    """A whole number as it is; one of hundreds of digits is infinite, which is none."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _skipped(text: str, at: int) -> int:
    found = _BEGINS.match(text, at)
    return at if found is None else found.end()


def mapping(value: object) -> dict[str, Any]:
    """A JSON object; an empty one of anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """A JSON list; an empty one of anything else."""
    return value if isinstance(value, list) else []


def inside(value: object, *path: str) -> Any:
    """What lies at a path of keys; None where there is nothing."""
    for key in path:
        value = mapping(value).get(key)
    return value


def number(value: object) -> float | None:
    """A number that a figure can be, see `bounds.figure`; None of anything else, so of NaN."""
    return bounds.figure(value)


def count(value: object) -> int | None:
    """A whole number from zero on; None of anything else."""
    found = number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def word(value: object) -> str:
    """A text, its first 1000 characters; "" of anything else."""
    return value[:_LONGEST_WORD].strip() if isinstance(value, str) else ""


def written_count(text: str) -> int | None:
    """A count that is written as digits; None of anything else, and of more than 18 of them."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def rate(value: object) -> float | None:
    """Requests per second, in which clients write an infinity as Infinity, "inf" or "Infinity"."""
    if isinstance(value, str) and value.lower() in ("inf", "infinity"):
        return math.inf
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return number(value)


def shown_rate(value: object) -> float | str | None:
    """The rate as vLLM's files have it: the word "inf" for none."""
    found = rate(value)
    return "inf" if found == math.inf else found


def mean(total: float | None, of: float | None) -> float | None:
    """A mean, where there is one."""
    return total / of if total is not None and of else None


def checked(figures: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """The figures without those that nobody measured, and what is said of these.

    Clients write 0 where there was nothing to take a mean of. Raises UsageError where no figure is left.
    """
    empty = [key for key in _TIMED if figures.get(f"mean_{key}_ms") == 0]
    kept = {
        name: value
        for name, value in figures.items()
        if (value is not None or name == _UNSET) and not any(name.endswith(f"_{key}_ms") for key in empty)
    }
    if not any(number(value) for name, value in kept.items() if _FIGURE.search(name)):
        raise UsageError(f"{source} has no figure in it")
    return kept, [f"{key.upper()} is 0: none was measured" for key in empty]
