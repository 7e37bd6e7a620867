"""Load settings: two loads in one profile are refused by the names of both, with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.plan import random_prompts
from loadgen.plan.profile import build, load
from loadgen.plan.request_sources import RandomStream

RAMP = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.0}
LONG = {"name": "long", "share": "30%", "input_len": 80, "output_len": 20}
SHORT = {"name": "short", "share": 70, "input_len": 5, "output_len": 2}


@loop_over(
    ("keys", "why"),
    [
        ({"schedule": "rate 2 for 60s", "request_rate": 2.0}, "--schedule and --request-rate are two loads"),
        ({"schedule": "rate 2 for 60s", **RAMP}, "--schedule and --ramp-up-strategy are two loads"),
        ({"request_rate": 2.0, **RAMP}, "--ramp-up-strategy and --request-rate are two loads"),
        (
            {"schedule": "rate 2 for 60s", "duration": 50.0},
            "--duration 50 and the stages of --schedule, 60 s",
        ),
        (
            {"schedule": "rate 2 for 60s", "trace": "t.jsonl"},
            "--schedule and a trace's own times",
        ),
        ({"bursts": "5 every 2s", "trace": "t.jsonl"}, "--bursts and a trace's own times"),
        (
            {"schedule": "concurrency 2 for 60s", "max_concurrency": 8},
            "--max-concurrency 8 and the",
        ),
        ({"schedule": "concurrency 2 for 60s", "bursts": "5 every 2s"}, "--bursts goes with a rate"),
        ({"schedule": "rate 2 for 60s", "ladder": (5, 6)}, "--schedule does not apply to a ladder"),
        ({"classes": [LONG, SHORT], "ladder": (5, 6)}, "--class does not apply to a ladder"),
        ({"ramp_up_strategy": "linear"}, "needs --ramp-up-start-rps and --ramp-up-end-rps"),
        ({"ramp_up_end_rps": 3.0}, "are of a ramp: pass --ramp-up-strategy"),
        ({**RAMP, "ramp_up_start_rps": 9.0}, 'for a falling rate write --schedule "rate 9 to 8 over 60s"'),
        (
            {**RAMP, "ramp_up_start_rps": 0.0, "ramp_up_end_rps": 0.0},
            "--ramp-up-end-rps 0: give a rate",
        ),
        (
            {**RAMP, "ramp_up_strategy": "exponential", "ramp_up_start_rps": 0.0},
            "no exponential ramp begins at 0",
        ),
        ({**RAMP, "duration": 60.0}, 'by time --schedule "rate 1 to 8 over 60s"'),
        ({"bursts": "0 every 2s"}, "a burst has 1 to"),
        ({"bursts": "5 every 2"}, "is not a time: write it as 2s"),
        ({"bursts": "often"}, "write it as `50 every 10s`"),
        ({"classes": [LONG]}, "--class: the shares of the classes sum to 30 %: make them 100 %"),
        (
            {"classes": [{**SHORT, "name": name, "share": "33.33333%"} for name in "abc"]},
            "--class: the shares of the classes sum to 99.99999 %: make them 100 %",
        ),
        ({"classes": [LONG, {**SHORT, "name": "long"}]}, "--class: class long is given twice"),
        ({"classes": [LONG, {**SHORT, "name": "a b"}]}, "--class 2: name 'a b': a name is of letters"),
        ({"classes": [LONG, {**SHORT, "share": "nan"}]}, "--class 2: share 'nan': input should be a finite"),
        ({**RAMP, "ramp_up_start_rps": 1e-300}, "--ramp-up-start-rps 1e-300: a rate is 0, or from 1e-9"),
        (
            {**RAMP, "ramp_up_start_rps": 1e-12, "ramp_up_end_rps": 1e-12},
            "--ramp-up-start-rps 1e-12: a rate is 0, or from 1e-9 to 1e9 requests per second",
        ),
        (
            {"bursts": "5 every 2s", **RAMP},
            "--bursts do not go with --ramp-up-strategy, whose rate is by request: write the ramp by time, "
            'as --schedule "rate 1 to 8 over 60s"',
        ),
        ({"classes": [LONG, {**SHORT, "share": "much"}]}, "--class 2: share 'much': input should be a valid"),
        ({"classes": [LONG, {**SHORT, "input_len": 0}]}, "--class 2: input_len 0: input should be greater"),
        ({"classes": [LONG, SHORT], "dataset_name": "sharegpt", "dataset_path": "f"}, "--class is of random"),
        (
            {"classes": [LONG, SHORT], "input_dist": "fixed:mean=5"},
            "--input-dist and --class both give",
        ),
        ({"classes": [LONG, SHORT], "output_len": 5}, "--random-output-len and --class both give lengths"),
    ],
)
def test_two_loads_are_refused_by_name(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as error:
        build(keys)
    assert why in str(error.value)
    assert "{" not in str(error.value)  # what nobody wrote


def test_a_wrong_ratio_of_a_class_is_named_by_the_class() -> None:
    classes = build({"classes": [LONG, {**SHORT, "range_ratio": "2"}]}).classes
    with pytest.raises(UsageError, match=r"^--class short: range_ratio 2: give a number from 0"):
        random_prompts.draw_class_lens(classes, RandomStream(7), 4, "vllm")


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ({"schedule": "rate 2 for 9s"}, {"schedule": "rate 2 for 9s", "duration": 9.0, "max_concurrency": 4}),
        ({"schedule": "concurrency 2 for 9s"}, {"duration": 9.0, "max_concurrency": 2, "num_prompts": None}),
        ({**RAMP}, {"ramp_up_strategy": "linear", "num_prompts": 30}),
    ],
)
def test_a_load_as_a_flag_stands_in_place_of_the_profiles(
    tmp_path: Path, flags: dict[str, Any], left: dict[str, Any]
) -> None:
    path = tmp_path / "p.toml"
    path.write_text("request_rate = 3.0\nnum_prompts = 30\nmax_concurrency = 4\n")
    made = load(str(path), flags, flags=True)
    assert {key: getattr(made, key) for key in left} == left
    assert made.request_rate == float("inf")


def test_a_rate_as_a_flag_stands_in_place_of_a_schedule(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('schedule = "rate 2 for 60s"\n')
    made = load(str(path), {"request_rate": 3.0, "duration": 5.0}, flags=True)
    assert (made.schedule, made.request_rate, made.duration) == ("", 3.0, 5.0)


@pytest.mark.parametrize(
    ("schedule", "left"),
    [
        ("concurrency 1 to 4 over 2s", {"schedule": "", "max_concurrency": 3, "duration": None}),
        ("rate 2 for 60s", {"schedule": "rate 2 for 60s", "max_concurrency": 3, "duration": 60.0}),
    ],
)
def test_a_limit_as_a_flag_replaces_a_schedule_of_concurrency_alone(
    tmp_path: Path, schedule: str, left: dict[str, Any]
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f'schedule = "{schedule}"\n')
    made = load(str(path), {"max_concurrency": 3}, flags=True)
    assert {key: getattr(made, key) for key in left} == left


def test_a_stored_schedule_reads_back_as_it_was() -> None:
    made = build({"schedule": "concurrency 1 to 8 over 60s", "classes": [LONG, SHORT]})
    assert type(made).model_validate(made.model_dump(mode="json")) == made
