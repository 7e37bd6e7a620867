"""Formats: the traces that can be sent, by name; units and block sizes belong to the format."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec
import numpy as np

from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces import servegen, trace_rows, weka
from loadgen.features.traces.trace_rows import SheetColumns, TraceRows
from loadgen.features.traces.trace_schedule import TraceWindow
from loadgen.plan.json_lines import Lines
from loadgen.plan.random_stream import RandomStream

FLAG = "--trace"
_SAMPLE = 1000  # rows by which a file is recognised
_MOST_RATE_PER_S = 50  # of a trace in milliseconds, by which it is known from one in seconds
_AZURE = SheetColumns("TIMESTAMP", "ContextTokens", "GeneratedTokens", dated=True)
_BURSTGPT = SheetColumns("Timestamp", "Request tokens", "Response tokens")
_HASHED = {"timestamp", "input_length", "output_length"}
_GIVE = "give --trace-format"


class TraceSource(msgspec.Struct, frozen=True):
    """Where a trace is read from, and what of it is wanted."""

    path: str
    window: TraceWindow
    stream: RandomStream  # of what a format leaves to chance


class TraceKind(msgspec.Struct, frozen=True):
    """One format: its unit of time and block size in words, and what reads it."""

    unit: str
    block: int  # tokens that a hash stands for; 0: no hashes, or the file says it
    read: Callable[[TraceSource], TraceRows]


def _make_hashed(name: str, unit: str, unit_ns: int, block: int) -> TraceKind:
    def read(source: TraceSource) -> TraceRows:
        return trace_rows.read_hashed_rows(Lines.open(source.path, FLAG), name, unit_ns, block)

    return TraceKind(unit, block, read)


def _make_sheet(name: str, unit: str, columns: SheetColumns) -> TraceKind:
    def read(source: TraceSource) -> TraceRows:
        return trace_rows.read_sheet_rows(Lines.open(source.path, FLAG), name, columns)

    return TraceKind(unit, 0, read)


def _read_servegen(source: TraceSource) -> TraceRows:
    window = source.window
    return servegen.read_servegen(source.path, FLAG, source.stream, window.begin_s, window.end_s)


FORMATS = {
    "mooncake": _make_hashed("mooncake", "milliseconds", MS_NS, 512),
    "bailian": _make_hashed("bailian", "seconds", SECOND_NS, 16),
    "timed": _make_hashed("timed", "seconds", SECOND_NS, 16),
    "azure-2023": _make_sheet("azure-2023", "dates", _AZURE),
    "azure-2024": _make_sheet("azure-2024", "dates with a time zone", _AZURE),
    "burstgpt": _make_sheet("burstgpt", "seconds", _BURSTGPT),
    "weka": TraceKind("seconds", 0, lambda source: weka.read_weka(source.path, FLAG)),
    "servegen": TraceKind("seconds", 0, _read_servegen),
}


def recognise_format(path: str) -> str:
    """The format of a trace, a key of FORMATS; raises UsageError where what it holds leaves a choice.

    Known by keys of its own are weka (`requests`), bailian (`chat_id`), burstgpt and Azure (columns; that
    of 2024 has a time zone), and servegen (names of its files). Of those that share their keys mooncake is
    known where each of the first 1,000 rows has a hash for 512 tokens, and times that are whole numbers
    make less than 50 requests a second if they are milliseconds.
    """
    at = expand_path(path)
    if at.is_dir() or servegen.TRACE_FILE.fullmatch(at.name):
        return "servegen"
    lines = Lines.open(path, FLAG)
    row = lines[0].strip()
    if row.startswith((b"{", b"[")):
        return _find_by_keys(lines, row)
    names = set(trace_rows.read_header(lines))
    if set(_BURSTGPT.names) <= names:
        return "burstgpt"
    if set(_AZURE.names) <= names:
        return "azure-2024" if len(lines) > 1 and _has_zone(lines[1]) else "azure-2023"
    raise lines.file.refusal(f"its columns are those of no trace: {_GIVE} {' | '.join(FORMATS)}")


def _has_zone(row: bytes) -> bool:
    """Whether the time that a row begins with has a time zone."""
    time = row.split(b",")[0].strip()
    return time.endswith(b"Z") or b"+" in time or time.count(b"-") > 2


def _find_by_keys(lines: Lines, row: bytes) -> str:
    """The format of a file in JSON."""
    try:
        keys = set(msgspec.json.decode(row, type=dict[str, msgspec.Raw]))
    except NOT_JSON:  # a JSON text over many lines
        return "weka"
    if "requests" in keys:
        return "weka"
    if keys >= _HASHED and keys & {"chat_id", "parent_chat_id"}:
        return "bailian"
    if not keys >= _HASHED:
        known = ", ".join(sorted(keys)[:8])
        raise lines.refusal(0, f"its keys ({known}) are those of no trace: {_GIVE} {' | '.join(FORMATS)}")
    if _is_mooncake(lines):
        return "mooncake"
    raise lines.file.refusal(
        f"its keys are those of several formats: {_GIVE} mooncake (milliseconds, a hash for 512 tokens), "
        "bailian or timed (seconds, 16)"
    )


def _is_mooncake(lines: Lines) -> bool:
    """Whether the first rows can only be Mooncake's."""
    rows = list(islice(lines.decoded(trace_rows.HashedRow), _SAMPLE))
    input_lens, counts = (
        np.array(column, np.int64)
        for column in ([row.input_length for row in rows], [len(row.hash_ids or ()) for row in rows])
    )
    times = np.array([row.timestamp for row in rows])
    span_s = (times[-1] - times[0]) / 1000
    whole = bool((times == np.rint(times)).all())
    return (
        whole
        and trace_rows.is_covered(input_lens, counts, FORMATS["mooncake"].block)
        and len(rows) <= span_s * _MOST_RATE_PER_S
    )


def read_trace(name: str, source: TraceSource) -> tuple[str, TraceRows]:
    """The format of a trace, as named or recognised, and its rows; raises UsageError."""
    name = name or recognise_format(source.path)
    if name not in FORMATS:
        raise UsageError(f"--trace-format {name}: choose from {', '.join(FORMATS)}")
    return name, FORMATS[name].read(source)
