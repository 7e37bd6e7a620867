"""Distinctions: repeats are runs of one server, load and request; what differs names the row."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, run
from builders.loops import loop_over
from loadgen.plan import profile
from loadgen.study.compare import distinctions, groups
from loadgen.study.run_summary import Load, Reported
from loadgen.verdict.run_facts import Server

KEYS = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24, "max_concurrency": 4}


def ours(**changes: Any) -> Reported:
    """A run of ours with keys of its profile, or facts, changed."""
    facts = {key: changes.pop(key) for key in ("server", "warmups", "label") if key in changes}
    made = made_runs.run(profile=profile.build({**KEYS, **changes}), **facts)
    return made_runs.reported(made, "m")


def at(url: str, simulated: str = "") -> Server:
    return Server(url=f"{url}/v1/completions", engine="vLLM", version="1", model="m", simulated=simulated)


@loop_over(
    ("first", "second", "names"),
    [
        ({}, {}, ["m", "m"]),
        ({}, {"temperature": 0.7}, ["m", "m (temperature 0.7)"]),
        ({}, {"stream": False}, ["m (streamed)", "m (not streamed)"]),
        ({}, {"warmups": 4}, ["m (not warmed up)", "m (warmed up)"]),
        ({"label": "x"}, {"label": "y"}, ["m (x)", "m (y)"]),
        (
            {"server": at("http://h:8000")}, {"server": at("http://h:8001")},
            ["m (h:8000)", "m (h:8001)"],
        ),
        (
            {"server": at("http://h:4321", "instant")}, {"server": at("http://h:5432", "instant")},
            ["m", "m"],
        ),
    ],
)  # fmt: skip
def test_runs_that_are_no_repeats_are_rows_of_their_own(
    first: dict[str, Any], second: dict[str, Any], names: list[str]
) -> None:
    assert groups.name_rows([ours(**first), ours(**second)]) == names


def test_a_run_is_named_by_what_it_has_alone() -> None:
    extra = {"extra_body": {"priority": 1}}
    runs = [ours(**keys) for keys in ({}, {"min_tokens": 2}, extra, {**extra, "top_k": 3})]
    assert groups.name_rows(runs) == [
        "m",
        "m (min_tokens 2)",
        "m (extra_body {'priority': 1})",
        "m (top_k 3, extra_body {'priority': 1})",
    ]


def test_names_that_would_be_cut_to_one_have_only_the_keys_they_need() -> None:
    same_ends = [
        {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"temperature": 0.5, "top_p": 0.8, "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    ]
    names = groups.name_rows([ours(), *(ours(**keys) for keys in same_ends)])
    assert names == ["m", "m (temperature 0.5, top_p 0.9)", "m (temperature 0.5, top_p 0.8)"]


UNNAMED = replace(HIGH, name="", asked_input_len=2048)


@loop_over(
    ("change", "same"),
    [
        ({}, True),
        ({"seed": 3}, True),
        ({"input_len": 1900.0}, True),  # drawn: the requested length is the same
        ({"asked_input_len": None}, True),
        ({"asked_input_len": None, "input_len": 1900.0}, False),
        ({"asked_input_len": 1024}, False),
        ({"max_concurrency": 16}, False),
        ({"max_concurrency": None}, False),  # of ours: no limit
        ({"request_rate_per_s": 4.0}, False),
        ({"requests": 50}, False),
        ({"requests": 50, "duration_s": 10.0}, True),  # sent for a time
        ({"asked_output_len": 64}, False),
        ({"shape": "range ratio 0.5"}, False),
    ],
)
def test_loads_are_one_where_nothing_that_was_asked_for_differs(change: dict[str, Any], same: bool) -> None:
    one, other = run("a", 1.0, UNNAMED), run("a", 1.0, replace(UNNAMED, **change))
    assert distinctions.is_same_load(one, other) is same


def tables(loads: list[tuple[str, Load]]) -> list[dict[str, int]]:
    reported = [run(name, 1.0 + number, load) for number, (name, load) in enumerate(loads)]
    found = groups.group_runs(reported, groups.name_rows(reported))
    return [{name: len(of) for name, of in group.rows.items()} for group in found]


EIGHT, SIXTEEN = HIGH, replace(HIGH, max_concurrency=16)


@pytest.mark.parametrize(
    ("loads", "found"),
    [
        ([("a", EIGHT), ("a", SIXTEEN), ("a", EIGHT)], [{"a": 2}, {"a": 1}]),
        ([("a", EIGHT), ("b", EIGHT), ("a", SIXTEEN), ("b", SIXTEEN)], [{"a": 1, "b": 1}] * 2),
        ([("a", EIGHT), ("b", SIXTEEN)], [{"a": 1, "b": 1}]),  # refused by the concurrency
    ],
)
def test_flags_over_a_profile_make_another_load(
    loads: list[tuple[str, Load]], found: list[dict[str, int]]
) -> None:
    assert tables(loads) == found


LOW = replace(HIGH, name="low-load", max_concurrency=1)


def read(place: str, load: Load = HIGH, **unread: str) -> Reported:
    """A run of one checkpoint, as it was read at a place, with labels that nothing reads."""
    return run("m", 1.0 + len(place), load, place=place, unread=unread)


@loop_over(
    ("runs", "names"),
    [
        # Two places are two sides; what is in one place is a set of repeats.
        ([read("before.json"), read("after.json")], ["m (before.json)", "m (after.json)"]),
        ([read("runs"), read("runs"), read("runs")], ["m", "m", "m"]),
        ([read("a"), read("a"), read("b")], ["m (a)", "m (a)", "m (b)"]),
        ([read("one/x.json"), read("many/x.json")], ["m (one)", "m (many)"]),
        # A sweep's points need no place, and each side of two sweeps has its own.
        ([read("c1.json", LOW), read("c8.json")], ["m", "m"]),
        ([read(at, load) for at in "ab" for load in (LOW, HIGH)], ["m (a)", "m (a)", "m (b)", "m (b)"]),
        # Where a client or an engine tells them apart, nothing else has to.
        (
            [replace(read("a"), told_by="page"), replace(read("b"), told_by="vllm")],
            ["m (page)", "m (vllm)"],
        ),
        # Labels of one place, and only under one load.
        ([read("a", tp="1"), read("a", tp="4")], ["m (tp 1)", "m (tp 4)"]),
        ([read("a", Config="A, plain"), read("a", Config="B1 on")], ["m (A, plain)", "m (B1 on)"]),
        ([read("a", LOW, note="light"), read("a", HIGH, note="heavy")], ["m", "m"]),
        ([read("a", flash="yes"), read("a", flash="")], ["m (flash yes)", "m"]),
        ([read("a", build="x1"), read("a")], ["m (build x1)", "m"]),
        ([read("a", build="v1"), read("b", build="v2")], ["m (a)", "m (b)"]),
        (
            [read("a", build="vA"), read("a", build="vB"), read("b", build="vA")],
            ["m (a, vA)", "m (a, vB)", "m (b)"],
        ),
        (
            [read("a", one="xx", two="xx", three="xx", four="xx"), read("a", one="yy", two="y", three="yy")],
            ["m (xx, two xx, xx)", "m (yy, two y, yy)"],
        ),
    ],
)
def test_what_was_named_apart_or_labelled_otherwise_is_no_repeat(
    runs: list[Reported], names: list[str]
) -> None:
    assert groups.name_rows(runs) == names


@loop_over(
    ("places", "names"),
    [
        (["/x/before.json", "/x/after.json"], ["before.json", "after.json"]),
        (["runs/20260101-high", "runs/20260102-high"], ["20260101-high", "20260102-high"]),
        (["one/a/f.json", "many/a/f.json"], ["one", "many"]),
        (["one/f.json", "many/f.json", "many/g.json"], ["one/f.json", "many/f.json", "many/g.json"]),
        (["f.json", "x/f.json"], ["f.json", "x/f.json"]),
        (["/only/f.json"], ["f.json"]),
        ([], []),
    ],
)
def test_a_place_is_named_by_the_end_of_its_path_that_no_other_has(
    places: list[str], names: list[str]
) -> None:
    assert list(distinctions.place_names(places).values()) == names
