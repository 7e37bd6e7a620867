"""Drop-in data sets: for the same command line, the requests of `vllm bench serve`, as it made them itself.

tests/data/drop_in/requests.json holds what tests/engines/vllm_loaders.py printed of its commands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders import drop_in
from builders.loops import loop_over

TESTS = Path(__file__).parents[1]
CASES: list[dict[str, Any]] = json.loads((drop_in.DIRECTORY / "requests.json").read_text("utf-8"))["cases"]
TIMED = [case for case in CASES if "timed_trace" in case["argv"]]
_PRINT = """
import json, sys
from builders import drop_in
print(json.dumps([drop_in.sent(drop_in.planned(argv)) for argv in json.load(sys.stdin)]))
"""


@pytest.fixture(autouse=True)
def _in_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    monkeypatch.chdir(drop_in.DIRECTORY)


def test_what_was_recorded_is_of_every_command() -> None:
    assert [case["argv"] for case in CASES] == drop_in.commands()


@loop_over("case", [case for case in CASES if case not in TIMED])
def test_a_data_set_is_what_vllm_itself_sends(case: dict[str, Any]) -> None:
    made = drop_in.planned(case["argv"])
    assert drop_in.sent(made) == case["requests"]
    assert made.digest() == drop_in.planned(case["argv"]).digest()


@pytest.mark.whole
def test_a_timed_trace_is_what_vllm_sends_with_the_same_hash_seed() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    argv = [sys.executable, "-c", _PRINT]
    given = json.dumps([case["argv"] for case in TIMED])
    ran = subprocess.run(argv, input=given, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [case["requests"] for case in TIMED]


@pytest.mark.parametrize("case", TIMED, ids=lambda case: " ".join(case["argv"])[15:80])
def test_without_a_hash_seed_a_timed_trace_has_its_lengths_and_times(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    made = drop_in.planned(case["argv"])
    assert [request[1:] for request in drop_in.sent(made)] == [request[1:] for request in case["requests"]]
    assert any("set PYTHONHASHSEED to the same number" in note for note in made.notes)
