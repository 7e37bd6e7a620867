"""Block YAML: what programs dump is read as they wrote it; damage is one line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.study.importers import result_sources
from loadgen.study.importers.clients.inference_perf import parse_block

RESULTS = Path(__file__).parents[3] / "data" / "results"


@loop_over(
    ("text", "parsed"),
    [
        ("", None),
        ("a: 1\nb: 2.5\nc: null\nd:\ne: ''\n", {"a": 1, "b": 2.5, "c": None, "d": None, "e": ""}),
        ("# said\n---\na:\n  b:\n    c: true\n  d: x\n", {"a": {"b": {"c": True}, "d": "x"}}),
        ("a:\n- 1\n- x\n- b: 2\n  c: 3\n-\nd: 4\n", {"a": [1, "x", {"b": 2, "c": 3}, None], "d": 4}),
        ("a:\n  - - x\n    - true\n  - []\nb: {}\n", {"a": [["x", True], []], "b": {}}),
        ("- a: 1\n- a: 2\n", [{"a": 1}, {"a": 2}]),
        ("--port: '80'\nurl: http://x:80/a\n'2': 1e-3\n",
         {"--port": "80", "url": "http://x:80/a", "2": 1e-3}),
        ("a: one\n  and more\nb: 'x: y'\n", {"a": "one", "b": "x: y"}),
        ("a: 0.1.2\nb: 2025-11-05T18:00:42Z\nc: 1_000\n",
         {"a": "0.1.2", "b": "2025-11-05T18:00:42Z", "c": "1_000"}),
        ("a: NaN\nb: .inf\nc: " + "9" * 30 + "\n", {"a": math.nan, "b": math.inf, "c": 1e30}),
        ("{]:\n\t\x00- - -\n", {}),
    ],
)  # fmt: skip
def test_a_dump_is_what_it_was(text: str, parsed: Any) -> None:
    assert json.dumps(parse_block(text)) == json.dumps(parsed)


def test_a_real_report_is_the_same_in_both_forms() -> None:
    text, same = ((RESULTS / f"llm_d_0.2.1.{form}").read_text("utf-8") for form in ("yaml", "json"))
    assert parse_block(text) == json.loads(same)
    runs = [
        result_sources.read_sources([str(RESULTS / f"llm_d_0.2.1.{form}")]).reported
        for form in ("yaml", "json")
    ]
    assert [run.figures for run in runs[0]] == [run.figures for run in runs[1]]


def test_the_report_of_a_tool_is_read_by_the_tools_words() -> None:
    (run,) = result_sources.read_sources([str(RESULTS / "llm_d_aiperf_0.2.yaml")]).reported
    known = {
        "mean_tpot_ms": 11.7452, "p99_tpot_ms": 13.7627, "mean_ttft_ms": 120.9825, "completed": 500,
        "median_e2el_ms": 2459.8133, "output_throughput": 1276.2052, "request_throughput": 6.381,
    }  # fmt: skip
    assert {key: run.figures[key] for key in known} == pytest.approx(known)
    assert not [key for key in run.figures if key.endswith("_itl_ms")]
    assert (run.name, run.load.requests, run.load.max_concurrency) == ("Qwen3-8B", 500, 16)
    assert run.remarks == ("llm-d: measured by aiperf",)


@loop_over(
    ("text", "why"),
    [
        ("".join("  " * depth + "request_performance:\n" for depth in range(60)), "has more than 40 levels"),
        ("request_performance:\n" + "a: 1\n" * 200_001, "has more than 200000 lines: give it in parts"),
        ("results:\n  request_performance:\n    aggregate:\n      latency:\n        x: 1\n",
         "has no figures"),
        ("request_performance: 1\n", "has no known results"),
    ],
)  # fmt: skip
def test_a_broken_report_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "br.yaml").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=why) as refused:
        result_sources.read_sources([str(tmp_path / "br.yaml")])
    assert "\n" not in str(refused.value)
