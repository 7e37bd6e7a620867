"""A grid: the points in their order, how long each is, and what is no sweep."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.study.series import grid
from loadgen.study.series.grid import Variation

TABLES = read_tables("grid")
CONVERSATIONS = Path(__file__).parents[3] / "docs" / "examples" / "conversations.jsonl"


def build(keys: Mapping[str, Any]) -> Profile:
    return profile.load("high-load", keys, flags=True)


def concurrency(text: str) -> grid.Dimension:
    return grid.parse_loads("--concurrency", grid.CONCURRENCY, text)


def vary(text: str) -> grid.Dimension:
    return grid.parse_link([text], "--vary")


def link(text: str) -> grid.Dimension:
    return grid.parse_link(text.split())


def rate(text: str) -> grid.Dimension:
    return grid.parse_loads("--rate", grid.RATE, text)


def test_server_flags_vary_slowest_and_the_load_fastest() -> None:
    variation = Variation(
        (vary("input_len=64,128"), concurrency("1,2")),
        (grid.parse_serve_param("max-num-seqs=8,16"),),
        2,
    )
    made = grid.list_points(variation, {"num_prompts": 5}, build)
    assert [point.number for point, _ in made] == list(range(16))
    first = [f"input_len={length} concurrency={load}" for length in (64, 128) for load in (1, 2)]
    labels = [f"max-num-seqs=8 {label}" for label in (*first, f"{first[0]} repeat 1")]
    assert [point.label for point, _ in made[:5]] == labels
    assert [point.serve["max-num-seqs"] for point, _ in made] == ["8"] * 8 + ["16"] * 8
    assert made[0][0].id == "000-max-num-seqs-8-input_len-64-concurrency-1"
    # Two points that no column of a table tells apart have names that do.
    assert {workload.name for _, workload in made} == {f"high-load max-num-seqs={n}" for n in (8, 16)}
    assert variation.axis == "concurrency"


def test_a_linked_list_may_hold_a_value_twice() -> None:
    assert link("input_len=512,512 output_len=128,64").rows == ((512, 128), (512, 64))


def test_linked_lists_vary_together() -> None:
    variation = Variation((link("input_len=512,2048 output-len=128,64"), rate("0.5,1")))
    made = [workload for _, workload in grid.list_points(variation, {"num_prompts": 5}, build)]
    values = [(each.input_len, each.output_len, each.request_rate) for each in made]
    assert values == [(512, 128, 0.5), (512, 128, 1), (2048, 64, 0.5), (2048, 64, 1)]
    assert variation.axis == "rate"


ROWS, LOADS = {"dataset_path": str(CONVERSATIONS)}, concurrency("1,8")
PROMPTS = {"dataset_path": str(CONVERSATIONS.with_name("prompts.jsonl"))}


@loop_over(
    ("dimension", "given", "prompts", "sessions"),
    [
        (LOADS, {}, [50, 80], None),
        (rate("0.05,10"), {}, [50, 600], None),
        (LOADS, {"num_prompts": 7}, [7, 7], None),
        (LOADS, {"duration": 30.0}, None, None),
        (vary("num_prompts=3,4"), {"max_concurrency": 2}, [3, 4], None),
        (LOADS, {"turns": 4}, None, [50, 80]),
        (rate("0.05,10"), {"turns": 4}, None, [50, 600]),
        (LOADS, {"turns": 4, "num_sessions": 7}, None, [7, 7]),
        (LOADS, {"trace": "a.jsonl", "trace_replay": "closed"}, None, [50, 80]),
        (LOADS, ROWS, None, [50, 80]),
        (LOADS, {**ROWS, "num_prompts": 7}, [7, 7], None),
        (LOADS, PROMPTS, [50, 80], None),
        (LOADS, {"dataset_path": "none.jsonl"}, [50, 80], None),
        (LOADS, {"turns": 4, "num_prompts": 7}, [7, 7], None),
        (LOADS, {"turns": 4, "duration": 30.0}, None, None),
    ],
)
def test_a_point_has_as_many_requests_or_sessions_as_its_load_needs(
    dimension: grid.Dimension, given: dict[str, Any], prompts: list[int | None] | None,
    sessions: list[int | None] | None,
) -> None:  # fmt: skip
    made = [workload for _, workload in grid.list_points(Variation((dimension,)), given, build)]
    assert [each.num_prompts for each in made] == (prompts or [None, None])
    assert [each.num_sessions for each in made] == (sessions or [None, None])


@loop_over(
    ("make", "text", "message"),
    [
        (concurrency, "0,1", "--concurrency 0,1: give whole numbers of requests in flight, 1 or more"),
        (concurrency, "1,2.5", "--concurrency 1,2.5: give whole numbers of requests in flight, 1 or"),
        (concurrency, "1,x", "--concurrency '1,x': 'x' is not a number"),
        (rate, "-1,2", "--rate -1,2: give requests per second, more than 0"),
        (rate, "0,2", "--rate 0,2: give requests per second, more than 0"),
        (vary, "input_ln=1,2", "--vary input_ln: no key of a profile that can vary, did you mean"),
        (vary, "ladder=1,2", "--vary ladder: no key of a profile that can vary: docs/profiles.md lists"),
        (vary, "input_len", "--vary 'input_len': write NAME=VALUE,VALUE, as input_len=512,2048"),
        (link, "input_len=1,2 input-len=3,4", "--link: input_len is given twice"),
        (link, "input_len=1,2 output_len=3", "--link: linked lists are of one length: input_len has 2, out"),
        (link, "input_len=512,512 output_len=128,128", "--link: 512,128 is listed twice"),
        (grid.parse_serve_param, "max-num-seqs=8,", "--serve-param '8,': a value is missing before"),
    ],
)
def test_a_list_that_cannot_be_varied_is_refused(
    make: Callable[[str], grid.Dimension], text: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make(text)
    assert str(caught.value).startswith(message)


SEQS = grid.parse_serve_param("max-num-seqs=8,16")


@loop_over(
    ("variation", "given", "launched", "message"),
    [
        (Variation(), {}, True, "nothing is varied: pass --concurrency 1,2,4…64"),
        (Variation((concurrency("8"),), repeats=5), {}, True, "a sweep of one point is one run: use `load"),
        (
            Variation((concurrency("1,2"), vary("max_concurrency=3,4"))), {}, True,
            "max_concurrency is varied twice, by --concurrency and --vary: keep one",
        ),
        (
            Variation((concurrency("1,2"),)), {"max_concurrency": 8}, True,
            "max_concurrency has one value by its own flag, and is varied by --concurrency: keep one",
        ),
        (
            Variation((), (SEQS, grid.parse_serve_param("--max_num_seqs=8,16"))), {}, True,
            "max_num_seqs is varied twice, by --serve-param and --serve-param: keep one",
        ),
        (Variation((), (SEQS,)), {}, False, "--serve-param needs a server that is started here: add --lau"),
        (Variation((concurrency("1,2"),), repeats=9999), {}, True, "19998 points: a sweep has 10000 at most"),
    ],
)  # fmt: skip
def test_what_is_no_sweep_is_refused(
    variation: Variation, given: dict[str, Any], launched: bool, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        grid.check_variation(variation, given, launched)
    assert str(caught.value).startswith(message)


UNUSED = "is varied, and the data set of these points has none of it"


@loop_over(
    ("dimension", "given", "message"),
    [
        (vary("input_len=8,0"), {}, "--random-input-len 0: "),
        (vary("input_len=8,16"), {"dataset_path": "rows.jsonl"}, f"input_len {UNUSED}: leave it out"),
        (link("dataset_path=a.jsonl,b.jsonl range_ratio=0,0.5"), {}, f"range_ratio {UNUSED}"),
        (vary("output_len=8,16"), {"trace": "trace.jsonl"}, f"output_len {UNUSED}"),
        (rate("1,2"), {"schedule": "rate 2 for 60s"}, "--schedule and --rate are two loads: leave out one"),
        (
            concurrency("1,2"),
            {"schedule": "concurrency 1 to 8 over 60s"},
            "--concurrency 1 and the concurrency of --schedule are two",
        ),
    ],
)
def test_a_value_that_cannot_be_or_changes_nothing_is_refused_at_once(
    dimension: grid.Dimension, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        grid.list_points(Variation((dimension,)), given, build)
    assert str(caught.value).startswith(message)


def test_an_output_length_that_varies_leaves_random_prompts_as_they_are() -> None:
    made = grid.list_points(Variation((vary("output_len=8,16"),)), {}, profile.build)
    assert {workload.custom_output_len for _, workload in made} == {None}


def test_a_label_and_a_directory_tell_near_values_apart() -> None:
    made = grid.list_points(Variation((rate("0.1234567,0.1234568"),)), {"num_prompts": 5}, build)
    assert [point.label for point, _ in made] == ["rate=0.1234567", "rate=0.1234568"]


@loop_over(("text", "expected"), TABLES["numbers"])
def test_an_ellipsis_goes_on_to_the_last_number(text: str, expected: list[float]) -> None:
    assert list(grid.parse_numbers(text)) == expected


@loop_over(("text", "message"), TABLES["refused_numbers"])
def test_a_list_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        grid.parse_numbers(text)


@loop_over(("key", "text", "expected"), TABLES["values"])
def test_a_keys_values_have_the_keys_type(key: str, text: str, expected: list[object]) -> None:
    assert list(grid.parse_field_values(key, text)) == expected


@loop_over(("key", "text", "message"), TABLES["commas"])
def test_a_comma_parts_no_value_that_may_hold_one(key: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        grid.parse_field_values(key, text)
