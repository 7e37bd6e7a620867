"""Load identity: two runs that differ in any key that makes the load are two loads, and have no verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import made_data, made_runs
from builders.loops import loop_over, read_tables
from loadgen.base.rule import Severity
from loadgen.facts.run_facts import Client
from loadgen.plan.profile import Profile
from loadgen.report.run_writer import encode_run
from loadgen.settings.setting import Makes
from loadgen.settings.table import list_profile_keys
from loadgen.study.compare import comparability, comparison
from loadgen.study.compare.comparability import find_differences
from loadgen.study.compare.model import ComparisonOptions, Decision
from loadgen.study.importers.clients import loadgen_runs
from loadgen.study.run_summary import Reported, summarise_run

TABLES = read_tables("load_identity")

KEYS: dict[str, Any] = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24}
BASE = {**KEYS, "max_concurrency": 4, "backend": "openai"}
OTHER: dict[str, Any] = TABLES["loads"]  # another value of every key that makes the load
# Keys that name what is read, by what was read: the facts of both runs, and the keys that both have.
READ: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "dataset_name": ({"dataset_path": "a"}, made_data.data("sharegpt"), made_data.data("custom")),
    "dataset_path": ({"dataset_path": "a"}, made_data.data(), made_data.data(file_digest="fedcba987654")),
    "trace": ({"trace": "a"}, made_data.trace(), made_data.data("trace", file_digest="fedcba987654")),
    "trace_format": ({"trace": "a"}, made_data.trace(), made_data.trace(format="azure")),
    "prompt_corpus": (
        {}, made_data.data("random", text="a"), made_data.data("random", text="b", file_digest=""),
    ),
    "compat": ({"range_ratio": "0.5"}, None, None),
}  # fmt: skip


def ours(keys: dict[str, Any], number: int, label: str = "m", **facts: Any) -> Reported:
    """A run of ours of these keys; no two numbers have the same arrivals."""
    profile = Profile(**keys)
    requests = profile.num_prompts or 24
    length = profile.output_len
    made = made_runs.run(requests, length, seed=number, **{"profile": profile, "label": label, **facts})
    return summarise_run(Path(f"run-{number}"), made)


def sides(key: str, *labels: str) -> list[Reported]:
    """Two runs of the usual load, then two that differ in this key."""
    both, first, second = READ.get(key, ({}, None, None))
    change = {"compat": "sglang"} if key == "compat" else {key: OTHER[key]} if key in OTHER else {}
    keys = {**BASE, **both}
    data = [({} if facts is None else {"data": facts}) for facts in (first, second)]
    return [
        *(ours(keys, seed, labels[0], **data[0]) for seed in (1, 2)),
        *(ours({**keys, **change}, seed, labels[1], **data[1]) for seed in (3, 4)),
    ]


LOAD_KEYS = list_profile_keys(Makes.LOAD)


def test_every_key_that_makes_the_load_is_tried() -> None:
    assert {*OTHER, *READ} == set(LOAD_KEYS)


@loop_over("key", LOAD_KEYS)
def test_another_value_of_a_key_makes_another_load(key: str) -> None:
    """Runs of one name are shown apart; rows of two have no verdict, under the load of the baseline."""
    runs = sides(key, "m", "m")
    identities = [run.load.identity for run in runs]
    assert identities[::2] == identities[1::2]
    assert len(set(identities)) == 2
    tables = comparison.compare_runs(runs, ComparisonOptions())
    assert [[len(line.runs) for line in table.lines] for table in tables] == [[2], [2]]
    rows = sides(key, "m", "n")
    for unlike in (False, True):
        for made in (rows, [*rows[2:], *rows[:2]]):
            (table,) = comparison.compare_runs(made, ComparisonOptions(allow_unlike=unlike))
            first, second = table.lines
            assert table.load == replace(first.runs[0].load, seed=None, timed=False, settings=None)
            begin = "unlike the baseline: " if unlike else "not compared: "
            assert any(mark.startswith(begin) for mark in second.marks), second.marks
            assert unlike or {effect.call for effect in second.effects.values()} == {Decision.NONE}


@loop_over("key", list_profile_keys(Makes.REQUEST, Makes.CLIENT))
def test_another_request_or_client_is_marked(key: str) -> None:
    facts: dict[str, dict[str, Any]] = {
        "prompt_format": {"prompt_format": "corpus"},
        "num_warmups": {"warmups": 4},
    }
    change = {} if key in facts else {key: TABLES["requests"].get(key, 0.5)}
    found = find_differences(ours({**BASE, **change}, 2, **facts.get(key, {})), ours(BASE, 1))
    assert [finding.rule.severity for finding in found] == [Severity.MARKED]


def test_a_run_that_a_rule_ended_is_another_load() -> None:
    """As --max-duration or --max-failures does; the plan of both is the same."""
    ended = ours(BASE, 2, stop_rule="--max-duration 1s")
    found = [(each.rule.code, each.evidence) for each in find_differences(ended, ours(BASE, 1))]
    assert found == [("requests", "requests: 24, ended early, baseline 24")]


@loop_over(("facts", "codes"), [
    pytest.param({"seed_chosen": True, "plan_digest": "def"}, [], id="seed"),
    pytest.param({"repeat": 1, "runs": 2}, [], id="repeat"),
    pytest.param({"client": Client(transport="wire", workers=3, cpu_s=1.0, wall_s=2.0)}, [], id="workers"),
    pytest.param({"client": Client(transport="ring")}, [], id="ring and wire time alike"),
    pytest.param({"client": Client(transport="httpx")}, ["transport"], id="transport"),
    pytest.param({"targets": ("http://a", "http://b")}, ["number of servers"], id="base-url"),
])  # fmt: skip
def test_flags_outside_the_profile_make_no_load(facts: dict[str, Any], codes: list[str]) -> None:
    found = find_differences(ours(BASE, 2, **facts), ours(BASE, 1))
    assert [finding.rule.code for finding in found] == codes
    assert all(finding.rule.severity is Severity.MARKED for finding in found)


@loop_over("key", ["think_time", "cancel_rate", "burstiness", "duration", "temperature"])
def test_a_result_file_tells_as_much_as_the_directory(key: str) -> None:
    """Without the arrivals next to it: what is compared is in the file's facts."""
    change = {key: OTHER.get(key, 0.5)}
    directories = [ours(BASE, 1), ours({**BASE, **change}, 2)]
    files: list[Reported] = []
    for reported in directories:
        assert reported.run is not None
        document = json.loads(json.dumps(encode_run(reported.run)))
        files += loadgen_runs.LOADGEN.read_runs(document, "a.json")
    assert [run.run for run in files] == [None, None]
    of_directories, of_files = (
        [(finding.rule.code, finding.evidence) for finding in find_differences(second, first)]
        for first, second in (directories, files)
    )
    assert of_files == of_directories != []


