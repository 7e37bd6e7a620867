"""OTel's log: the calls of models in a file of spans, by the names that vendors give their attributes.

All spans are kept until the last is read, five million at most; prompts are read again one by one.
"""

from __future__ import annotations

from loadgen.features.traces import otel_spans
from loadgen.features.traces.learn.calls import (
    UNKNOWN,
    Call,
    Rows,
    SkippedRow,
    read_sampling,
    write_messages,
)
from loadgen.features.traces.learn.log_file import CUT, LogFile
from loadgen.features.traces.otel_sessions import KeptSpan, read_sessions
from loadgen.features.traces.otel_spans import SpanFile

_SAMPLED = "gen_ai.request."
_AWAY = "cancel"  # in an error's type


def is_otel(lines: list[str]) -> bool:
    """Whether the first lines of a log have the keys of spans."""
    head = "".join(lines)
    return any(f'"{key}"' in head for key in ("resourceSpans", "spans", "span_id"))


def read_otel_calls(log: LogFile) -> Rows:
    """Yield the calls of a file of spans in the order of its rows; raises UsageError that names the span."""
    lines = log.open_rows()
    if lines.drop_cut_row():
        yield len(lines) + 1, SkippedRow(CUT)
    file = SpanFile(lines)
    found = [(span, name) for name, spans in read_sessions(file).items() for span in spans if span.is_call]
    for span, name in sorted(found, key=lambda each: (each[0].row, each[0].place)):
        why = span.explain_unsent()
        yield span.row + 1, SkippedRow(why) if why else _read_call(file, span, name)


def _read_call(file: SpanFile, span: KeptSpan, session: str) -> Call:
    """Read the call of a span, of whose agents the outermost is the main line."""
    attributes = file.read_row(span.row)[span.place].attributes
    sampling = {
        key.removeprefix(_SAMPLED): value for key, value in attributes.items() if key.startswith(_SAMPLED)
    }
    return Call(
        begin_ns=span.begin_ns,
        end_ns=span.end_ns,
        input_len=span.input_len if span.input_len > 0 else UNKNOWN,
        output_len=UNKNOWN if span.is_limit else span.output_len,
        output_limit=span.output_len if span.is_limit else UNKNOWN,
        text=write_messages(otel_spans.read_prompt(attributes)) if span.messages else None,
        conversation=session,
        agents=span.above[1:],
        cancelled=span.failed and _AWAY in str(attributes.get("error.type", "")).lower(),
        sampling=read_sampling(sampling),
    )
