"""Export: a row per request in three forms, each with the same values; files that are whole or absent."""

from __future__ import annotations

import csv
import io
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from builders.made_runs import MS, answers, keep, run
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.records.record import Record, Records
from loadgen.report import report, request_rows
from loadgen.report.request_rows import FORMS, WORDS
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("request_rows")

BEGIN_NS = 10**12


def mixed(prefix: str | None = "p-") -> Result:
    """A success, one of a token, a failure with tokens, one without, one that was never sent."""
    of = run(requests=5, tokens=4, request_id_prefix=prefix)
    rows = answers(5, 4, 4, 1.0, 0)
    for row in rows:
        row.sent_ns, row.intended_ns = BEGIN_NS, BEGIN_NS - MS
        row.arrival_ns = BEGIN_NS + np.arange(1, 5) * 10 * MS
        row.visible_ns = int(row.arrival_ns[0])
        row.end_ns, row.http_status, row.finish_reason = int(row.arrival_ns[-1]) + 1, 200, "length"
    rows[1].arrival_ns, rows[1].tokens, rows[1].output_tokens = rows[1].arrival_ns[:1], rows[1].tokens[:1], 1
    rows[2].failure, rows[2].output_tokens = Failure(FailureKind.TRUNCATED, '=cut\ud800, "twice"'), 4
    rows[3] = Record(3, 0, BEGIN_NS, BEGIN_NS, BEGIN_NS + 9, resends=1, http_status=503,
                     failure=Failure(FailureKind.HTTP_STATUS))  # fmt: skip
    rows[4] = Record(4, 0, BEGIN_NS, 0, BEGIN_NS + 9, failure=Failure(FailureKind.CANCELLED))
    rows[0].cached_tokens, rows[0].visible_ns = 7, BEGIN_NS + 25 * MS
    return Result(of.facts, Records.from_records(rows))


def stored(directory: Path, of: Result) -> Path:
    keep(of, directory, report.render_report(of))
    return directory


COLUMNS = request_rows.list_columns(mixed())
EMPTY = dict.fromkeys(COLUMNS)
OF_ALL = {"class": "", "slot": 0, "intended_ns": BEGIN_NS, "sent_ns": BEGIN_NS, "resends": 0}
PARTS = [name for name in COLUMNS if name.startswith(("ttft_", "tail_")) and name != "ttft_ns"]
SHOWN = ("ttft_handshake_ns", "tail_read_lag_ns", "tail_decode_step_ns", "tail_slow_step_ns",
         "tail_others_prefill_ns", "tail_unknown_ns")  # fmt: skip
TIMES = {"ttft_sent_late_ns": MS, "ttft_unknown_ns": 10 * MS}
DIVIDED = dict.fromkeys(PARTS) | dict.fromkeys(SHOWN, 0) | TIMES
FIRST: dict[str, Any] = {
    **EMPTY, **OF_ALL, **DIVIDED, "index": 0, "request_id": "p-0", "intended_ns": BEGIN_NS - MS,
    "first_ns": BEGIN_NS + 10 * MS, "last_ns": BEGIN_NS + 40 * MS, "end_ns": BEGIN_NS + 40 * MS + 1,
    "ttft_ns": 10 * MS, "tpot_ns": 10.0 * MS, "ttfvt_ns": 25 * MS, "e2el_ns": 40 * MS, "input_tokens": 64,
    "output_tokens": 4, "cached_tokens": 7, "finish_reason": "length", "ok": True, "failure_kind": "",
    "http_status": 200, "error": "",
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    FIRST,
    FIRST | {
        "index": 1, "slot": 1, "request_id": "p-1", "last_ns": BEGIN_NS + 10 * MS, "e2el_ns": 10 * MS,
        "tpot_ns": None, "ttfvt_ns": 10 * MS, "output_tokens": 1, "cached_tokens": None,
    },
    FIRST | dict.fromkeys(PARTS) | {
        "index": 2, "slot": 2, "request_id": "p-2", "ttft_ns": None, "ttfvt_ns": None, "tpot_ns": None,
        "e2el_ns": None, "cached_tokens": None, "ok": False, "failure_kind": "truncated",
        "error": "=cut\\ud800, \"twice\"",
    },
    EMPTY | OF_ALL | {
        "index": 3, "request_id": "p-3", "end_ns": BEGIN_NS + 9, "resends": 1, "http_status": 503,
        "finish_reason": "", "ok": False, "failure_kind": "http-status", "error": "the status is not 200",
    },
    EMPTY | OF_ALL | {
        "index": 4, "request_id": "p-4", "sent_ns": None, "end_ns": BEGIN_NS + 9, "finish_reason": "",
        "ok": False, "failure_kind": "cancelled", "error": "stopped while it was under way",
    },
]  # fmt: skip


def test_the_rows_have_every_column_in_its_order_and_every_value() -> None:
    (rows,) = request_rows.list_rows(mixed())
    for row, expected in zip(rows, ROWS, strict=True):
        assert list(row) == list(COLUMNS)
        assert row | {"slot": 0} == {name: expected[name] for name in COLUMNS} | {"slot": 0}


def test_ids_that_were_not_kept_are_not_made_up() -> None:
    (rows,) = request_rows.list_rows(mixed(prefix=None))
    assert {row["request_id"] for row in rows} == {None}


