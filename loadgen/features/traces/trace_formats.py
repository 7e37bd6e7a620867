"""Trace formats: the traces that can be sent, by name; units and block sizes belong to the format."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines, OpenedFile, SpooledFile, explain_json
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces import agent_traces, otel_sessions, servegen, trace_rows, workload
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.plan.request_sources import RandomStream
from loadgen.plan.trace_heads import (
    AZURE,
    BURSTGPT,
    FLAG,
    MOONCAKE,
    find_format,
    list_client_files,
    list_files,
    open_first,
)

_SAMPLE = 1000  # rows by which a file is recognised
_MOST_RATE_PER_S = 50  # of a trace in milliseconds, by which it is known from one in seconds
_MOONCAKE_BLOCK = 512
_SEVERAL_FILES = "servegen"
_GIVE = "give --trace-format"
_MOST_TEXT_BYTES = 1 << 30  # of JSON over many lines, which is decoded as a whole
_MOST_OBJECT_BYTES = 256 << 20  # of one object of it, of whose values some readers keep all
# By name, what reads the rows of a file; ServeGen's are drawn of several.
FORMATS: dict[str, Callable[[Lines], TraceRows] | None] = {
    "mooncake": partial(trace_rows.read_blocks, name="mooncake", unit_ns=MS_NS, block=_MOONCAKE_BLOCK),
    "bailian": partial(trace_rows.read_blocks, name="bailian", unit_ns=SECOND_NS, block=16),
    "timed": partial(trace_rows.read_blocks, name="timed", unit_ns=SECOND_NS, block=16),
    "azure-2023": partial(trace_rows.read_sheet_rows, name="azure-2023", columns=AZURE, is_dated=True),
    "azure-2024": partial(trace_rows.read_sheet_rows, name="azure-2024", columns=AZURE, is_dated=True),
    "burstgpt": partial(trace_rows.read_sheet_rows, name="burstgpt", columns=BURSTGPT, is_dated=False),
    "weka": agent_traces.read_weka,
    "tracelab": agent_traces.read_tracelab,
    "otel": otel_sessions.read_otel,
    _SEVERAL_FILES: None,
    "workload": workload.read_workload,
}


def open_trace(name: str, path: str) -> tuple[str, Lines | None]:
    """Open a trace; return format, recognized for "", and lines (servegen: None); raises UsageError."""
    if name not in ("", *FORMATS):
        raise UsageError(f"--trace-format {name}: choose from {', '.join(FORMATS)}")
    if name == _SEVERAL_FILES or (not name and list_client_files(path)):
        return _SEVERAL_FILES, None
    first = open_first(path)
    lines = open_rows(path, FLAG, first)
    return name or _check_format(find_format(first), lines), lines


def _check_format(found: str, lines: Lines) -> str:
    """Return the format of a file whose keys show `found`; raises UsageError for none, or several.

    Azure's of 2024 has a time zone. Mooncake is known where each of the first 1,000 rows has a hash for 512
    tokens, and times that are whole numbers make less than 50 requests a second if they are milliseconds.
    """
    if not found:
        row = lines[0].strip()
        is_json = row.startswith((b"{", b"["))
        keys = msgspec.json.decode(row, type=dict[str, Any]) if is_json else trace_rows.read_header(lines)
        listed, how = ", ".join(sorted(keys)[:8]), f"{_GIVE} {' | '.join(FORMATS)}"
        raise lines.refusal(
            0,
            f"its keys ({listed}) are those of no trace: {how}; of a service's log `loadgen data learn` "
            "makes a trace",
        )
    if found == "azure-2023" and len(lines) > 1:
        time = lines[1].split(b",")[0].strip()
        return "azure-2024" if time.endswith(b"Z") or b"+" in time or time.count(b"-") > 2 else found
    if found != MOONCAKE:
        return found
    rows = list(islice(lines.decode_rows(trace_rows.HashedRow), _SAMPLE))
    input_lens = np.array([row.input_length for row in rows], np.int64)
    counts = np.array([len(row.hash_ids or ()) for row in rows], np.int64)
    times = np.array([row.timestamp for row in rows])
    is_slow = len(rows) <= (times[-1] - times[0]) / 1000 * _MOST_RATE_PER_S
    is_covered = trace_rows.is_covered(input_lens, counts, _MOONCAKE_BLOCK)
    if (times == np.rint(times)).all() and is_covered and is_slow:
        return MOONCAKE
    block = trace_rows.find_block(input_lens, counts, trace_rows.ANY_BLOCKS)
    if block not in (0, *trace_rows.FORMATS_OF):
        how = trace_rows.explain_block(block, lines.path)
        raise lines.file.refusal(f"has one of hash_ids for {block} tokens: {how}")
    raise lines.file.refusal(
        f"its keys are those of several formats: {_GIVE} mooncake (milliseconds, a hash for 512 tokens), "
        "bailian or timed (seconds, 16)"
    )


def read_trace(
    name: str, path: str, window: tuple[float | None, float | None], stream: RandomStream
) -> tuple[str, TraceRows]:
    """Read a trace of the format `name`, recognized if "", and return format and rows; raises UsageError."""
    name, lines = open_trace(name, path)
    read = FORMATS[name]
    if lines is None or read is None:
        return name, servegen.read_servegen(path, FLAG, stream, *window)
    return name, read(lines)


def open_rows(path: str, flag: str, first: OpenedFile | None = None) -> Lines:
    """Open the rows of a trace of JSON, whose first file may be open; raises UsageError for other text.

    A file of lines is read as it is. The values of a list over many lines, or one object, and the rows of
    all files of a directory are written to a temporary file; an error in one names its own file.
    """
    files = list_files(path, flag)
    if files != [path]:
        return Lines(_JoinedFile(path, flag, (Lines.open(name, flag) for name in files)))
    lines = Lines(first or OpenedFile(path, flag))
    return Lines(_JoinedFile(path, flag, [lines])) if _is_text(lines) else lines


def _is_text(lines: Lines) -> bool:
    """Whether a file is one JSON text, a list or an object over many lines, and not an object a line."""
    first = lines[0].strip()
    if not first.startswith(b"{"):
        return first.startswith(b"[")
    try:
        msgspec.json.decode(first)
    except NOT_JSON:
        return not first.endswith(b"}")
    return False


class _JoinedFile(SpooledFile):
    most_row_bytes = _MOST_OBJECT_BYTES

    def __init__(self, path: str, flag: str, parts: Iterable[Lines]) -> None:
        self._files, self._begins = list[str](), list[int]()  # the first row of each
        self._numbers: list[int | None] = []  # of each row in its file
        self._digests: list[str] = []
        super().__init__(path, flag, self._read_rows(parts), self.digest)

    def _read_rows(self, parts: Iterable[Lines]) -> Iterator[bytes]:
        """Yield the rows of all parts; note each part's file, first row and digest, and each row's number."""
        for lines in parts:
            self._files.append(lines.path)
            self._begins.append(len(self._numbers))
            self._digests.append(lines.digest())
            numbered = ((lines.number(i), row) for i, row in enumerate(lines.read_rows()))
            for number, row in _read_text(lines) if _is_text(lines) else numbered:
                self._numbers.append(number)
                yield row

    def digest(self) -> str:
        """Return the hash of the one file, or of the hashes of all."""
        if len(self._digests) == 1:
            return self._digests[0]
        return hashlib.blake2b(" ".join(self._digests).encode(), digest_size=16).hexdigest()

    def refusal(self, why: str, row: int | None = None) -> UsageError:
        if row is None or not self._begins:
            return super().refusal(why)
        file = self._files[bisect_right(self._begins, row - 1) - 1]
        number = self._numbers[row - 1]
        return UsageError(f"{self.flag} {file if number is None else f'{file} row {number}'}: {why}")


def _read_text(lines: Lines) -> Iterator[tuple[int | None, bytes]]:
    """Yield the values of a JSON text, each on a line, numbered from 1 if it is a list; raises UsageError."""
    file = lines.file
    if file.size > _MOST_TEXT_BYTES:
        raise file.refusal("is JSON of more than 1 GiB over many lines: write an object a line (`jq -c .`)")
    text = b"".join(chunk for _, chunk in file.read_chunks())
    try:
        found = msgspec.json.decode(text, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        rows = enumerate(found, 1) if isinstance(found, list) else [(None, text)]
        for number, row in rows:
            if len(row) > _MOST_OBJECT_BYTES:
                size = _MOST_OBJECT_BYTES >> 20
                raise file.refusal(
                    f"is an object of more than {size} MiB: write smaller ones, one a line", number
                )
            yield number, msgspec.json.format(row, indent=-1)
    except NOT_JSON as error:
        raise file.refusal(explain_json(text, error)) from None
