"""Lists of values: what an ellipsis continues, and what a list may not be."""

from __future__ import annotations

import re

import pytest

from builders.loops import loop_over
from loadgen.study.series.sweep import value_lists


@loop_over(
    ("text", "expected"),
    [
        ("1,2,4…512", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        ("1,2,4,...,64", (1, 2, 4, 8, 16, 32, 64)),
        ("1, 2 … 100", (1, 2, 4, 8, 16, 32, 64, 100)),
        ("8,16,24…64", (8, 16, 24, 32, 40, 48, 56, 64)),
        ("8,16,24…60", (8, 16, 24, 32, 40, 48, 56, 60)),
        ("2,3…20", (2, 3, 4, 7, 10, 15, 20)),
        ("0.05,0.1…2", (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2)),
        ("0.1,0.2,0.3…0.7", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
        ("64,32…4", (64, 32, 16, 8, 4)),
        ("5", (5,)),
        ("8,1,3", (8, 1, 3)),
    ],
)
def test_an_ellipsis_goes_on_to_the_last_number(text: str, expected: tuple[float, ...]) -> None:
    assert value_lists.numbers(text) == expected


@loop_over(
    ("text", "message"),
    [
        ("1…8", "'1…8': two numbers before the … show how it goes on, as in 1,2…64"),
        ("1,2…8…16", "'1,2…8…16': one … is enough: write 1,2,4…512"),
        ("1,2,4…3", "'1,2,4…3': 3 is never reached from 4"),
        ("2,2…8", "'2,2…8': 8 is never reached from 2"),
        ("1,3,4…9", "'1,3,4…9': the numbers before the … have neither one ratio nor one distance"),
        ("0,1…8", "'0,1…8': give numbers above 0"),
        ("1,2,…", "'1,2,…': the last number is missing: write it behind the …, as in 1,2…64"),
        ("…8", "'…8': two numbers before the … show how it goes on, as in 1,2…64"),
        ("1,,2", "'1,,2': a value is missing before or behind a comma"),
        (",", "',': a value is missing before or behind a comma"),
        ("1,1e5000", "'1,1e5000': '1e5000': give numbers from 1e-15 to 1e15"),
        ("1,1e99999999", "'1,1e99999999': '1e99999999': give numbers from 1e-15 to 1e15"),
        ("1,1e-99999999", "'1,1e-99999999': '1e-99999999': give numbers from 1e-15 to 1e15"),
        ("1,nan", "'1,nan': 'nan': give numbers from 1e-15 to 1e15"),
        ("1,x", "'1,x': 'x' is not a number"),
        (
            "1..16",
            "'1..16': '1..16' is not a number: two numbers before a … show how it goes on, as in 1,2…64",
        ),
        (
            "1-16",
            "'1-16': '1-16' is not a number: two numbers before a … show how it goes on, as in 1,2…64",
        ),
        ("1,2,1", "'1,2,1': 1 is listed twice: --repeat measures points again"),
        ("1,1.001…9999", "'1,1.001…9999': has more than 1000 numbers"),
        ("", "'': the list is empty: write values, as 1,2,4"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        value_lists.numbers(text)


@loop_over(
    ("key", "text", "expected"),
    [
        ("input_len", "512,1024…4096", (512, 1024, 2048, 4096)),
        ("temperature", "0,0.5", (0, 0.5)),
        ("stream", "true,false", (True, False)),
        ("backend", "openai, openai-chat", ("openai", "openai-chat")),
        ("range_ratio", "0.0,0.5", ("0.0", "0.5")),
        ("input_dist", "uniform:min=1,max=8;fixed", ("uniform:min=1,max=8", "fixed")),
        ("slo", "ttft p99 < 1s, e2el p50 < 9s;", ("ttft p99 < 1s, e2el p50 < 9s",)),
        ("dataset_path", "a,b...c.jsonl;d.jsonl", ("a,b...c.jsonl", "d.jsonl")),
        ("input_len", "8;16", (8, 16)),
    ],
)
def test_a_keys_values_have_the_keys_type(key: str, text: str, expected: tuple[object, ...]) -> None:
    assert value_lists.of_field(key, text) == expected


@loop_over(
    ("key", "text", "message"),
    [
        (
            "input_dist",
            "uniform:min=1,max=8,fixed",
            "input_dist: its values may hold commas: write ; between them, as A;B, and behind a single one",
        ),
        (
            "slo",
            "ttft p99 < 1s,e2el p50 < 9s",
            "slo: its values may hold commas: write ; between them, as A;B, and behind a single one",
        ),
        (
            "range_ratio",
            '0,{"input":0.1,"output":0}',
            """'0,{"input":0.1,"output":0}': a value holds a comma: write ; between the values""",
        ),
        ("backend", "openai;;vllm", "'openai;;vllm': a value is missing before or behind a semicolon"),
        ("backend", "openai,", "'openai,': a value is missing before or behind a comma"),
    ],
)
def test_a_comma_parts_no_value_that_may_hold_one(key: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        value_lists.of_field(key, text)
