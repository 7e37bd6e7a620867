"""The table of settings: every row says what it makes, and nothing that is made of rows lacks one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, get_origin, get_type_hints

import pytest

from loadgen.plan.profile import SUBJECTS, Profile
from loadgen.run.command.options import Options, bench_parser
from loadgen.settings.keyword_types import BenchOptions, WorkloadOptions
from loadgen.settings.server_settings import CallOptions
from loadgen.settings.setting import Makes, Requirement, Setting, list_kinds, list_rows
from loadgen.settings.table import OPTIONS, PROFILE_KEYS, TABLE, list_profile_keys
from loadgen.settings.validation import ServerSettings

ROOT = Path(__file__).parents[2]


def test_a_setting_must_say_what_it_makes() -> None:
    with pytest.raises(TypeError, match="Missing required argument"):
        Setting()  # type: ignore[call-arg]


@dataclass(frozen=True)
class Subject:
    """Two settings."""

    second_rate: Annotated[float | None, Setting(Makes.LOAD)] = None
    first: Annotated[str, Setting(Makes.CLIENT, flag="--other")] = "x"


def test_a_subject_has_its_rows_in_the_order_they_are_written() -> None:
    rows = [(row.name, row.kinds, row.default, row.option) for row in list_rows(Subject)]
    assert rows == [
        ("second_rate", (float, type(None)), None, "--second-rate"),
        ("first", (str,), "x", "--other"),
    ]


def test_every_key_of_a_profile_is_a_row_that_makes_one_thing() -> None:
    of_files = ["ladder", "server"]
    assert [row.name for row in list_rows(*PROFILE_KEYS)] + of_files == list(Profile.model_fields)
    shared_out = [key for makes in Makes for key in list_profile_keys(makes)]
    assert sorted(shared_out + of_files) == sorted(Profile.model_fields)


def test_no_two_settings_have_one_name() -> None:
    inside = set(ServerSettings.model_fields) | {"engine", "command", "container", "python", "timeout_s"}
    names = [row.name for row in TABLE if row.name not in inside] + ["seed"]
    assert sorted(names) == sorted(set(names))


def test_every_option_of_a_run_is_a_row_or_follows_from_some() -> None:
    made = {"profiles", "overrides", "more_urls", "default_url", "default_port", "launching", "no_effect"}
    made |= {"api_headers"}
    of_a_ladder = {"formula", "depth", "batch_sizes"}
    assert {each.name for each in fields(Options)} <= {row.name for row in TABLE} | made | of_a_ladder


def test_every_flag_of_the_command_has_a_row() -> None:
    unheeded = {"no_effect", "help"}
    dests = {action.dest for action in bench_parser()._actions} - unheeded
    assert dests == {row.dest for row in TABLE if row.group}
    of_files = {"name", "description", "ladder", "table", "server"}  # [server] has flags of its own
    assert set(Profile.model_fields) - of_files <= dests


def test_every_setting_that_calls_have_is_a_keyword_of_its_type() -> None:
    keys = {row.name: row for row in list_rows(*PROFILE_KEYS) if row.group}
    assert keys.keys() == WorkloadOptions.__annotations__.keys()
    own = BenchOptions.__annotations__.keys() - keys.keys()
    assert own <= {row.name for row in list_rows(*OPTIONS, CallOptions)}
    for name, kind in get_type_hints(WorkloadOptions).items():
        taken = {get_origin(each) or each for each in list_kinds(kind)}
        held = {get_origin(each) or each for each in keys[name].kinds} - {type(None)}
        assert {list if each is tuple else each for each in held} <= taken, name


def test_every_conflict_names_keys_and_writes_its_message() -> None:
    keys = {row.name: row for row in list_rows(*SUBJECTS)}
    words = {"flag": "--a", "other": "--b", "data": "--c", "found": "d", **dict.fromkeys(keys, 1)}
    conflicts = [rule for row in keys.values() for rule in row.rules]
    assert len(conflicts) > 50
    wrong = [
        each
        for each in conflicts
        if "{" in each.message.format_map(words) or each.message != each.message.strip()
    ]
    assert wrong == []
    assert {each.other for each in conflicts if isinstance(each.other, str)} <= keys.keys()
    for row in keys.values():  # what is needed is said first
        assert sorted(row.rules, key=lambda rule: not isinstance(rule, Requirement)) == list(row.rules)


MOST_NAMES = 8
NAMES = {row.name for row in TABLE} | {row.dest for row in TABLE} | {row.option for row in TABLE}
MANY = sorted(NAMES)[: MOST_NAMES + 1]
# Left of settings, which may not import them: the fields of an API that have a setting's name.
LEFT = ("base", "engines", "wire", "settings")


def lists_of_settings(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Tuples, lists, sets and texts of words of which each names a setting, more than eight of them.

    A module that does what a setting means has to name it. Many that have something in common are settings
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
        (f"A = {MANY[:-1]}", 0),
        (f"A = {MANY}", 1),
        (f"A = {set(MANY)}", 1),
        (f"A = frozenset({' '.join(MANY)!r}.split())", 1),
        (f"A = {[*MANY, 'another']}", 0),
        (f"A = {dict.fromkeys(MANY, 1)}", 0),
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
