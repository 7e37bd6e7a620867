"""Span file: the spans of a file, OTLP's JSON or flat JSON, row by row, and what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines, explain_json
from loadgen.base.text import quote_value
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces.trace_rows import check_epoch_ns, parse_instant_ns

EXPORT, TRACE = "resourceSpans", "spans"  # keys of a row
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_REMOTE_KINDS = (2, 5, "SPAN_KIND_SERVER", "SPAN_KIND_CONSUMER", "SpanKind.SERVER", "SpanKind.CONSUMER")
_REMOTE_FLAG = 0x200  # of OTLP: the parent is of another process
_ERRORS = (2, "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR")
_NO_PARENT = ("", "0" * 16)


class Span(msgspec.Struct):
    """A span: one operation of a trace, its times in nanoseconds since 1970."""

    trace: str
    id: str
    parent: str  # "" of a root
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    is_remote: bool = False  # its parent may be of another process, and in no file
    failed: bool = False


class _Value(msgspec.Struct, rename="camel", frozen=True):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None
    array_value: _Values | None = None
    kvlist_value: _Pairs | None = None

    def decode(self) -> Any:
        """Return the value as JSON has it; None for another type; raises ValueError for no integer."""
        if self.array_value is not None:
            return [each.decode() for each in self.array_value.values]
        if self.kvlist_value is not None:
            return {pair.key: pair.value.decode() for pair in self.kvlist_value.values}
        if self.int_value is not None:
            return _read_integer(self.int_value)
        return next(
            (v for v in (self.string_value, self.double_value, self.bool_value) if v is not None), None
        )


def _read_integer(value: int | str) -> int:
    """Read an integer, as a text of digits too; raises ValueError for any other text."""
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise ValueError(f"intValue {quote_value(value)} is not a whole number of 64 bits")
    return int(value)


class _Pair(msgspec.Struct, frozen=True):
    key: str
    value: _Value = _Value()


class _Values(msgspec.Struct, frozen=True):
    values: list[_Value] = []


class _Pairs(msgspec.Struct, frozen=True):
    values: list[_Pair] = []


class _Status(msgspec.Struct, frozen=True):
    code: int | str = 0
    status_code: int | str = 0


class _OtlpSpan(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str
    parent_span_id: str = ""
    kind: int | str = 0
    flags: int = 0
    attributes: list[_Pair] = []
    status: _Status = _Status()

    def convert(self, trace: str) -> Span:
        """Return the span, of this trace if it names none; raises ValueError for a value that is none."""
        return Span(
            self.trace_id or trace,
            self.span_id,
            self.parent_span_id,
            _read_instant_ns("startTimeUnixNano", self.start_time_unix_nano),
            _read_instant_ns("endTimeUnixNano", self.end_time_unix_nano),
            {pair.key: pair.value.decode() for pair in self.attributes},
            self.kind in _REMOTE_KINDS or bool(self.flags & _REMOTE_FLAG),
            self.status.code in _ERRORS,
        )


class _ScopeSpans(msgspec.Struct):
    spans: list[_OtlpSpan] = []


class _ResourceSpans(msgspec.Struct, rename="camel"):
    scope_spans: list[_ScopeSpans] = []
    instrumentation_library_spans: list[_ScopeSpans] = []  # before OTLP 0.15


class _Export(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans]

    def list_spans(self) -> Iterator[_OtlpSpan]:
        """Yield all spans of the export."""
        for resource in self.resource_spans:
            for scope in (*resource.scope_spans, *resource.instrumentation_library_spans):
                yield from scope.spans


class _Context(msgspec.Struct, frozen=True):
    trace_id: str = ""
    span_id: str = ""


class _FlatSpan(msgspec.Struct):
    start_time: str | int
    end_time: str | int
    trace_id: str = ""
    span_id: str = ""
    context: _Context = _Context()  # of Python's console exporter
    parent_span_id: str | None = None
    parent_id: str | None = None
    kind: int | str = 0
    attributes: dict[str, Any] = {}
    status: _Status | str = ""

    def convert(self, trace: str) -> Span:
        """Return the span, of this trace if it names none; raises ValueError for a time that is none."""
        status = self.status if isinstance(self.status, str) else self.status.code or self.status.status_code
        return Span(
            self.trace_id or self.context.trace_id or trace,
            self.span_id or self.context.span_id,
            self.parent_span_id or self.parent_id or "",
            _read_instant_ns("start_time", self.start_time),
            _read_instant_ns("end_time", self.end_time),
            self.attributes,
            self.kind in _REMOTE_KINDS,
            status in _ERRORS,
        )


class _FlatTrace(msgspec.Struct):
    spans: list[_FlatSpan]
    trace_id: str = ""


def _read_instant_ns(name: str, value: int | str) -> int:
    """Return nanoseconds since 1970 of a number of them, or a date; raises ValueError for others."""
    try:
        is_number = isinstance(value, int) or value.isdigit()
        return check_epoch_ns(int(value)) if is_number else parse_instant_ns(str(value))
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


_Listed = Iterator[tuple[_OtlpSpan | _FlatSpan, str]]  # with the id of the trace that it is in
_Rows = tuple[str, Any, Callable[[Any], _Listed]]
_KINDS: tuple[_Rows, ...] = (
    (EXPORT, _Export, lambda row: ((span, "") for span in row.list_spans())),
    (TRACE, _FlatTrace, lambda row: ((span, row.trace_id) for span in row.spans)),
)
_SPANS: _Rows = ("", _FlatSpan, lambda row: iter([(row, "")]))


def _convert(span: _OtlpSpan | _FlatSpan, trace: str) -> Span:
    """Return a span, a root without the zeros that some write for a parent; raises ValueError with its id."""
    try:
        made = span.convert(trace)
    except ValueError as error:
        raise ValueError(f"span {quote_value(span.span_id)} {error}") from None
    if made.parent in _NO_PARENT:
        made.parent = ""
    return made


class SpanFile:
    """The spans of a file, of which each row of JSON is an export, a trace or a span."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self._keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._decoders = {key: msgspec.json.Decoder(kind) for key, kind, _ in (*_KINDS, _SPANS)}
        self._kept: tuple[int, list[Span]] = (-1, [])

    def read(self) -> Iterator[tuple[int, list[Span]]]:
        """Yield (row, its spans) of all rows; raises UsageError that names a row."""
        for i, row in enumerate(self.lines.read_rows()):
            yield i, self._decode(i, row)

    def read_row(self, row: int) -> list[Span]:
        """Return the spans of one row, which is kept for the next call."""
        if self._kept[0] != row:
            self._kept = row, self._decode(row, self.lines[row])
        return self._kept[1]

    def refusal(self, row: int, span: str, why: str) -> UsageError:
        """Make the error that names flag, file, row and span."""
        return self.lines.refusal(row, f"span {quote_value(span)} {why}")

    def _decode(self, i: int, row: bytes) -> list[Span]:
        """Decode a row; raises UsageError that names it."""
        try:
            keys = self._keys.decode(row)
            key, _, list_spans = next((each for each in _KINDS if each[0] in keys), _SPANS)
            return [_convert(*each) for each in list_spans(self._decoders[key].decode(row))]
        except NOT_JSON as error:
            raise self.lines.refusal(i, explain_json(row, error)) from None
        except ValueError as error:
            raise self.lines.refusal(i, f"{error}") from None
