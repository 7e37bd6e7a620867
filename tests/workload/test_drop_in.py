"""Drop-in data sets: for the same command line, the requests of `vllm bench serve`, as it made them itself.

tests/data/drop_in/requests.json holds what tests/engines/vllm_loaders.py printed of its commands.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from builders import drop_in
from loadgen.workload.plan import Plan

CASES: list[dict[str, Any]] = json.loads((drop_in.DIRECTORY / "requests.json").read_text("utf-8"))["cases"]


def requests(made: Plan) -> list[list[Any]]:
    """Each request as vllm_loaders.py has it: a digest of its prompt, both lengths, a trace's time."""
    rows: list[list[Any]] = []
    for i in range(len(made)):
        body = made.payload(i)
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else msgspec.json.encode(prompt).decode()
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        timed = made.facts.schedule is not None and made.offsets_ns is not None
        at = made.offsets_ns[i] / 1e9 if timed and made.offsets_ns is not None else None
        rows.append([digest, int(made.requests.input_lens[i]), body["max_tokens"], at])
    return rows


def test_what_was_recorded_is_of_every_command() -> None:
    assert [case["argv"] for case in CASES] == drop_in.commands()


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case["argv"])[15:80])
def test_a_data_set_is_what_vllm_itself_sends(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    monkeypatch.chdir(drop_in.DIRECTORY)
    made = drop_in.planned(case["argv"])
    assert requests(made) == case["requests"]
    assert made.digest() == drop_in.planned(case["argv"]).digest()
