"""Trace files: one text over many lines and a directory of files are the rows that they hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.traces import OTEL_FAN_IN, OTEL_GENAI, TRACELAB, WEKA_AGENTS, planned, prompts
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.features.traces.trace_formats import open_rows, open_trace

FLAG = "--trace"


def put(directory: Path, **files: str | bytes) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (directory / name.replace("__", ".")).write_bytes(data)
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
    assert made.turns is not None
    assert made.turns.waits is not None
    columns = (made.turns.begins, made.turns.delays_ns, made.turns.waits.before, made.requests.output_lens)
    return made.facts.rows, list(map(len, prompts(made))), *(column.tolist() for column in columns)


@loop_over(("path", "name"), [(WEKA_AGENTS, "weka"), (OTEL_GENAI, "otel"), (TRACELAB, "tracelab")])
def test_a_directory_is_the_trace_of_its_files(tmp_path: Path, path: Path, name: str) -> None:
    at = split_rows(path, tmp_path / "d")
    assert open_trace("", str(at))[0] == name
    made, whole = (open_load(each) for each in (at, path))
    assert made == whole


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
                described["requests"],
                described["lengths"],
                described["sessions"],
                capsys.readouterr().out,
                out.read_bytes(),
            )
        )
        assert cli.main(["data", str(path), "--seed", "1"]) == 0
        capsys.readouterr()
    assert said[0] == said[1]


@loop_over(
    ("files", "why"),
    [
        ({"a__txt": "x"}, "d: no file there ends in .json, .jsonl: give one that has some"),
        ({"a__json": '{"a": 1}'}, "d/a.json row 1: its keys (a) are those of no trace"),
        ({"a__json": '{\n"requests": 5}'}, "d/a.json: requests is 5: give a list"),
        (
            {"a__json": '{\n"requests": [}'},
            "d/a.json: is not valid JSON: Expecting value (line 2, column 14)",
        ),
        (
            {"a__json": '{"id": 1, "requests": []}', "b__json": '[\n{"id": 1, "requests": []}]'},
            "b.json row 1: id 1 is",
        ),
        (
            {"a__json": '{"requests": []}', "b__json": '{"requests": [1]}\n'},
            "d/b.json row 1: requests[0] is 1: give",
        ),
        ({"a__json": '{"requests": []}', "b__json": ""}, "d/b.json: is empty"),
        (
            {"a__json": '{"spans": []}', "b__json": '{"spans": [{"start_time": 1}]}'},
            "b.json row 1: spans[0] has no end",
        ),
    ],
)
def test_what_is_wrong_with_a_file_names_it(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as error:
        planned(put(tmp_path / "d", **files))
    assert why in str(error.value)
    assert "\n" not in str(error.value)
