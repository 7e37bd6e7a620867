"""Plain faults: why a value of JSON is not what was expected, in words that need no knowledge of types."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from loadgen.base.text import clean_line
from loadgen.base.untrusted import NOT_JSON

_MOST_BYTES = 64 << 20  # of JSON that is read again for the value
_MOST_LETTERS = 40  # of a value that is shown
_PLACE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_BOUNDS = {">=": "{} or more", "<=": "{} or less", ">": "more than {}", "<": "less than {}"}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def _bound(found: re.Match[str]) -> str:
    return "give " + _BOUNDS[found[1]].format(found[2].removesuffix(".0"))


def _types(found: re.Match[str]) -> str:
    names = [name for name in found[1].split(" | ") if name != "null"]
    return "give " + " or ".join(_TYPES.get(name, name) for name in names)


# What msgspec says of a value, and what is to be given in its place.
_ADVICE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (\S+)"), _bound),
    (re.compile(r"Expected `\w+` of length >= 1"), lambda _: "it must not be empty"),
    (re.compile(r"Expected `(.+)`, got `.+`"), _types),
    (re.compile(r"Invalid enum value .+"), lambda _: "not one of its values"),
)
_MISSING = re.compile(r"Object missing required field `(.+)`")


def plain(error: msgspec.ValidationError, row: bytes, name: str = "") -> str:
    """What is wrong in the JSON of `row`, as `timestamp is -3: give 0 or more`.

    `name` is that of the whole of it; "" where it has none. What has no plain words keeps msgspec's.
    """
    found = _PLACE.fullmatch(str(error))
    what, path = (str(error), "") if found is None else (found[1], found[2] or "")
    where = name + path if name else path.removeprefix(".")
    if missing := _MISSING.fullmatch(what):
        return f"{where} has no {missing[1]}".lstrip()
    for pattern, advice in _ADVICE:
        if expected := pattern.fullmatch(what):
            value = _value(row, path)
            return (
                f"{where} is {value}: {advice(expected)}".lstrip()
                if value
                else f"{where}: {advice(expected)}"
            )
    return f"{where}: {what}" if where else what


def _value(row: bytes, path: str) -> str:
    """The JSON at a path, of a long one the begin; "" where it is not found."""
    steps = _STEP.findall(path)
    if len(row) > _MOST_BYTES or "".join(f".{key}" if key else f"[{place}]" for key, place in steps) != path:
        return ""
    try:
        for key, place in steps:
            if key:
                row = bytes(msgspec.json.decode(row, type=dict[str, msgspec.Raw])[key])
            else:
                row = bytes(msgspec.json.decode(row, type=list[msgspec.Raw])[int(place)])
    except (*NOT_JSON, LookupError):
        return ""
    text = clean_line(row.strip().decode("utf-8", "replace"))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
