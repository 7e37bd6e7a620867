"""Files of strangers: numbers that are none, texts that take for ever, things that are no files."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from builders.growth import hold_linear
from builders.loops import loop_over, read_tables
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields, result_sources

HEADER = "============ Serving Benchmark Result ============\n"
VLLM = json.loads((Path(__file__).parents[2] / "data/results/vllm_bench_serve.json").read_text("utf-8"))
STDOUT = (Path(__file__).parents[2] / "data/results/vllm_bench_serve.stdout.txt").read_text("utf-8")
BLOCK = STDOUT[STDOUT.index("====") :]
TABLES = read_tables("hostile_files")
LONG = 150_000  # characters; of twice as many, quadratic readers took from ten seconds to minutes


def read(directory: Path, name: str, content: str | bytes) -> result_sources.Sources:
    """What a directory holds in which one file is a stranger's and one is good."""
    (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (directory / "good.md").write_text(f"# good\n\n{BLOCK}", "utf-8")
    return result_sources.read_sources([str(directory)])


@pytest.mark.long
@loop_over("behind", [HEADER, ""])
@loop_over(("name", "parts"), TABLES["slow"])
def test_no_file_takes_long(name: str, parts: list[Any], behind: str, tmp_path: Path) -> None:
    piece = "".join(text * times for text, times in parts)

    def read_pieces(length: int) -> None:
        found = read(tmp_path, "x.md", piece * (length // len(piece)) + behind + "\n" + HEADER)
        assert "good" in {one.name for one in found.reported}

    hold_linear(read_pieces, LONG)


_TABLE = "model,Mean TTFT (ms),P99 TTFT (ms),Output throughput (tok/s)\n"
_PARTS = "has more than 10000 results: give it in parts"


@pytest.mark.long
@loop_over(("name", "piece", "why"), TABLES["large"])
def test_a_large_file_is_refused_in_bounded_time(name: str, piece: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "large.txt"

    def read_pieces(length: int) -> None:
        path.write_text(piece * (length // len(piece)), "utf-8")
        with suppress(UsageError):  # half as many may be few enough
            result_sources.read_sources([str(path)])

    hold_linear(read_pieces, max(2_000_000, 10_001 * len(piece)))
    with pytest.raises(UsageError, match=why):
        result_sources.read_sources([str(path)])


def test_a_table_of_more_rows_than_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(_TABLE + "Qwen3-8B,1.5,2.5,3000.5\n" * 10_001, "utf-8")
    with pytest.raises(UsageError, match=_PARTS):
        result_sources.read_sources([str(tmp_path / "rows.csv")])


@loop_over(
    "said", ["1e400", "1e16", "9" * 400, "nan", "inf", "-inf", "1" + ",000" * 200, "1e-320", "9" * 5000]
)
@loop_over("label", ["Successful requests:", "Mean TTFT (ms):", "Total input tokens:"])
def test_a_figure_of_a_page_that_is_none_is_left_out(label: str, said: str, tmp_path: Path) -> None:
    line = next(one for one in BLOCK.splitlines() if one.startswith(label))
    found = read(tmp_path, "x.md", f"# odd\n\n{BLOCK.replace(line, f'{label} {said}')}")
    odd = next(one for one in found.reported if one.name == "odd")
    key = {"S": "completed", "M": "mean_ttft_ms", "T": "total_input_tokens"}[label[0]]
    assert odd.figure(key) is None
    assert len(found.reported) == 2


@loop_over("key", ["completed", "duration", "mean_ttft_ms", "total_input_tokens", "request_rate", "date"])
@loop_over(
    "said", ["1e400", "NaN", "-Infinity", "9" * 400, "9" * 5000, "5e-324", '"x"', "[]", '"00010101-000000"']
)
def test_a_figure_of_a_file_that_is_none_is_left_out(key: str, said: str, tmp_path: Path) -> None:
    whole = json.dumps({**VLLM, key: "HERE"}).replace('"HERE"', said)
    found = read(tmp_path, "x.json", whole)
    odd = [one for one in found.reported if one.source.endswith("x.json")]
    assert [one.figure(key) for one in odd] == [None] * len(odd)
    assert "good" in {one.name for one in found.reported}


@loop_over(
    ("name", "content", "why"),
    [
        ("deep.json", '{"model_id":' * 500_000, "not valid JSON, or cut off: maximum recursion depth"),
        ("cut.json", "{\n" * 1000 + '"mean_ttft_ms"',
         "the 200th part that is not valid JSON: the rest was not read"),
        ("speed.csv", "model,input_length,speed_tok_s\nm,1,OOM\n", "1 of 1 rows of a table have no figures"),
        ("table.csv", "name,tok_s,ttft\n" + '"' + "a" * 200_000, "field larger than field limit"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_a_line(name: str, content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "good.md").write_text(f"# good\n\n{BLOCK}", "utf-8")
    found = result_sources.read_sources([str(tmp_path / name), str(tmp_path / "good.md")])
    assert any(why in trouble for trouble in found.errors), found.errors
    assert [one.name for one in found.reported] == ["good"]


@loop_over("said", ["-Infinity", "NaN", "1e999", "[1]", '{"a": NaN}', "7", "true"])
def test_a_word_that_is_none_is_left_out(said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(f'{{"mean_e2e_latency_ms": 5, "backend": {said}, "protocol": {said}}}')
    (one,) = result_sources.read_sources([str(path)]).reported
    assert one.figures.keys() & {"backend", "protocol"} == set()


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("result.json", "arrivals.npz", "ladder.json", "campaign.json", "x.json"):
        os.mkfifo(run / name)
    os.mkfifo(tmp_path / "y.md")
    found = read(tmp_path, "x.md", f"# other\n\n{BLOCK}")
    assert {one.name for one in found.reported} == {"good", "other"}


def test_what_is_larger_than_any_result_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(json_fields.MOST_BYTES + 1)
    (tmp_path / "good.md").write_text(f"# good\n\n{BLOCK}", "utf-8")
    found = result_sources.read_sources([str(path), str(tmp_path / "good.md")])
    assert found.errors == (f"{path} is larger than 64 MiB: give it in parts, or without its requests",)


ODD = "m\x1b]0;t\x07\x1b[2J\u202e\u2066=x"


@loop_over(
    "words",
    [
        "compare {page} {good}", "compare {page} {good} --markdown", "compare {page} {good} --csv",
        "compare {page} {good} --json", "compare {page} {good} --rankings --effects --fits",
        "report {page} {good}", "report {page} {good} --layout vllm-0.32",
        "report {page} {good} --markdown -", "report {page} {good} --csv -", "audit {page} {good} --explain",
        "audit {page} {good} --json", "compare {page} {odd}",
    ],
)  # fmt: skip
def test_no_name_commands_a_terminal(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page, good, odd = tmp_path / "page.md", tmp_path / "good.md", tmp_path / f"{ODD}.json"
    page.write_text(f"# {ODD}\n\n{BLOCK}", "utf-8")
    good.write_text(f"# good\n\n{BLOCK}", "utf-8")
    odd.write_text("{", "utf-8")
    places: dict[str, Any] = {"page": page, "good": good, "odd": odd}
    assert cli.main([word.format(**places) for word in words.split()]) == 0
    said = capsys.readouterr()
    for letter in said.out + said.err:
        assert letter in "\n\t" or letter.isprintable(), hex(ord(letter))


@loop_over(
    ("raw", "said"),
    [
        ("é ok".encode(), "é ok"),
        ("é ok".encode("utf-8-sig"), "é ok"),
        ("é ok".encode("utf-16"), "é ok"),
        (b"\xfe\xff" + "é ok".encode("utf-16-be"), "é ok"),
        ("é ok".encode("latin-1"), "é ok"),
    ],
)
def test_a_text_is_read_in_the_encoding_that_it_has(raw: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(raw)
    assert json_fields.decode_text(json_fields.read_file(tmp_path / "t"), tmp_path / "t") == said


@loop_over(
    ("raw", "why"),
    [
        (b"", "is empty"), (b" \n", "is empty"), (b"\x1f\x8b\x08\0", r"is compressed \(gzip\): unpack it"),
        (b"PK\x03\x04", r"is compressed \(zip\)"), (b"\x7fELF\0\0", "is a binary file"),
        (b"\xff\xfea", "begins as utf-16-le and is not valid utf-16-le"),
    ],
)  # fmt: skip
def test_what_is_no_text_says_why(raw: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(raw)
    with pytest.raises(UsageError, match=why):
        json_fields.decode_text(json_fields.read_file(tmp_path / "t"), tmp_path / "t")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("none", "No such file"), ("pipe", "not a regular file")):
        with pytest.raises(UsageError, match=reason):
            json_fields.read_file(tmp_path / name)
