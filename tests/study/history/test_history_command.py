"""`loadgen history`: what it prints of a file and of runs, and the files it reads, appends to or refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs
from builders.loops import loop_over, read_tables
from builders.made_runs import WHEN
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.study import bundle_command
from loadgen.study.history.history_command import HistoryEntry, append_entry, read_history

TABLES = read_tables("history_command")

RECORDED = Path(__file__).parents[2] / "data" / "histories"
SLOWER = str(RECORDED / "slower.jsonl")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["history", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["history", *words]) == 2
    out, error = capsys.readouterr()
    (line,) = error.splitlines()
    assert out == ""
    return line


def keep(place: Path, seed: int, **facts: Any) -> str:
    """A run directory of ours, a day later than the one of the seed before."""
    began = WHEN + timedelta(days=seed)
    facts = {"started": began, "finished": began + timedelta(minutes=1), **facts}
    (place / f"run-{seed}").mkdir(parents=True)
    return str(made_runs.keep(made_runs.run(seed=seed, **facts), place / f"run-{seed}"))


def test_the_run_that_changed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, SLOWER).split())
    assert "tok/s: slower (-4.6 %) from 7ca651ecd79a small on (2026-11-27 01:11), between" in text
    assert "TPOT ms: slower (+4.9 %) from 7ca651ecd79a small on" in text
    assert "7ca651ecd79a small VALID 423.37 ▼ 16.03 8.97 ▲ 20.83" in text
    text = shown(capsys, SLOWER, "--metric", "p99_itl_ms,tok/s")
    assert ["time", "what", "verdict", "p99_itl_ms", "tok/s"] in [line.split() for line in text.splitlines()]
    assert "A change is found in 5 % of histories" in text
    assert shown(capsys, SLOWER, "--metric", "itl_p99,throughput") == text  # as a gate names them


def test_bundles_of_a_directory_are_measurements(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for seed in range(2):
        run = keep(tmp_path / "runs", seed, metadata=(f"commit=c{seed}",))
        bundle_command.write_bundle([Path(run)], tmp_path / "kept" / f"{seed}.bundle", False)
    told = json.loads(shown(capsys, str(tmp_path / "kept"), "--json"))
    assert [each["commit"] for each in told["entries"]] == ["c0", "c1"]
    assert shown(capsys, str(tmp_path / "kept")) == shown(capsys, str(tmp_path / "runs"))


def test_what_cannot_be_a_history_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = Path(SLOWER).read_text().splitlines()
    for name, text in {
        "empty.jsonl": "",
        "cut.jsonl": f"{lines[0]}\n{lines[1][:50]}\n",
        "machine.jsonl": f"{lines[0]}\n{lines[1].replace('small-gpu', 'other')}",
        "load.jsonl": f"{lines[0]}\n{lines[1].replace('requests 48', 'requests 49')}",
    }.items():
        Path(name).write_text(text)
    Path("none").mkdir()
    keep(tmp_path / "two", 0)
    keep(tmp_path / "two", 1, requests=32)
    for given, why in TABLES["refused"]:
        words = [SLOWER if word == "SLOWER" else word for word in given]
        assert refused(capsys, *words, "--json").startswith(f"loadgen: {why.replace('SLOWER', SLOWER)}")
        assert refused(capsys, *words).startswith(f"loadgen: {why.replace('SLOWER', SLOWER)}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cut.jsonl", "empty.jsonl", "load.jsonl", "machine.jsonl", "none", "two",
    ]  # fmt: skip


BEGAN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def entry(number: int = 0, **changes: Any) -> HistoryEntry:
    given = {"label": "v1", "commit": f"{number:040x}", "machine": "H100", "load": "high-load: rate 2"}
    figures = {"output_throughput": 100.0 + number}
    return HistoryEntry.model_validate(
        {"time": BEGAN + timedelta(days=number), "figures": figures, **given, **changes}
    )


def test_appended_entries_are_read_once_each_in_the_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for number in (2, 0, 1, 0, 2):
        append_entry(path, entry(number))
    assert read_history(path) == [entry(0), entry(1), entry(2)]
    assert path.read_bytes().count(b"\n") == 3


@loop_over(("changes", "why"), TABLES["other_subjects"])
def test_another_subject_is_refused_and_nothing_written(
    tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    path = tmp_path / "history.jsonl"
    append_entry(path, entry(0))
    before = path.read_bytes()
    with pytest.raises(UsageError) as refused:
        append_entry(path, entry(1, **changes))
    assert str(refused.value) == f"{path} {why}: write this one to another file"
    assert path.read_bytes() == before
    append_entry(path, entry(1, machine=""))  # a machine that is not known is no other one


@loop_over(("text", "why"), TABLES["refused_lines"])
def test_what_is_no_history_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    path, good = tmp_path / "history.jsonl", entry().model_dump_json()
    nan = good.replace("100.0", "NaN")
    path.write_text(text.replace("{GOOD}", good).replace("{CUT}", good[:20]).replace("{NAN}", nan))
    before = path.read_bytes()
    for appends in (False, True):
        if appends and not before:
            continue
        with pytest.raises(UsageError) as refused:
            append_entry(path, entry(1)) if appends else read_history(path)
        assert str(refused.value).startswith(f"{path}{why.format(path)}")
        assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


def test_a_torn_last_line_is_removed_by_the_next_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.jsonl"
    for at in range(2):
        append_entry(path, entry(at))
    whole = path.read_bytes()
    for cut in (1, 20, len(whole) // 2 - 2):
        path.write_bytes(whole + whole[:cut])
        assert read_history(path) == [entry(0), entry(1)]
        assert path.read_bytes() == whole + whole[:cut]
        append_entry(path, entry(2))
        assert read_history(path) == [entry(0), entry(1), entry(2)]
        assert path.read_bytes().startswith(whole)
        assert "its last line was cut off as it was written: it is removed" in capsys.readouterr().err
    path.write_bytes(whole[:20])
    append_entry(path, entry(0))
    assert read_history(path) == [entry(0)]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for path in (tmp_path, tmp_path / "no" / "file", tmp_path / "link"):
        with pytest.raises(UsageError, match=r"cannot write .*; name another history"):
            append_entry(path, entry())
    assert not (tmp_path / "other").exists()


@loop_over(("commit", "label", "name"), TABLES["names"])
def test_name(commit: str, label: str, name: str) -> None:
    assert entry(commit=commit, label=label).name == name
