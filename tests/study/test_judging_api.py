"""Runs compared and audited from Python: the names that rows get, and what cannot be read."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import loadgen
from fakes.scripted_server import ScriptedServer, api, stream
from loadgen.settings.setting import list_rows
from loadgen.study.answer.answer_settings import AnswerSettings
from loadgen.study.compare_command import Comparison


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(api(lambda _: stream(), owner="vllm")) as server:
        yield server


def small(server: ScriptedServer, run_dir: str | None = None) -> loadgen.Run:
    written: loadgen.Run = loadgen.bench(
        server.base_url, num_prompts=4, max_concurrency=2, input_len=8, output_len=3, observe=False
    )
    if run_dir is not None:
        written.save(run_dir)
    return written


@pytest.mark.whole
def test_runs_are_compared_under_the_names_they_are_given(server: ScriptedServer, tmp_path: Path) -> None:
    first, second = small(server, str(tmp_path / "first")), small(server)
    assert first.directory is not None
    found = loadgen.compare({"before": [first.directory], "after": [second]}, baseline="before")
    assert [line.name for line in found.tables[0].lines] == ["before", "after"]
    assert "before" in found.text()
    assert "| after" in found.markdown()
    assert json.dumps(found.json())
    rows = loadgen.compare([first, second]).tables[0].lines
    assert [line.name for line in rows] == ["m (first)", "m (run 2)"]
    rows = loadgen.compare({"twice": [first, second]}).tables[0].lines
    assert [(line.name, len(line.runs)) for line in rows] == [("twice", 2)]
    with pytest.raises(loadgen.LoadgenError, match="write \\[run\\]"):
        loadgen.compare(first)  # type: ignore[arg-type]
    with pytest.raises(loadgen.LoadgenError, match="margin"):
        loadgen.compare([first, second], margin=3.0)


@pytest.mark.whole
def test_runs_are_audited(server: ScriptedServer, tmp_path: Path) -> None:
    run = small(server)
    found = loadgen.audit([run])
    assert [(one.name, one.verdict.status) for one in found.runs] == [("m", run.verdict.status)]
    assert "m" in found.text(explain=True)
    assert found.json()["runs"]
    (tmp_path / "a.txt").write_text("nothing")
    with pytest.raises(loadgen.LoadgenError, match="no known results"):
        loadgen.audit([tmp_path / "a.txt"])


def test_what_to_take_is_asked_of_a_comparison() -> None:
    page = Path(__file__).parents[1] / "data" / "published" / "rtx_pro_6000_speed.csv"
    found = loadgen.compare([page])
    assert "answer" not in found.json()
    chosen = found.answer(fits="16GiB")
    assert chosen is not None
    assert chosen.recommendations[0].words.startswith("undecided: Qwen3-4B-AWQ leads Qwen3-4B by 1.88 ×")
    with pytest.raises(loadgen.LoadgenError, match="--fits 'big': give a size of memory"):
        found.answer(fits="big")


def test_the_answer_has_a_keyword_for_each_setting() -> None:
    asked = set(inspect.signature(Comparison.answer).parameters) - {"self"}
    assert asked == {row.name for row in list_rows(AnswerSettings)}
