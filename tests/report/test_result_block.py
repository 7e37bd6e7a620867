from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.made_records import make_record
from loadgen.base.errors import UsageError
from loadgen.figures.metrics import BlockFacts, Metrics, compute_metrics, list_figures, list_sglang_figures
from loadgen.figures.per_request import MetricOptions
from loadgen.records.record import Records
from loadgen.report.result_block import LAYOUTS, Layout, find_layout, render_block
from loadgen.study.importers.pasted import pasted_blocks

RESULTS = Path(__file__).parents[1] / "data" / "results"
RECORDED = json.loads((RESULTS / "vllm_bench_serve.json").read_text())


def run(**ask: Any) -> Metrics:
    ns = 1_000_000
    record = make_record(
        1000 * ns, np.array([1100, 1110, 1120]) * ns, intended_ns=990 * ns, end_ns=1500 * ns, input_tokens=5,
        output_tokens=3,
    )  # fmt: skip
    return compute_metrics(Records.from_records([record]), MetricOptions(**ask))


def labels(text: str) -> list[str]:
    return [line.partition(":")[0] for line in text.splitlines() if ":" in line]


def headers(text: str) -> list[str]:
    return [line.strip("-") for line in text.splitlines() if line.startswith("--")]


def test_the_recorded_figures_render_to_the_recorded_block_byte_for_byte() -> None:
    printed = (RESULTS / "vllm_bench_serve.stdout.txt").read_text()
    assert render_block(RECORDED) + "\n" == printed[printed.index("============ Serving") :]


def test_a_plain_run_prints_the_lines_of_the_recorded_block_and_no_other() -> None:
    text = render_block(list_figures(run(), BlockFacts(max_concurrency=8)))
    assert labels(text) == labels(render_block(RECORDED))
    assert headers(text) == headers(render_block(RECORDED))


def test_whole_answers_show_e2el_in_place_of_the_stream_s_metrics() -> None:
    text = render_block(list_figures(run(streamed=False), BlockFacts()))
    assert headers(text) == ["End-to-end Latency"]
    assert "Peak output token throughput (tok/s)" not in labels(text)
    assert f"{'Mean E2EL (ms):':<40} 500.00    " in text


def test_a_metric_of_nothing_is_left_out_rather_than_zero() -> None:
    nothing = compute_metrics(Records.from_records([]), MetricOptions())
    assert headers(render_block(list_figures(nothing, BlockFacts()))) == []


PUBLISHED = Path(__file__).parents[1] / "data" / "published"
NUMBER = {True: float, False: int}


def published_figures(row: dict[str, str]) -> dict[str, float]:
    """A published row under vLLM's result keys: its columns are the labels of the block, of 2025 as well."""
    layout = LAYOUTS["vllm-0.32"]
    labels = {one.label.lower(): one.key for one in layout.rows}
    for section in layout.sections:
        for word, key in (("Mean", "mean"), ("Median", "median"), ("P99", "p99")):
            labels[f"{word} {section.name} (ms):".lower()] = f"{key}_{section.key}_ms"
    return {
        labels[f"{name.lower()}:"]: NUMBER["." in value](value)
        for name, value in row.items()
        if f"{name.lower()}:" in labels and value
    }


def test_every_block_of_the_jetson_page_is_read_as_its_published_row() -> None:
    page = (PUBLISHED / "jetson_thor_serving.md").read_text("utf-8")
    blocks = re.findall(r"^=+ Serving Benchmark Result =+$.*?^=+$", page, re.M | re.S)
    with (PUBLISHED / "jetson_thor_serving.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    read = [pasted_blocks.parse_block(block.splitlines())[0] for block in blocks]
    assert sorted(map(repr, map(sorted, map(dict.items, read)))) == sorted(
        repr(sorted(published_figures(row).items())) for row in rows
    )


def every_figure(shape: Layout) -> dict[str, Any]:
    """A figure for each line that a layout can have, every one of its own."""
    told: dict[str, Any] = {}
    for number, row in enumerate(shape.rows, 1):
        whole = not row.spec or row.key == "max_concurrent_requests"  # which vLLM prints with decimals
        told[row.key] = f"word{number}" if row.text else number * 1000 + (0 if whole else 0.25)
    for number, section in enumerate(shape.sections, 100):
        words = ["mean", "median", "p50", "p99", "p99.9", *["max"] * section.most]
        key = section.key + "_ms" * (section.unit == "ms")
        told |= {f"{word}_{key}": number + i / 100 for i, word in enumerate(words)}
    return told


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_figure_of_every_layout_is_read_back_as_it_was_printed(name: str) -> None:
    told = every_figure(LAYOUTS[name])
    text = render_block(told, LAYOUTS[name])
    figures, _ = pasted_blocks.parse_block(text.splitlines())
    assert figures == told
    assert render_block(figures, LAYOUTS[name]) == text


def test_sglangs_layout_says_what_is_not_set_and_what_is_unlimited() -> None:
    text = render_block({"request_rate": "inf", "max_concurrency": None}, LAYOUTS["sglang"])
    assert f"{'Traffic request rate:':<40} inf       " in text.splitlines()
    assert f"{'Max request concurrency:':<40} not set   " in text.splitlines()
    assert "not set" not in render_block({}, LAYOUTS["sglang"])
    limited = render_block({"request_rate": 2.0, "max_concurrency": 3}, LAYOUTS["sglang"]).splitlines()
    assert f"{'Traffic request rate:':<40} 2.0       " in limited
    assert f"{'Max request concurrency:':<40} 3         " in limited


def test_sglangs_concurrency_is_latencies_of_successes_over_duration() -> None:
    assert list_sglang_figures(run()) == {
        "total_input_text_tokens": 5,
        "input_throughput": 10.0,
        "concurrency": 0.12 / 0.5,
        "max_itl_ms": 10.0,
    }
    assert not any(list_sglang_figures(compute_metrics(Records.from_records([]), MetricOptions())).values())


def test_an_unknown_layout_is_refused_with_the_nearest() -> None:
    assert find_layout(None) is find_layout("vllm-0.32") is LAYOUTS["vllm-0.32"]
    with pytest.raises(
        UsageError, match=r"--layout sglan: no such layout, did you mean 'sglang'\?; there are vllm"
    ):
        find_layout("sglan")
