"""Session settings: keys of sessions without any, and loads that they cannot have, are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.data_files import jsonl
from builders.loops import loop_over
from builders.traces import WEKA_AGENTS
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.plan import plan
from loadgen.plan.profile import Profile, build, load
from loadgen.plan.request_sources import ModelTarget, Seed

FILE = {"dataset_path": "f.jsonl"}
TURNS = {"turns": 4}
USERS = {"users": 3, "user_rate": 0.5}
LONG = {"name": "long", "share": "100%", "input_len": 80, "output_len": 20}
CONVERSATION = [
    {"conversation_id": "a", "turn": 1, "role": "user", "content": "hi"},
    {"conversation_id": "a", "turn": 2, "role": "assistant", "content": "ho"},
]
NEEDS = (
    "applies to conversations: pass --dataset-path FILE of conversations, --turns N, or --trace-replay closed"
)


@loop_over(
    ("keys", "why"),
    [
        ({"num_sessions": 5}, f"--num-sessions {NEEDS}"),
        ({"turn_delays": "none"}, f"--turn-delays {NEEDS}"),
        ({"turn_delays": 0.5, "trace": "t.jsonl"}, f"--turn-delays {NEEDS}"),
        ({"assistant": "live"}, f"--assistant {NEEDS}"),
        ({"session_header": "X-Session-ID"}, f"--session-header {NEEDS}"),
        ({"turn_timeout": 600.0}, f"--turn-timeout {NEEDS}"),
        (USERS, f"--users {NEEDS}"),
        ({"num_sessions": 5, "dataset_name": "sharegpt", **FILE}, f"--num-sessions {NEEDS}"),
        (
            {"think_time": "2"},
            "--think-time is of conversations that are made here: pass --turns N; the delays",
        ),
        ({"think_time": "2", **FILE}, "--think-time is of conversations that are made here: pass --turns N"),
        ({**TURNS, **FILE}, "--turns makes conversations, and --dataset-path has requests of its own: leave"),
        ({**TURNS, "trace": "t"}, "--turns makes conversations, and --trace has requests of its own: leave"),
        (
            {**TURNS, "dataset_name": "sharegpt", **FILE},
            "--turns makes conversations, and --dataset-name sharegpt has requests of its own: leave out",
        ),
        (
            {**TURNS, "classes": [LONG]},
            "--turns and --class: a turn has no class: give --input-dist and --out",
        ),
        (
            {**TURNS, "backend": "vllm"},
            "--backend vllm: --turns makes conversations of the chat API: use --back",
        ),
        (
            {**TURNS, "ladder": (5, 6)},
            "--turns does not apply to a ladder: each of its requests stands alone",
        ),
        (
            {**TURNS, "schedule": "concurrency 2 for 60s"},
            "--schedule of a concurrency does not go with conversations, of which each runs to its end: use",
        ),
        (
            {**TURNS, "prefill_concurrency": 2},
            "--prefill-concurrency does not go with conversations, whose next turn cannot wait: use",
        ),
        (
            {"num_sessions": 5, **FILE, "prefill_concurrency": 2},
            "--prefill-concurrency does not go with conversations",
        ),
        ({**TURNS, "users": 3}, "--users needs --user-rate R, turns per second of each"),
        ({**TURNS, "user_rate": 3.0}, "--user-rate needs --users N"),
        (
            {**TURNS, **USERS, "max_concurrency": 8},
            "--users 3 and --max-concurrency 8 are two: each user has a session at a time: leave out --max-c",
        ),
        (
            {**TURNS, **USERS, "request_rate": 2.0},
            "--users has turns at --user-rate, and --request-rate 2 begins sessions: leave out one",
        ),
        (
            {**TURNS, **USERS, "schedule": "rate 2 for 60s"},
            "--users has turns at --user-rate, and --schedule begins sessions: leave out one",
        ),
        (
            {**TURNS, **USERS, "bursts": "5 every 2s"},
            "--users has turns at --user-rate, and --bursts begins sessions: leave out one",
        ),
        (
            {**TURNS, **USERS, "turn_delays": "none"},
            "--users has turns at --user-rate, and --turn-delays pauses between them: leave out one",
        ),
        (
            {**TURNS, **USERS, "think_time": "2"},
            "--users has turns at --user-rate, and --think-time pauses between them: leave out one",
        ),
        (
            {**TURNS, "turn_delays": "some"},
            "--turn-delays 'some': give recorded, none, or a factor from 0 to",
        ),
        (
            {**TURNS, "turn_delays": "-1"},
            "--turn-delays '-1': give recorded, none, or a factor from 0 to 1000",
        ),
        (
            {**TURNS, "session_header": "Host"},
            "--session-header 'Host': give the name of a header that is none of the",
        ),
        ({**TURNS, "session_header": "a b"}, "--session-header 'a b': give the name of a header"),
        ({"turns": 0}, "--turns 0: input should be greater than or equal to 1"),
    ],
)
def test_what_sessions_cannot_have_is_refused_by_both_names(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as error:
        build(keys)
    assert str(error.value).startswith(why)


@loop_over(
    "keys",
    [
        {**TURNS, "request_rate": 2.0},
        {**TURNS, "schedule": "rate 2 for 60s, 4 for 60s"},
        {**TURNS, "ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0},
        {**TURNS, "bursts": "5 every 2s", "duration": 10.0},
        {**TURNS, "cancel_rate": "10%", "cancel_after": "2s"},
        {**TURNS, "assistant": "live", "temperature": 0.7, "stream": False},
        {**TURNS, "think_time": "2", "turn_delays": "none"},
        {**TURNS, **USERS, "duration": 10.0},
        {**TURNS, "max_requests": 2},
        {"num_sessions": 5, "turn_delays": "0.5", "turn_timeout": 1.0, **FILE},
    ],
)
def test_what_sessions_can_have_is_accepted(keys: dict[str, Any]) -> None:
    assert build(keys).own_session_keys


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


@loop_over(
    ("toml", "flags", "kept"),
    [
        ("num_prompts = 9\nturns = 3", {"num_sessions": 2}, {"num_sessions": 2, "num_prompts": None}),
        ("num_sessions = 9\nturns = 3", {"num_prompts": 2}, {"num_sessions": None, "num_prompts": 2}),
        ("turns = 3\nmax_concurrency = 9", USERS, {"max_concurrency": 3, "users": 3}),
        ("turns = 3\nthink_time = '2'\nrequest_rate = 3", USERS, {"think_time": "", "users": 3}),
        ("turns = 3\nusers = 2\nuser_rate = 1", {"max_concurrency": 5}, {"users": None, "user_rate": None}),
        (
            "turns = 3\nusers = 2\nuser_rate = 1",
            {"request_rate": 5.0},
            {"users": None, "max_concurrency": None},
        ),
        ("turns = 3\nthink_time = '2'", FILE, {"turns": None, "think_time": ""}),
    ],
)
def test_a_flag_stands_in_place_of_a_profiles_keys(
    toml: str, flags: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml, "utf-8")
    loaded = load(str(path), flags, flags=True)
    assert {key: getattr(loaded, key) for key in kept} == kept


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
