"""Log forms: the calls in the logs of vLLM, LiteLLM, OpenTelemetry, nginx and Envoy, and in named columns.

vLLM's request logger (`--enable-log-requests`), as versions 0.2 to 0.32 write its lines: one has the prompt
and the parameters up to 0.11; since then a line of DEBUG has the prompt and one of INFO the parameters. How
an answer ended is there with `--enable-log-outputs`, and where a client went away.

LiteLLM's logs are rows of its spend logs, or what its JSON loggers write (StandardLoggingPayload). Of a file
of spans all are kept until the last is read, five million at most; prompts are read again one by one.

nginx and Envoy log what their log_format says; the keys that are known here are the names of nginx's
variables and those of Envoy's documentation and Istio.
"""

from __future__ import annotations

import ast
import csv
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from loadgen.base import parsing, untrusted
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import MOST_ROW_BYTES, explain_json
from loadgen.base.parsing import suggest_name
from loadgen.base.text import quote_value
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces import otel_spans
from loadgen.features.traces.learn.calls import (
    CUT,
    UNKNOWN,
    Call,
    CallEnd,
    Found,
    LogFile,
    Rows,
    keep_latest,
    read_number,
    read_sampling,
    read_size,
    read_span_ns,
    read_time_ns,
    write_messages,
)
from loadgen.features.traces.otel_sessions import read_sessions
from loadgen.features.traces.otel_spans import SpanFile
from loadgen.settings.request_settings import SAMPLING

T = TypeVar("T")
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
_GONE = "DC"  # Envoy: downstream connection termination
_PATHS = ("/completions", "/messages", "/responses", "/generate", "/invocations")
_NO_REQUEST, REFUSED = "no request to a model", "refused or failed: a response of status {}"
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
    keys = set(untrusted.read_mapping(_decode_json(lines[0])))
    return any(keys & set(_KNOWN[ours]) for ours in ("time", "end")) and bool(
        keys & {"request_time", "bytes_sent", "body_bytes_sent", "bytes_received", "response_code"}
    )


def read_access(log: LogFile, columns: Mapping[str, str], path: str) -> Rows:
    """Yield (line, its Call or why it is none) of an access log; raises UsageError that names the line.

    Calls are the requests with `path` in their path, or if "" those to a model's API.
    """
    keys = {**_KNOWN, **{ours: (name,) for ours, name in columns.items()}}
    known: dict[tuple[str, ...], list[tuple[str, str]]] = {}  # ours and the log's, the best one last

    def read(line: str) -> Call | str:
        cells = _match_line(line) or _decode_json(line)
        if not isinstance(cells, dict):
            raise ValueError("is no line of an access log: name its form by --log-format")
        flat = _flatten(cells)
        shape = tuple(flat)
        if shape not in known:
            if len(known) > _MOST_SHAPES:
                known.clear()
            known[shape] = [
                (ours, name) for ours, names in keys.items() for name in reversed(names) if name in flat
            ]
        values = {ours: flat[name] for ours, name in known[shape] if flat[name] not in _BLANK}
        return _read_cells(values, path, is_model_path, _NO_SIZE)

    return _read_each(log, log.read_lines(), read)


def read_table(log: LogFile, columns: Mapping[str, str], path: str) -> Rows:
    """Yield (row, its Call or why it is none) of a CSV with a header, or of JSON rows, by --columns.

    Raises UsageError that names the row, also where no time or no length of the prompt is named, or a column
    is not there.
    """
    if not columns.keys() & {*TIMES, *ENDS}:
        raise UsageError("--columns: name the column of the time, as time=ts")
    lengths = [columns[ours] for ours in ("input", "input_bytes", "prompt") if ours in columns]
    if not lengths:
        raise UsageError(
            "--columns: name the prompt's length, as input=prompt_tokens (or input_bytes, prompt)"
        )
    every = (lambda found: True) if "path" not in columns else is_model_path
    empty = f"{' and '.join(lengths)} is empty"
    no_size = f"has no length of the prompt: {empty}; fill it in, or leave the row out"

    def read(cells: Cells) -> Call | str:
        values = {ours: cells[name] for ours, name in columns.items() if cells.get(name) not in (None, "")}
        return _read_cells(values, path, every, no_size)

    return _read_each(log, _read_named(log, columns), read)


