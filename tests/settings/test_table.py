"""The table of settings: every row says what it makes, and nothing that is made of rows lacks one."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from loadgen.base.parsing import integer_between
from loadgen.plan.profile import SUBJECTS, Profile
from loadgen.run.command.options import Options, bench_parser
from loadgen.settings.setting import Makes, Rows, setting
from loadgen.settings.table import PROFILE_KEYS, TABLE, join_rows, list_profile_keys
from loadgen.settings.validation import ServerSettings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("columns", [{}, {"makes": Makes.LOAD}, {"default": None}])
def test_a_row_must_say_what_it_makes_and_its_default(columns: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Missing required argument"):
        setting(**columns)


def test_a_row_has_its_bounds_in_one_place() -> None:
    read = integer_between(1, 9)
    assert setting(Makes.LOAD, 1, read=read).bounds == {"ge": 1, "le": 9}
    assert setting(Makes.LOAD, 1, read=int, above=0.0, most=9).bounds == {"gt": 0.0, "le": 9}
    with pytest.raises(ValueError, match="not in both"):
        setting(Makes.LOAD, 1, read=read, least=0)


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
    assert [row.name for row in join_rows(*PROFILE_KEYS)] + of_files == list(Profile.model_fields)
    shared_out = [key for makes in Makes for key in list_profile_keys(makes)]
    assert sorted(shared_out + of_files) == sorted(Profile.model_fields)


def test_no_two_settings_have_one_name() -> None:
    inside = set(ServerSettings.model_fields) | {"engine", "command", "container", "python", "timeout_s"}
    names = [row.name for row in TABLE if row.name not in inside] + ["seed"]
    assert sorted(names) == sorted(set(names))
    flags = [flag for row in TABLE if row.group for flag in (row.option, *row.also)]
    assert sorted(flags) == sorted(set(flags))


def test_every_option_of_a_run_is_a_row_or_follows_from_some() -> None:
    made = {"profiles", "overrides", "more_urls", "default_url", "default_port", "launching", "no_effect"}
    made |= {"api_headers"}
    of_a_ladder = {"formula", "depth", "batch_sizes"}
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
    assert made.PROFILE_STUB.read_text("utf-8") == made.render_profile()


def test_every_conflict_names_keys_and_writes_its_message() -> None:
    keys = {row.name: row for row in join_rows(*SUBJECTS)}
    words = {"flag": "--a", "other": "--b", "data": "--c", "found": "d", **dict.fromkeys(keys, 1)}
    conflicts = [conflict for row in keys.values() for conflict in (*row.needs, *row.not_with)]
    assert len(conflicts) > 50
    wrong = [
        each
        for each in conflicts
        if "{" in each.message.format_map(words) or each.message != each.message.strip()
    ]
    assert wrong == []
    assert {each.other for each in conflicts if isinstance(each.other, str)} <= keys.keys()


MOST_NAMES = 3
NAMES = {row.name for row in TABLE} | {row.dest for row in TABLE} | {row.option for row in TABLE}
# Left of settings, which may not import them: the fields of an API that have a setting's name.
LEFT = ("base", "engines", "wire", "settings")


def lists_of_settings(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Tuples, lists, sets and texts of words of which each names a setting, more than three of them.

    A module that does what a setting means has to name it. Several that have something in common are rows
    with a column, which the next one of them cannot be missing from.
    """
    for node in ast.walk(tree):
        words: list[object] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = [*node.value.split()]
        if len(words) > MOST_NAMES and all(word in NAMES for word in words):
            yield getattr(node, "lineno", 0), [str(word) for word in words]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('A = ("model", "seed", "workers")', 0),
        ('A = ("model", "seed", "workers", "http2")', 1),
        ('A = {"--model", "--seed", "--workers", "--http2"}', 1),
        ('A = frozenset("model seed workers http2".split())', 1),
        ('A = ("model", "seed", "workers", "http2", "another")', 0),
        ('A = {"model": 1, "seed": 2, "workers": 3, "http2": 4}', 0),
    ],
)
def test_a_list_of_settings_is_known_by_its_words(code: str, found: int) -> None:
    assert len([*lists_of_settings(ast.parse(code))]) == found


def test_no_other_module_lists_settings() -> None:
    modules = [
        path
        for path in (ROOT / "loadgen").rglob("*.py")
        if path.relative_to(ROOT / "loadgen").parts[0] not in LEFT and "_settings" not in path.stem
    ]
    listed = {
        f"{path.relative_to(ROOT)}:{line}": names
        for path in modules
        for line, names in lists_of_settings(ast.parse(path.read_text("utf-8")))
    }
    assert listed == {}
