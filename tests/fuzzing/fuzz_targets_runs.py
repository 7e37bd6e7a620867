"""Functions of bytes: what a run leaves on disk, read whatever became of it; each must return."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import msgspec
import numpy as np

from fuzzing.fuzz_files import place, written
from fuzzing.fuzz_odd import replaced, shortened, spots
from loadgen.base.errors import UsageError
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records import journal
from loadgen.records.record import Record, Records
from loadgen.report import run_directory as result
from loadgen.report.report import render_report
from loadgen.report.run_writer import encode_run
from loadgen.transport.failure import Failure, FailureKind

KEPT = Path(__file__).parents[1] / "data/run_directories/smoke"
MS = 1_000_000
_NUMERIC = 4  # fields of a frame that are numbers
CUT = b"\xff\xfe"  # between the frames of a journal that is put together


def some_records() -> Records:
    """Three requests, one of them failed."""
    rows = [
        Record(
            index,
            index % 2,
            10**12,
            10**12,
            10**12 + 9 * MS,
            arrival_ns=10**12 + np.arange(1, 4) * MS,
            tokens=np.ones(3, np.int64),
            reads=3,
            finish_reason="length",
            output_tokens=3,
            failure=Failure(FailureKind.TRUNCATED, "cut") if index == 1 else None,
        )
        for index in range(3)
    ]
    return Records.from_records(rows)


def _usable(records: Records) -> None:
    """What was read can be computed with, and stored again."""
    compute_metrics(records, MetricOptions(streamed=True))
    assert Records.unpack(records.pack()).pack() == records.pack()


def frame(data: bytes) -> None:
    """A frame of a journal: any bytes, or a right one of which some bytes of some fields are replaced.

    Where the first byte is above 0x7f, each ten bytes after it say which field, where in it, and by what.
    """
    packed = data[1:] if data[:1] < b"\x80" else _spoilt(data[1:])
    with contextlib.suppress(ValueError):
        _usable(Records.unpack(packed))


def _spoilt(data: bytes) -> bytes:
    fields = list(_fields())
    for at in range(0, len(data) - 9, 10):
        which, place, new = data[at] % _NUMERIC, data[at + 1], data[at + 2 : at + 10]
        if place == 0xFF:
            fields[which] = new[1 : 1 + new[0] % 8]
        else:
            begin = place * 8 % max(len(fields[which]), 1)
            fields[which] = fields[which][:begin] + new + fields[which][begin + 8 :]
    return msgspec.msgpack.encode(fields)


@cache
def _fields() -> tuple[Any, ...]:
    """Those of a right frame: columns, counts, arrivals, tokens, then lists of words."""
    return tuple(msgspec.msgpack.decode(some_records().pack()))


def any_journal(data: bytes) -> None:
    """A journal: the first byte says whether these are its bytes, or its frames' with right checksums."""
    kind, rest = data[:1], data[1:]
    if kind >= b"\x80":
        rest = journal.MAGIC + b"".join(_framed(piece[:1], piece[1:]) for piece in rest.split(CUT))
    path = written(rest, "journal")
    with contextlib.suppress(ValueError):
        found = journal.read_journal(path)
        assert 0 <= found.end <= found.size == len(rest)
        _usable(Records.join(journal.open_parts(path)))


def _framed(kind: bytes, payload: bytes) -> bytes:
    return struct.pack("<cxxxIQ", kind or b"R", zlib.crc32(payload), len(payload)) + payload


def arrivals(data: bytes) -> None:
    """A file of columns."""
    with contextlib.suppress(ValueError):
        _usable(Records.load(written(data, "arrivals.npz")))


class _Place(NamedTuple):
    """Where a column lies in a file of them: its header, its values, its end, its checksum."""

    begin: int
    values: int
    end: int
    checksum: int


@cache
def _stored() -> tuple[bytes, list[_Place]]:
    """The columns of a kept run, and where each lies in its file."""
    raw, found = (KEPT / "arrivals.npz").read_bytes(), []
    with ZipFile(BytesIO(raw)) as archive:
        listed = archive.start_dir
        for info in archive.infolist():
            begin = info.header_offset + 30 + sum(struct.unpack_from("<HH", raw, info.header_offset + 26))
            assert struct.unpack_from("<I", raw, listed + 16) == (info.CRC,)
            found.append(_Place(begin, raw.index(b"\n", begin) + 1, begin + info.file_size, listed + 16))
            listed += 46 + sum(struct.unpack_from("<HHH", raw, listed + 28))
    return raw, found


def columns(data: bytes) -> None:
    """Columns whose values are replaced, with right checksums: which, where in it, and by what.

    Eleven bytes each; a place before the values changes the column's own header.
    """
    raw, places = _stored()
    changed = bytearray(raw)
    for at in range(0, len(data) - 10, 11):
        here = places[data[at] % len(places)]
        back = int.from_bytes(data[at + 1 : at + 3]) % (here.end - here.begin)
        first = here.end - 1 - back
        length = min(8, here.end - first)
        changed[first : first + length] = data[at + 3 : at + 3 + length]
        struct.pack_into("<I", changed, here.checksum, zlib.crc32(changed[here.begin : here.end]))
    run_directory(b"A" + changed)


@cache
def _kept() -> tuple[bytes, Any, list[tuple[Any, ...]]]:
    """The arrivals and the result of a kept run, its lists short, and every spot in it."""
    known = shortened(json.loads((KEPT / "result.json").read_bytes()))
    return (KEPT / "arrivals.npz").read_bytes(), known, spots(known["loadgen"], ("loadgen",))


def _loaded(directory: Path) -> None:
    """A run that can be loaded can be computed, or says why not."""
    try:
        run = result.load(directory)
    except UsageError:
        return
    assert len(run.records) == len(run.records.failures)
    assert json.loads(run.facts.encode()) is not None
    assert render_report(run)
    json.dumps(encode_run(run, detailed=True), allow_nan=False)


def run_directory(data: bytes) -> None:
    """A run's directory: the first byte says which of its files these bytes are; the others are whole."""
    kind, rest = data[:1], data[1:]
    known = _kept()[0]
    if kind == b"J":  # the run was cut off
        return _loaded(written(rest, "journal.bin", "journalled").parent)
    if kind == b"F":
        facts = journal.MAGIC + _framed(b"F", rest)
        return _loaded(written(facts, "journal.bin", "journalled").parent)
    if kind == b"A":
        written((KEPT / "result.json").read_bytes(), "result.json", "arrived")
        return _loaded(written(rest, "arrivals.npz", "arrived").parent)
    if not (place("run") / "arrivals.npz").exists():
        written(known, "arrivals.npz", "run")
    return _loaded(written(data, "result.json", "run").parent)


def odd_run(data: bytes) -> None:
    """A run's result with odd values in it."""
    arrived, known, every = _kept()
    if not (place("odd") / "arrivals.npz").exists():
        written(arrived, "arrivals.npz", "odd")
    changed = json.dumps(replaced(known, every, data)).encode()
    _loaded(written(changed, "result.json", "odd").parent)
