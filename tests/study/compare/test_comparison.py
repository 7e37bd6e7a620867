"""Comparison: rows next to a baseline, load by load: what is left out, marked, failed; and its forms."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH, cells, failed, run, runs, thor
from builders.loops import loop_over, read_tables
from builders.made_cases import WHEN
from builders.made_sessions import made, rows_of
from loadgen.base.passages import render_passages
from loadgen.base.tables import cut_middle
from loadgen.base.text import format_json
from loadgen.facts.run_facts import Fingerprint, GreedyAnswer
from loadgen.report.load_identity import Load
from loadgen.study.compare import comparison_report, run_groups
from loadgen.study.compare.comparison import BROKEN, compare_runs
from loadgen.study.compare.comparison_report import make_turn_table
from loadgen.study.compare.model import (
    CampaignSettings,
    ComparedLoad,
    ComparisonOptions,
    Decision,
    Line,
)
from loadgen.study.consistency import ceilings
from loadgen.study.consistency.ceilings import Hardware
from loadgen.study.run_summary import SESSION_MS, Reported, summarise_run

TABLES = read_tables("comparison")

SLOW, FAST = [100.0, 101.0, 99.0, 100.5, 99.5], [200.0, 203.0, 198.5, 200.5, 199.0]
BASE, FP8 = cells("Qwen3-8B", SLOW), cells("Qwen3-8B-FP8", FAST)
LOW = replace(HIGH, name="low-load")


def compared(*reported: list[Reported], failures: Any = (), **asked: Any) -> list[ComparedLoad]:
    return compare_runs([one for runs in reported for one in runs], ComparisonOptions(**asked), failures)


def only(found: list[ComparedLoad]) -> ComparedLoad:
    (one,) = found
    return one


def line(found: ComparedLoad, name: str) -> Line:
    return next(one for one in found.lines if one.name == name)


def call(found: ComparedLoad, name: str) -> Decision:
    return line(found, name).effects[found.headline].call


@pytest.mark.parametrize(("values", "said"), [
    (FAST, Decision.FASTER),
    ([value / 2 for value in SLOW], Decision.SLOWER),
    ([100.1, 100.9, 99.1, 100.4, 99.6], Decision.EQUIVALENT),
    ([120.0, 85.0, 101.0, 95.0, 110.0], Decision.UNDECIDED),
])  # fmt: skip
def test_a_row_gets_its_verdict(values: list[float], said: Decision) -> None:
    found = only(compared(BASE, cells("Qwen3-8B-FP8", values)))
    assert call(found, "Qwen3-8B-FP8") is said
    assert line(found, "Qwen3-8B").effects == {}


@pytest.mark.parametrize(("measured", "words"), [
    (cells, "its 2 runs are 3× apart in tok/s (100 to 300): find what differed"),
    (runs, "are these 2 runs repeats? They are 3× apart in tok/s (100 to 300); if not, name"),
])  # fmt: skip
def test_only_runs_outside_a_campaign_are_asked_whether_they_are_repeats(measured: Any, words: str) -> None:
    marks = line(only(compared(measured("Qwen3-8B", [100.0, 300.0]))), "Qwen3-8B").marks
    assert any(mark.startswith(words) for mark in marks), marks


def test_rows_of_all_loads_are_one_family() -> None:
    low = cells("Qwen3-8B", SLOW, LOW), cells("Qwen3-8B-FP8", FAST, LOW)
    tables = [only(compared(BASE, FP8)), *compared(BASE, FP8, *low)]
    p = [line(one, "Qwen3-8B-FP8").effects["output_throughput"].p_adjusted for one in tables]
    assert p == pytest.approx([p[0], 2 * p[0], 2 * p[0]])


@loop_over(("names", "asked", "baseline"), TABLES["baselines"])
def test_the_baseline(names: list[str], asked: dict[str, Any], baseline: str) -> None:
    if "campaign" in asked:
        asked = asked | {"campaign": CampaignSettings(asked["campaign"])}
    found = only(compared([run(name, 1.0 + at) for at, name in enumerate(names)], **asked))
    assert (found.baseline, found.lines[0].name) == (baseline, baseline)


def test_a_baseline_of_several_rows_is_the_first_as_the_first_table_says() -> None:
    rows = BASE, cells("Qwen3-8B", FAST, server="sglang"), cells("Qwen3-8B", SLOW, LOW)
    high, low = compared(*rows, baseline="Qwen3-8B")
    assert high.baseline == "Qwen3-8B on vllm"
    said = "Qwen3-8B is 2 rows, of which Qwen3-8B on vllm is the baseline"
    assert (said in high.remarks, said in low.remarks) == (True, False)


def test_what_a_roofline_lacks_stands_under_the_first_table_without_one() -> None:
    known, _ = ceilings.add_ceilings(list(thor()), Hardware.find("jetson-thor"))
    bare = cells("a", SLOW, replace(HIGH, name="another"))
    found = compare_runs([*known, *bare], ComparisonOptions(), lacking=["no roofline: a"])
    below = {one.load.name: [remark for remark in one.remarks if "roofline" in remark] for one in found}
    assert below == {"high": [], "low": [], "another": ["no roofline: a"]}


@pytest.mark.parametrize(("rate", "asked", "headline"), [
    (math.inf, "", "output_throughput"), (None, "", "output_throughput"), (4.0, "", "mean_ttft_ms"),
    (4.0, "mean_tpot_ms", "mean_tpot_ms"),
])  # fmt: skip
def test_the_headline(rate: float | None, asked: str, headline: str) -> None:
    load = replace(HIGH, request_rate_per_s=rate)
    assert only(compared(cells("a", SLOW, load), cells("b", FAST, load), headline=asked)).headline == headline


def test_a_row_under_another_load_is_shown_without_verdict() -> None:
    other = cells("Qwen3-8B-FP8", FAST, replace(HIGH, requests=200))
    found = line(only(compared(BASE, other)), "Qwen3-8B-FP8")
    assert found.summaries["output_throughput"].mean == pytest.approx(200.2)
    assert {(one.call, one.why) for one in found.effects.values()} == {(Decision.NONE, "unlike the baseline")}
    assert found.marks == ("not compared: requests: 200, baseline 100",)
    allowed = only(compared(BASE, other, allow_unlike=True))
    assert call(allowed, "Qwen3-8B-FP8") is Decision.FASTER
    assert line(allowed, "Qwen3-8B-FP8").marks == ("unlike the baseline: requests: 200, baseline 100",)
    low = cells("Qwen3-8B-FP8", FAST, replace(HIGH, name="low-load", max_concurrency=1))
    assert len(compared(BASE, low)) == 2
    assert call(only(compared(BASE, low, allow_unlike=True)), "Qwen3-8B-FP8") is Decision.FASTER


def test_invalid_runs_are_left_out_and_suspect_ones_marked() -> None:
    levels = [("INVALID", ("failures",)), ("SUSPECT", ("thin",)), ("VALID", ()), ("VALID", ()), ("VALID", ())]
    row = [
        replace(one, level=level, doubts=doubts)
        for one, (level, doubts) in zip(cells("Qwen3-8B-FP8", [1.0, *FAST[1:]]), levels, strict=True)
    ]
    found = line(only(compared(BASE, row)), "Qwen3-8B-FP8")
    assert found.effects["output_throughput"].units == 4
    assert found.summaries["output_throughput"].mean == pytest.approx(200.25)
    assert found.marks == (
        "1 of 5 runs: INVALID, left out: failures",
        "1 of 5 runs: SUSPECT: thin",
        "1 run without a partner, not paired",
    )


@loop_over("ttft", [-50.0, -0.0, math.inf, math.nan, 1e20])
def test_a_figure_that_no_measurement_gives_is_named_and_not_compared(ttft: float) -> None:
    row = runs("Qwen3-8B-FP8", FAST, figures={"mean_ttft_ms": ttft})
    found = line(only(compared(BASE, row)), "Qwen3-8B-FP8")
    assert "mean_ttft_ms" not in {*found.effects, *found.summaries}
    assert found.marks[0] == f"no measurement gives mean_ttft_ms {ttft:.6g}: not compared"
    assert found.effects["output_throughput"].call is Decision.FASTER


def test_failed_cells_are_failures_of_their_rows() -> None:
    lost = [failed("Qwen3-8B-FP8", "out of memory", 4), failed("Qwen3-8B-AWQ", "no kernel", 0)]
    lost += [failed("Qwen3-8B-AWQ", "no kernel", 1)]
    found = only(compared(BASE, cells("Qwen3-8B-FP8", FAST[:4]), failures=lost))
    assert {one.name: one.failures for one in found.lines} == {
        "Qwen3-8B": (),
        "Qwen3-8B-FP8": ("out of memory",),
        "Qwen3-8B-AWQ": ("2 cells: no kernel",),
    }
    assert line(found, "Qwen3-8B-AWQ").runs == ()
    hung = [failed("Qwen3-8B-FP8", "hung", profile="long")]
    loads = compared(BASE, cells("Qwen3-8B", SLOW, LOW), failures=hung)
    assert [(one.load.name, *(row.name for row in one.lines)) for one in loads] == [
        ("high-load", "Qwen3-8B"), ("low-load", "Qwen3-8B"), ("long", "Qwen3-8B-FP8"),
    ]  # fmt: skip


def test_without_the_baseline_a_load_has_figures_alone() -> None:
    rows = BASE, cells("a", FAST), cells("a", SLOW, LOW), cells("b", FAST, LOW)
    assert [one.baseline for one in compared(*rows)] == ["Qwen3-8B", "a"]
    high, found = compared(*rows, baseline="Qwen3-8B")
    assert {call(found, "a"), call(found, "b")} == {Decision.NONE}
    assert any("the baseline has no run here (Qwen3-8B)" in remark for remark in found.remarks)
    assert call(high, "a") is Decision.FASTER


def test_a_run_given_twice_is_used_where_it_was_named_itself() -> None:
    run = replace(cells("a", FAST)[0], source="runs/one")
    within, itself = replace(run, place="runs"), replace(run, place="runs/one")
    for given in ([within, itself], [itself, within]):
        (kept,), (repeated,) = run_groups.drop_repeated(given)
        assert (kept.place, repeated.place) == ("runs/one", "runs")


def answered(text: str) -> Fingerprint:
    from loadgen.features.fingerprint.answer_check import VERSION

    return Fingerprint(version=VERSION, answers=(GreedyAnswer(prompt="p", text=text),) * 4)


def test_fast_because_broken_is_named() -> None:
    good, bad = answered("The sky is blue since air scatters short waves more."), answered("!" * 60)
    base = [replace(one, fingerprint=good) for one in BASE]
    broken = [replace(one, fingerprint=bad) for one in cells("Qwen3-8B-FP8", FAST)]
    (first, *_) = line(only(compared(base, broken)), "Qwen3-8B-FP8").marks
    assert first.startswith(BROKEN)
    slow = [replace(one, fingerprint=bad) for one in cells("Qwen3-8B-FP8", [value / 3 for value in SLOW])]
    marks = line(only(compared(base, slow)), "Qwen3-8B-FP8").marks
    assert marks
    assert not any(mark.startswith(BROKEN) for mark in marks)


def test_where_answers_part_from_the_baselines_is_told_and_no_mark() -> None:
    base = [replace(one, fingerprint=answered("The sky is blue since air scatters.")) for one in BASE]
    other = [replace(one, fingerprint=answered("The sky is grey today.")) for one in cells("FP8", FAST)]
    found = only(compared(base, other))
    assert line(found, "FP8").answers == (
        f"first differs from {found.baseline} after 11 of 35 characters (median of 4 prompts)"
    )
    assert line(found, found.baseline).answers == ""
    assert not line(found, "FP8").marks
    remarks = comparison_report.make_passage(found, 1).remarks
    assert any(remark.startswith("FP8: outputs: first differs from") for remark in remarks)


def test_without_scipy_there_are_figures_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*(name for name in sys.modules if name.split(".")[0] == "scipy"), "scipy"]:
        monkeypatch.setitem(sys.modules, name, None)
    found = only(compared(BASE, FP8))
    effect = line(found, "Qwen3-8B-FP8").effects["output_throughput"]
    assert effect.call is Decision.NONE
    assert effect.ratio == pytest.approx(2.002, abs=0.01)
    assert "in the clone, .venv/bin/pip install '.[compare]'" in effect.why
    assert line(found, "Qwen3-8B-FP8").summaries["output_throughput"].units == 5


@pytest.mark.long
def test_ten_thousand_runs_are_compared() -> None:
    rows = [run(f"row {at}", 1.0 + at % 7 + at / 1e6) for at in range(10_000)]
    found = only(compare_runs(rows, ComparisonOptions()))
    assert sum(len(one.runs) for one in found.lines) == 10_000


NOISY = [120.0, 85.0, 101.0, 95.0, 110.0]
LONG = "Qwen3-Coder-30B-A3B-Instruct-with-a-name-that-nobody-reads-Int4-W4A16"


@pytest.fixture(scope="module")
def found() -> list[ComparedLoad]:
    """A campaign with everything in it: faster, undecided, refused, failed; a second load with one run."""
    rows = [
        *cells("Qwen3-8B", SLOW, memory_bytes=16 * 2**30, joules_per_token=0.5),
        *cells("Qwen3-8B-FP8", FAST, memory_bytes=9 * 2**30, joules_per_token=0.25),
        *cells(LONG, NOISY),
        *cells("Qwen3-8B-AWQ", FAST, replace(HIGH, requests=200)),
        *cells("Qwen3-8B", [50.0], replace(HIGH, name="low", max_concurrency=1)),
    ]
    return compare_runs(rows, ComparisonOptions(), [failed("Qwen3-8B-GGUF", "no kernel <for> it | at all\n")])


def write(comparisons: Sequence[ComparedLoad]) -> str:
    """The comparisons as a terminal has them."""
    return render_passages(comparison_report.make_load_passages(comparisons))


def write_markdown(comparisons: Sequence[ComparedLoad]) -> str:
    return render_passages(comparison_report.make_load_passages(comparisons), markdown=True)


def test_a_sentence_of_many_rows_is_told_once() -> None:
    rows = [run("base", 1.0), *(run(f"row {k}", 2.0) for k in range(3))]
    said = " ".join(write(compare_runs(rows, ComparisonOptions())).split())
    assert said.count("one run a side has no spread") == 1
    assert "row 0, row 1, row 2: one run a side" in said


def test_csv_has_every_digit(found: list[ComparedLoad]) -> None:
    rows = list(csv.DictReader(io.StringIO(comparison_report.render_csv(found))))
    by_row = {(one["checkpoint"], one["figure"]): one for one in rows}
    row, lost = by_row["Qwen3-8B-FP8", "output_throughput"], by_row["Qwen3-8B-GGUF", ""]
    effect = found[0].lines[1].effects["output_throughput"]
    assert (float(row["ratio"]), float(row["p_adjusted"])) == (effect.ratio, effect.p_adjusted)
    assert (row["call"], row["pairs"], row["paired"], row["headline"]) == ("faster", "5", "true", "true")
    assert (lost["mean"], lost["runs"]) == ("", "0")
    assert lost["failures"].startswith("no kernel")


def test_json_is_strict_and_whole(found: list[ComparedLoad]) -> None:
    told = json.loads(format_json(comparison_report.encode_comparisons(found)), parse_constant=pytest.fail)
    (high, low) = told["comparisons"]
    fast = high["rows"][1]
    effect = found[0].lines[1].effects["output_throughput"]
    assert fast["effects"]["output_throughput"]["p"] == effect.p
    assert fast["effects"]["memory_bytes"]["call"] == "no verdict"
    assert fast["speed_up"]["ratio"] == effect.ratio
    assert high["rows"][3]["speed_up"]["ratio"] is None
    assert high["load"]["request_rate_per_s"] == "inf"
    assert fast["runs"][0]["cell"]["repeat"] == 0
    known = {"mean": 50.0, "units": 1, "low": None, "high": None}
    assert low["rows"][0]["summaries"]["output_throughput"] == known


@pytest.mark.parametrize(("name", "width", "shown"), [
    ("short", 10, "short"),
    ("Qwen3-Coder-30B-AWQ-4bit", 16, "Qwen3…B-AWQ-4bit"),
    ("Qwen3-Coder-30B-AWQ-8bit", 16, "Qwen3…B-AWQ-8bit"),
])  # fmt: skip
def test_long_names_are_shortened_in_the_middle(name: str, width: int, shown: str) -> None:
    assert cut_middle(name, width) == shown
    assert len(shown) <= width


@loop_over(("load", "said"), TABLES["loads"])
def test_a_load_in_words(load: dict[str, Any], said: str) -> None:
    assert comparison_report.describe_load(Load(**load)) == said


def test_runs_that_lie_far_apart_have_words_and_no_digits() -> None:
    """By Student's t of two pairs the interval is from 0.00 to 10⁹, and the least effect 10¹⁰ %."""
    wild = [*cells("base", [100.0, 101.0]), *cells("row", [30.0, 900.0])]
    comparisons = compare_runs(wild, ComparisonOptions())
    page = html.unescape(write_markdown(comparisons))
    for text in (write(comparisons), page):
        assert "2 pairs lie too far apart to detect any difference" in " ".join(text.split())
        assert "465.0 ±>100%" in text
        assert "(not bounded)" in text
        assert "±>100%: the runs lie too far apart to bound their mean" in " ".join(text.split())
        assert not re.search(r"\d{6}", text)


