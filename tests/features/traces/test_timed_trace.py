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
from builders.required import require
from loadgen.features.traces.timed_trace import PythonHashContent
from loadgen.plan.plan import Plan


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
