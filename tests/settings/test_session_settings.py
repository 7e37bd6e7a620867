"""Session settings: what a file's rows refuse, and what follows from users and turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.data_files import jsonl
from builders.traces import WEKA_AGENTS
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.plan import plan
from loadgen.plan.profile import Profile, build
from loadgen.plan.request_sources import ModelTarget, Seed

TURNS = {"turns": 4}
USERS = {"users": 3, "user_rate": 0.5}
CONVERSATION = [
    {"conversation_id": "a", "turn": 1, "role": "user", "content": "hi"},
    {"conversation_id": "a", "turn": 2, "role": "assistant", "content": "ho"},
]


@pytest.mark.parametrize(
    "rows", [[{"prompt": "a", "output_tokens": 2}], [{"messages": [{"role": "user", "content": "a"}]}]]
)
def test_a_file_without_conversations_is_refused_as_it_is_read(rows: list[Any], tmp_path: Path) -> None:
    path = jsonl(tmp_path, rows)
    asked = build({"dataset_path": path, "num_sessions": 2, "max_concurrency": 1, "backend": "openai-chat"})
    kind = "prompts" if "prompt" in rows[0] else "chat bodies"
    with pytest.raises(UsageError) as error:
        plan.make(asked, ModelTarget(ENGINES[0], "m"), Seed(1))
    assert str(error.value).startswith(
        f"--num-sessions applies to conversations, and --dataset-path {path} holds {kind}: pass"
    )


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"prefill_concurrency": 1}, "--prefill-concurrency does not go with conversations"),
        ({"schedule": "concurrency 2 for 9s"}, "--schedule of a concurrency does not go with conversations"),
    ],
)
def test_a_files_conversations_refuse_such_loads_too(keys: dict[str, Any], why: str, tmp_path: Path) -> None:
    asked = build({"dataset_path": jsonl(tmp_path, CONVERSATION), "backend": "openai-chat", **keys})
    with pytest.raises(UsageError) as error:
        plan.make(asked, ModelTarget(ENGINES[0], "m"), Seed(1))
    assert str(error.value).startswith(why)


def test_users_are_sessions_at_once() -> None:
    built = build({**TURNS, **USERS, "num_sessions": 5})
    assert (built.max_concurrency, built.held_concurrency, built.num_prompts) == (3, 3, None)


def test_a_profile_without_sessions_is_known_by_its_keys() -> None:
    assert Profile().own_session_keys == []
    assert build({**TURNS, "turn_delays": 0.5}).own_session_keys == ["turns", "turn_delays"]


def test_users_have_turns_one_after_another() -> None:
    asked = build({"trace": str(WEKA_AGENTS), "num_sessions": 1, **USERS})
    why = "--users has turns one after another, and these sessions have requests next to each other"
    with pytest.raises(UsageError, match=why):
        plan.make(asked, ModelTarget(ENGINES[0], "m", vocab_size=1000), Seed(1))
