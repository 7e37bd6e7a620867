"""Calls: what a reader finds of each request in a log, before any of it is kept, and how values are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from loadgen.base import parsing
from loadgen.base.clock import SECOND_NS, US_NS
from loadgen.base.text import quote_value
from loadgen.features.traces.trace_rows import parse_instant_ns
from loadgen.settings.request_settings import SAMPLING

UNKNOWN = -1  # a time, length or size that the log does not have
# Epoch times by their magnitude: beyond these a number is of milliseconds, microseconds, nanoseconds.
_UNITS_NS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000))
_FAR_S = 9_000_000_000  # seconds from the epoch, in 2255: nanoseconds in 64 bits end soon after


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


class SkippedRow(msgspec.Struct):
    """A row that is no request of a model, and why."""

    why: str


Found = Call | CallEnd | SkippedRow
Rows = Iterator[tuple[int, Found]]  # with the number of the row that it stands in


class ValueFault(ValueError):
    """What is wrong with a value of a row, and what to give in its place."""


def read_time_ns(value: Any, unit_ns: int = 0) -> int:
    """Read a time as nanoseconds: a date with or without a zone, or a number of `unit_ns`.

    A number without a unit is of seconds, or of milliseconds, microseconds or nanoseconds since 1970 where it
    would be beyond the year 5000 as seconds. A date without a zone is UTC. Fractions are read as decimals, so
    that times of milliseconds stay on their grid. Raises ValueFault.
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
        raise ValueFault(
            f"{quote_value(value)} is no time: give a date and time, or seconds since any instant"
        )
    unit_ns = unit_ns or next((unit for least, unit in _UNITS_NS if number > least), SECOND_NS)
    if number > _FAR_S * SECOND_NS // unit_ns:
        raise ValueFault(f"{quote_value(value)} is no time: it is too far away")
    return round(number * unit_ns)


def read_span_ns(value: Any, unit_ns: int) -> int:
    """Read a duration in a unit as nanoseconds; UNKNOWN of None and "-"; raises ValueFault."""
    if value in (None, "", "-"):
        return UNKNOWN
    number = _read_float(value)
    if not 0 <= number * unit_ns <= parsing.YEAR_S * SECOND_NS:
        raise ValueFault(f"{quote_value(value)} is no duration: give a number from 0")
    return round(number * unit_ns / US_NS) * US_NS  # floats are a little off the grid


def read_size(value: Any, most: int = parsing.MOST_TOKENS) -> int:
    """Read a whole number from 0 to `most`; UNKNOWN of None and "-"; raises ValueFault."""
    if value in (None, "", "-"):
        return UNKNOWN
    number = _read_float(value)
    if isinstance(value, bool) or not 0 <= number <= most or number != int(number):
        raise ValueFault(f"{quote_value(value)} is no whole number from 0 to {most}")
    return int(number)


def _read_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_number(value: Any) -> float:
    """Read a number, or a text of one, that a file of JSON can hold; raises ValueFault."""
    number = parsing.read_figure(_read_float(value))
    if number is None or isinstance(value, bool):
        raise ValueFault(f"{quote_value(value)} is no number")
    return number


def read_sampling(fields: Mapping[str, Any]) -> dict[str, float]:
    """Read how an answer is sampled from the fields of a body: numbers alone, the rest is left out."""
    return {
        key: value
        for key in SAMPLING
        if isinstance(value := fields.get(key), int | float) and parsing.read_figure(value) is not None
    }


def write_messages(value: Any) -> str | None:
    """Write the messages of a chat as one text, each after the one before it; None if there are none.

    So the text of a conversation goes on with that of its earlier turns. Whatever is no text is JSON.
    """
    if isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        value = value.get("messages") or value.get("input") or value.get("prompt")
        return write_messages(value) if isinstance(value, list | str) else None
    if not isinstance(value, list) or not value:
        return None
    return "".join(_write_message(message) for message in value)


def _write_message(message: Any) -> str:
    """Write one message: its role and its text on lines of their own; JSON of anything else."""
    if isinstance(message, dict) and set(message) <= {"role", "content"}:
        content = message.get("content")
        if isinstance(content, str):
            return f"{message.get('role', '')}\n{content}\n"
    return msgspec.json.encode(message).decode() + "\n"
