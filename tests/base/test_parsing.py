"""Parsing: a name is proposed where it must be meant, and a share is written as people write it."""

from __future__ import annotations

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.parsing import find_nearest, parse_share, suggest_name
from loadgen.run.command.options import bench_parser

TABLES = read_tables("nearest_names")

FLAGS = [option for action in bench_parser()._actions for option in action.option_strings]
KEYS = ["input_len", "output_len", "context_len", "max_concurrency", "num_warmups", "to_c", "seed"]
NAMES = ["high-load", "low-load", "instant", "jetson-thor", "h200", "h20", "v"]


@loop_over(("word", "flag"), TABLES["flags"])
def test_a_flag_is_proposed_only_where_it_must_be_meant(word: str, flag: str | None) -> None:
    assert find_nearest(word, FLAGS) == flag


@pytest.mark.parametrize(
    ("word", "names", "name"),
    [
        ("input_length", KEYS, "input_len"),
        ("random_input_len", KEYS, "input_len"),
        ("isl", KEYS, "input_len"),
        ("concurrency", KEYS, "max_concurrency"),
        ("warmups", KEYS, "num_warmups"),
        ("to", KEYS, "to_c"),
        ("temperatur", KEYS, None),
        ("high-laod", NAMES, "high-load"),
        ("high", NAMES, "high-load"),
        ("instnat", NAMES, "instant"),
        ("h2000", NAMES, "h200"),
        ("vl", NAMES, None),
        ("b", NAMES, None),
        ("load", NAMES, None),
        ("", NAMES, None),
    ],
)
def test_keys_and_names_are_proposed_by_the_same_rule(word: str, names: list[str], name: str | None) -> None:
    assert find_nearest(word, names) == name


def test_the_proposal_is_a_question_or_nothing() -> None:
    assert suggest_name("hihg-load", NAMES) == ", did you mean 'high-load'?"
    assert suggest_name("medium", NAMES) == ""


@loop_over(
    ("text", "part"),
    [("5%", 0.05), ("0.05", 0.05), (".5", 0.5), (" 2.5 % ", 0.025), ("100%", 1.0), ("0.1%", 0.001)],
)
def test_a_share_is_a_percentage_or_a_part_of_one(text: str, part: float) -> None:
    assert parse_share(text, 0.001) == pytest.approx(part)


@loop_over("text", ["", "%", "0", "0.05%", "101%", "5", "-5%", "nan", "inf%", "1e-2", "five"])
def test_what_is_no_share_in_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a share from 0\.1% to 100%: write 5% or 0\.05"):
        parse_share(text, 0.001)
