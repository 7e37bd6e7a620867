"""The table of settings: every row says what it makes, and nothing that is made of rows lacks one."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from loadgen.plan.profile import Profile
from loadgen.plan.server_settings import ServerSettings
from loadgen.run.options import TABLE, Options, bench_parser
from loadgen.settings.setting import Makes, Rows, setting
from loadgen.settings.table import PROFILE_KEYS, profile_keys, rows_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("columns", [{}, {"makes": Makes.LOAD}, {"default": None}])
def test_a_row_must_say_what_it_makes_and_its_default(columns: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Missing required argument"):
        setting(**columns)


def test_a_subject_has_its_rows_in_the_order_they_are_written() -> None:
    load = partial(setting, Makes.LOAD)

    class Subject(Rows):
        second_rate: float | None = load(None)
        first: str = setting(Makes.CLIENT, "", flag="--other")

    rows = [(row.name, row.kind, row.option, row.keyword_type) for row in Subject.rows]
    assert rows == [
        ("second_rate", "float | None", "--second-rate", "float"),
        ("first", "str", "--other", "str"),
    ]


def test_every_key_of_a_profile_is_a_row_that_makes_one_thing() -> None:
    of_files = ["ladder", "server"]
    assert [row.name for row in rows_of(*PROFILE_KEYS)] + of_files == list(Profile.model_fields)
    shared_out = [key for makes in Makes for key in profile_keys(makes)]
    assert sorted(shared_out + of_files) == sorted(Profile.model_fields)


def test_no_two_settings_have_one_name() -> None:
    inside = set(ServerSettings.model_fields) | {"engine", "command", "container", "python", "timeout_s"}
    names = [row.name for row in TABLE if row.name not in inside] + ["seed"]
    assert sorted(names) == sorted(set(names))
    flags = [flag for row in TABLE if row.group for flag in (row.option, *row.also)]
    assert sorted(flags) == sorted(set(flags))


def test_every_option_of_a_run_is_a_row_or_follows_from_some() -> None:
    made = {"profiles", "overrides", "more_urls", "default_url", "default_port", "launching", "no_effect"}
    of_a_ladder = {"formula", "depth"}
    assert set(Options.__struct_fields__) <= {row.name for row in TABLE} | made | of_a_ladder


def test_every_flag_of_the_command_has_a_row() -> None:
    unheeded = {"no_effect", "help"}
    dests = {action.dest for action in bench_parser()._actions} - unheeded
    assert dests == {row.dest for row in TABLE if row.group}


def test_checkers_see_the_keywords_that_calls_have() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        made = import_module("keyword_types")
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    assert made.STUB.read_text("utf-8") == made.rendered()
