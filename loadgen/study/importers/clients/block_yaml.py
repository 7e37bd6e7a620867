"""Block YAML: the mappings and lists of a file that a program dumped, without flow style, anchors or tags."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields

_KEY = re.compile(
    r"""(?:'([^']{1,300})'|"([^"]{1,300})"|"""  # a key in quotes
    r"""([^\s'"\#\[{&*!|>%@`-][^:\n]{0,300}?|-[^\s:][^:\n]{0,300}?)"""  # or a plain one: --port too
    r"""):(?:\ +(.*))?"""
)
_MOST_LINES, _DEEPEST = 200_000, 40
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "true": True, "false": False, ".inf": math.inf, "-.inf": -math.inf,
    ".nan": math.nan, "{}": {}, "[]": [],
}  # fmt: skip
Line = tuple[int, str]  # its indentation, and the rest


def parse_block(text: str) -> Any:
    """Parse a text of block YAML to mappings, lists and scalars; a folded line's continuation is left out.

    Raises UsageError of over 200,000 lines, and of more than 40 levels.
    """
    lines = [
        (len(line) - len(line.lstrip(" ")), line.strip())
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith(("#", "---", "..."))
    ]
    if len(lines) > _MOST_LINES:
        raise UsageError(f"has more than {_MOST_LINES} lines: give it in parts")
    return _parse(lines, 0, lines[0][0], 0)[0] if lines else None


def _parse(lines: list[Line], at: int, indent: int, depth: int) -> tuple[Any, int]:
    """Parse what begins at a line and has at least this indentation, and return it with the next line."""
    if depth > _DEEPEST:
        raise UsageError(f"has more than {_DEEPEST} levels")
    if _is_item(lines[at][1]):
        return _parse_list(lines, at, indent, depth)
    found: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] >= indent:
        here, content = lines[at]
        matched = _KEY.fullmatch(content)
        at += 1
        if here > indent or matched is None:
            if here == indent and _is_item(content):
                return found, at - 1
            continue
        key, value = next(filter(None, matched.groups()[:3]), ""), (matched[4] or "").strip()
        following = lines[at] if at < len(lines) else (-1, "")
        below = following[0] > indent or (following[0] == indent and _is_item(following[1]))
        if not value and below:
            found[key], at = _parse(lines, at, lines[at][0], depth + 1)
        else:
            found[key] = _read_scalar(value)
    return found, at


def _parse_list(lines: list[Line], at: int, indent: int, depth: int) -> tuple[list[Any], int]:
    """Parse the items of a list, each of which may be a mapping that begins behind its dash."""
    items: list[Any] = []
    while at < len(lines) and lines[at][0] == indent and _is_item(lines[at][1]):
        content = lines[at][1][1:]
        inner = indent + 1 + len(content) - len(content.lstrip(" "))
        content = content.strip()
        if content and not _is_item(content) and _KEY.fullmatch(content) is None:
            items.append(_read_scalar(content))
            at += 1
        elif content:
            lines[at] = (inner, content)
            item, at = _parse(lines, at, inner, depth + 1)
            items.append(item)
        else:
            at += 1
            items.append(None)
        while at < len(lines) and lines[at][0] > indent:
            at += 1
    return items, at


def _is_item(content: str) -> bool:
    """Whether a line is an item of a list."""
    return content == "-" or content.startswith("- ")


def _read_scalar(text: str) -> Any:
    """Read a scalar: null, a boolean, a number as JSON reads it, else the text without its quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if text[:1] in "'\"":
        return text[1:-1] if text[-1:] == text[:1] else text[1:]
    try:
        number = json.loads(text, parse_int=json_fields.parse_whole)
    except ValueError:
        return text
    return number if isinstance(number, int | float) else text
