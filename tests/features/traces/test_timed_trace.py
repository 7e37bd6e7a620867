"""Timed traces: vLLM's labels, block size and unit of time; shared hashes are shared prefixes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.drop_in import DIRECTORY, planned
from builders.loops import loop_over
from builders.required import require
from loadgen.base.errors import UsageError
from loadgen.features.traces.timed_trace import PythonHashContent
from loadgen.plan.plan import Plan

ROW = '{"timestamp": 1.5, "input_length": 20, "output_length": 3, "hash_ids": [1, 2]}'


def made(file: Path, rows: list[str] | None = None, **keys: Any) -> Plan:
    if rows is not None:
        file.write_text("\n".join(rows) + "\n", "utf-8")
    return planned(["--dataset-name", "timed_trace", "--dataset-path", str(file)], None, **keys)


def test_a_block_is_what_python_itself_would_choose() -> None:
    allowed = np.array([3, 5, 8, 13, 1000])
    content = PythonHashContent(16, 0, 0, allowed)
    expected = [
        token
        for name in ("7:16", "-1:16", "9:8")
        for token in random.Random(hash(name) & 0xFFFFFFFF).choices(
            allowed.tolist(), k=int(name.split(":")[1])
        )
    ]
    assert allowed[content.places(np.array([7, -1, 9, 4]), 40, 0)].tolist() == expected


@pytest.mark.whole
def test_the_same_hashes_are_the_same_tokens_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    here = made(DIRECTORY / "timed.jsonl").digest()
    tests = Path(__file__).parents[2]
    script = (
        f"import sys; sys.path[:0] = [{str(tests)!r}]\n"
        "from builders.drop_in import planned\n"
        f"print(planned(['--dataset-name', 'timed_trace', '--dataset-path', "
        f"{str(DIRECTORY / 'timed.jsonl')!r}], None).digest())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tests.parent, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == here


def test_shared_hashes_are_shared_prefixes_and_counted(tmp_path: Path) -> None:
    rows = [
        '{"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]}',
        '{"timestamp": 2, "input_length": 36, "output_length": 1, "hash_ids": [1, 2, 4]}',
        '{"timestamp": 2, "input_length": 9, "output_length": 1, "hash_ids": [5]}',
    ]
    plan = made(tmp_path / "t.jsonl", rows)
    first, second, third = (json.loads(plan.body(i))["prompt"] for i in range(3))
    assert (first[:32] == second[:32], first[32:36] == second[32:36]) == (True, False)
    assert [len(first), len(second), len(third)] == [40, 36, 9]
    assert plan.facts.reusable_tokens == 32
    assert require(plan.offsets_ns).tolist() == [0, 2_000_000_000, 2_000_000_000]
    assert plan.profile.ignore_eos  # as vLLM has it for this data set


def test_times_begin_with_the_first_row_that_is_sent(tmp_path: Path) -> None:
    plan = made(tmp_path / "t.jsonl", [ROW, ROW.replace("1.5", "2")], timed_trace_sec_multiplier=0.5)
    assert require(plan.offsets_ns).tolist() == [0, 250_000_000]


def test_without_its_own_times_it_is_sent_at_the_rate(tmp_path: Path) -> None:
    plan = made(tmp_path / "t.jsonl", [ROW] * 4, self_timed=False, request_rate=2.0, burstiness="inf")
    assert plan.facts.schedule is None
    assert plan.rate_per_s == 2.0
    assert plan.facts.repeated == 3


def test_a_prompt_that_its_hashes_do_not_cover_is_as_short_as_in_vllm(tmp_path: Path) -> None:
    plan = made(tmp_path / "t.jsonl", [ROW.replace("20", "100")])
    assert plan.requests.input_lens.tolist() == [32]
    assert any(note.startswith("1 rows have fewer hash_ids") for note in plan.notes)


@loop_over(
    ("row", "message"),
    [
        (ROW.replace("[1, 2]", "[]"), "row 2: has no hash_ids, of which timed_trace makes prompts"),
        ('{"timestamp": 2, "input_length": 4, "output_length": 1}', "row 2: has no hash_ids"),
        (ROW.replace("timestamp", "ts"), "row 2: has no timestamp"),
        (ROW.replace("1.5", "-1"), "row 2: timestamp is -1: give 0 or more"),
        (ROW.replace("1.5", "1.4"), "row 2: its time is before that of the row above"),
        (ROW.replace("20", "0"), "row 2: input_length is 0: give 1 or more"),
        (ROW.replace("[1, 2]", '["a"]'), 'row 2: hash_ids[0] is "a": give a whole number'),
        (ROW.replace("[1, 2]", "[18446744073709551615]"),
         "row 2: hash_ids[0] is 18446744073709551615: give 9223372036854775807 or less"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_sent_is_named(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        made(tmp_path / "t.jsonl", [ROW, row])
    assert str(raised.value).startswith(f"--dataset-path {tmp_path / 't.jsonl'} {message}")


@pytest.mark.parametrize("name", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_label_that_the_first_row_lacks_is_named_with_its_flag(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as raised:
        made(tmp_path / "t.jsonl", [ROW.replace(name, "other")])
    flag = f"--timed-trace-label-{name.replace('_', '-')}"
    assert f"row 1: has no {name}, only " in str(raised.value)
    assert str(raised.value).endswith(f": name the key with {flag}")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"backend": "openai-chat"},
         "--dataset-name timed_trace sends token ids, and the chat API takes text"),
        ({"timed_trace_label_hash_ids": "timestamp"},
         "--timed-trace-label-*: two of timestamp, input_length"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_sent_with_is_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        made(tmp_path / "t.jsonl", [ROW], **keys)
    assert str(raised.value).startswith(message)
