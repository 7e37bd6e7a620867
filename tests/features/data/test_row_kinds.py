"""Kinds of rows: which one a file has, and what ShareGPT, custom rows and whole bodies are sent as."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders import drop_in
from builders.data_files import jsonl, planned
from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import OpenedFile
from loadgen.features.data import bodies, sharegpt
from loadgen.plan.plan import Plan

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


def made_sharegpt() -> Plan:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    file = str(drop_in.DIRECTORY / "sharegpt.json")
    return drop_in.planned(["--dataset-name", "sharegpt", "--dataset-path", file], num_prompts=60)


def test_a_batch_more_of_rows_is_counted_as_one() -> None:
    """Rows are counted in batches, which nothing of the result shows."""
    whole = made_sharegpt()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharegpt, "_BATCH", 4)
        assert made_sharegpt().digest() == whole.digest()


def test_a_file_that_cannot_be_read_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharegpt, "_MOST_BYTES", 10)
    with pytest.raises(UsageError, match=r"write it as JSONL"):
        made_sharegpt()


def made_of_template(directory: Path, changes: dict[str, str], **keys: Any) -> Plan:
    """The plan of a row in the template of the tests' tokenizer with these changes."""
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    (directory / "tokenizer").mkdir()
    for file in drop_in.TOKENIZER.iterdir():
        text = file.read_text("utf-8")
        for old, new in changes.items():
            text = text.replace(old, new)
        (directory / "tokenizer" / file.name).write_text(text, "utf-8")
    (directory / "p.jsonl").write_text('{"prompt": "One", "output_tokens": 3}\n', "utf-8")
    words = ["--dataset-name", "custom", "--dataset-path", str(directory / "p.jsonl")]
    return drop_in.planned(words, str(directory / "tokenizer"), no_oversample=True, **keys)


def test_template_keywords_go_into_the_template_applied_here(tmp_path: Path) -> None:
    changes = {"assistant\\n": "assistant{{ mood }}"}
    plan = made_of_template(tmp_path, changes, chat_template_kwargs={"mood": "calm"})
    assert plan.payload(0)["prompt"].endswith("<|im_start|>assistantcalm")
    assert "chat_template_kwargs" not in plan.payload(0)


def test_a_template_that_fails_is_named(tmp_path: Path) -> None:
    changes = {"{% for message in messages %}": "{{ raise_exception('no') }}", "{% endfor %}": ""}
    with pytest.raises(UsageError, match=r"its chat template cannot be applied \(no\): pass --skip-chat"):
        made_of_template(tmp_path, changes)


def test_a_seed_that_numpy_does_not_take_is_refused() -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    command = ["--dataset-name", "prefix_repetition", "--num-prompts", "14", "--seed", "4294967296"]
    with pytest.raises(UsageError, match=r"^--seed 4294967296: prefix_repetition takes 0 to 4294967295"):
        drop_in.planned(command)


@loop_over(("row", "names"), read_tables("bodies")["asked"])
def test_what_a_body_asks_of_a_server_is_named(row: dict[str, Any], names: list[str]) -> None:
    raw = msgspec.json.decode(msgspec.json.encode(row), type=dict[str, msgspec.Raw])
    assert list(bodies.find_features(raw)) == names
