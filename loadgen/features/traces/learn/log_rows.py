"""Log rows: CSV or JSON rows whose columns are named by --columns, and access logs as such rows.

nginx and Envoy log what their log_format says; the keys that are known here are the names of nginx's
variables and those of Envoy's documentation and Istio.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import MOST_ROW_BYTES, explain_json
from loadgen.base.parsing import suggest_name
from loadgen.base.text import quote_value
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces.learn.calls import (
    UNKNOWN,
    Call,
    LogFile,
    Rows,
    read_number,
    read_size,
    read_span_ns,
    read_time_ns,
)
from loadgen.settings.request_settings import SAMPLING

Cells = Mapping[str, Any]
# What a column may be, and the unit of a number in it.
TIMES = {"time": 0, "time_s": SECOND_NS, "time_ms": MS_NS}
ENDS = {"end": 0, "end_s": SECOND_NS, "end_ms": MS_NS}
SPANS = {"duration": SECOND_NS, "duration_s": SECOND_NS, "duration_ms": MS_NS}
_OTHERS = ("input", "output", "input_bytes", "output_bytes", "session", "prompt", "status", "flags", "path")
COLUMNS = (*TIMES, *ENDS, *SPANS, *_OTHERS, *SAMPLING)
_FORM = "--columns {}: write column=NAME, as time=ts,input=prompt_tokens,output=completion_tokens"
_MOST_BODY = 1 << 40  # bytes
_MOST_SHAPES = 1000  # sets of keys
_BLANK = (None, "", "-")
_SEPARATORS = ",;\t"
CLOSED = 499  # nginx: the client closed the connection
_AWAY = "DC"  # Envoy: downstream connection termination
_PATHS = ("/completions", "/messages", "/responses", "/generate", "/invocations")
NO_MODEL, REFUSED = "no request to a model", "refused or failed: an answer of status {}"
# An access log's keys: of nginx's variables, of Envoy's own examples, of Istio and of Envoy's AI gateway.
_KNOWN: dict[str, tuple[str, ...]] = {
    "time": ("start_time",),
    "end": ("msec", "time_iso8601", "time_local", "time", "timestamp", "@timestamp", "ts"),
    "duration_s": ("request_time",),
    "duration_ms": ("duration",),
    "input": ("gen_ai.usage.input_tokens", "input_tokens", "prompt_tokens"),
    "output": ("gen_ai.usage.output_tokens", "output_tokens", "completion_tokens"),
    "input_bytes": ("content_length", "http_content_length", "bytes_received", "request_length"),
    "output_bytes": ("body_bytes_sent", "bytes_sent"),
    "session": ("session_id", "conversation_id"),
    "status": ("status", "response_code"),
    "flags": ("response_flags",),
    "path": ("path", "request_uri", "uri", "x-envoy-origin-path", "request"),
}
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
# nginx's `combined`, and what ingress-nginx has after it.
_COMBINED = re.compile(
    rf"\S+ \S+ .*?\[([^\]]+)\] {_QUOTED} (\d{{3}}) (\d+|-) {_QUOTED} {_QUOTED}"
    r'(?: "?(\d+|-)"? "?(\d+(?:\.\d+)?|-)"?)?(?: .*)?'
)
# Envoy's default, and Istio's, which has three more after the flags.
_ENVOY = re.compile(rf"\[([^\]]+)\] {_QUOTED} (\d+) (\S+) (?:\S+ \S+ {_QUOTED} )?(\d+|-) (\d+|-) (\d+|-) .*")
_COMBINED_KEYS = (
    "time_local", "request", "status", "body_bytes_sent", "", "", "request_length", "request_time",
)  # fmt: skip
_ENVOY_KEYS = (
    "start_time", "request", "response_code", "response_flags", "", "bytes_received", "bytes_sent",
    "duration",
)  # fmt: skip
_NO_SIZE = (
    "has no size of the request's body: log it, as `$request_length $request_time` after nginx's combined, "
    "or as the key content_length of a log_format of JSON"
)


def parse_columns(text: str) -> dict[str, str]:
    """Parse --columns, `time=ts,input=prompt_tokens`: the log's names by ours; raises UsageError."""
    named: dict[str, str] = {}
    for part in text.split(",") if text else ():
        ours, equals, theirs = part.partition("=")
        if not equals or not theirs.strip():
            raise UsageError(_FORM.format(quote_value(text)))
        ours = ours.strip()
        if ours not in COLUMNS:
            raise UsageError(
                f"--columns {ours}: no such column{suggest_name(ours, COLUMNS)}; "
                f"there are {', '.join(COLUMNS)}"
            )
        if ours in named:
            raise UsageError(f"--columns {ours}: is given twice")
        named[ours] = theirs.strip()
    return named


