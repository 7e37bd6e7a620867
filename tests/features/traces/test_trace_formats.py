"""Formats: each known by what is its own, a choice never guessed, units and block sizes its own."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest

from builders.loops import loop_over, read_tables
from builders.required import require
from builders.traces import (
    BAILIAN,
    OTEL_FAN_IN,
    OTEL_GENAI,
    TRACELAB,
    WEKA_AGENTS,
    jsonl,
    offsets_ms,
    planned,
    prompts,
    text,
    waits_of,
)
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.features.traces import trace_formats
from loadgen.features.traces.trace_formats import open_rows, open_trace
from loadgen.plan.profile import Profile

TABLES = read_tables("trace_formats")
FLAG = "--trace"


def test_every_name_of_the_flag_has_a_format() -> None:
    assert {"", *trace_formats.FORMATS} == set(get_args(Profile.model_fields["trace_format"].annotation))


@loop_over(("table", "why"), TABLES["servegen"])
def test_a_servegen_table_that_cannot_be_read_is_one_line(tmp_path: Path, table: str, why: str) -> None:
    counts = '{"0": {"input_tokens": "{5: 1}", "output_tokens": "{2: 1}"}}'
    at = put(tmp_path, chunk_0_trace__csv=table, chunk_0_dataset__json=counts)
    with pytest.raises(UsageError, match=why):
        planned(at / "chunk-0-trace.csv")


SHEET = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
ROW = "2023-11-16 18:15:47,1,1\n"
PIECE = SHEET + ROW * 4094  # and a row more: as many as are read at once


@loop_over("name", ["mooncake", "azure-2023", "weka", "servegen", ""])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"^--trace .*gone\.x"):
        planned(tmp_path / "gone.x", trace_format=name)


@loop_over("block", [64, 32, 128, 1024, 4])
def test_a_trace_of_other_blocks_is_refused_with_the_way_to_send_it(block: int, tmp_path: Path) -> None:
    """The command that the message has sends it: nothing of a row but its blocks is special."""
    rows = [(100 * at, block * at - 3, 5, [*range(at)]) for at in range(3, 33)]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = jsonl(tmp_path, [dict(zip(names, row, strict=True)) for row in rows])
    for name in ("", "mooncake") if block == 64 else ("",):
        with pytest.raises(UsageError) as refused:
            planned(path, trace_format=name)
        words = shlex.split(str(refused.value).partition("send it with ")[2].partition(";")[0])
        assert words == [
            "--dataset-name", "timed_trace", "--dataset-path", str(path),
            "--timed-trace-chunk-hash-size", str(block),
        ]  # fmt: skip


def put(directory: Path, **files: str | bytes) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (directory / name.replace("__", ".").replace("_", "-")).write_bytes(data)
    return directory


def split_rows(path: Path, directory: Path) -> Path:
    """A directory with a file for each row, indented or not, and one that is no JSON."""
    directory.mkdir()
    (directory / "README.md").write_text("no trace")
    for i, row in enumerate(path.read_text().splitlines()):
        text = json.dumps(json.loads(row), indent=i % 2 or None)
        (directory / f"{i:03}.json").write_text(text)
    return directory


def test_rows_of_all_files_stand_in_the_order_of_names(tmp_path: Path) -> None:
    at = put(
        tmp_path / "d",
        b__json='[\n{"n": 2},\n{"n":\n3}]',
        a__jsonl='{"n": 0}\n\n{"n": 1}\n',
        c__json__gz=gzip.compress(b'{\n"n": 4}'),
        __hidden__json="{}",
        d__txt="x",
    )
    rows = open_rows(str(at), FLAG)
    assert [row["n"] for row in rows.decode_rows(dict[str, int])] == [0, 1, 2, 3, 4]
    assert [str(rows.refusal(i, "is").args[0]) for i in range(5)] == [
        f"{FLAG} {at}/{place}: is"
        for place in ("a.jsonl row 1", "a.jsonl row 3", "b.json row 1", "b.json row 2", "c.json.gz")
    ]
    put(at, b__json="[]")
    assert len(open_rows(str(at), FLAG)) == 3
    assert open_rows(str(at), FLAG).digest() != rows.digest()


def open_load(path: Path) -> tuple[object, ...]:
    made = planned(path)
    turns = require(made.turns)
    columns = (turns.begins, turns.delays_ns, waits_of(made).before, made.requests.output_lens)
    return made.facts.rows, list(map(len, prompts(made))), *(column.tolist() for column in columns)


@loop_over(("path", "name"), [(WEKA_AGENTS, "weka"), (OTEL_GENAI, "otel"), (TRACELAB, "tracelab")])
def test_a_directory_is_the_trace_of_its_files(tmp_path: Path, path: Path, name: str) -> None:
    at = split_rows(path, tmp_path / "d")
    assert open_trace("", str(at))[0] == name
    made, whole = (open_load(each) for each in (at, path))
    assert made == whole


def test_hashed_rows_may_be_a_list_over_many_lines(tmp_path: Path) -> None:
    made = [planned(jsonl(tmp_path, BAILIAN)), planned(text(tmp_path, json.dumps(BAILIAN, indent=2)))]
    assert prompts(made[0]) == prompts(made[1])
    assert offsets_ms(made[0]) == offsets_ms(made[1]) == [0, 500]


def test_spans_of_several_forms_may_be_in_one_directory(tmp_path: Path) -> None:
    at = put(tmp_path / "d", a__json=OTEL_FAN_IN.read_bytes(), b__jsonl=OTEL_GENAI.read_bytes())
    made = [planned(path, backend="openai-chat") for path in (at, OTEL_FAN_IN, OTEL_GENAI)]
    assert len(made[0]) == len(made[1]) + len(made[2])


def test_verbs_take_a_directory_as_they_take_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = split_rows(OTEL_GENAI, tmp_path / "d")
    said = []
    for path in (at, OTEL_GENAI):
        assert cli.main(["data", "describe", str(path), "--json"]) == 0
        (described,) = json.loads(capsys.readouterr().out)["workloads"]
        out = tmp_path / "w.jsonl"
        assert cli.main(["data", "learn", str(path), "-o", str(out), "--salt", "s", "--json"]) == 0
        said.append(
            (
                described["requests"], described["lengths"], described["sessions"], capsys.readouterr().out,
                out.read_bytes(),
            )
        )  # fmt: skip
        assert cli.main(["data", str(path), "--seed", "1"]) == 0
        capsys.readouterr()
    assert said[0] == said[1]


@loop_over(("files", "why"), TABLES["directories"])
def test_what_is_wrong_with_a_file_names_it(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as error:
        planned(put(tmp_path / "d", **files))
    assert why in str(error.value)
    assert "\n" not in str(error.value)


@loop_over(("content", "why"), [
    (PIECE + ROW.replace(",1\n", ',"1\n') + ROW, "row 4097: opens a quote that the line does not close"),
    (PIECE + ROW + ROW.replace(",1,", ",x,"), "row 4098: ContextTokens 'x' is not a number of tokens"),
    (PIECE + ROW * 2 + "1,2\n", "row 4099: has 2 columns, and the header 3"),
    (f'{SHEET}"{"1" * 200_000}",4,4\n', "row 3: is not valid CSV: field larger than"),
])  # fmt: skip
def test_a_row_of_a_long_sheet_is_named_by_its_number(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        planned(text(tmp_path, content), trace_format="azure-2023")