@loop_over("others", [("ttft:30", "ttft:30"), ("ttft:90", "ttft:30")])
def test_goodput_of_other_objectives_is_another_figure(others: tuple[str, str]) -> None:
    """The load is one, and every other figure is compared."""
    runs = [
        ours({**BASE, "goodput": (objective,)}, number, label)
        for number, (label, objective) in enumerate(zip("mmnn", ("ttft:90", "ttft:90", *others), strict=True))
    ]
    (table,) = comparison.compare_runs(runs, ComparisonOptions(headline="request_goodput"))
    effects = table.lines[1].effects
    assert effects["request_goodput"].call is Decision.NONE
    assert effects["request_goodput"].why == "goodput is of other objectives: ttft:30, baseline ttft:90"
    assert effects["output_throughput"].call is not Decision.NONE


def test_a_page_by_time_is_not_held_against_a_number() -> None:
    timed = ours({**BASE, "num_prompts": None, "duration": 5.0}, 1)
    page = replace(timed, run=None, told_by="page", load=replace(timed.load, duration_s=None, requests=None))
    assert [each.rule.code for each in find_differences(timed, page)] == ["client"]


def test_small_values_are_not_rounded_to_one() -> None:
    assert [comparability.format_value(value) for value in (0.25, 1.05, 124.19, 2069.0)] == [
        "0.25", "1.05", "124.2", "2069",
    ]  # fmt: skip
