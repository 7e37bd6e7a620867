"""Rankings, the effect of quantization, what fits, and qualities: the RTX PRO 6000 page's tables and ours."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH, cells, run
from builders.loops import read_tables
from builders.made_qualities import interval, quality, reference, rows
from builders.required import require
from loadgen.study.compare import comparison_report
from loadgen.study.compare.comparison import BROKEN, compare_runs
from loadgen.study.compare.comparison_report import compute_need
from loadgen.study.compare.model import CampaignSettings, ComparedLoad, ComparisonOptions
from loadgen.study.compare_command import (
    list_qualities,
)
from loadgen.study.quality.arm_qualities import make_quality_passage
from loadgen.study.quality.quality_record import describe_usual_kl
from loadgen.study.run_summary import Reported

TABLES = read_tables("rankings")

GIB = 2**30


def test_a_refused_row_is_in_no_effect_and_starred_in_the_ranking() -> None:
    rows = [*cells("Qwen3-8B", [100.0]), *cells("Qwen3-8B-FP8", [200.0], replace(HIGH, requests=200))]
    (one,) = compare_runs(rows, ComparisonOptions())
    assert [row[1] for row in comparison_report.make_ranking_table(one).body] == ["Qwen3-8B-FP8*", "Qwen3-8B"]
    assert comparison_report.make_effect_table(one).body == (("8B", "Qwen3-8B", "100.0"),)


@pytest.mark.parametrize(("told", "how", "gib"), [
    ({"memory_bytes": 12 * GIB, "engine": "transformers serve 5"}, "measured", 12.0),
    ({"memory_bytes": 90 * GIB, "engine": "vLLM 0.11.0"}, "computed", 17.4),
    ({"memory_bytes": 90 * GIB, "engine": ""}, "computed", 17.4),
    ({"weight_bytes": 10 * GIB}, "files + KV", 12.1),
])  # fmt: skip
def test_what_a_checkpoint_needs(told: dict[str, Any], how: str, gib: float) -> None:
    needed, by = compute_need("Qwen3-8B", [run("Qwen3-8B", 1.0, **told)])
    assert (round(needed, 1), by) == (gib, how)
    assert compute_need("x", [run("x", 1.0, weight_bytes=3 * GIB)]) == (4.0, "files, no KV")
    assert compute_need("x", [run("x", 1.0)])[1] == "unknown model"


SLOW, FAST = [100.0, 101.0, 99.0, 100.5, 99.5], [200.0, 202.0, 199.0, 201.0, 198.0]
NEAR = quality(0.0031, 0.0004, perplexity_ratio=interval(1.002, 0.0005))
BROAD = quality(0.0125, 0.003)
FAR = quality(0.31, 0.02, agreement=None, why={"agreement": "it reports no first choices"}, doubts=("odd",))


def compared(*given: list[Reported], margin: float | None = None) -> list[ComparedLoad]:
    ask = ComparisonOptions(campaign=CampaignSettings(baseline="bf16", kl_margin=margin))
    return compare_runs([run for runs in given for run in runs], ask)


BASE = rows("bf16", SLOW, reference())
ALL = compared(BASE, rows("fp8", FAST, NEAR), rows("nvfp4", FAST, BROAD), rows("int2", FAST, FAR))


def test_the_table_has_each_row_once_with_verdict_and_why() -> None:
    table = require(make_quality_passage(list_qualities([*ALL, *ALL], ())).table)
    assert [column.title for column in table.columns] == [
        "checkpoint", "KL", "top-1 %", "perplexity", "verdict",
    ]  # fmt: skip
    assert [list(row) for row in table.body] == TABLES["qualities"]
    assert list(table.notes[1:]) == TABLES["notes"]
    usual = [describe_usual_kl(nats) for nats in (1e-4, 0.5)]
    assert [each[:25] for each in usual] == ["less than is usual for 8 ", "more than is usual for 2 "]


def test_the_margin_is_the_campaigns() -> None:
    (found,) = compared(BASE, rows("nvfp4", FAST, BROAD), margin=0.05)
    assert found.kl_margin == 0.05
    (row,) = [row for row in list_qualities([found], ()) if row.name == "nvfp4"]
    assert require(row.verdict).text == "same within 0.05 nats a token"


def test_a_faster_row_far_from_the_reference_may_be_broken() -> None:
    (found,) = ALL
    marks = {line.name: [mark for mark in line.marks if "KL" in mark] for line in found.lines}
    far = "KL 0.310 ±0.020 nats a token from the reference, over 10 × 0.01"
    assert marks == {"bf16": [], "fp8": [], "nvfp4": [], "int2": [f"{BROKEN} {far}"]}
    (slow,) = compared(rows("bf16", FAST, reference()), rows("int2", SLOW, FAR))
    assert [mark for line in slow.lines for mark in line.marks if "KL" in mark] == [far]
