"""Layouts of a report: a run of ours printed as another client prints its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.report import report
from loadgen.report.result_block import LAYOUTS
from loadgen.study.importers.pasted import pasted_pages
from report.test_run_directory import made, saved


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_is_printed_in_any_layout_and_read_back(name: str) -> None:
    run = made()
    (known,) = pasted_pages.read_page(report.render_report(run, layout=name), Path("f"))
    assert known.figures["mean_ttft_ms"] == round(run.metrics.ttft.mean_ms, 2)
    assert known.figures["completed"] == run.metrics.completed


def test_sglangs_layout_has_its_percentiles_whatever_was_asked_for() -> None:
    text = report.render_report(
        made(keys={"metric_percentiles": "50", "percentile_metrics": "ttft"}), layout="sglang"
    )
    for label in ("P90 E2E Latency", "P95 TTFT", "P99 TPOT", "Max ITL", "Concurrency"):
        assert f"{label} (ms):" in text or f"{label}:" in text
    assert "Backend:                                 openai" in text


@pytest.mark.whole
def test_an_unknown_layout_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'vllm-0\.32'"):
        report.render_report(made(), layout="vllm-0.33")
    saved(tmp_path, made())
    for command in (["bench", "--layout", "sglan", "--run-dir", str(tmp_path / "runs")],
                    ["report", str(tmp_path), "--layout", "sglan"]):  # fmt: skip
        assert cli.main(command) == 2
        assert "no such layout, did you mean 'sglang'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