@loop_over("kind", FailureKind)
def test_the_error_of_a_failure_is_never_blank(kind: FailureKind) -> None:
    of = run(requests=1, tokens=2)
    of.records.failures[0] = Failure(kind)
    ((row,),) = request_rows.list_rows(of)
    assert (row["ok"], row["failure_kind"], row["error"]) == (False, kind.value, WORDS[kind])
    assert row["error"].strip()


def read_back(form: str, path: Path) -> list[dict[str, Any]]:
    if form == "jsonl":
        return [json.loads(line) for line in path.read_text("ascii").splitlines()]
    if form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_holds_the_same_rows(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, mixed())
    assert cli.main(["export", str(tmp_path), f"--{form}"]) == 0
    path = tmp_path / f"requests.{form}"
    assert capsys.readouterr().out == f"requests: {path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_back(form, path)
    expected = [{name: row[name] for name in COLUMNS} for row in ROWS]
    if form == "csv":
        expected = [{name: _as_text(value) for name, value in row.items()} for row in expected]
        expected[2]["error"] = "'" + expected[2]["error"]
    for row, wanted in zip(found, expected, strict=True):
        assert row | {"slot": 0} == wanted | {"slot": 0}


def test_of_several_servers_each_row_names_its_own() -> None:
    of = mixed()
    several = Result(replace(of.facts, targets=("http://a", "http://b")), of.records)
    (batch,) = request_rows.list_rows(several)
    assert [row["target"] for row in batch] == [f"http://{'ab'[row['slot'] % 2]}" for row in batch]
    assert [{name: row[name] for name in COLUMNS} for row in batch] == ROWS
    assert Run(several).requests()["target"].tolist() == [row["target"] for row in batch]
    assert "target" not in Run(of).requests()
    file = io.BytesIO()
    FORMS["csv"](request_rows.list_rows(several), request_rows.list_columns(several), file)
    assert file.getvalue().splitlines()[0].decode().split(",") == [
        *(name for name in COLUMNS if name not in PARTS),
        "target",
        *PARTS,
    ]


def test_the_report_has_a_table_of_several_servers() -> None:
    of = mixed()
    several = Result(replace(of.facts, targets=("http://a", "http://b")), of.records)
    text = report.render_report(several)
    assert "\nTarget  requests  failed " in text
    assert [row["url"] for row in encode_run(several)["loadgen"]["by_target"]] == ["http://a", "http://b"]
    assert encode_run(several)["loadgen"]["targets"] == ["http://a", "http://b"]
    assert "by_target" not in encode_run(of)["loadgen"]
    assert "\nTarget " not in report.render_report(of)
    assert "\nTarget  requests  failed " in report.render_short(several, "d")
    urls = tuple(f"http://{number}" for number in range(9))
    many = Result(replace(of.facts, targets=urls), of.records)
    assert "9 rows: the table by target is in the whole report" in report.render_short(many, "d")
    assert "\nTarget " not in report.render_short(of, "d")


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_rows_go_to_standard_output_on_request(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path, mixed())
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    assert cli.main(["export", str(tmp_path), f"--{form}", "--output", "-"]) == 0
    assert cli.main(["export", str(tmp_path), f"--{form}", "--output", str(tmp_path / "x")]) == 0
    sys.stdout.flush()
    assert raw.getvalue() == (tmp_path / "x").read_bytes() + f"requests: {tmp_path / 'x'}\n".encode()


@loop_over(("words", "code", "said"), TABLES["refused"])
def test_a_command_that_cannot_be_done_is_one_line_and_leaves_nothing(
    words: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, mixed())
    before = sorted(tmp_path.iterdir())
    assert cli.main(["export", str(tmp_path), *words.replace("{run}", str(tmp_path)).split()]) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said in shown.err
    assert sorted(tmp_path.iterdir()) == before


def test_parquet_without_its_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"in the clone, .venv/bin/pip install '.\[parquet\]'"):
        request_rows.write(mixed(), "parquet", tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_rows_are_made_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_rows, "_ROWS_AT_ONCE", 4)
    of = run(requests=11, tokens=2, request_id_prefix="")
    chunks = list(request_rows.list_rows(of))
    assert [len(chunk) for chunk in chunks] == [4, 4, 3]
    assert [row["request_id"] for chunk in chunks for row in chunk] == [str(i) for i in range(11)]
    request_rows.write(of, "jsonl", tmp_path / "small")
    monkeypatch.setattr(request_rows, "_ROWS_AT_ONCE", 4096)
    request_rows.write(of, "jsonl", tmp_path / "large")
    assert (tmp_path / "small").read_bytes() == (tmp_path / "large").read_bytes()


@pytest.mark.long
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def peak(requests: int) -> int:
        count = np.zeros(requests, np.int64)
        one = run(requests=1, tokens=1)
        columns = dict.fromkeys(one.records.columns, count)
        start, empty = np.zeros(requests + 1, np.int64), np.zeros(0, np.int64)
        nothing: list[Failure | None] = [None] * requests
        records = Records(
            **columns, start=start, arrival_ns=empty, tokens=empty, failures=nothing,
            finish_reasons=[""] * requests, texts=[None] * requests,
        )  # fmt: skip
        tracemalloc.start()
        request_rows.write(Result(one.facts, records), "jsonl", tmp_path / "x")
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    grown = peak(13_000) - peak(5_000)
    assert grown < 8_000 * 200  # columns; a row as a dict is over 1 kB
