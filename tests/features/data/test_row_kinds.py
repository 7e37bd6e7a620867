"""Kinds: rows are known by their keys, and what is of two kinds or of none is refused by file and row."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builders.data_files import jsonl, planned
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import OpenedFile

MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("jq") is None, reason="the command that is given needs jq")
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "timestamp": 1},
        {"prompt": "a", "timestamp": "2026-01-01T00:00:00Z", "session_id": "s", "output_length": 4},
        {"messages": MESSAGES, "delay": 2},
    ],
)
def test_the_command_that_a_line_gives_makes_a_file_that_is_sent(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = jsonl(tmp_path, [row, row])
    with pytest.raises(UsageError) as raised:
        planned(file)
    command = str(raised.value).partition("sessions: ")[2].partition(", then --dataset-path rows.jsonl")[0]
    subprocess.run(["bash", "-c", command], check=True, timeout=20)
    keys = {"custom_output_len": 4} if "prompt" in row else {"backend": "openai-chat"}
    assert len(planned(str(tmp_path / "rows.jsonl"), **keys)) == 2


def test_a_late_row_with_a_key_of_a_trace_is_refused_by_its_number(tmp_path: Path) -> None:
    rows = [{"messages": MESSAGES}] * 1500 + [{"messages": MESSAGES, "delay": 1}]
    with pytest.raises(UsageError, match=r"row 1501: `delay` makes"):
        planned(jsonl(tmp_path, rows))


def test_a_wrong_first_row_is_refused_before_the_others_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path, [b"1"] * 3_000_000)
    read, whole = [0], OpenedFile.read

    def count(file: OpenedFile, begin: int, size: int) -> bytes:
        raw = whole(file, begin, size)
        read[0] += len(raw)
        return raw

    monkeypatch.setattr(OpenedFile, "read", count)
    with pytest.raises(UsageError, match="row 1: "):
        planned(path)
    assert read[0] < 4_000_000
