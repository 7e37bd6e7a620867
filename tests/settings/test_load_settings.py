"""Load settings: which keys of a profile a flag stands in place of, and what a load is as it is stored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.plan import random_prompts
from loadgen.plan.profile import build, load
from loadgen.plan.request_sources import RandomStream

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
