"""Load settings: keys that a flag stands in place of, users and turns of sessions, classes of requests."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.traces import WEKA_AGENTS
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.plan import plan, random_prompts
from loadgen.plan.profile import Profile, build, load
from loadgen.plan.request_sources import ModelTarget, RandomStream, Seed
from loadgen.settings.load_settings import RequestClass

RAMP = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.0}
RATES, USERS = {"schedule": "rate 2 for 60s"}, {"users": 3, "user_rate": 0.5}
LONG = {"name": "long", "share": "30%", "input_len": 80, "output_len": 20}
SHORT = {"name": "short", "share": 70, "input_len": 5, "output_len": 2}


def test_a_wrong_ratio_of_a_class_is_named_by_the_class() -> None:
    classes = build({"classes": [LONG, {**SHORT, "range_ratio": "2"}]}).classes
    with pytest.raises(UsageError, match=r"^--class short: range_ratio 2: give a number from 0"):
        random_prompts.draw_class_lens(classes, RandomStream(7), 4, "vllm")


OF_USERS = "turns = 3\nusers = 2\nuser_rate = 1"
OF_A_RATE = "request_rate = 3.0\nnum_prompts = 30\nmax_concurrency = 4"
STEPS = 'schedule = "concurrency 1 to 4 over 2s"'


@loop_over(
    ("toml", "flags", "kept"),
    [
        (OF_A_RATE, RATES, {**RATES, "duration": 60.0, "max_concurrency": 4, "request_rate": math.inf}),
        (
            OF_A_RATE,
            {"schedule": "concurrency 2 for 9s"},
            {"duration": 9.0, "max_concurrency": 2, "num_prompts": None, "request_rate": math.inf},
        ),
        (OF_A_RATE, RAMP, {"ramp_up_strategy": "linear", "num_prompts": 30, "request_rate": math.inf}),
        (
            'schedule = "rate 2 for 60s"',
            {"request_rate": 3.0, "duration": 5.0},
            {"schedule": "", "request_rate": 3.0, "duration": 5.0},
        ),
        (STEPS, {"max_concurrency": 3}, {"schedule": "", "max_concurrency": 3, "duration": None}),
        (
            'schedule = "rate 2 for 60s"',
            {"max_concurrency": 3},
            {**RATES, "max_concurrency": 3, "duration": 60.0},
        ),
        ("num_prompts = 9\nturns = 3", {"num_sessions": 2}, {"num_sessions": 2, "num_prompts": None}),
        ("num_sessions = 9\nturns = 3", {"num_prompts": 2}, {"num_sessions": None, "num_prompts": 2}),
        ("turns = 3\nmax_concurrency = 9", USERS, {"max_concurrency": 3, "users": 3}),
        ("turns = 3\nthink_time = '2'\nrequest_rate = 3", USERS, {"think_time": "", "users": 3}),
        (OF_USERS, {"max_concurrency": 5}, {"users": None, "user_rate": None}),
        (OF_USERS, {"request_rate": 5.0}, {"users": None, "max_concurrency": None}),
        ("turns = 3\nthink_time = '2'", {"dataset_path": "f.jsonl"}, {"turns": None, "think_time": ""}),
    ],
)
def test_a_flag_stands_in_place_of_a_profiles_keys(
    toml: str, flags: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(toml, "utf-8")
    made = load(str(path), flags, flags=True)
    assert {key: getattr(made, key) for key in kept} == kept


def test_a_stored_schedule_reads_back_as_it_was() -> None:
    made = build({"schedule": "concurrency 1 to 8 over 60s", "classes": [LONG, SHORT]})
    assert type(made).model_validate(made.model_dump(mode="json")) == made


TURNS = {"turns": 4}


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


MIXED: list[dict[str, Any]] = [
    {"name": "long", "share": "30%", "input_len": 8000, "output_len": 200},
    {"name": "short", "share": 70, "input_len": 500, "output_len": 50, "range_ratio": "0.1"},
]
CLASSES: tuple[RequestClass, ...] = build({"classes": MIXED}).classes
STREAM = RandomStream(7, "mix")


def test_classes_have_their_shares() -> None:
    counts = Counter(random_prompts.draw_classes(CLASSES, STREAM, 100_000).tolist())
    assert counts[0] + counts[1] == 100_000
    assert abs(counts[0] - 30_000) < 5 * 145  # standard deviations of a binomial count


def test_each_request_has_the_lengths_of_its_class() -> None:
    numbers = random_prompts.draw_classes(CLASSES, STREAM, 2000)
    inputs, outputs = random_prompts.draw_class_lens(CLASSES, STREAM, 2000, "vllm")
    assert set(inputs[numbers == 0].tolist()) == {8000}
    assert set(outputs[numbers == 0].tolist()) == {200}
    assert (inputs[numbers == 1].min(), inputs[numbers == 1].max()) == (450, 550)
    # In floating point 50 × 1.1 is more than 55, and vLLM rounds it up.
    assert (outputs[numbers == 1].min(), outputs[numbers == 1].max()) == (45, 56)


def test_a_longer_plan_begins_with_the_classes_of_the_shorter() -> None:
    long, short = (random_prompts.draw_classes(CLASSES, STREAM, n).tolist() for n in (1000, 100))
    assert long[:100] == short
    columns = zip(
        *(random_prompts.draw_class_lens(CLASSES, STREAM, n, "vllm") for n in (1000, 100)), strict=True
    )
    assert all(many[:100].tolist() == few.tolist() for many, few in columns)


def test_another_seed_draws_other_classes() -> None:
    other = RandomStream(8, "mix")
    drawn = [random_prompts.draw_classes(CLASSES, stream, 100).tolist() for stream in (STREAM, other)]
    assert drawn[0] != drawn[1]