def is_access(lines: list[str]) -> bool:
    """Whether the first line of a log is one of nginx or Envoy, as text or as JSON with known keys."""
    if _match_line(lines[0]) is not None:
        return True
    keys = set(_decode_object(lines[0]) or ())
    return any(keys & set(_KNOWN[ours]) for ours in ("time", "end")) and bool(
        keys & {"request_time", "bytes_sent", "body_bytes_sent", "bytes_received", "response_code"}
    )


def read_access(log: LogFile, columns: Mapping[str, str], path: str) -> Rows:
    """Yield (line, its Call or why it is none) of an access log; raises UsageError that names the line.

    Calls are the requests with `path` in their path, or if "" those to a model's API.
    """
    keys = {**_KNOWN, **{ours: (name,) for ours, name in columns.items()}}
    known: dict[tuple[str, ...], list[tuple[str, str]]] = {}  # ours and the log's, the best one last
    for row, line in log.read_lines():
        cells = _match_line(line) or _decode_object(line)
        if cells is None:
            raise log.refusal("is no line of an access log: name its form by --log-format", row)
        flat = _flatten(cells)
        shape = tuple(flat)
        if shape not in known:
            if len(known) > _MOST_SHAPES:
                known.clear()
            known[shape] = [
                (ours, name) for ours, names in keys.items() for name in reversed(names) if name in flat
            ]
        values = {ours: flat[name] for ours, name in known[shape] if flat[name] not in _BLANK}
        try:
            yield row, _read_cells(values, path, is_model_path, _NO_SIZE)
        except ValueError as fault:
            raise log.refusal(str(fault), row) from None


def read_table(log: LogFile, columns: Mapping[str, str], path: str) -> Rows:
    """Yield (row, its Call or why it is none) of a CSV with a header, or of JSON rows, by --columns.

    Raises UsageError that names the row, also where no time or no length of the prompt is named, or a column
    is not there.
    """
    if not columns.keys() & {*TIMES, *ENDS}:
        raise UsageError("--columns: name the column of the time, as time=ts")
    if not columns.keys() & {"input", "input_bytes", "prompt"}:
        raise UsageError(
            "--columns: name the prompt's length, as input=prompt_tokens (or input_bytes, prompt)"
        )
    every = (lambda found: True) if "path" not in columns else is_model_path
    lengths = " and ".join(columns[ours] for ours in ("input", "input_bytes", "prompt") if ours in columns)
    no_size = f"has no length of the prompt: {lengths} is empty; fill it in, or leave the row out"
    for row, cells in _read_objects(log, columns):
        values = {ours: cells[name] for ours, name in columns.items() if cells.get(name) not in (None, "")}
        try:
            yield row, _read_cells(values, path, every, no_size)
        except ValueError as fault:
            raise log.refusal(str(fault), row) from None


def is_model_path(path: str) -> bool:
    """Whether a path, or a request's line with one, is of an API that answers prompts."""
    parts = path.split(" ")
    if len(parts) > 1 and parts[0] != "POST":
        return False
    return (parts[1] if len(parts) > 1 else path).partition("?")[0].endswith(_PATHS)


def _read_cells(values: Cells, path: str, is_wanted: Callable[[str], bool], no_size: str) -> Call | str:
    """Return a row's Call by our names, or why it is none; raises ValueError (`no_size`: no length)."""
    asked, status = str(values.get("path", "")), read_size(values.get("status"), 999)
    if path not in asked if path else not is_wanted(asked):
        return NO_MODEL
    cancelled = status == CLOSED or _AWAY in str(values.get("flags", "")).split(",")
    if not cancelled and (status == 0 or status >= 400):
        return REFUSED.format(status)
    begin_ns, end_ns = _read_times(values)
    input_len, output_len = (read_size(values.get(ours)) for ours in ("input", "output"))
    input_bytes, output_bytes = (
        read_size(values.get(ours), _MOST_BODY) for ours in ("input_bytes", "output_bytes")
    )
    text = values.get("prompt")
    if input_len == UNKNOWN == input_bytes and not text:
        raise ValueError(no_size)
    return Call(
        begin_ns=begin_ns,
        end_ns=end_ns,
        input_len=input_len,
        output_len=output_len,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        text=str(text) if text else None,
        conversation=str(values.get("session", "")),
        cancelled=cancelled,
        sampling={key: read_number(values[key]) for key in SAMPLING if key in values},
    )


