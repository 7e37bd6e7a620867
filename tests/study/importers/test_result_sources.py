"""Sources: whatever is named is read or told in one line; nothing of it is read twice."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs
from builders.loops import loop_over
from builders.made_limits import limit_record, limit_run
from builders.required import require
from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Cell
from loadgen.records.journal import JOURNAL
from loadgen.report.result_file import write_result
from loadgen.report.run_directory import ARRIVALS, RESULT, Result
from loadgen.report.run_writer import encode_run
from loadgen.study.importers import result_sources
from loadgen.study.importers.result_sources import Sources
from loadgen.study.limit_record import LIMIT
from loadgen.study.run_summary import summarise_run
from report.test_run_directory import made, saved

DATA = Path(__file__).parents[2] / "data"
RESULTS = DATA / "results"
VLLM = (RESULTS / "vllm_bench_serve.json").read_text("utf-8")
SGLANG = (RESULTS / "sglang_rust_bench.jsonl").read_text("utf-8").strip()
CURRENT = {"python": "3", "loadgen": __version__}


def read(*places: Path) -> Sources:
    return result_sources.read_sources([str(place) for place in places])


def run_in(directory: Path, **changes: Any) -> Result:
    directory.mkdir(parents=True)
    run = made(**{"environment": CURRENT, **changes})
    saved(directory, run)
    return run


def names(found: Sources) -> list[str]:
    return [known.name for known in found.reported]


@pytest.mark.parametrize("environment", [CURRENT, {"loadgen": "0.0.1"}, {}])
def test_a_run_directory_is_what_the_run_was(environment: dict[str, str], tmp_path: Path) -> None:
    run = run_in(tmp_path / "r", environment=environment)
    (known,) = read(tmp_path / "r").reported
    told = summarise_run(tmp_path / "r", run)
    assert {key: known.figure(key) for key in told.figures} == {key: told.figure(key) for key in told.figures}
    assert (known, known.figures.keys()) == (known, told.figures.keys())
    assert (known.name, known.load) == (told.name, told.load)
    assert (known.level, known.doubts) == (told.level, told.doubts)
    assert encode_run(require(known.run)) == encode_run(run)


def test_what_a_directory_of_runs_holds_is_read_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "deep/er/c"):
        run_in(tmp_path / name, label=name)
    (tmp_path / "x.jsonl").write_text(SGLANG)
    (tmp_path / "a-repeats.json").write_text('{"metrics": {}}')
    (tmp_path / "a-vllm-server").mkdir()
    (tmp_path / "a-vllm-server" / "server.log").write_text("INFO nothing\n")
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    found = read(tmp_path, tmp_path / "a", tmp_path)
    assert names(found) == ["x", "b", "deep/er/c", "a"]
    assert found.errors == (
        f"{tmp_path} was named before: it is read once",
        f"given twice, used once: {tmp_path}/a, under {tmp_path}/a and not under {tmp_path}",
    )


def test_what_holds_nothing_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(VLLM)
    for number in range(300):
        (tmp_path / f"f{number:03}").write_text("INFO nothing\n" * 20)
    (tmp_path / "weights").write_bytes(b"\0" * 9)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    found = read(tmp_path)
    assert names(found) == ["qwen3"]
    assert found.errors == (
        f"{tmp_path}: 304 of 305 files have no results: broken, empty, f000 and 301 more",
    )


def changed(raw: str, **changes: Any) -> str:
    """A stored result with other values in it."""
    stored = json.loads(raw)
    stored["loadgen"] |= changes
    return json.dumps(stored)


@loop_over(
    ("damage", "why"),
    [
        (lambda raw: raw[:900], "result.json is cut off or damaged"),
        (lambda raw: changed(raw, format=99),
         "was written by a newer loadgen: it has format 99, this one reads 2"),
        (lambda raw: raw.replace('"itl"', '"its"'), "is damaged: no 'itl'"),
        (lambda raw: changed(raw, seed="x"), "is damaged: seed: "),
        (lambda raw: None, "is an unfinished run: it has no result.json"),
        (lambda raw: "", "result.json is cut off or damaged"),
        (lambda raw: "[]", "has format None"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_a_line_and_the_others_are_read(damage: Any, why: str, tmp_path: Path) -> None:
    run_in(tmp_path / "bad")
    run_in(tmp_path / "good")
    place = tmp_path / "bad" / RESULT
    damaged = damage(place.read_text())
    place.unlink()
    if damaged is not None:
        place.write_text(damaged)
    found = read(tmp_path)
    assert len(found.reported) == 1
    (trouble,) = found.errors
    assert trouble.startswith(f"{tmp_path}/bad")
    assert why in trouble


@pytest.mark.parametrize("left", [None, b"PK\x03\x04half"])
def test_a_run_without_its_arrivals_keeps_its_figures(left: bytes | None, tmp_path: Path) -> None:
    run = run_in(tmp_path / "r")
    (tmp_path / "r" / ARRIVALS).unlink()
    if left is not None:
        (tmp_path / "r" / ARRIVALS).write_bytes(left)
    (known,) = read(tmp_path / "r").reported
    assert known.figure("mean_ttft_ms") == run.metrics.ttft.mean_ms
    assert known.run is None
    assert "arrivals.npz is missing or damaged" in known.remarks[-1]


def test_our_saved_results_are_ours(tmp_path: Path) -> None:
    run = made(environment=CURRENT)
    for again in (False, True):
        write_result(tmp_path / "saved.json", encode_run(run, detailed=True), append=again)
    found = read(tmp_path / "saved.json")
    assert [known.told_by for known in found.reported] == ["loadgen", "loadgen"]
    assert [known.source for known in found.reported] == [f"{tmp_path}/saved.json:{line}" for line in (1, 2)]
    assert found.reported[0].figure("mean_e2el_ms") == run.metrics.e2el.mean_ms


def cell(repeat: int) -> Cell:
    return Cell(campaign="c", checkpoint=f"row{repeat}", server="s", profile="p", repeat=repeat, start="a")


def test_a_campaign_is_its_finished_cells_and_its_failures(tmp_path: Path) -> None:
    base = tmp_path / "campaign"
    for repeat in (0, 1):
        run_in(base / "cells" / f"{repeat}", cell=cell(repeat))
    run_in(base / "unfinished" / "2", cell=cell(2))
    run_in(base / "failed" / "3", cell=cell(3))
    told = {"cell": cell(3).model_dump(), "reason": "it died", "at": "2026-01-02T03:04:05Z"}
    (base / "failed" / "3.json").write_text(json.dumps(told))
    (base / "failed" / "4.json").write_text("{")
    (base / "campaign.json").write_text("{}")
    for place in (base, tmp_path):
        found = read(place)
        assert names(found) == ["row0", "row1"]
        assert [(one.cell.checkpoint, one.reason) for one in found.failures] == [("row3", "it died")]
        message = "4.json is not a valid record of a failed cell"
        assert [trouble for trouble in found.errors if message in trouble]


def test_a_ladders_runs_have_its_speeds_its_tables_are_not_read(tmp_path: Path) -> None:
    run_in(tmp_path / "one")
    (tmp_path / "ladder.csv").write_text("model,input_length,speed_tok_s\nm,10,5\n")
    row = {"run": "one", "speed_tok_s": 5.0, "formula": "output/time"}
    (tmp_path / "ladder.json").write_text(json.dumps({"rows": [row, {"run": "", "speed_tok_s": None}]}))
    (known,) = read(tmp_path).reported
    assert (known.figure("speed_tok_s"), known.load.name) == (5.0, "input 10")
    assert known.remarks[-1] == "speed is output/time"
    (row_alone,) = read(tmp_path / "ladder.csv").reported
    assert (row_alone.told_by, row_alone.figure("speed_tok_s")) == ("speed table", 5.0)


@loop_over(
    ("write", "why"),
    [
        (lambda path: path.touch(), "is empty"),
        (lambda path: path.mkdir(), "has no known results in 0 files"),
        (lambda path: path.write_text('{"completed": 1e999, "duration": 1, "model_id": ""}'),
         "has no figure"),
        (lambda path: None, "No such file"),
    ],
)  # fmt: skip
def test_where_nothing_can_be_read_the_command_says_why(write: Any, why: str, tmp_path: Path) -> None:
    write(tmp_path / "f")
    with pytest.raises(UsageError, match=why):
        read(tmp_path / "f")
    with pytest.raises(UsageError, match="no place is given"):
        read()


def test_a_foreign_result_json_is_a_file_as_any(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "vllm_bench_serve.json", tmp_path / RESULT)
    assert [known.told_by for known in read(tmp_path).reported] == ["vllm"]


def _named(directory: Path) -> dict[str, list[Path]]:
    """Places that share a file, by what is tested of them; the shared one is first in its directory."""
    for number, name in enumerate("abc"):
        figures = {**json.loads(VLLM), "output_throughput": 2000.0 + number}
        for side in ("one", "other"):
            if side == "one" or name == "c":
                written = directory / side / f"{name}.json"
                written.parent.mkdir(exist_ok=True)
                written.write_text(json.dumps({**figures, "p99_ttft_ms": len(side)}), "utf-8")
    one, other, link = directory / "one", directory / "other", directory / "link.json"
    link.symlink_to(one / "a.json")
    (other / "again.json").symlink_to(one / "a.json")
    return {
        "directory first": [one, one / "a.json"], "file first": [one / "a.json", one], "a link": [one, link],
        "directories": [one, other], "one within the other": [directory, other],
    }  # fmt: skip


@loop_over(
    ("places", "counts", "line"),
    [
        ("directory first", [2, 1], "{0}/one/a.json, under {0}/one/a.json and not under {0}/one"),
        ("file first", [1, 2], "{0}/one/a.json, under {0}/one/a.json and not under {0}/one"),
        ("a link", [2, 1], "{0}/one/a.json, under {0}/link.json and not under {0}/one"),
        ("directories", [3, 1], "{0}/other/again.json, under {0}/one and not under {0}/other"),
        ("one within the other", [3, 1], "{0}/other, under {0}/other and not under {0}"),
    ],
)
def test_what_two_places_share_is_in_a_line(
    places: str, counts: list[int], line: str, tmp_path: Path
) -> None:
    given = _named(tmp_path)[places]
    found = read(*given)
    assert [[run.place for run in found.reported].count(str(place)) for place in given] == counts
    assert f"given twice, used once: {line.format(tmp_path)}" in found.errors


def test_a_long_reading_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        (tmp_path / f"run-{number}").mkdir()
        saved(tmp_path / f"run-{number}", made(label=f"m{number}"))
    clock = itertools.count(0.0, 3.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    result_sources.read_sources([str(tmp_path)])
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"loadgen: reading {tmp_path}: 1 result and 0 other files so far"
    assert 2 <= len(said) < 9  # rarer, the longer it takes
    result_sources.read_sources([str(tmp_path)], shows_progress=False)
    assert capsys.readouterr().err == ""


@loop_over(
    ("place", "left"),
    [
        (".", ["runs/001"]),
        ("cells/r0", ["../../interrupted/r1/limit/runs/000", "../../unfinished/r1"]),  # of a campaign
    ],
)
def test_a_run_that_was_killed_is_no_run_of_its_search_and_no_complaint(
    place: str, left: list[str], tmp_path: Path
) -> None:
    directory = tmp_path / place
    for number in ("000", "002"):  # the latter is not of the record
        (directory / "runs" / number).mkdir(parents=True)
        made_runs.keep(made_runs.run(), directory / "runs" / number)
    for name in (*left, "probe/000", "unfinished/001", "interrupted/000", "interrupted/r1/limit"):
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / JOURNAL).write_bytes(b"")
    record = limit_record(runs=(limit_run(0, 4, 120, 130),))
    (directory / LIMIT).write_text(record.model_dump_json())
    (tmp_path / "limit.lock").write_text("")
    if place != ".":
        (tmp_path / "campaign.json").write_text("{}")
    found = read(tmp_path)
    first = str(directory / "runs" / "000")
    assert [[run.source for run in runs] for runs in (found.reported, found.limits[0].runs)] == [[first]] * 2
    assert (found.errors, found.outside_searches.reported) == ((), ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, "was written by a newer loadgen: it has format 3, this one reads 2"),
        ({"format": 1, "loadgen": "0.1"},
         "was written by loadgen 0.1: it has format 1, this one reads 2: measure again, or use the"),
        ({"axis": "weight"}, "is damaged: axis: input should be 'concurrency' or 'rate'"),
        ({"format": "new"}, "is damaged: format: "),
        ({"quota": 3}, "was made by another version of loadgen: this one does not know 'quota'"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_an_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    stored = limit_record().model_dump(mode="json") | changes
    (tmp_path / LIMIT).write_text(json.dumps(stored))
    with pytest.raises(UsageError, match=message):
        result_sources.read_sources([str(tmp_path)])
