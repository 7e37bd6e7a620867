"""Data settings: which flags are of another data set, and what a flag meets in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.plan import profile
from loadgen.settings.data_settings import SOURCES, DatasetName, list_unheeded
from loadgen.settings.setting import list_rows
from loadgen.settings.table import PROFILE_KEYS

TABLES = read_tables("data_settings")

TRACE, CUSTOM = {"trace": "t.jsonl"}, {"dataset_name": "custom", "dataset_path": "c.jsonl"}
FILE = {"dataset_path": "f.jsonl"}


def test_a_flag_meets_the_keys_of_the_file_it_is_laid_over(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('dataset_path = "f.jsonl"\ninput_len = 5\n', "utf-8")
    assert profile.load(str(tmp_path / "own.toml"), {}).input_len == 5
    with pytest.raises(UsageError, match="--trace and --dataset-path"):
        profile.load(str(tmp_path / "own.toml"), TRACE)
    with pytest.raises(UsageError, match="--request-rate 2 and --trace are two schedules"):
        profile.load("chat", TRACE)
    assert profile.load("chat", FILE).request_rate == 2


@loop_over(("keys", "flags"), TABLES["unheeded"])
def test_flags_of_another_data_set_are_named(keys: dict[str, Any], flags: list[str]) -> None:
    assert list_unheeded(list_rows(*PROFILE_KEYS), profile.build(keys).__dict__, keys) == flags


def test_a_named_data_set_is_a_source_and_a_source_without_a_key_is_named() -> None:
    named = {name for name, source in SOURCES.items() if not source.key}
    assert set(get_args(DatasetName)) == named | {"random-mm"}
