"""Run directories of strangers: each is a report or one clear line, whatever its files hold."""

from __future__ import annotations

import io
import json
import operator
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_runs
from builders.damaged_columns import NamedColumns, put, turned
from builders.loops import loop_over
from loadgen import cli
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import ARRIVALS, RESULT
from loadgen.study.importers import result_sources
from loadgen.transport.failure import Failure, FailureKind


def stored(directory: Path) -> NamedColumns:
    made_runs.keep(made_runs.run(requests=6, tokens=5, concurrency=2, failed=1), directory)
    with np.load(directory / ARRIVALS) as arrays:
        return {name: arrays[name] for name in arrays}


NEEDED = ("index", "start", "tokens", "arrival_ns", "usage", "words", "failure_kind")
DAMAGE = {
    "start out of range": put("start", 2, 10**9),
    "start negative": put("start", 1, -5),
    "start backwards": put("start", 2, 1),
    "start not from 0": put("start", 0, 1),
    "start to the middle": put("start", -1, 7),
    "start of none": turned("start", lambda a: a[:0]),
    "a column of another length": turned("sent_ns", lambda a: a[:-1]),
    "no requests": turned("index", lambda a: a[:0]),
    "fewer tokens": turned("tokens", lambda a: a[:-2]),
    "fewer arrivals": turned("arrival_ns", lambda a: a[:-2]),
    "two dimensions": turned("arrival_ns", lambda a: a.reshape(-1, 5)),
    "no dimension": turned("arrival_ns", lambda a: np.array(5)),
    "strings": turned("tokens", lambda a: a.astype(np.str_)),
    "floats": turned("arrival_ns", lambda a: a.astype(np.float64)),
    "narrow": turned("tokens", lambda a: a.astype(np.int32)),
    "unsigned": turned("tokens", lambda a: a.astype(np.uint64)),
    "complex": turned("slot", lambda a: a.astype(np.complex128)),
    "dates": turned("sent_ns", lambda a: a.astype("datetime64[ns]")),
    "big-endian": turned("slot", lambda a: a.astype(">i8")),
    "records": turned("slot", lambda a: np.zeros(6, [("a", "<i8")])),
    "objects": turned("slot", lambda a: a.astype(object)),
    "negative tokens": put("tokens", 0, -1),
    "tokens that wrap": put("tokens", 0, 2**62 + 1),
    "10^13 tokens": put("tokens", 0, 10**13),
    "10^13 output tokens": put("output_tokens", 0, 10**13),
    "an arrival past all time": put("arrival_ns", 3, 2**62),
    "a moment past all time": put("sent_ns", 3, 2**63 - 1),
    "sent before all time": put("sent_ns", 3, -1),
    "usage 7": put("usage", 3, 7),
    "a slot below 0": put("slot", 3, -2),
    "a request twice": put("index", 3, 2),
    "out of order": turned("index", lambda a: a[::-1].copy()),
    "no such failure": put("failure_kind", 5, 99),
    "a word's number below 0": put("finish_reason", 5, -1),
    "fewer reasons": turned("finish_reason", lambda a: a[:-1]),
    "words of none": turned("word_start", lambda a: a[:0]),
    "words past their end": put("word_start", -1, 10**9),
    "words that are no text": turned("words", lambda a: np.full_like(a, 255)),
    "words of numbers": turned("words", lambda a: a.astype(np.int64)),
    "failures of floats": turned("failure_kind", lambda a: a.astype(np.float64)),
    "a failure kind of old that is none": turned("failure_kind", lambda a: np.full(6, "odd")),
    **{f"no {name}": operator.methodcaller("pop", name) for name in NEEDED},
}


def refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(directory)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"loadgen: {directory}: {RESULT} or {ARRIVALS} is damaged: ")
    assert said.err.count("\n") == 1
    assert len(said.err.rstrip().rpartition("is damaged: ")[2]) > 10


