"""Calls: what a reader finds of each request in the lines of a log, before any of it is kept.

The lines of a log, packed by gzip or not, are read one after another and never all at once. Of a directory
they are the rows of its files of JSON.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

from loadgen.base import parsing
from loadgen.base.clock import SECOND_NS, US_NS
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_lines import MOST_ROW_BYTES, Lines, OpenedFile
from loadgen.base.parsing import parse_instant_ns
from loadgen.base.text import quote_value
from loadgen.features.traces.trace_formats import open_rows
from loadgen.settings.request_settings import SAMPLING

K = TypeVar("K")
V = TypeVar("V")
_MOST_HEAD_BYTES = 1 << 20
CUT = "its last line, which the log ends within"
UNKNOWN = -1  # a time, length or size that the log does not have
# Epoch times by their magnitude: beyond these a number is of milliseconds, microseconds, nanoseconds.
_UNITS_NS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000))
_FAR_S = 9_000_000_000  # seconds from the epoch, in 2255: nanoseconds in 64 bits end soon after


class LogFault(UsageError):
    """What is wrong with a log; `is_cut` if it is its last row, which is not written to its end."""

    is_cut = False


class _GrowingFile(OpenedFile):
    grows = True


class LogFile:
    """A log, read line by line; raises UsageError if unreadable, no file, empty, UTF-16 or oddly packed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._unended = 0  # the number of a last line without a line feed, if there are others
        self._rows = open_rows(path, "LOG") if expand_path(path).is_dir() else None
        self._file = _GrowingFile(path, "LOG") if self._rows is None else self._rows.file

    def refusal(self, why: str, row: int | None = None) -> UsageError:
        """Make the error that names the log and, if `row` is given, that line, counted from 1."""
        fault = LogFault(str(self._file.refusal(why, row)))
        fault.is_cut = row is not None and row == self._unended
        return fault

    def read_lines(self, blank: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (number from 1, text) of each line that is not blank; with `blank` blank ones too, as "".

        Raises UsageError for what is no text, or is damaged, and if every line is blank.
        """
        if self._rows is not None:
            yield from ((i, row.decode()) for i, row in enumerate(self._rows.read_rows(), 1))
            return
        is_blank = True
        for row, line in enumerate(self._file.read_lines(), 1):
            self._unended = row if row > 1 and not line.endswith(b"\n") else 0
            if len(line) > MOST_ROW_BYTES:
                raise self.refusal(f"is longer than {MOST_ROW_BYTES >> 20} MiB: is it a log?", row)
            try:
                text = line.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                raise self.refusal("is not UTF-8: convert the file to it", row) from None
            if text and not text.isspace():
                is_blank = False
                yield row, text
            elif blank:
                yield row, ""
        if is_blank:
            raise self.refusal("holds no rows: every line is blank")

    def open_rows(self) -> Lines:
        """Open the rows of a log of JSON, to be read in any order; raises UsageError for other text."""
        return open_rows(self.path, "LOG") if self._rows is None else self._rows

    def read_head(self) -> list[str]:
        """Return the first lines, up to a hundred or 1 MiB, that are not blank."""
        lines, size = list[str](), 0
        for _, line in self.read_lines():
            lines.append(line)
            size += len(line)
            if len(lines) == 100 or size > _MOST_HEAD_BYTES:
                break
        return lines


class Call(msgspec.Struct, kw_only=True):
    """One request of a log and its answer; UNKNOWN, "" or None where the log does not have it.

    `ids` or `text` is the prompt: its tokens, or what the request says in words. `conversation` is the log's
    own id; `sure` if equal ids alone make a conversation, not a prompt that goes on with an earlier one.
    `agents` are the ids of the agents that it belongs to, the outermost first. `name` is the id under which a
    `CallEnd` follows.
    """

    begin_ns: int
    end_ns: int = UNKNOWN
    input_len: int = UNKNOWN
    output_len: int = UNKNOWN
    output_limit: int = UNKNOWN  # the longest answer that was asked for
    ids: list[int] | None = None
    text: str | None = None
    input_bytes: int = UNKNOWN
    output_bytes: int = UNKNOWN
    answer: str | None = None
    conversation: str = ""
    sure: bool = True
    agents: tuple[str, ...] = ()
    cancelled: bool = False
    sampling: Mapping[str, float] = {}
    name: str = ""


class CallEnd(msgspec.Struct, kw_only=True):
    """The end of a call that was read before: of an answer, or by a client that went away."""

    name: str
    end_ns: int
    output_len: int = UNKNOWN
    answer: str | None = None
    cancelled: bool = False
    at_limit: bool = False  # the answer is as long as was asked for


Found = Call | CallEnd | str  # why a row is no request of a model
Rows = Iterator[tuple[int, Found]]  # with the number of the row that it stands in


def read_time_ns(value: Any, unit_ns: int = 0) -> int:
    """Read a time as nanoseconds: a date with or without a zone, or a number of `unit_ns`.

    A number without a unit is of seconds, or of milliseconds, microseconds or nanoseconds since 1970 where it
    would be beyond the year 5000 as seconds. A date without a zone is UTC. Fractions are read as decimals, so
    that times of milliseconds stay on their grid. Raises ValueError.
    """
    number: int | Decimal
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        text = value.strip().strip("[]") if isinstance(value, str) else repr(value)
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal("nan")
            if isinstance(value, str):
                try:
                    return parse_instant_ns(text)
                except ValueError:
                    pass  # refused below
        if not number.is_finite():
            number = -1
    if number < 0:
        raise ValueError(
            f"{quote_value(value)} is no time: give a date and time, or seconds since any instant"
        )
    unit_ns = unit_ns or next((unit for least, unit in _UNITS_NS if number > least), SECOND_NS)
    if number > _FAR_S * SECOND_NS // unit_ns:
        raise ValueError(f"{quote_value(value)} is no time: it is too far away")
    return round(number * unit_ns)


def read_span_ns(value: Any, unit_ns: int) -> int:
    """Read a duration in a unit, in ns of whole µs; UNKNOWN of None, "" and "-"; raises ValueError."""
    if value in (None, "", "-"):
        return UNKNOWN
    number = _read_float(value)
    if not 0 <= number * unit_ns <= parsing.YEAR_S * SECOND_NS:
        raise ValueError(f"{quote_value(value)} is no duration: give a number from 0")
    return round(number * unit_ns / US_NS) * US_NS  # floats are a little off the grid


def read_size(value: Any, most: int = parsing.MOST_TOKENS) -> int:
    """Read a whole number from 0 to `most`; UNKNOWN of None, "" and "-"; raises ValueError."""
    if value in (None, "", "-"):
        return UNKNOWN
    number = _read_float(value)
    if isinstance(value, bool) or not 0 <= number <= most or number != int(number):
        raise ValueError(f"{quote_value(value)} is no whole number from 0 to {most}")
    return int(number)


def _read_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_number(value: Any) -> float:
    """Read a number, or a text of one, that a file of JSON can hold; raises ValueError."""
    number = parsing.read_figure(_read_float(value))
    if number is None or isinstance(value, bool):
        raise ValueError(f"{quote_value(value)} is no number")
    return number


def read_sampling(fields: Mapping[str, Any]) -> dict[str, float]:
    """Read how an answer is sampled from the fields of a body: numbers alone, the rest is left out."""
    return {
        key: value
        for key in SAMPLING
        if isinstance(value := fields.get(key), int | float) and parsing.read_figure(value) is not None
    }


def write_messages(value: Any) -> str | None:
    """Write the messages of a chat, or of a request's body, one after another as a text; None without any.

    So the text of a conversation goes on with that of its earlier turns. Whatever is no text is JSON.
    """
    if isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        value = value.get("messages") or value.get("input") or value.get("prompt")
        return write_messages(value) if isinstance(value, list | str) else None
    if not isinstance(value, list) or not value:
        return None
    texts = list[str]()
    for message in value:
        is_plain = isinstance(message, dict) and set(message) <= {"role", "content"}
        if is_plain and isinstance(message.get("content"), str):
            texts.append(f"{message.get('role', '')}\n{message['content']}\n")
        else:
            texts.append(msgspec.json.encode(message).decode() + "\n")
    return "".join(texts)


def keep_latest(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value as the latest one; of more than `most` the oldest goes."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