def at(concurrency: int | None, **changes: object) -> Load:
    return replace(HIGH, name="", max_concurrency=concurrency, **changes)


def test_a_simulation_is_not_ranked_against_a_server() -> None:
    reported = [*runs("a", [1.0, 1.1, 1.0]), *runs("b", [9.0, 9.1, 9.0], simulated="instant")]
    text = write(compare_runs(reported, ComparisonOptions()))
    assert "no verdict    b (SIMULATED)" in text
    assert "b: not compared: a simulation, baseline a real server" in " ".join(text.split())


TURNS = [3, 3, 6]


def reported(name: str, cached: bool) -> Reported:
    rows = rows_of(TURNS)
    for row in rows:
        row.cached_tokens = row.cached_tokens if cached else 0
    result = made(TURNS, rows, label=name, started=WHEN + timedelta(minutes=cached))
    return summarise_run(Path(f"runs/{name}"), result)


def test_rows_of_sessions_are_compared_turn_by_turn() -> None:
    (compared,) = compare_runs([reported("warm", True), reported("cold", False)], ComparisonOptions())
    table = make_turn_table(compared)
    assert table is not None
    titles = [column.title for column in table.columns]
    assert titles == ["turn", "warm TTFT", "cached", "cold TTFT", "cached"]
    assert table.body[0] == ("1", "40.0", "0.0 %", "40.0", "0.0 %")
    assert table.body[1] == ("2", "40.0", "50.0 %", "40.0", "0.0 %")
    for shown in (write([compared]), write_markdown([compared])):
        assert "TTFT and cached share by turn" in shown


def test_a_sessions_duration_is_a_figure_of_the_comparison() -> None:
    one, other = reported("warm", True), reported("cold", False)
    assert one.figure(SESSION_MS) == pytest.approx((440 + 440 + 980) / 3)
    (compared,) = compare_runs([one, other], ComparisonOptions(headline=SESSION_MS))
    assert compared.headline == SESSION_MS
    assert "session ms" in write_markdown([compared])
    (alone,) = compare_runs([one], ComparisonOptions())
    assert make_turn_table(alone) is None
