"""A grid: the points in their order, how long each is, what is no sweep, and the varied flags of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.settings.validation import ServerSettings
from loadgen.study.series import grid
from loadgen.study.series.grid import Variation
from loadgen.study.series.point_runs import (
    overlay_settings,
)
from loadgen.study.series.series_store import strip_resume

TABLES = read_tables("grid")
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


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


MAKERS = {
    "concurrency": concurrency, "rate": rate, "vary": vary, "link": link,
    "serve-param": grid.parse_serve_param,
}  # fmt: skip


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


def test_linked_lists_vary_together() -> None:
    variation = Variation((link("input_len=512,2048 output-len=128,64"), rate("0.5,1")))
    made = [workload for _, workload in grid.list_points(variation, {"num_prompts": 5}, build)]
    values = [(each.input_len, each.output_len, each.request_rate) for each in made]
    assert values == [(512, 128, 0.5), (512, 128, 1), (2048, 64, 0.5), (2048, 64, 1)]
    assert variation.axis == "rate"
    assert link("input_len=512,512 output_len=128,64").rows == ((512, 128), (512, 64))


@loop_over(("flag", "text", "given", "prompts", "sessions"), TABLES["counts"])
def test_a_point_has_as_many_requests_or_sessions_as_its_load_needs(
    flag: str, text: str, given: dict[str, Any], prompts: list[int | None] | None,
    sessions: list[int | None] | None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(EXAMPLES)
    made = [workload for _, workload in grid.list_points(Variation((MAKERS[flag](text),)), given, build)]
    assert [each.num_prompts for each in made] == (prompts or [None, None])
    assert [each.num_sessions for each in made] == (sessions or [None, None])


@loop_over(("flag", "text", "message"), TABLES["refused_lists"])
def test_a_list_that_cannot_be_varied_is_refused(flag: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        MAKERS[flag](text)
    assert str(caught.value).startswith(message)


@loop_over(("varied", "serve", "repeats", "given", "launched", "message"), TABLES["no_sweeps"])
def test_what_is_no_sweep_is_refused(
    varied: list[list[str]], serve: list[str], repeats: int, given: dict[str, Any], launched: bool,
    message: str,
) -> None:  # fmt: skip
    of_load = tuple(MAKERS[flag](text) for flag, text in varied)
    variation = Variation(of_load, tuple(map(grid.parse_serve_param, serve)), repeats)
    with pytest.raises(UsageError) as caught:
        grid.check_variation(variation, given, launched)
    assert str(caught.value).startswith(message)


@loop_over(("flag", "text", "given", "message"), TABLES["refused_values"])
def test_a_value_that_cannot_be_or_changes_nothing_is_refused_at_once(
    flag: str, text: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        grid.list_points(Variation((MAKERS[flag](text),)), given, build)
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


@loop_over(("serve", "expected"), TABLES["flags"])
def test_a_varied_flag_is_a_setting_of_ours_or_the_engines(
    serve: dict[str, str], expected: dict[str, object]
) -> None:
    asked = ServerSettings(arguments=("--a",))
    found, before = overlay_settings(asked, serve).model_dump(mode="json"), asked.model_dump(mode="json")
    assert found == before | expected


@loop_over(("serve", "message"), TABLES["refused_flags"])
def test_a_varied_flag_that_is_not_valid_is_refused(serve: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        overlay_settings(ServerSettings(), serve)


@loop_over(("words", "expected"), TABLES["commands"])
def test_a_series_is_begun_again_and_not_resumed(words: str, expected: str) -> None:
    assert strip_resume(words.split()) == expected.split()
