"""Known logs: the calls in those of vLLM, LiteLLM and OpenTelemetry, whose lines and keys are known.

vLLM's request logger (`--enable-log-requests`), as versions 0.2 to 0.32 write its lines: one has the prompt
and the parameters up to 0.11; since then a line of DEBUG has the prompt and one of INFO the parameters. How
an answer ended is there with `--enable-log-outputs`, and where a client went away.

LiteLLM's logs are rows of its spend logs, or what its JSON loggers write (StandardLoggingPayload). Of a file
of spans all are kept until the last is read, five million at most; prompts are read again one by one.
"""

from __future__ import annotations

import ast
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from loadgen.base import parsing, untrusted
from loadgen.base.clock import SECOND_NS
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
    read_time_ns,
    write_messages,
)
from loadgen.features.traces.otel_sessions import read_sessions
from loadgen.features.traces.otel_spans import SpanFile
from loadgen.settings.request_settings import SAMPLING

_DATED = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?) ")
_STAMPED = re.compile(r"\b(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_RECEIVED = re.compile(r"\] Received request ([^\s:]+): ")
_DETAILS = re.compile(r"\] Request ([^\s:]+) details: prompt: ")
_ANSWERED = re.compile(
    r"\] Generated response (\S+?)(?: \((streaming \w+)\))?( details)?: output(?:_token_ids)?"
)
_PROMPT_IDS = ", prompt_token_ids: "
_NO_ANSWER = "no request for an answer"
_NO_PROMPT = "without a prompt: log it by VLLM_LOGGING_LEVEL=DEBUG"
_DELTA = "streaming delta"
_MARKS = ("Received request ", " details: prompt", "Generated response ", "borted")
_ABORTED = re.compile(r"\] (?:Aborted request(?:\(s\))? (\S+?)\.?|Request (\S+) aborted\.)$")
_PARAMS = re.compile(r"(?:^|, |\d\] )(?:sampling_)?params: SamplingParams\(")
_NUMBER = re.compile(rf"\b({'|'.join((*SAMPLING, 'max_tokens'))})=(-?\d[\d.e+-]*)(?=[,)])")
_DECODE_IDS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]).decode
_IDS = re.compile(r"(?:^|token_ids: )\[([\d, ]*)\]")
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
NO_ANSWER, NO_MODEL = "failed: no answer", "no request for an answer of a language model"
_KINDS = ("completion", "messages", "responses", "generate_content", "pass_through")
_CACHED = "answered from LiteLLM's own cache"
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
    for row, fields in _read_objects(log):
        try:
            yield row, _read_litellm_call(fields)
        except ValueError as fault:
            raise log.refusal(str(fault), row) from None


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
