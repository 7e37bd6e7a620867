"""Render and export: 80 columns that can be read, Markdown, CSV and JSON with every digit."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cells, failed, run, runs
from builders.loops import loop_over
from builders.made_cases import WHEN
from builders.made_sessions import made, rows_of
from loadgen.base.passages import render_passages
from loadgen.base.tables import cut_middle
from loadgen.base.text import format_json
from loadgen.report.load_identity import Load
from loadgen.study.compare import comparison_report
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.comparison_report import SweptLoads, make_turn_table
from loadgen.study.compare.model import ComparedFigure, ComparedLoad, ComparisonOptions
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import SESSION_MS, Reported, summarise_run

SLOW, FAST = [100.0, 101.0, 99.0, 100.5, 99.5], [200.0, 203.0, 198.5, 200.5, 199.0]
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


def test_what_is_undecided_says_what_it_takes(found: list[ComparedLoad]) -> None:
    said = " ".join(write(found).split())
    effect = next(line for line in found[0].lines if line.name == LONG).effects["output_throughput"]
    assert effect.more_runs is not None
    assert f"5 pairs detect no less than {100 * effect.detectable:.2g} % (statistical power 80 %)" in said
    assert f"about {effect.more_runs} more runs per side would decide it" in said


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


def test_the_speed_up_of_a_latency_is_above_1_where_it_is_faster() -> None:
    load = replace(HIGH, request_rate_per_s=4.0)
    one = compare_runs([*cells("a", SLOW, load), *cells("b", FAST, load)], ComparisonOptions())[0]
    effect = one.lines[1].effects["mean_ttft_ms"]
    ratio, low, high = comparison_report.compute_speed_up(effect)
    assert effect.ratio < 1 < low < ratio < high


@pytest.mark.parametrize(("name", "width", "shown"), [
    ("short", 10, "short"),
    ("Qwen3-Coder-30B-AWQ-4bit", 16, "Qwen3…B-AWQ-4bit"),
    ("Qwen3-Coder-30B-AWQ-8bit", 16, "Qwen3…B-AWQ-8bit"),
])  # fmt: skip
def test_long_names_are_shortened_in_the_middle(name: str, width: int, shown: str) -> None:
    assert cut_middle(name, width) == shown
    assert len(shown) <= width


@loop_over(("mean", "half", "shown"), [
    (82.472, 0.4149, "82.47 ±0.41"), (5052.48, 14.2, "5052 ±14"), (0.0312, 0.001, "0.03 ±0.00"),
    (298.07, math.nan, "298.1"), (992.3, 164.0, "992 ±164"), (102.2, 16.7, "102 ±17"), (0.0, math.nan, "0"),
])  # fmt: skip
def test_figures_have_four_digits(mean: float, half: float, shown: str) -> None:
    figure = ComparedFigure("output_throughput", "tok/s", True)
    assert comparison_report.format_spread(figure, Mean(mean, half)) == shown


@loop_over(("load", "said"), [
    ({}, "unknown load"),
    ({"name": "input 6144"}, "input 6144"),
    ({"input_len": 2041.69, "output_len": 128.0}, "2041.7 in / 128 out"),
    ({"requests": 1, "max_concurrency": 1, "request_rate_per_s": 0.5},
     "1 request, one at a time, 0.5 requests/s"),
])  # fmt: skip
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


def test_a_failed_starts_log_keeps_its_lines() -> None:
    log = (
        'Traceback (most recent call last):\n  File "serve.py", line 5, in <module>\n    start()\nOSError: x'
    )
    begun = "vllm ended with 1: no kernels; its whole log: a/server.log"
    why = "\n  | ".join([begun, *log.splitlines()])
    comparisons = compare_runs(cells("base", SLOW), ComparisonOptions(), [failed("row", why)])
    lines = write(comparisons).splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith("a/server.log"))
    assert lines[at + 1 : at + 5] == [f"      | {line}" for line in log.splitlines()]
    assert "Traceback" not in write_markdown(comparisons)


def at(concurrency: int | None, **changes: object) -> Load:
    return replace(HIGH, name="", max_concurrency=concurrency, **changes)


def arranged(reported: Sequence[Reported]) -> SweptLoads:
    return comparison_report.arrange_loads(compare_runs(reported, ComparisonOptions()))


SWEEP = [("a", "1 at a time"), ("a", "2 at a time"), ("a", "8 at a time")]
BOTH = [*SWEEP, *(("b", load) for _, load in SWEEP)]


@loop_over(("reported", "rows", "compared"), [
    pytest.param([run("a", 1.0, at(n)) for n in (8, 1, 2)], SWEEP, 0, id="one model"),
    pytest.param([run(m, 1.0, at(n)) for n in (8, 1, 2) for m in "ab"], BOTH, 3, id="two models"),
    pytest.param([run(m, 1.0, at(n)) for n in (8, 1) for m in "ab"], [], 2, id="two loads, compared"),
    pytest.param([run("a", 1.0, at(1)), run("a", 1.0, at(8)), run("b", 1.0, at(8))],
                 [("a", "1 at a time"), ("a", "8 at a time")], 1, id="one of two loads is compared"),
    pytest.param([run("a", 1.0, HIGH), run("a", 2.0, replace(HIGH, name="low", input_len=64.0))],
                 [("a", "8 at a time"), ("a", "8 at a time")], 0, id="two profiles of other lengths"),
    pytest.param([run("a", 1.0)], [], 1, id="one run"),
    pytest.param([run("a", 1.0), run("b", 1.0)], [], 1, id="one load"),
])  # fmt: skip
def test_what_is_a_row_of_loads_and_what_is_compared(
    reported: list[Reported], rows: list[tuple[str, str]], compared: int
) -> None:
    found = arranged(reported)
    assert [(row.name, row.load.pressure_words) for row in found.rows] == rows
    assert len(found.compared) == compared


def test_counted_lengths_are_one_to_a_hundredth_and_asked_ones_are_rows() -> None:
    counted = arranged([run("a", 1.0, at(n, input_len=2048.0 + n)) for n in (1, 2, 8)])
    assert [row.load.lengths[0] for row in counted.rows] == [2049.0, 2049.0, 2049.0]
    asked = [at(8, input_len=float(length), asked_input_len=length) for length in (1000, 1005, 1024)]
    found = arranged([run("a", 1.0, load) for load in asked])
    assert [row.load.lengths[0] for row in found.rows] == [1000, 1005, 1024]


def test_runs_of_different_durations_are_rows_of_their_own() -> None:
    timed = [run("a", 1.0, at(n, duration_s=duration)) for n, duration in ((8, 20.0), (8, 8.2), (4, 5.0))]
    assert [row.load.duration_words for row in arranged(timed).rows] == ["5 s", "20 s", "8.2 s"]


def test_a_saturated_row_has_the_tokens_that_arrived_and_no_latency() -> None:
    measured = [made_runs.run(concurrency=1), made_runs.saturated(concurrency=8, seed=2)]
    first, second = arranged([made_runs.reported(each) for each in measured]).rows
    assert (first.saturated, second.judged) == (False, "saturated")
    assert second.figures["output_throughput"].mean == 24 * 16 / measured[1].metrics.duration_s
    assert "mean_ttft_ms" not in second.figures
    assert second.figures["failed"].mean == 0


def test_repeats_are_a_mean_with_its_interval_and_the_gravest_verdict() -> None:
    reported = [
        *runs("a", [10.0, 12.0, 11.0], at(1), level="VALID"), run("a", 9.0, at(1), level="SUSPECT"),
        *runs("a", [20.0], at(2), level="VALID"), run("a", 1.0, at(2), level="INVALID"),
    ]  # fmt: skip
    first, second = arranged(reported).rows
    figure = first.figures["output_throughput"]
    assert (figure.mean, first.runs, first.verdict) == (10.5, 4, "SUSPECT")
    assert figure.half == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2)
    assert (second.figures["output_throughput"].mean, second.runs, second.verdict) == (20.0, 2, "INVALID")


def test_marks_of_a_row_name_its_load() -> None:
    suspect = {"level": "SUSPECT", "doubts": ("thin",)}
    reported = [run("a", 1.0, at(1)), run("a", 2.0, at(2), **suspect), run("a", 3.0, at(8), **suspect)]
    assert arranged(reported).notes == ["2 at a time; 8 at a time: SUSPECT: thin"]
    named = arranged([*reported, run("b", 2.0, at(4), **suspect)])
    assert named.notes == ["a, 2 at a time; a, 8 at a time; b, 4 at a time: SUSPECT: thin"]


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