def _read_times(values: Cells) -> tuple[int, int]:
    """Return begin and end (ns) by time, end and duration; raises ValueError without a time.

    The end is UNKNOWN where it does not follow; an end without a duration is taken as the begin.
    """
    begin, end, span = (
        next(((values[name], unit) for name, unit in names.items() if name in values), None)
        for names in (TIMES, ENDS, SPANS)
    )
    span_ns = UNKNOWN if span is None else read_span_ns(*span)
    if begin is not None:
        begin_ns = read_time_ns(*begin)
        end_ns = read_time_ns(*end) if end is not None else UNKNOWN
        if end is None and span_ns != UNKNOWN:
            end_ns = begin_ns + span_ns
        if end_ns != UNKNOWN and end_ns < begin_ns:
            raise ValueError("it ends before it begins")
        return begin_ns, end_ns
    if end is None:
        raise ValueError("has no time")
    end_ns = read_time_ns(*end)
    return end_ns - max(span_ns, 0), end_ns if span_ns != UNKNOWN else UNKNOWN


def _read_objects(log: LogFile, columns: Mapping[str, str]) -> Iterator[tuple[int, Cells]]:
    """Yield (line number, cells by name) of JSON rows or a CSV; raises UsageError, also without a column."""
    lines = log.read_lines(blank=True)
    number, first = next(each for each in lines if each[1])
    if first.lstrip().startswith(("{", "[")):
        for row, line in chain([(number, first)], lines):
            if line:
                yield row, _flatten(_read_object(log, row, line))
        return
    headers = {
        mark: [name.strip() for name in next(csv.reader([first], delimiter=mark))] for mark in _SEPARATORS
    }
    mark = max(headers, key=lambda mark: len(set(columns.values()) & set(headers[mark])))
    names = headers[mark]
    missing = next((name for name in columns.values() if name not in names), None)
    if missing is not None:
        raise log.refusal(f"has no column {missing!r}{suggest_name(missing, names)}", number)
    for row, values in _read_csv(log, lines, mark):
        if len(values) != len(names):
            raise log.refusal(f"has {len(values)} columns, and the header {len(names)}", row)
        yield row, dict(zip(names, values, strict=True))


def _read_object(log: LogFile, row: int, line: str) -> dict[str, Any]:
    try:
        if line.lstrip().startswith("{"):
            return msgspec.json.decode(line, type=dict[str, Any])
    except NOT_JSON as error:
        raise log.refusal(explain_json(line.encode(), error), row) from None
    raise log.refusal("is no JSON object: give one a line (jq -c '.[]' makes them of a list)", row)


def _read_csv(log: LogFile, lines: Iterator[tuple[int, str]], mark: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, cells) of each row of CSV; a quoted cell may go over several lines."""
    numbers: list[int] = []

    def list_lines() -> Iterator[str]:
        for row, line in lines:
            numbers.append(row)
            yield f"{line}\n"

    rows = csv.reader(list_lines(), delimiter=mark, strict=True)
    while True:
        numbers.clear()
        most = csv.field_size_limit(MOST_ROW_BYTES)
        try:
            cells = next(rows, None)
        except csv.Error as error:
            raise log.refusal(f"is not valid CSV: {error}", numbers[0]) from None
        finally:
            csv.field_size_limit(most)
        if cells is None:
            return
        if cells:
            yield numbers[0], cells


def _match_line(line: str) -> dict[str, Any] | None:
    """Return the cells of a line in nginx's or Envoy's default form, named as in JSON; None of another."""
    for pattern, names in ((_ENVOY, _ENVOY_KEYS), (_COMBINED, _COMBINED_KEYS)):
        if found := pattern.fullmatch(line):
            return {name: cell for name, cell in zip(names, found.groups(), strict=True) if name and cell}
    return None


def _decode_object(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except NOT_JSON:
        return None


def _flatten(cells: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of nested objects by their names joined with dots."""
    flat: dict[str, Any] = {}
    for name, value in cells.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{before}{name}.")
        else:
            flat[before + name] = value
    return flat