def _read_each(log: LogFile, rows: Iterable[tuple[int, T]], read: Callable[[T], Found]) -> Rows:
    """Yield (row, what is read of it) of all rows; a ValueError becomes a UsageError that names the row."""
    for row, value in rows:
        try:
            yield row, read(value)
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
        return _NO_REQUEST
    cancelled = status == CLOSED or _GONE in str(values.get("flags", "")).split(",")
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


def _read_named(log: LogFile, columns: Mapping[str, str]) -> Iterator[tuple[int, Cells]]:
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


def _flatten(cells: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of nested objects by their names joined with dots."""
    flat: dict[str, Any] = {}
    for name, value in cells.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{before}{name}.")
        else:
            flat[before + name] = value
    return flat


_DATED = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?) ")
_STAMPED = re.compile(r"\b(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_RECEIVED = re.compile(r"\] Received request ([^\s:]+): ")
_DETAILS = re.compile(r"\] Request ([^\s:]+) details: prompt: ")
_ANSWERED = re.compile(
    r"\] Generated response (\S+?)(?: \((streaming \w+)\))?( details)?: output(?:_token_ids)?"
)
_PROMPT_IDS = ", prompt_token_ids: "
_NO_ANSWER = "no request for a response"
_NO_PROMPT = "without a prompt: log it by VLLM_LOGGING_LEVEL=DEBUG"
_DELTA = "streaming delta"
_MARKS = ("Received request ", " details: prompt", "Generated response ", "borted")
_ABORTED = re.compile(r"\] (?:Aborted request(?:\(s\))? (\S+?)\.?|Request (\S+) aborted\.)$")
_PARAMS = re.compile(r"(?:^|, |\d\] )(?:sampling_)?params: SamplingParams\(")
_NUMBER = re.compile(rf"\b({'|'.join((*SAMPLING, 'max_tokens'))})=(-?\d[\d.e+-]*)(?=[,)])")
_DECODE_IDS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]).decode
_IDS = re.compile(r"(?:^|token_ids: )\[([0-9, ]*+)\]")  # `\d` takes four times as long
_FINISHED = re.compile(r", finish_reason: (\w+)$")
_LITERAL = re.compile(r"""'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+\"""")
# Days before each month of a common year: the log's dates have no year, and a leap year's name 29 February.
_MONTHS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_MARCH, _LEAP_DAY = 3, (2, 29)
_DAY_NS = 86_400 * SECOND_NS
_YEAR_NS = 365 * _DAY_NS
_MOST_KEPT = 1 << 16  # calls of which something is kept for a later line
_HEAD_LETTERS = 2000  # of a line, in which a request's id ends: prompts may quote such lines
_END_LETTERS = 100  # of a line, in which why an answer ended stands
NO_ANSWER, NO_MODEL = "failed: no response", "no request for a response of a language model"
_KINDS = ("completion", "messages", "responses", "generate_content", "pass_through")
_CACHED = "served from LiteLLM's own cache"
_LISTS = ("data", "logs", "spend_logs")
_AWAY = ("client disconnected", "cancelled", "499")
_SAMPLED = "gen_ai.request."
_CANCELLED = "cancel"  # in an error's type


def is_vllm(lines: list[str]) -> bool:
    """Whether a line among the first ones of a log is of vLLM's logger."""
    return any(_STAMPED.search(line) and re.search(r"\.py:\d+\]", line) for line in lines)


def read_vllm(log: LogFile, *_: object) -> Rows:
    """Yield (line, its Call, CallEnd or why it is none) of a log; raises UsageError that names the line."""
    reader = _LineReader()
    for row, line in log.read_lines():
        if any(mark in line for mark in _MARKS):
            try:
                yield from ((row, found) for found in reader.read(line))
            except ValueError as fault:
                raise log.refusal(str(fault), row) from None


class _LineReader:
    """Reads line by line, and keeps what one line has for another: prompts, and the tokens of streams."""

    def __init__(self) -> None:
        self._clock = _LineClock()
        self._details: OrderedDict[str, tuple[str | None, list[int] | None]] = OrderedDict()
        self._deltas: OrderedDict[str, int] = OrderedDict()  # messages of each stream
        self._tokens: OrderedDict[str, int] = OrderedDict()  # where their ids are logged

    def read(self, line: str) -> Iterator[Found]:
        """Yield a line's call or why it is none, or ends of calls; nothing of what is for later lines."""
        at_ns = self._clock.read_ns(line)
        if at_ns is None:
            return
        if found := _RECEIVED.search(line, 0, _HEAD_LETTERS):
            yield _read_call(found[1], line[found.end() :], at_ns, self._details)
        elif found := _DETAILS.search(line, 0, _HEAD_LETTERS):
            prompt, mark, rest = line[found.end() :].rpartition(_PROMPT_IDS)
            ids = _read_ids(mark + rest)
            text = _read_literal(_split_literal(prompt or rest)[0]) if ids is None else None
            keep_latest(self._details, found[1], (text, ids), _MOST_KEPT)
        elif "borted" in line and (found := _ABORTED.search(line)):
            for name in (found[1] or found[2]).split(","):
                streamed = self._take_streamed(name, name.rpartition("-")[0])
                yield CallEnd(name=name, end_ns=at_ns, output_len=streamed, cancelled=True)
        elif found := _ANSWERED.search(line, 0, _HEAD_LETTERS):
            yield from self._read_answer(found, line[found.end() :], at_ns)

    def _read_answer(self, found: re.Match[str], rest: str, at_ns: int) -> Iterator[CallEnd]:
        """Yield the CallEnd of an answer's line; of a stream's delta nothing: its tokens are counted."""
        name, stream, details = found.groups()
        literal, rest = _split_literal(rest.removeprefix(": ")) if rest.startswith(": ") else ("", rest)
        ids = _read_ids(rest)
        if stream == _DELTA:
            counted, more = (self._tokens, len(ids or ())) if details else (self._deltas, 1)
            if more:
                keep_latest(counted, name, counted.get(name, 0) + more, _MOST_KEPT)
            return
        if details and ids is None:
            return  # the next line has its text
        streamed = self._take_streamed(name)
        finished = _FINISHED.search(rest[-_END_LETTERS:])
        yield CallEnd(
            name=name,
            end_ns=at_ns,
            output_len=len(ids) if ids is not None else streamed,
            answer=_read_literal(literal),
            cancelled=finished is not None and finished[1] == "abort",
            at_limit=finished is not None and finished[1] == "length",
        )

    def _take_streamed(self, *names: str) -> int:
        """Return the tokens of a stream's messages, and forget them; UNKNOWN if none were logged."""
        streamed = [counted.pop(name, UNKNOWN) for name in names for counted in (self._tokens, self._deltas)]
        return next((count for count in streamed if count != UNKNOWN), UNKNOWN)


class _LineClock:
    """Reads the time of lines: that of the container's log before them, else vLLM's own, of whole seconds."""

    def __init__(self) -> None:
        self._years_ns, self._last_ns, self._leap_ns = 0, 0, 0

    def read_ns(self, line: str) -> int | None:
        """Read a line's time in nanoseconds; None of a line that has none, as one of a text's own lines."""
        if found := _DATED.match(line):
            return read_time_ns(found[1].replace(",", "."))
        found = _STAMPED.search(line, 0, 400)
        if found is None:
            return None
        month, day, hour, minute, second = map(int, found.groups())
        if not 1 <= month <= 12:
            return None
        days = _MONTHS[month - 1] + day - 1
        at_ns = (((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND_NS + self._years_ns
        if at_ns < self._last_ns - _YEAR_NS // 2:
            self._years_ns += _YEAR_NS + self._leap_ns
            at_ns += _YEAR_NS + self._leap_ns
            self._leap_ns = 0
        if (month, day) == _LEAP_DAY:
            self._leap_ns = _DAY_NS
        at_ns += self._leap_ns if month >= _MARCH else 0
        self._last_ns = at_ns
        return at_ns


def _read_call(
    name: str, rest: str, at_ns: int, details: dict[str, tuple[str | None, list[int] | None]]
) -> Call | str:
    """Return the Call of a request's line, or why it is none; pops a prompt not there from `details`."""
    text, ids = details.pop(name, (None, None))
    literal, is_whole = "", rest.startswith("prompt: ")
    if is_whole:
        literal, rest = _split_literal(rest.removeprefix("prompt: "))
    head, mark, after = rest.rpartition(_PROMPT_IDS)
    if is_whole:
        ids = _read_ids(f"{mark}{after}")
        text = _read_literal(literal) if ids is None else None
    rest = _LITERAL.sub("''", head or rest)  # stop strings and schemas, which may hold anything
    begin = _PARAMS.search(rest)
    if begin is None:
        return _NO_ANSWER
    if text is None and ids is None:
        return _NO_PROMPT
    numbers = dict(_NUMBER.findall(rest, begin.end()))
    limit = numbers.pop("max_tokens", "")
    return Call(
        begin_ns=at_ns,
        ids=ids,
        text=None if ids is not None else text,
        output_limit=min(int(limit), parsing.MOST_TOKENS) if limit.isdigit() else UNKNOWN,
        sampling={key: read_number(value) for key, value in numbers.items()},
        name=name,
    )


def _split_literal(text: str) -> tuple[str, str]:
    """Split a quoted Python text off the start; ("", text) without a quote; raises ValueError if cut."""
    if text[:1] not in ("'", '"'):
        return "", text
    found = _LITERAL.match(text)
    if found is None:
        raise ValueError("a prompt does not end: is the line cut?")
    return found[0], text[found.end() :]


def _read_literal(literal: str) -> str | None:
    """Read a quoted Python text, slowly if it has escapes; None of ""; raises ValueError if it is cut."""
    if "\\" not in literal:
        return literal[1:-1] if literal else None
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        raise ValueError("a prompt is no text of Python: is the line cut?") from None


def _read_ids(text: str) -> list[int] | None:
    """Read the token ids in a line; None if they are not there, or are []; raises ValueError for bad ones."""
    found = _IDS.search(text)
    if found is None or not found[1]:
        return None
    try:
        return _DECODE_IDS(f"[{found[1]}]")
    except msgspec.ValidationError:
        raise ValueError("has a token id of more than 32 bits") from None
    except msgspec.DecodeError:
        raise ValueError("has token ids that are no numbers: is the line cut?") from None


def is_litellm(lines: list[str]) -> bool:
    """Whether the first rows of a log, or a list that it is, have the keys of LiteLLM's."""
    head = "".join(lines)
    return '"startTime"' in head and '"prompt_tokens"' in head and '"completion_tokens"' in head


def read_litellm(log: LogFile, *_: object) -> Rows:
    """Yield (row, its Call or why it is none) of JSON lines or of one list; raises UsageError by row."""
    return _read_each(log, _read_objects(log), _read_litellm_call)


def _read_objects(log: LogFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, object) of each line, or of one list, read whole; raises UsageError for other text."""
    lines = log.read_lines()
    number, first = next(lines)
    decoded = _decode_json(first)
    if isinstance(decoded, dict) and "startTime" in decoded:
        yield number, decoded
        for row, line in lines:
            value = _decode_json(line)
            if not isinstance(value, dict):
                raise log.refusal("is no JSON object: is the log cut?", row)
            yield row, value
        return
    value = decoded if decoded is not None else _decode_json("\n".join([first, *(line for _, line in lines)]))
    if isinstance(value, dict):
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
    if not isinstance(value, list):
        raise log.refusal("is neither JSON rows of LiteLLM nor a list of them", number)
    for row, fields in enumerate(value, 1):
        if not isinstance(fields, dict):
            raise log.refusal("is no JSON object", row)
        yield row, fields


def _decode_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except NOT_JSON:
        return None


def _read_litellm_call(fields: dict[str, Any]) -> Call | str:
    """Return the Call of a row, or why it is none; raises ValueError for a bad time or length."""
    kind = str(fields.get("call_type") or "completion")
    if not any(name in kind for name in _KINDS):
        return NO_MODEL
    if str(fields.get("cache_hit")).lower() == "true":
        return _CACHED
    failed = fields.get("status", "success") == "failure"
    cancelled = False
    if failed:
        metadata = untrusted.read_mapping(_read_nested(fields.get("metadata")))
        error = untrusted.read_mapping(fields.get("error_information") or metadata.get("error_information"))
        fault = " ".join(str(error.get(key, "")) for key in ("error_code", "error_class", "error_message"))
        cancelled = any(word in fault.lower() for word in _AWAY)
    if failed and not cancelled:
        return NO_ANSWER
    begin_ns, end_ns = (read_time_ns(fields.get(key)) for key in ("startTime", "endTime"))
    if end_ns < begin_ns:
        raise ValueError("endTime is before startTime")
    body = _read_nested(fields.get("proxy_server_request"))
    body = body.get("body", body) if isinstance(body, dict) else {}
    asked = next(
        (
            found
            for key in ("model_parameters", "modelParameters")
            if (found := _read_nested(fields.get(key)))
        ),
        body,
    )
    session = fields.get("session_id") or fields.get("trace_id") or ""
    return Call(
        begin_ns=begin_ns,
        end_ns=end_ns,
        input_len=read_size(fields.get("prompt_tokens")),
        output_len=read_size(fields.get("completion_tokens")),
        output_limit=read_size(untrusted.read_mapping(asked).get("max_tokens")),
        text=write_messages(_read_nested(fields.get("messages"))) or write_messages(body),
        conversation=str(session),
        sure=False,  # LiteLLM makes an id for each call that brings none
        cancelled=cancelled,
        sampling=read_sampling(untrusted.read_mapping(asked)),
    )


def _read_nested(value: Any) -> Any:
    """Return a value, decoded where it is a text of JSON, as the spend logs keep objects."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        decoded = _decode_json(value)
        return value if decoded is None else decoded
    return value


def is_otel(lines: list[str]) -> bool:
    """Whether the first lines of a log have the keys of spans."""
    head = "".join(lines)
    return any(f'"{key}"' in head for key in ("resourceSpans", "spans", "span_id"))


def read_otel_calls(log: LogFile, *_: object) -> Rows:
    """Yield (row, Call or why it is not sent) of spans, in the file's order; raises UsageError by span."""
    lines = log.open_rows()
    if lines.drop_cut_row():
        yield len(lines) + 1, CUT
    file = SpanFile(lines)
    found = [(span, name) for name, spans in read_sessions(file).items() for span in spans if span.is_call]
    for span, name in sorted(found, key=lambda each: (each[0].row, each[0].place)):
        if why := span.explain_unsent():
            yield span.row + 1, why
            continue
        attributes = file.read_row(span.row)[span.place].attributes
        asked = {
            key.removeprefix(_SAMPLED): attributes[key] for key in attributes if key.startswith(_SAMPLED)
        }
        call = Call(
            begin_ns=span.begin_ns,
            end_ns=span.end_ns,
            input_len=span.input_len if span.input_len > 0 else UNKNOWN,
            output_len=UNKNOWN if span.is_limit else span.output_len,
            output_limit=span.output_len if span.is_limit else UNKNOWN,
            text=write_messages(otel_spans.read_prompt(attributes)) if span.messages else None,
            conversation=name,
            agents=span.above[1:],
            cancelled=span.failed and _CANCELLED in str(attributes.get("error.type", "")).lower(),
            sampling=read_sampling(asked),
        )
        yield span.row + 1, call


class LogForm(NamedTuple):
    """One form of a log: what it is, how its first lines are known, and its reader."""

    summary: str
    is_form: Callable[[list[str]], bool]
    read: Callable[[LogFile, Mapping[str, str], str], Rows]  # the names of --columns, and --path
    named: bool = False  # its columns may be named


ROWS = "rows"  # CSV or JSON, whose columns are named
FORMS = {
    "otel": LogForm("spans of OpenTelemetry (OTLP's JSON, or flat)", is_otel, read_otel_calls),
    "litellm": LogForm("LiteLLM's spend logs, or what its JSON loggers write", is_litellm, read_litellm),
    "vllm": LogForm("vLLM's log with --enable-log-requests", is_vllm, read_vllm),
    "access": LogForm("access log of nginx or Envoy, as text or JSON", is_access, read_access, named=True),
    ROWS: LogForm("CSV or JSON rows, with --columns", lambda lines: False, read_table, named=True),
}


def choose_form(name: str, log: LogFile, columns: Mapping[str, str]) -> tuple[str, LogForm]:
    """Choose a log's form by its name, by --columns, or by its first lines; raises UsageError for none."""
    found = name or (ROWS if columns else "")
    if not found:
        head = log.read_head()
        found = next((each for each, form in FORMS.items() if form.is_form(head)), "")
    if found not in FORMS:
        raise log.refusal(
            f"is no log that is known: pass --log-format {' | '.join(FORMS)}, or name its columns (--columns)"
        )
    if columns and not FORMS[found].named:
        raise UsageError(f"--columns: the keys of {found} are known: leave it out")
    if found == ROWS and not columns:
        raise UsageError(f"--log-format {ROWS}: name the columns, as --columns time=ts,input=prompt_tokens")
    return found, FORMS[found]
