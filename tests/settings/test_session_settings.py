"""Session settings: what a file's rows refuse, and what follows from users and turns."""

from __future__ import annotations

import pytest

from builders.traces import WEKA_AGENTS
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.plan import plan
from loadgen.plan.profile import Profile, build
from loadgen.plan.request_sources import ModelTarget, Seed

TURNS = {"turns": 4}
USERS = {"users": 3, "user_rate": 0.5}


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
