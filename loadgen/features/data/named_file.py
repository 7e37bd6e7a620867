"""Named file: what a file is, by its first row alone, and the text of a body; nothing is refused here."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import msgspec

from loadgen.base.files import expand_path
from loadgen.base.untrusted import NOT_JSON, read_file_head

_MOST_HEAD_BYTES = 1 << 20
_TRACE_KEYS = ({"timestamp", "input_length"}, {"requests"})  # of Mooncake's and like it; of Weka's
_TRACE_COLUMNS = ({"ContextTokens"}, {"Request tokens"})  # of Azure's and BurstGPT's
_NO_HEADER = "-trace.csv"  # of ServeGen's names of files


def is_trace(path: str) -> bool:
    """Whether a file's first row is one of a trace; False of a file that cannot be read."""
    at = expand_path(path)
    if at.is_dir() or at.name.endswith(_NO_HEADER):
        return True
    try:
        head = read_file_head(at, _MOST_HEAD_BYTES)
    except OSError:
        return False
    first = head.lstrip(b"\xef\xbb\xbf \r\n").partition(b"\n")[0]
    if first[:1] in b"{[":
        try:
            keys = set(msgspec.json.decode(first, type=dict[str, msgspec.Raw]))
        except NOT_JSON:
            return False
        return any(keys >= needed for needed in _TRACE_KEYS)
    try:
        columns = {name.strip() for row in csv.reader([first.decode("utf-8", "replace")]) for name in row}
    except csv.Error:
        return False
    return any(columns >= needed for needed in _TRACE_COLUMNS)


def text_of(body: bytes) -> str:
    """Every text of a request's prompt or messages, a line each; no roles, no tools, no images."""
    fields: dict[str, Any] = msgspec.json.decode(body)
    return "\n".join(_texts([fields.get("prompt"), fields.get("text"), fields.get("messages")]))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        yield from _texts([value.get("content"), value.get("text")])
