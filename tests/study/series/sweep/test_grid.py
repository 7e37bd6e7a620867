"""A grid: the points in their order, how long each is, and what is no sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.features.data.data_settings import READ_OUTPUT_LENS
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.study.series.sweep import grid
from loadgen.study.series.sweep.grid import Variation


def build(keys: Mapping[str, Any]) -> Profile:
    return profile.load("high-load", keys, flags=True)


def concurrency(text: str) -> grid.Dimension:
    return grid.loads("--concurrency", grid.CONCURRENCY, text)


def rate(text: str) -> grid.Dimension:
    return grid.loads("--rate", grid.RATE, text)


def test_server_flags_vary_slowest_and_the_load_fastest() -> None:
    variation = Variation(
        (grid.varied("input_len=64,128"), concurrency("1,2")), (grid.served("max-num-seqs=8,16"),), 2
    )
    made = grid.points(variation, {"num_prompts": 5}, build)
    assert [point.number for point in made] == list(range(16))
    assert [point.label for point in made[:5]] == [
        "max-num-seqs=8 input_len=64 concurrency=1",
        "max-num-seqs=8 input_len=64 concurrency=2",
        "max-num-seqs=8 input_len=128 concurrency=1",
        "max-num-seqs=8 input_len=128 concurrency=2",
        "max-num-seqs=8 input_len=64 concurrency=1 repeat 1",
    ]
    assert [point.serve["max-num-seqs"] for point in made] == ["8"] * 8 + ["16"] * 8
    assert made[0].directory_name == "000-max-num-seqs-8-input_len-64-concurrency-1"
    # Two points that no column of a table tells apart have names that do.
    assert {point.workload.name for point in made} == {
        "high-load max-num-seqs=8",
        "high-load max-num-seqs=16",
    }
    assert variation.axis == "concurrency"


def test_a_linked_list_may_hold_a_value_twice() -> None:
    dimension = grid.linked(["input_len=512,512", "output_len=128,64"])
    assert dimension.rows == ((512, 128), (512, 64))
    with pytest.raises(UsageError, match="--link: 512,128 is listed twice"):
        grid.linked(["input_len=512,512", "output_len=128,128"])


def test_linked_lists_vary_together() -> None:
    variation = Variation((grid.linked(["input_len=512,2048", "output-len=128,64"]), rate("0.5,1")))
    made = grid.points(variation, {"num_prompts": 5}, build)
    assert [
        (point.workload.input_len, point.workload.output_len, point.workload.request_rate) for point in made
    ] == [(512, 128, 0.5), (512, 128, 1), (2048, 64, 0.5), (2048, 64, 1)]
    assert variation.axis == "rate"


@loop_over(
    ("dimension", "given", "expected"),
    [
        (concurrency("1,8"), {}, (50, 80)),
        (rate("0.05,10"), {}, (50, 600)),
        (concurrency("1,8"), {"num_prompts": 7}, (7, 7)),
        (concurrency("1,8"), {"duration": 30.0}, (None, None)),
        (grid.varied("num_prompts=3,4"), {"max_concurrency": 2}, (3, 4)),
    ],
)
def test_a_point_has_as_many_requests_as_its_load_needs(
    dimension: grid.Dimension, given: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    made = grid.points(Variation((dimension,)), given, build)
    assert tuple(point.workload.num_prompts for point in made) == expected


@loop_over(
    ("dimension", "given", "expected"),
    [
        (concurrency("1,8"), {"turns": 4}, [(None, 50), (None, 80)]),
        (rate("0.05,10"), {"turns": 4}, [(None, 50), (None, 600)]),
        (concurrency("1,8"), {"turns": 4, "num_sessions": 7}, [(None, 7), (None, 7)]),
        (concurrency("1,8"), {"turns": 4, "num_prompts": 7}, [(7, None), (7, None)]),
        (concurrency("1,8"), {"turns": 4, "duration": 30.0}, [(None, None), (None, None)]),
    ],
)
def test_a_point_of_conversations_has_as_many_sessions(
    dimension: grid.Dimension, given: dict[str, Any], expected: list[tuple[int | None, int | None]]
) -> None:
    made = grid.points(Variation((dimension,)), given, build)
    assert [(point.workload.num_prompts, point.workload.num_sessions) for point in made] == expected


@loop_over(
    ("make", "message"),
    [
        (
            lambda: concurrency("0,1"),
            "--concurrency 0,1: give whole numbers of requests in flight, 1 or more",
        ),
        (lambda: concurrency("1,2.5"), "--concurrency 1,2.5: give whole numbers of requests in flight, 1 or"),
        (lambda: concurrency("1,x"), "--concurrency '1,x': 'x' is not a number"),
        (lambda: rate("-1,2"), "--rate -1,2: give requests per second, more than 0"),
        (lambda: rate("0,2"), "--rate 0,2: give requests per second, more than 0"),
        (
            lambda: grid.varied("input_ln=1,2"),
            "--vary input_ln: no key of a profile that can vary, did you mean",
        ),
        (
            lambda: grid.varied("ladder=1,2"),
            "--vary ladder: no key of a profile that can vary: docs/profiles.md lists them, as input_len",
        ),
        (
            lambda: grid.varied("input_len"),
            "--vary 'input_len': write NAME=VALUE,VALUE, as input_len=512,2048",
        ),
        (lambda: grid.linked(["input_len=1,2", "input-len=3,4"]), "--link: input_len is given twice"),
        (
            lambda: grid.linked(["input_len=1,2", "output_len=3"]),
            "--link: linked lists are of one length: input_len has 2, output_len has 1",
        ),
        (
            lambda: grid.served("max-num-seqs=8,"),
            "--serve-param '8,': a value is missing before or behind",
        ),
    ],
)
def test_a_list_that_cannot_be_varied_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value).startswith(message)


@loop_over(
    ("variation", "given", "launched", "message"),
    [
        (Variation(), {}, True, "nothing is varied: pass --concurrency 1,2,4…64"),
        (
            Variation((concurrency("8"),), repeats=5),
            {},
            True,
            "a sweep of one point is one run: use `loadgen",
        ),
        (
            Variation((concurrency("1,2"), grid.varied("max_concurrency=3,4"))),
            {},
            True,
            "max_concurrency is varied twice, by --concurrency and --vary: keep one",
        ),
        (
            Variation((concurrency("1,2"),)),
            {"max_concurrency": 8},
            True,
            "max_concurrency has one value by its own flag, and is varied by --concurrency: keep one",
        ),
        (
            Variation((), (grid.served("max-num-seqs=8,16"), grid.served("--max_num_seqs=8,16"))),
            {},
            True,
            "max_num_seqs is varied twice, by --serve-param and --serve-param: keep one",
        ),
        (
            Variation((), (grid.served("max-num-seqs=8,16"),)),
            {},
            False,
            "--serve-param needs a server that is started here: add --launch ENGINE",
        ),
        (Variation((concurrency("1,2"),), repeats=9999), {}, True, "19998 points: a sweep has 10000 at most"),
    ],
)
def test_what_is_no_sweep_is_refused(
    variation: Variation, given: dict[str, Any], launched: bool, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        grid.check(variation, given, launched)
    assert str(caught.value).startswith(message)


@loop_over(
    ("dimension", "given", "message"),
    [
        (grid.varied("input_len=8,0"), {}, "--random-input-len 0: "),
        (
            grid.varied("input_len=8,16"),
            {"dataset_path": "rows.jsonl"},
            "input_len is varied, and the data set of these points has none of it: leave it out",
        ),
        (
            grid.linked(["dataset_path=a.jsonl,b.jsonl", "range_ratio=0,0.5"]),
            {},
            "range_ratio is varied, and the data set of these points has none of it",
        ),
        (
            grid.varied("output_len=8,16"),
            {"trace": "trace.jsonl"},
            "output_len is varied, and the data set of these points has none of it",
        ),
        (
            rate("1,2"),
            {"schedule": "rate 2 for 60s"},
            "--schedule and --rate are two loads: leave out one of them",
        ),
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
        grid.points(Variation((dimension,)), given, build)
    assert str(caught.value).startswith(message)


@loop_over(
    ("dimension", "given"),
    [
        (grid.varied("output_len=8,16"), {"dataset_path": "rows.jsonl"}),
        (grid.varied("output_len=8,16"), {"dataset_name": "prefix_repetition"}),
        (grid.linked(["output_len=8,16", "dataset_path=a.jsonl,b.jsonl"]), {"dataset_name": "sharegpt"}),
    ],
)
def test_an_output_length_that_varies_is_that_of_every_data_set(
    dimension: grid.Dimension, given: dict[str, Any]
) -> None:
    made = grid.points(Variation((dimension,)), given, profile.build)
    for key in READ_OUTPUT_LENS:
        assert [getattr(point.workload, key) for point in made] == [8, 16]


def test_an_output_length_that_varies_leaves_random_prompts_as_they_are() -> None:
    made = grid.points(Variation((grid.varied("output_len=8,16"),)), {}, profile.build)
    assert {point.workload.custom_output_len for point in made} == {None}


def test_a_label_and_a_directory_tell_near_values_apart() -> None:
    made = grid.points(Variation((rate("0.1234567,0.1234568"),)), {"num_prompts": 5}, build)
    assert [point.label for point in made] == ["rate=0.1234567", "rate=0.1234568"]
