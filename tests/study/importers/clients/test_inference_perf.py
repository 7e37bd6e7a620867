"""llm-d's reports in YAML are read as those in JSON; damage, and a library that is missing, is one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.study.importers import result_sources

RESULTS = Path(__file__).parents[3] / "data" / "results"


def test_a_real_report_is_the_same_in_both_forms() -> None:
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
        ("request_performance:\n" + "a: 1\n" * 220_000, "has more than 1 MiB of YAML: give it in parts, or"),
        ("request_performance: " + "[" * 9000, "is damaged: maximum recursion depth"),
        ("request_performance:\n  - a: {]", "is not valid YAML: while parsing a flow node"),
        ("request_performance: !!python/object:os.x {}", "could not determine a constructor"),
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


def test_without_the_library_of_yaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="is YAML, which needs the compare extra"):
        result_sources.read_sources([str(RESULTS / "llm_d_0.2.1.yaml")])
