"""Load settings: keys that a flag stands in place of, users and turns of sessions, classes of requests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from builders.traces import WEKA_AGENTS
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.plan import plan, random_prompts
from loadgen.plan.profile import Profile, build, load
from loadgen.plan.request_sources import ModelTarget, RandomStream, Seed
from loadgen.settings.load_settings import RequestClass

TABLES = read_tables("load_settings")

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


@loop_over(("toml", "flags", "kept"), TABLES["replaced"])
def test_a_flag_stands_in_place_of_a_profiles_keys(
    toml: str, flags: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(toml, "utf-8")
    made = load(str(path), flags, flags=True)
    assert {key: getattr(made, key) for key in kept} == {
        key: math.inf if value == "inf" else value for key, value in kept.items()
    }


TURNS = {"turns": 4}


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


def test_each_request_has_the_lengths_of_its_class() -> None:
    numbers = random_prompts.draw_classes(CLASSES, STREAM, 2000)
    inputs, outputs = random_prompts.draw_class_lens(CLASSES, STREAM, 2000, "vllm")
    assert set(inputs[numbers == 0].tolist()) == {8000}
    assert set(outputs[numbers == 0].tolist()) == {200}
    assert (inputs[numbers == 1].min(), inputs[numbers == 1].max()) == (450, 550)
    # In floating point 50 × 1.1 is more than 55, and vLLM rounds it up.
    assert (outputs[numbers == 1].min(), outputs[numbers == 1].max()) == (45, 56)
