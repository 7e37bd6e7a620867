"""The verdict is the worst doubt's, told shortly under the block, whole on request, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.made_cases import closed, observed, run
from builders.required import require
from loadgen.base.errors import Broken
from loadgen.base.rule import Finding, Rule, Source
from loadgen.base.structs import replace
from loadgen.engines import engines
from loadgen.facts.run_facts import Cell, Server
from loadgen.host.cpu_use import CpuUse
from loadgen.verdict import verdict
from loadgen.verdict.evidence import (
    RunEvidence,
    Trend,
    least_samples,
    percent,
    sum_overlapping,
)
from loadgen.verdict.verdict import CHECKABLE, DOUBTS, Level, RunVerdict

TABLES = read_tables("verdict")

BY_NAME = {doubt.code: doubt for doubt in DOUBTS}
BLIND = tuple(doubt for doubt in DOUBTS if doubt.source is Source.SELFTEST)


ZERO = "ZeroDivisionError: division by zero"


def of(
    *names: str,
    blind: Sequence[Rule[RunEvidence]] = (),
    failed: dict[str, str] | None = None,
    lacking: Sequence[str] = (),
    simulated: bool = False,
) -> RunVerdict:
    found = tuple(Finding(BY_NAME[name], f"{name} by 7 %") for name in names)
    without = tuple(check for check in CHECKABLE if check.name in lacking)
    return RunVerdict(found, tuple(blind), tuple(starmap(Broken, (failed or {}).items())), without, simulated)


def told(name: str) -> str:
    return f"{name} by 7 %; fix: {BY_NAME[name].remedy}"


@pytest.mark.parametrize(
    ("names", "level", "not_judged"),
    [
        ((), Level.VALID, Level.SUSPECT),
        (("thin-percentiles", "headroom"), Level.VALID, Level.SUSPECT),
        (("prefix-cache", "headroom"), Level.SUSPECT, Level.SUSPECT),
        (("counters-reset", "prefix-cache"), Level.INVALID, Level.INVALID),
    ],
)
def test_the_worst_severity_decides_and_a_partial_judgement_is_not_valid(
    names: tuple[str, ...], level: Level, not_judged: Level
) -> None:
    assert of(*names).level is level
    assert of(*names, failed={"failures": ZERO}).level is not_judged


# A doubt in braces is told whole.
@loop_over_named(("names", "more", "lines"), TABLES["summaries"])
def test_the_gravest_is_told_whole_and_the_rest_by_name(
    names: list[str], more: dict[str, Any], lines: list[str]
) -> None:
    words = {name: told(name) for name in BY_NAME} | {"ZERO": ZERO}
    failed = {name: why.format_map(words) for name, why in more.get("failed", {}).items()}
    found = of(*names, **(more | {"failed": failed}))
    assert verdict.summarize_doubts(found) == [line.format_map(words) for line in lines]


def test_an_explanation_has_each_doubt_whole_and_counts_the_others() -> None:
    doubt = BY_NAME["prefix-cache"]
    found = of("prefix-cache", blind=BLIND, failed={"overload": ZERO}, lacking=("self-test", "repeats"))
    absent = len(DOUBTS) - 1 - len(BLIND) - 1
    assert verdict.explain_doubts(found) == [
        "verdict: SUSPECT",
        "suspect: prefix-cache: prefix-cache by 7 %",
        f"  condition: {doubt.condition}",
        f"  remedy: {doubt.remedy}",
        f"not judged: overload raised {ZERO}; please report it",
        f"checked and not found: {absent} of {len(DOUBTS)} doubts (docs/validity.md)",
        "not checked, without a self-test of this client: beyond-capacity, headroom",
        "not checked: self-test; to check: loadgen selftest",
        "not checked: repeats; to check: --repeat 5",
    ]


def test_the_json_has_everything() -> None:
    case = of("prefix-cache", "headroom", blind=BLIND[:1], failed={"overload": ZERO}, lacking=("repeats",))
    found = verdict.encode_verdict(case)
    assert json.loads(json.dumps(found)) == found
    assert found["level"] == "SUSPECT"
    assert [one["name"] for one in found["doubts"]] == ["prefix-cache", "headroom"]
    assert found["doubts"][0] == {
        "name": "prefix-cache",
        "severity": "suspect",
        "evidence": "prefix-cache by 7 %",
        "condition": BY_NAME["prefix-cache"].condition,
        "remedy": BY_NAME["prefix-cache"].remedy,
    }
    assert (found["looked_at"], found["not_looked_at"]) == (len(DOUBTS) - 2, [BLIND[0].code])
    assert found["not_judged"] == [{"name": "overload", "why": ZERO}]
    assert found["not_checked"] == ["repeats"]


SIMULATED = Server(url="http://h", engine="loadgen engine", model="m", simulated="h20/qwen3-8b-bf16")
HOSTED: dict[str, Any] = {"engine": engines.HOSTED.name, "simulated": ""}
QUIET = CpuUse(duration_s=3.2, cpus=2, server=0.9, client=0.1, others=0.02, waiting=0.01)
CELL = Cell(campaign="c", checkpoint="a", server="s", profile="p", repeat=0, start="s0")


@loop_over_named(
    ("case", "names"),
    {
        "all that one run can have": (run(), ("repeats",)),
        "one of five": (run(runs=5), ()),
        "of a campaign": (run(cell=CELL), ()),
        "nothing but the run": (
            run(ceiling=None, window=None, calibration=None),
            ("roofline", "server counters", "self-test", "repeats"),
        ),
        "simulated": (run(ceiling=None, server=SIMULATED), ("repeats",)),
        "hosted": (run(ceiling=None, window=None, server=replace(SIMULATED, **HOSTED)), ("repeats",)),
        "too few samples": (run(window=observed(samples=())), ("server gauges", "repeats")),
        "one at a time": (run(None, {"max_concurrency": 1}, window=observed(samples=())), ("repeats",)),
    },
)
def test_a_verdict_names_the_checks_that_matter_and_were_not_made(
    case: RunEvidence, names: tuple[str, ...]
) -> None:
    judged = verdict.judge(replace(case, facts=replace(case.facts, cpu_use=QUIET)))
    assert judged.not_checked == names
    assert verdict.encode_verdict(judged)["not_checked"] == list(names)


@loop_over(
    ("case", "name", "named"),
    [
        (run(), "other processes", True),
        (run(cpu_use=QUIET), "other processes", False),
        (run(cpu_use=replace(QUIET, others=None)), "other processes", True),
        (run(cpu_use=replace(QUIET, server=0.001)), "other processes", True),
        (run(server=replace(SIMULATED, **HOSTED)), "other processes", False),
        (run(closed(requests=16), requests=16), "first wave", True),
        (run(closed(requests=16), requests=16), "trends", True),
        (run(closed(requests=48), requests=48), "first wave", False),
        (run(closed(requests=48), requests=48), "trends", True),
        (run(), "trends", False),
    ],
)
def test_what_a_short_run_cannot_show_is_named(case: RunEvidence, name: str, named: bool) -> None:
    assert (name in verdict.judge(case).not_checked) is named


@loop_over(
    ("percentile", "point", "bound"),
    [(50, 2, 7), (90, 10, 44), (95, 20, 90), (99, 100, 459), (99.9, 1000, 4603), (1, 100, 459), (100, 1, 1)],
)
def test_a_percentile_needs_so_many_samples(percentile: float, point: int, bound: int) -> None:
    assert least_samples(percentile) == (point, bound)


def test_a_rising_series_has_the_trend_that_kendall_gives_it() -> None:
    # n = 10, S = 45, Var S = 125, z = 44 / √125 = 3.935: two-sided p = 8.3e-5; slope 1, median 14.5.
    found = require(Trend.fit(np.arange(10.0, 20.0)))
    assert found.n == 10
    assert found.probability == pytest.approx(8.30e-5, rel=1e-2)
    assert found.change == pytest.approx(9 / 14.5)


def test_awaited_agrees_with_looking_at_every_pair() -> None:
    rng = np.random.default_rng(5)
    begin = rng.integers(0, 1000, 60)
    end, weight = begin + rng.integers(1, 200, 60), rng.integers(1, 9, 60)
    pairs = (begin[:, None] < end[None, :]) & (begin[None, :] < end[:, None])
    assert sum_overlapping(begin, end, weight).tolist() == (pairs * weight[None, :]).sum(axis=1).tolist()


def test_shares_read_as_percent() -> None:
    shares = [0.01, 0.05, 0.872, 0.0012, 1.0]
    assert [percent(share) for share in shares] == ["1 %", "5 %", "87.2 %", "0.12 %", "100 %"]
    assert all(percent(a) != percent(b) for a, b in pairwise(shares))
