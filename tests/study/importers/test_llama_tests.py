"""Rows of prefill and of decoding are two things: llama-bench's tests, and columns that name the phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.importers.pasted import pasted_tables
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

PAGES = Path(__file__).parent / "pages"
BENCH, BENCHY, EDGE = (
    (PAGES / f"{name}.md").read_text("utf-8") for name in ("llama_bench", "llama_benchy", "edge_llm")
)


def read(page: str) -> list[Reported]:
    return pasted_tables.read_tables(page, Path("page.md"))[0]


def test_prefill_and_decoding_of_an_honest_page_are_valid() -> None:
    prefilled, decoded = audit_runs(read(BENCHY), machines.find_machine("dgx-spark"), None)
    assert (prefilled.level, decoded.level) == (Level.VALID, Level.VALID)
    assert prefilled.roofline == pytest.approx(0.30, abs=0.01)  # of the arithmetic
    assert decoded.roofline == pytest.approx(0.82, abs=0.01)  # of the memory
    assert [one.unchecked for one in (prefilled, decoded)] == [("relations",)] * 2


def test_prefill_decoding_and_depths_are_never_one_mean() -> None:
    tables_made = compare_runs(read(BENCH), ComparisonOptions())
    assert len(tables_made) == 4
    lines = [line.summaries for table in tables_made for line in table.lines]
    speeds = [line.get("prefill_throughput") or line["decode_throughput"] for line in lines]
    assert [speed.mean for speed in speeds] == [3120.44, 45.2, 2710.02, 41.83]
