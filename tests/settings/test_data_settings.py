"""Data settings: two kinds of requests at once are refused by both names, before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.plan import profile
from loadgen.settings.conflicts import list_unheeded
from loadgen.settings.data_settings import ANSWER_LENS, SOURCES, DatasetName
from loadgen.settings.setting import list_rows
from loadgen.settings.table import PROFILE_KEYS

TRACE, CUSTOM = {"trace": "t.jsonl"}, {"dataset_name": "custom", "dataset_path": "c.jsonl"}
FILE = {"dataset_path": "f.jsonl"}


@loop_over(
    ("keys", "message"),
    [
        (TRACE | FILE, "--trace and --dataset-path are two sources"),
        (TRACE | {"dataset_name": "random"}, "--trace and --dataset-name are two sources"),
        ({"dataset_name": "sharegpt"}, "--dataset-name sharegpt needs its file: pass --dataset-path FILE"),
        (TRACE | {"request_rate": 2.0}, "--request-rate 2 and --trace are two schedules: pass --speed-up X"),
        (
            {"dataset_name": "timed_trace", "dataset_path": "t", "request_rate": 2.0},
            "--request-rate 2 and --dataset-name timed_trace are two schedules",
        ),
        (TRACE | {"ladder": [1, 2]}, "--trace does not apply to a ladder"),
        (CUSTOM | {"ladder": [1, 2]}, "--dataset-name custom does not apply to a ladder"),
        ({"input_dist": "fixed:mean=5", "range_ratio": "0.5"}, "--input-dist and --random-range-ratio 0.5"),
        ({"output_dist": "fixed:mean=5", "range_ratio": "0.5"}, "--output-dist and --random-range-ratio 0.5"),
        (
            CUSTOM | {"prompt_format": "ids"},
            "--prompt-format is of random prompts, and --dataset-name custom",
        ),
        (FILE | {"prefix_groups": 4}, "--prefix-groups is of random prompts, and --dataset-path has prompts"),
        (
            TRACE | {"input_dist": "fixed:mean=5"},
            "--input-dist is of random prompts, and --trace has prompts",
        ),
        ({"speed_up": 2.0}, "--speed-up applies to a trace: pass --trace FILE"),
        ({"self_timed": False}, "--no-self-timed applies to a trace"),
        (CUSTOM | {"self_timed": True}, "--self-timed applies to a trace"),
        ({"prefix_groups": 4}, "--prefix-groups needs prefixes: pass --random-prefix-len N"),
        ({"prefix_zipf": 1.0}, "--prefix-zipf needs prefixes"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        profile.build(keys)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@loop_over(
    "keys",
    [
        TRACE,
        TRACE | {"self_timed": False, "request_rate": 2.0, "prompt_format": "corpus", "prompt_corpus": "c"},
        TRACE | {"duration": 5.0, "max_concurrency": 4, "speed_up": 2.0, "num_prompts": 5},
        FILE | {"request_rate": 2.0, "duration": 5.0},
        CUSTOM | {"range_ratio": "0.5", "input_len": 5, "disable_shuffle": True},
        {"dataset_name": "timed_trace", "dataset_path": "t", "self_timed": True},
        {"input_dist": "fixed:mean=5", "range_ratio": "0"},
        {"prefix_len": 8, "prefix_groups": 4, "prefix_zipf": 1.0},
        {"dataset_name": "random", "dataset_path": "f.jsonl"},
    ],
)
def test_what_goes_together_is_taken(keys: dict[str, Any]) -> None:
    profile.build(keys)


def test_a_flag_meets_the_keys_of_the_file_it_is_laid_over(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('dataset_path = "f.jsonl"\ninput_len = 5\n', "utf-8")
    assert profile.load(str(tmp_path / "own.toml"), {}).input_len == 5
    with pytest.raises(UsageError, match="--trace and --dataset-path"):
        profile.load(str(tmp_path / "own.toml"), TRACE)
    with pytest.raises(UsageError, match="--request-rate 2 and --trace are two schedules"):
        profile.load("chat", TRACE)
    assert profile.load("chat", FILE).request_rate == 2


@loop_over(
    ("keys", "flags"),
    [
        ({"sharegpt_output_len": 5}, ["--sharegpt-output-len"]),
        (CUSTOM | {"custom_output_len": 5}, []),
        (FILE | {"custom_output_len": 5, "no_oversample": True}, []),
        (CUSTOM | {"input_len": 5, "range_ratio": "0.5"}, ["--random-input-len", "--random-range-ratio"]),
        ({"no_oversample": True}, ["--no-oversample"]),
        ({"dataset_name": "prefix_repetition", "disable_shuffle": True}, []),
        ({"dataset_name": "random", "dataset_path": "f"}, ["--dataset-path"]),
        ({"dataset_path": ""}, []),
        ({"input_len": 5}, []),
        (CUSTOM | {"output_len": 5, **dict.fromkeys(ANSWER_LENS, 5)}, []),
        (TRACE | {"output_len": 5, **dict.fromkeys(ANSWER_LENS, 5)}, ["--output-len"]),
        ({"output_len": 5}, []),
    ],
)
def test_flags_of_another_data_set_are_named(keys: dict[str, Any], flags: list[str]) -> None:
    assert list_unheeded(list_rows(*PROFILE_KEYS), profile.build(keys).__dict__, keys) == flags


@loop_over(
    ("keys", "ignores"),
    [
        ({}, True),
        ({"dataset_name": "random", "dataset_path": "f"}, True),
        (TRACE, True),
        ({"dataset_name": "timed_trace", "dataset_path": "t"}, True),
        (CUSTOM, False),
        (FILE, False),
        ({"dataset_name": "prefix_repetition"}, False),
        (CUSTOM | {"ignore_eos": True}, True),
        (TRACE | {"ignore_eos": False}, False),
    ],
)
def test_answers_to_prompts_that_mean_nothing_are_held_to_their_length(
    keys: dict[str, Any], ignores: bool
) -> None:
    assert profile.build(keys).ignore_eos is ignores


def test_a_named_data_set_is_a_source_and_a_source_without_a_key_is_named() -> None:
    named = {name for name, source in SOURCES.items() if not source.key}
    assert set(get_args(DatasetName)) == named | {"random-mm"}


@loop_over("name", [name for name, source in SOURCES.items() if source.reads_file and not source.is_trace])
def test_how_rows_are_chosen_applies_to_every_data_set_of_a_file(name: str) -> None:
    values: dict[str, Any] = {"dataset_name": name, "dataset_path": "f.jsonl", "trace": ""}
    values |= {"dataset_name": None} if name == "file" else {}
    switches = ["disable_shuffle", "no_oversample", "skip_chat_template"]
    assert list_unheeded(list_rows(*PROFILE_KEYS), values, switches) == []
