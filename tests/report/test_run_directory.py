"""Results: a run on disk gives its report again, and what is wrong with a directory is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.made_records import make_record
from builders.made_runs import keep
from loadgen import cli
from loadgen.base import files
from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Client, Facts, Server
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.report import report, run_directory
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT, Result
from loadgen.report.run_writer import encode_run
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("run_directory")

MS = 1_000_000
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def record(index: int, failure: Failure | None = None) -> Record:
    sent_ns = 10**12 + index * 100 * MS
    arrival_ns = sent_ns + np.arange(1, 6, dtype=np.int64) * 20 * MS
    first_ns = int(arrival_ns[0])
    return make_record(
        sent_ns, arrival_ns, index, slot=index % 2, intended_ns=sent_ns - MS, first_byte_ns=first_ns,
        planned_input=10, planned_output=5, input_tokens=10, output_tokens=5, usage=True,
        visible_ns=first_ns, reads=6, failure=failure, text="é",
    )  # fmt: skip


def made(**changes: Any) -> Result:
    keys = {"input_len": 10, "output_len": 5, "num_prompts": 3, "max_concurrency": 2, "goodput": ("ttft:50",)}
    workload = profile.build({"name": "p", **keys, **changes.pop("keys", {})})
    facts: dict[str, Any] = {
        "started": WHEN,
        "finished": WHEN,
        "command": ["loadgen", "bench"],
        "profile": workload,
        "seed": 7,
        "seed_chosen": True,
        "plan_digest": "abc",
        "prompt_format": "ids",
        "server": Server(url="http://h/v1/completions", engine="vLLM", version="1", model="org/m"),
        "client": Client(
            transport="wire", cpu_s=1.0, wall_s=2.0, clock_step_ms=0.0, late_bodies=0, backlog_bytes=0
        ),
        "environment": {"python": "3"},
        "metadata": ("a=b",),
        "requests": 3,
        **changes,
    }
    failed = Failure(FailureKind.TRUNCATED, "cut")
    return Result(Facts(**facts), Records.from_records([record(0), record(1), record(2, failed)]))


def saved(directory: Path, of: Result) -> str:
    text = report.render_report(of)
    keep(of, directory, text + "\n")
    return text


@loop_over_named(
    "of",
    {
        "plain": made(),
        "a rate": made(keys={"request_rate": 2.5, "burstiness": "inf"}),
        "no limit": made(keys={"max_concurrency": None}),
        "whole answers": made(keys={"stream": False, "goodput": ()}),
        "interrupted": made(cut_short="stopped by Ctrl-C", interrupted=True, requests=9),
        "asked": made(keys={"percentile_metrics": "ttft,e2el", "metric_percentiles": "50,99.9"}),
    },
)
def test_a_report_is_made_again_from_the_files_alone(
    of: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = saved(tmp_path, of)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([RESULT, ARRIVALS, REPORT])
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == text + "\n"
    assert (tmp_path / REPORT).read_text("utf-8") == text + "\n"
    again = run_directory.load(tmp_path)
    assert again.facts == of.facts
    assert encode_run(again) == encode_run(of)


@pytest.mark.parametrize(("version", "environment", "why"), TABLES["formats"])
def test_another_format_is_refused_with_what_wrote_it(
    version: int | None, environment: object, why: str, tmp_path: Path
) -> None:
    saved(tmp_path, made())
    stored = json.loads((tmp_path / RESULT).read_text("utf-8"))
    stored["loadgen"] |= {"format": version, "environment": environment}
    (tmp_path / RESULT).write_text(json.dumps(stored), "utf-8")
    with pytest.raises(UsageError, match=f"^{tmp_path} was written by {why}"):
        run_directory.load(tmp_path)


def test_a_run_with_a_key_that_this_version_lacks_is_of_another_version(tmp_path: Path) -> None:
    saved(tmp_path, made())
    stored = json.loads((tmp_path / RESULT).read_text("utf-8"))
    stored["loadgen"]["profile"]["quota"] = 3
    (tmp_path / RESULT).write_text(json.dumps(stored), "utf-8")
    with pytest.raises(UsageError) as raised:
        run_directory.load(tmp_path)
    why = "was made by another version of loadgen: this one does not know 'quota': use the one that wrote it"
    assert str(raised.value) == f"{tmp_path} {why}"
    stored["loadgen"]["profile"]["num_prompts"] = "x"
    (tmp_path / RESULT).write_text(json.dumps(stored), "utf-8")
    with pytest.raises(UsageError, match="is damaged: profile: "):
        run_directory.load(tmp_path)


# numpy leaves the file of a broken archive to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", [RESULT, ARRIVALS])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: b"garbage" * 9, id="garbage"),
        pytest.param(lambda data: b"{}", id="an object"),
        pytest.param(lambda data: b"[1]", id="an array"),
        pytest.param(lambda data: b'{"loadgen": {"format": 2}}', id="no facts"),
        pytest.param(lambda data: b'{"loadgen": 5}', id="no object"),
        pytest.param(lambda data: b"\xff\xfe", id="no text"),
    ],
)
def test_a_damaged_file_is_one_clear_line(
    name: str, damage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, made())
    path = tmp_path / name
    path.write_bytes(damage(path.read_bytes()))
    assert cli.main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"loadgen: {tmp_path}: {RESULT} or {ARRIVALS} is damaged")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("name", [RESULT, ARRIVALS])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    saved(tmp_path, made())
    (tmp_path / name).unlink()
    with pytest.raises(UsageError, match=f"is not a run directory: .*{name}"):
        run_directory.load(tmp_path)


@loop_over("name", ["bench", "../outside", "a/b", "..", ""])
def test_a_run_gets_a_directory_of_its_own_under_the_one_asked_for(name: str, tmp_path: Path) -> None:
    base = tmp_path / "runs"
    first, second = (files.create_directory(base, name, WHEN) for _ in range(2))
    assert first != second
    assert first.resolve().parent == second.resolve().parent == base.resolve()
