"""What strangers say, as it is printed and written: no command of a terminal, no formula, no path."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import read_figure
from loadgen.base.text import clean_text, count_decimals, format_csv, format_json, make_file_name, quote_value
from loadgen.base.untrusted import is_too_deep

TABLES = read_tables("text")

# Each sets a title, clears a screen, turns the direction of writing, ends a line, or cannot be encoded.
COMMANDS = [
    "\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "\x00", "\x07", "\x08", "\r", "\x7f", "\x85", "\u202e", "\u2066",
    "\u200f", "\u2028", "\u061c", "\ud800", "\udfff",
]  # fmt: skip


@loop_over("command", COMMANDS)
def test_no_command_of_a_terminal_is_left(command: str) -> None:
    said = clean_text(f"a{command}b")
    assert said[0] == "a"
    assert said[-1] == "b"
    assert all(letter.isprintable() for letter in said)
    said.encode()


@loop_over("text", ["", "a\tb\n", "é 漢字 × ± – …", "a\u0301", "\U0001f600", "\u200d"])
def test_what_is_text_stays(text: str) -> None:
    assert clean_text(text) == text


@loop_over(
    ("number", "digits", "most", "decimals"),
    [
        (0.0124, 2, 6, 3),
        (-0.0124, 2, 6, 3),
        (123.0, 2, 6, 0),
        (1.5, 1, 6, 0),
        (9.99, 3, 1, 1),
        (1e-9, 1, 6, 6),
        (0.0, 2, 6, 0),
        (float("inf"), 2, 6, 0),
        (float("nan"), 2, 6, 0),
    ],
)
def test_decimals_show_so_many_digits(number: float, digits: int, most: int, decimals: int) -> None:
    assert count_decimals(number, digits, most) == decimals


@loop_over("command", COMMANDS)
def test_json_holds_the_same_and_is_ascii_where_a_terminal_would_obey(command: str) -> None:
    text = format_json({f"k{command}": [f"v{command}é"]})
    assert all(letter.isprintable() for letter in text)
    surrogate = any("\ud800" <= letter <= "\udfff" for letter in command)
    meant = "\ufffd" if surrogate else command
    assert json.loads(text.encode()) == {f"k{meant}": [f"v{meant}é"]}


def test_json_is_strict() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        format_json([float("nan")])


@loop_over(("said", "name"), [*TABLES["names"], ("x" * 5000, "x" * 100)])
def test_a_name_stays_in_its_directory(said: str, name: str) -> None:
    assert make_file_name(said) == name
    assert (Path("d") / name).parent == Path("d")


@loop_over(("cell", "written"), TABLES["cells"])
def test_a_cell_is_no_formula(cell: Any, written: str) -> None:
    text = format_csv([["h"], [cell, "x"]])
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["h"], [written, "x"]]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("~nobody-here/x.toml", "~nobody-here is not a user of this machine"),
        ("a\0b", "it holds a zero byte"),
        ("a" * 256, "longer than 255 bytes"),
        ("a/" * 3000, "4096 at most"),
    ],
)
def test_what_is_no_path_is_refused(said: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        expand_path(said)


def test_home_is_filled_in() -> None:
    assert expand_path("~/x") == Path.home() / "x"


@loop_over(
    ("value", "kept"),
    [
        (0, 0), (1.5, 1.5), (-3, -3), (1e15, 1e15), (1e16, None), (10**400, None), (float("inf"), None),
        (float("nan"), None), (5e-324, None), (True, None), ("1", None), (None, None),
    ],
)  # fmt: skip
def test_a_figure_is_bounded(value: Any, kept: float | None) -> None:
    assert read_figure(value) == kept


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_looked_at_without_going_deep() -> None:
    assert not is_too_deep(nested(64))
    assert is_too_deep({"a": nested(64)})
    assert is_too_deep(nested(100_000))
    assert len(quote_value(nested(100_000))) < 100
