"""Render and export: 80 columns that can be read, Markdown, CSV and JSON with every digit."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re

import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH, cells, failed, run, thor
from builders.loops import loop_over
from loadgen.base.text import WIDTH, format_json
from loadgen.report.load_identity import Load
from loadgen.study.compare import comparison_report
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparedFigure, ComparedLoad, ComparisonOptions
from loadgen.study.repeats import Mean
from loadgen.study.tables import cut_middle

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


def test_the_text_can_be_read(found: list[ComparedLoad]) -> None:
    said = comparison_report.render_text(found[:1])
    assert max(map(len, said.splitlines())) <= WIDTH
    lines = said.splitlines()
    assert lines[0] == "high-load: 2048 in / 128 out, 100 requests, 8 at a time"
    assert lines[2].split() == ["tok/s", "TTFT", "ms", "TPOT", "ms", "GiB", "J/token"]
    assert lines[3].split() == ["Qwen3-8B", "baseline"]
    assert lines[4].split() == ["100.0", "±1.0", "1000", "±10", "80.00", "±0.79", "16.00", "0.500"]
    assert lines[5].split() == ["Qwen3-8B-FP8", "2.00×", "(1.99–2.01)", "faster"]
    assert lines[6].split()[:3] == ["200.2", "±2.2", "+"]
    assert lines[7].split()[0] == cut_middle(LONG, 44)
    assert lines[9].split() == ["Qwen3-8B-AWQ", "no", "verdict"]
    assert lines[11].split() == ["Qwen3-8B-GGUF", "failed"]
    assert "marks:" in lines
    assert "  Qwen3-8B-AWQ: not compared: requests: 200, baseline 100" in lines
    assert "  Qwen3-8B-GGUF: no kernel <for> it | at all" in lines


def test_what_is_undecided_says_what_it_takes(found: list[ComparedLoad]) -> None:
    said = " ".join(comparison_report.render_text(found).split())
    effect = next(line for line in found[0].lines if line.name == LONG).effects["output_throughput"]
    assert effect.more_runs is not None
    assert f"5 pairs detect no less than {100 * effect.detectable:.2g} % (statistical power 80 %)" in said
    assert f"about {effect.more_runs} more runs per side would decide it" in said


def test_a_sentence_of_many_rows_is_told_once() -> None:
    rows = [run("base", 1.0), *(run(f"row {k}", 2.0) for k in range(3))]
    said = " ".join(comparison_report.render_text(compare_runs(rows, ComparisonOptions())).split())
    assert said.count("one run a side has no spread") == 1
    assert "row 0, row 1, row 2: one run a side" in said


def test_markdown_is_a_table_and_a_list(found: list[ComparedLoad]) -> None:
    said = comparison_report.render_markdown(found[:1]).splitlines()
    assert said[0] == "### high-load: 2048 in / 128 out, 100 requests, 8 at a time"
    assert said[2].startswith("| checkpoint | tok/s | TTFT ms | TPOT ms |")
    assert said[5].startswith("| Qwen3-8B-FP8 | 200.2 ±2.2 (faster) |")
    assert said[5].endswith("| 2.00× (1.99–2.01) | faster |")
    assert any("&lt;for&gt; it \\| at all" in line for line in said)
    columns = {line.count(" | ") for line in said[2:] if line.startswith("| ")}
    assert len(columns) == 1


def test_csv_has_every_digit(found: list[ComparedLoad]) -> None:
    rows = list(csv.DictReader(io.StringIO(comparison_report.render_csv(found))))
    row = next(
        one for one in rows if (one["checkpoint"], one["figure"]) == ("Qwen3-8B-FP8", "output_throughput")
    )
    effect = found[0].lines[1].effects["output_throughput"]
    assert (float(row["ratio"]), float(row["p_adjusted"])) == (effect.ratio, effect.p_adjusted)
    assert (row["call"], row["pairs"], row["paired"], row["headline"]) == ("faster", "5", "true", "true")
    lost = next(one for one in rows if one["checkpoint"] == "Qwen3-8B-GGUF")
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
    assert low["rows"][0]["summaries"]["output_throughput"] == {
        "mean": 50.0,
        "units": 1,
        "low": None,
        "high": None,
    }


def test_the_speed_up_of_a_latency_is_above_1_where_it_is_faster() -> None:
    load = replace(HIGH, request_rate_per_s=4.0)
    one = compare_runs([*cells("a", SLOW, load), *cells("b", FAST, load)], ComparisonOptions())[0]
    effect = one.lines[1].effects["mean_ttft_ms"]
    ratio, low, high = comparison_report.compute_speed_up(effect)
    assert effect.ratio < 1 < low < ratio < high


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("short", 10, "short"),
        ("Qwen3-Coder-30B-AWQ-4bit", 16, "Qwen3…B-AWQ-4bit"),
        ("Qwen3-Coder-30B-AWQ-8bit", 16, "Qwen3…B-AWQ-8bit"),
    ],
)
def test_long_names_are_shortened_in_the_middle(name: str, width: int, shown: str) -> None:
    assert cut_middle(name, width) == shown
    assert len(shown) <= width


@loop_over(
    ("mean", "half", "shown"),
    [
        (82.472, 0.4149, "82.47 ±0.41"),
        (5052.48, 14.2, "5052 ±14"),
        (0.0312, 0.001, "0.03 ±0.00"),
        (298.07, math.nan, "298.1"),
        (992.3, 164.0, "992 ±164"),
        (102.2, 16.7, "102 ±17"),
        (0.0, math.nan, "0"),
    ],
)
def test_figures_have_four_digits(mean: float, half: float, shown: str) -> None:
    figure = ComparedFigure("output_throughput", "tok/s", True)
    assert comparison_report.format_spread(figure, Mean(mean, half)) == shown


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (Load(), "unknown load"),
        (Load(name="input 6144"), "input 6144"),
        (Load(input_len=2041.69, output_len=128.0), "2041.7 in / 128 out"),
        (
            Load(requests=1, max_concurrency=1, request_rate_per_s=0.5),
            "1 request, one at a time, 0.5 requests/s",
        ),
    ],
)
def test_a_load_in_words(load: Load, said: str) -> None:
    assert comparison_report.describe_load(load) == said


def test_the_thor_page_renders_in_every_form() -> None:
    found = compare_runs(list(thor()), ComparisonOptions())
    assert max(map(len, comparison_report.render_text(found).splitlines())) <= WIDTH
    assert comparison_report.render_markdown(found).count("### ") == 2
    assert len(list(csv.DictReader(io.StringIO(comparison_report.render_csv(found))))) == 16 * 3
    assert len(json.loads(format_json(comparison_report.encode_comparisons(found)))["comparisons"]) == 2


def test_runs_that_lie_far_apart_have_words_and_no_digits() -> None:
    """By Student's t of two pairs the interval is from 0.00 to 10⁹, and the least effect 10¹⁰ %."""
    wild = [*cells("base", [100.0, 101.0]), *cells("row", [30.0, 900.0])]
    comparisons = compare_runs(wild, ComparisonOptions())
    texts = (
        comparison_report.render_text(comparisons),
        html.unescape(comparison_report.render_markdown(comparisons)),
    )
    for text in texts:
        assert "row: 2 pairs lie too far apart to detect any difference" in " ".join(text.split())
        assert "465.0 ±>100%" in text
        assert "(not bounded)" in text
        assert "±>100%: the runs lie too far apart to bound their mean" in " ".join(text.split())
        assert not re.search(r"\d{6}", text)


def test_a_failed_starts_log_keeps_its_lines() -> None:
    log = (
        "Traceback (most recent call last):",
        '  File "serve.py", line 5, in <module>',
        "    start()",
        "OSError: x",
    )
    why = "vllm ended with 1: no kernels; its whole log: a/server.log" + "".join(
        f"\n  | {line}" for line in log
    )
    comparisons = compare_runs(cells("base", SLOW), ComparisonOptions(), [failed("row", why)])
    lines = comparison_report.render_text(comparisons).splitlines()
    at = lines.index("  row: vllm ended with 1: no kernels; its whole log: a/server.log")
    assert lines[at + 1 : at + 5] == [f"      | {line}" for line in log]
    assert "Traceback" not in comparison_report.render_markdown(comparisons)