@loop_over("change", DAMAGE.values())
def test_columns_that_cannot_be_a_runs_are_one_line(
    change: Callable[[NamedColumns], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = stored(tmp_path)
    change(columns)
    np.savez(tmp_path / ARRIVALS, **columns)
    refused(tmp_path, capsys)


def header(shape: str, kind: str = "<i8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(118 - 1 - 0) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def member(columns: NamedColumns, name: str, data: bytes) -> bytes:
    """The archive with the bytes of one member in place of a column."""
    file = io.BytesIO()
    np.savez(file, **{key: column for key, column in columns.items() if key != name})
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def bomb(columns: NamedColumns) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **{**columns, "tokens": np.zeros(1 << 24, np.int64)})
    return file.getvalue()


def flagged(columns: NamedColumns, offset: int, value: int) -> bytes:
    """The archive with a field of the first member's two headers set: 6 the flags, 8 the method."""
    file = io.BytesIO()
    np.savez(file, **columns)
    data = bytearray(file.getvalue())
    central = data.index(b"PK\x01\x02")
    struct.pack_into("<H", data, offset, value)
    struct.pack_into("<H", data, central + offset + 2, value)
    return bytes(data)


def whole(columns: NamedColumns) -> bytes:
    file = io.BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


def one_bit(columns: NamedColumns) -> bytes:
    data = bytearray(whole(columns))
    data[data.index(columns["arrival_ns"].tobytes())] ^= 1
    return bytes(data)


ARCHIVES = {
    "a bomb": bomb,
    "a header of 10^15": lambda c: member(c, "tokens", header("(1000000000000000,)") + bytes(80)),
    "10^15 empty strings": lambda c: member(c, "failure_kind", header("(1000000000000000,)", "<U0")),
    "strings as long as memory": lambda c: member(c, "failure_kind", header("(1,)", "<U99999999")),
    "a header of no end": lambda c: member(c, "tokens", b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 9000),
    "a deep header": lambda c: member(c, "tokens", b"\x93NUMPY\x01\x00\x28\x23" + b"-" * 9000),
    "a header of code": lambda c: member(c, "tokens", header("(__import__('os'),)")),
    "no array": lambda c: member(c, "tokens", b"nothing of the kind"),
    "an empty member": lambda c: member(c, "tokens", b""),
    "a pickle": lambda c: member(c, "tokens", header("(1,)", "|O") + b"cos\nsystem\n(S'false'\ntR."),
    "bad deflate": lambda c: flagged(c, 8, 8),
    "an unknown method": lambda c: flagged(c, 8, 97),
    "encrypted": lambda c: flagged(c, 6, 1),
    "one bit": one_bit,
    "no archive": lambda c: b"PK\x05\x06" + b"\xff" * 18,
    "cut": lambda c: whole(c)[:-30],
    "without its begin": lambda c: whole(c)[100:],
}  # fmt: skip


@loop_over("make", ARCHIVES.values())
def test_an_archive_that_no_run_is_in_is_one_line(
    make: Callable[[NamedColumns], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ARRIVALS).write_bytes(make(stored(tmp_path)))
    refused(tmp_path, capsys)


@pytest.mark.whole
def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / ARRIVALS).write_bytes(bomb(stored(tmp_path)))
    code = (
        "import resource, sys\n"
        "from loadgen import cli\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "cli.main(['report', sys.argv[1]])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=60)
    assert int(run.stdout) < 96 * 1024  # KiB, imports included; the bomb holds 128 MiB


@loop_over("name", [RESULT, ARRIVALS])
def test_what_is_no_regular_file_is_not_waited_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    refused(tmp_path, capsys)


@pytest.mark.timeout(20)
def test_a_fifo_in_place_of_arrivals_leaves_the_stored_figures(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / ARRIVALS).unlink()
    os.mkfifo(tmp_path / ARRIVALS)
    (reported,) = result_sources.read_sources([str(tmp_path)]).reported
    assert reported.remarks[-1] == f"{ARRIVALS} is missing or damaged: only the stored figures are shown"


FACTS = {
    "deep": lambda facts: "[" * 100_000,
    "a rate of 0": lambda facts: json.dumps({**facts, "profile": {**facts["profile"], "request_rate": 0}}),
    "no rate": lambda facts: '{"format": 1, "profile": {"request_rate": NaN}}',
    "a number of 5000 digits": lambda facts: json.dumps(facts).replace('"seed": 7', '"seed": ' + "9" * 5000),
    "a percentile of 101": lambda facts: json.dumps(
        {**facts, "profile": {**facts["profile"], "metric_percentiles": "101"}}
    ),
    "no requests": lambda facts: json.dumps({**facts, "requests": 0}),
}


@loop_over("make", FACTS.values())
def test_facts_that_cannot_be_a_runs_are_one_line(
    make: Callable[[Any], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path)
    facts = json.loads((tmp_path / RESULT).read_text("utf-8"))["loadgen"]
    (tmp_path / RESULT).write_text(f'{{"loadgen": {make(facts)}}}', "utf-8")
    assert cli.main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_one_long_word_takes_its_own_room_alone(tmp_path: Path) -> None:
    rows = [Record(i, 0, 1, 1, 2, finish_reason="stop", failure=None) for i in range(1000)]
    rows[7].finish_reason = "long" * 250_000
    rows[8].failure = Failure(FailureKind.IN_BAND, "half a pair \ud800, NUL \0")
    records = Records.from_records(rows)
    records.save(tmp_path / ARRIVALS)
    assert (tmp_path / ARRIVALS).stat().st_size < 1_500_000
    found = Records.load(tmp_path / ARRIVALS)
    assert (found.finish_reasons, found.failures) == (records.finish_reasons, records.failures)
    assert (tmp_path / ARRIVALS).stat().st_mode & 0o777 == 0o600


def test_a_long_column_stays_in_its_file(tmp_path: Path) -> None:
    count = 2_200_000
    arrival_ns, tokens = np.arange(count), np.arange(count) % 3
    row = Record(0, 0, 1, 1, count, arrival_ns=arrival_ns, tokens=tokens)
    Records.from_records([row]).save(tmp_path / ARRIVALS)
    found = Records.load(tmp_path / ARRIVALS)
    for read, written in ((found.arrival_ns, arrival_ns), (found.tokens, tokens)):
        assert read.tobytes() == written.tobytes()
        assert not read.flags.owndata
        assert not read.flags.writeable
        assert read.flags.aligned
    with np.load(tmp_path / ARRIVALS) as again:
        assert again["arrival_ns"].tobytes() == arrival_ns.tobytes()
