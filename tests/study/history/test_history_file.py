"""History file: what is appended is read again, and another subject or a broken line is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.study.history.history_command import HistoryEntry, append_entry, read_history

TABLES = read_tables("history_file")
WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def entry(number: int = 0, **changes: Any) -> HistoryEntry:
    given = {"label": "v1", "commit": f"{number:040x}", "machine": "H100", "load": "high-load: rate 2"}
    figures = {"output_throughput": 100.0 + number}
    return HistoryEntry.model_validate(
        {"time": WHEN + timedelta(days=number), "figures": figures, **given, **changes}
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


@loop_over(("text", "why"), TABLES["refused"])
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
