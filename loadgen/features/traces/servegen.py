"""ServeGen: clients of a production service, composed from their rates, gaps and histograms of lengths.

Of each client there is a CSV without a header, `chunk-N-trace.csv`, of `t,rate,cv,pattern,shape,scale` (every
600 s of a day: requests per second, and the Gamma or Weibull distribution of the gaps), and a JSON file,
`chunk-N-dataset.json`, of the probabilities of prompt and answer lengths (every 21,600 s).

A window of w seconds has round(rate × w) requests. Their gaps are drawn from the published distribution and
scaled to fill the window, as ServeGen does, so the rate is the published one and the burstiness the shape's;
the published scale then has no effect. Every window of every client has a random stream of its own: a
request is the same whichever part of the day is sent.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines, OpenedFile, explain_json
from loadgen.base.text import format_count
from loadgen.base.untrusted import NOT_JSON, read_number
from loadgen.features.traces.trace_rows import TraceRows, parse_number, read_row_cells
from loadgen.plan.request_sources import RandomStream
from loadgen.plan.trace_heads import list_client_files

_LAST_WINDOW_S = 600  # of a file with one window
_COLUMNS = 6
_MOST_ROWS = 5_000_000  # 1 GiB of memory while they are drawn and put in order
_PAIR = re.compile(r"\s*'?(\d{1,9})'?\s*:\s*([0-9.eE+-]+)\s*")
_GAPS: dict[str, Callable[[np.random.Generator, float, int], Float64]] = {
    "Gamma": lambda rng, shape, n: rng.gamma(shape, size=n),
    "Weibull": lambda rng, shape, n: rng.weibull(shape, size=n),
}


# A stretch of a client's day: begin and end (s), requests per second, and the pattern and shape of the gaps.
_Window = tuple[float, float, float, str, float]
# The lengths of a histogram, int64, and the cumulative probability of each, float64.
_Histogram = tuple[Int64, Float64]


def read_servegen(
    path: str, flag: str, stream: RandomStream, start_s: float | None, end_s: float | None
) -> TraceRows:
    """Draw the requests of a directory's clients, or of one client, in a part of the day, sorted by time.

    Windows that overlap with `start_s` to `end_s` (None: the first, the last) are drawn whole. Raises
    UsageError that names the file, also for more than 5,000,000 requests or none.
    """
    hashed = hashlib.blake2b(digest_size=16)
    files = sorted(list_client_files(path), key=lambda pair: (int(pair[0][2]), pair[1]))
    if not files:
        raise UsageError(f"{flag} {path}: no file of ServeGen's there: they end in chunk-N-trace.csv")
    clients = [(match[1], *_read_client(at, match[1], flag, hashed.update)) for match, at in files]
    begin_s, last_s = start_s or 0.0, math.inf if end_s is None else end_s
    offsets, prompts, answers = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    drawn = 0
    for name, windows, lengths in clients:
        for window in windows:
            window_begin_s, window_end_s, rate_per_s, *_ = window
            if rate_per_s <= 0 or window_end_s <= begin_s or window_begin_s >= last_s:
                continue
            drawn += round(rate_per_s * (window_end_s - window_begin_s))
            if drawn > _MOST_ROWS:
                raise UsageError(f"{flag} {path}: more than {_MOST_ROWS:,} requests: give --trace-window")
            rng = stream.rng(f"servegen {name} {window_begin_s:g}")
            offsets.append(_draw_offsets_s(window, rng))
            begun = [begin for begin in lengths if begin <= window_begin_s]
            histograms = lengths[max(begun) if begun else min(lengths)]
            for column, (lens, edges) in zip((prompts, answers), histograms, strict=True):
                places = np.searchsorted(edges, rng.random(len(offsets[-1])) * edges[-1], "right")
                column.append(lens[np.minimum(places, len(lens) - 1)])
    at_ns = np.rint(np.concatenate(offsets) * SECOND_NS).astype(np.int64)
    order = np.argsort(at_ns, kind="stable")
    if not len(order):
        raise UsageError(f"{flag} {path}: its clients send nothing in this part of the day")
    return TraceRows(
        at_ns[order],
        np.concatenate(prompts)[order],
        np.concatenate(answers)[order],
        np.arange(1, len(order) + 1),
        np.zeros(0, np.int32),
        np.zeros(len(order) + 1, np.int64),
        path,
        hashed.hexdigest(),
        file_rows=len(order),
        notes=(f"{format_count(len(clients), 'client')} of ServeGen composed",),
    )


def _draw_offsets_s(window: _Window, rng: np.random.Generator) -> Float64:
    """Draw the ascending times of a window's requests in seconds, rate × width of them."""
    begin_s, end_s, rate_per_s, pattern, shape = window
    count = round(rate_per_s * (end_s - begin_s))
    gaps = np.maximum(_GAPS[pattern](rng, shape, count + 1), np.finfo(float).tiny)
    offsets_s: Float64 = begin_s + np.cumsum(gaps)[:count] / gaps.sum() * (end_s - begin_s)
    return offsets_s


def _read_client(
    at: Path, name: str, flag: str, hash_bytes: Callable[[bytes], None]
) -> tuple[list[_Window], dict[int, tuple[_Histogram, _Histogram]]]:
    """Read a client's windows from the trace `at`, its histograms by start time from the data set there."""
    lines = Lines.open(str(at), flag)
    data = OpenedFile(str(at.with_name(f"{name}-dataset.json")), flag)
    hash_bytes(f"{lines.digest()} {data.digest()}".encode())
    windows = _read_windows(lines)
    content = b"".join(chunk for _, chunk in data.read_chunks())
    try:
        table = msgspec.json.decode(content, type=dict[int, dict[str, Any]])
    except NOT_JSON as error:
        raise data.refusal(explain_json(content, error)) from None
    lengths = {
        begin: (
            _read_histogram(data, begin, fields, "input_tokens"),
            _read_histogram(data, begin, fields, "output_tokens"),
        )
        for begin, fields in table.items()
        if any(str(text).strip(" {}") for text in fields.values())
    }
    if not lengths and any(rate_per_s > 0 for _, _, rate_per_s, *_ in windows):
        raise data.refusal("has no histogram of lengths")
    return windows, lengths


def _read_windows(lines: Lines) -> list[_Window]:
    """Read the windows of a client's day, each until the next begins; raises UsageError with the row."""
    begins: list[float] = []
    rates: list[tuple[float, str, float]] = []
    for i, cells in enumerate(read_row_cells(lines, 0, len(lines))):
        if len(cells) != _COLUMNS:
            raise lines.refusal(i, f"has {len(cells)} columns: t,rate,cv,pattern,shape,scale are expected")
        try:
            begin_s = parse_number(cells[0], "t", parsing.YEAR_S)
            rate = parse_number(cells[1], "rate", parsing.MOST_REQUESTS)
            silent = rate == 0 or not cells[3]
            shape = 0.0 if silent else parse_number(cells[4], "shape", parsing.MOST_SECONDS)
        except ValueError as error:
            raise lines.refusal(i, f"{error}") from None
        if begins and begin_s <= begins[-1]:
            raise lines.refusal(i, f"its time {begin_s:g} is not after that of the row above")
        if not silent and (cells[3] not in _GAPS or not shape):
            raise lines.refusal(i, f"its gaps are {cells[3]} of shape {shape:g}: Gamma or Weibull, above 0")
        begins.append(begin_s)
        rates.append((0.0 if silent else rate, cells[3], shape))
    width = begins[1] - begins[0] if len(begins) > 1 else _LAST_WINDOW_S
    ends = [*begins[1:], begins[-1] + width]
    return [(begin, end, *rate) for begin, end, rate in zip(begins, ends, rates, strict=True)]


def _read_histogram(data: OpenedFile, begin: int, fields: Mapping[str, Any], name: str) -> _Histogram:
    """Read one histogram of a JSON file, a text as "{45: 0.01, 46: 0.02}"; raises UsageError."""
    text = fields.get(name)
    if not isinstance(text, str):
        raise data.refusal(
            f"has no {name} at {begin}: only ServeGen's language and reason clients can be sent"
        )
    pairs = [_PAIR.fullmatch(part) for part in text.strip().strip("{}").split(",")]
    lens = np.array([int(pair[1]) for pair in pairs if pair], np.int64)
    weights = np.array([read_number(pair[2]) for pair in pairs if pair], np.float64)
    weights[lens == 0] = 0  # a request without tokens cannot be sent
    if None in pairs or not weights.sum() > 0 or lens.max() > parsing.MOST_TOKENS:
        raise data.refusal(f"its {name} at {begin} is not a histogram of lengths in tokens")
    return lens[weights > 0], np.cumsum(weights[weights > 0])
