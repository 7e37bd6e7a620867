"""Rankings, the effect of quantization, what fits: the RTX PRO 6000 page's tables and ours."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH, cells, rtx, run
from builders.loops import loop_over
from loadgen.base.text import WIDTH
from loadgen.study.compare import rankings
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.compare.rankings import Model, Need, compute_need
from loadgen.study.tables import render_text_table

GIB = 2**30


@loop_over(
    ("name", "model", "params", "kind"),
    [
        ("Qwen3-4B-AWQ", ("Qwen3-4B", "AWQ"), "4B", "Dense AWQ"),
        ("Qwen3-4B", ("Qwen3-4B", ""), "4B", "Dense BF16"),
        ("Qwen3-30B-A3B", ("Qwen3-30B-A3B", ""), "30B (3B active)", "MoE BF16"),
        (
            "Qwen3-Coder-30B-A3B-Instruct-AWQ-8bit",
            ("Qwen3-Coder-30B-A3B-Instruct", "AWQ-8bit"),
            "30B (3B active)",
            "MoE AWQ-8bit",
        ),
        ("Qwen3-8B-Int4-W4A16", ("Qwen3-8B", "Int4-W4A16"), "8B", "Dense Int4-W4A16"),
        ("EXAONE-3.5-7.8B", ("EXAONE-3.5-7.8B", ""), "7.8B", "Dense BF16"),
        ("nobody-knows", ("nobody-knows", ""), "-", "Dense BF16"),
    ],
)
def test_a_name_is_base_model_and_quantization(
    name: str, model: tuple[str, str], params: str, kind: str
) -> None:
    found = Model.parse(name)
    assert ((found.base, found.quantization), found.params, found.type) == (model, params, kind)


def test_the_ranking_of_the_rtx_page() -> None:
    (one,) = compare_runs(list(rtx()), ComparisonOptions())
    table = rankings.make_ranking_table(one)
    assert [column.title for column in table.columns] == ["rank", "model", "params", "type", "tok/s"]
    assert table.body[:4] == (
        ("1", "Qwen3-4B-AWQ", "4B", "Dense AWQ", "391.2"),
        ("2", "Qwen3-4B", "4B", "Dense BF16", "208.1"),
        ("3", "Qwen3-8B-AWQ", "8B", "Dense AWQ", "208.0"),
        ("4", "Qwen3-30B-A3B", "30B (3B active)", "MoE BF16", "168.9"),
    )
    assert max(map(len, render_text_table(table).splitlines())) <= WIDTH


def test_the_effect_of_quantization_on_the_rtx_page() -> None:
    (one,) = compare_runs(list(rtx()), ComparisonOptions())
    table = rankings.make_effect_table(one)
    assert [column.title for column in table.columns] == ["size", "model", "BF16", "AWQ"]
    cells_of = {row[1]: row for row in table.body}
    assert cells_of["Qwen3-4B"] == ("4B", "Qwen3-4B", "208.1", "391.2 (1.88×)")
    assert cells_of["Qwen3-8B"] == ("8B", "Qwen3-8B", "-", "208.0")
    assert cells_of["EXAONE-3.5-7.8B"][2:] == ("95.2", "-")


def test_a_refused_row_is_in_no_effect_and_starred_in_the_ranking() -> None:
    rows = [*cells("Qwen3-8B", [100.0]), *cells("Qwen3-8B-FP8", [200.0], replace(HIGH, requests=200))]
    (one,) = compare_runs(rows, ComparisonOptions())
    assert [row[1] for row in rankings.make_ranking_table(one).body] == ["Qwen3-8B-FP8*", "Qwen3-8B"]
    assert rankings.make_effect_table(one).body == (("8B", "Qwen3-8B", "100.0"),)


def test_rows_on_two_servers_have_an_effect_each() -> None:
    rows = [
        row
        for server, times in (("vllm", 1.0), ("sglang", 2.0))
        for row in [
            *cells("Qwen3-8B", [100.0 * times], server=server),
            *cells("Qwen3-8B-FP8", [150.0 * times * times], server=server),
        ]
    ]
    (one,) = compare_runs(rows, ComparisonOptions())
    assert {row[1:] for row in rankings.make_effect_table(one).body} == {
        ("Qwen3-8B on vllm", "100.0", "150.0 (1.50×)"),
        ("Qwen3-8B on sglang", "200.0", "600.0 (3.00×)"),
    }


@pytest.mark.parametrize(
    ("told", "how", "gib"),
    [
        ({"memory_bytes": 12 * GIB, "engine": "transformers serve 5"}, "measured", 12.0),
        ({"memory_bytes": 90 * GIB, "engine": "vLLM 0.11.0"}, "computed", 17.4),
        ({"memory_bytes": 90 * GIB, "engine": ""}, "computed", 17.4),
        ({"weight_bytes": 10 * GIB}, "files + KV", 12.1),
    ],
)
def test_what_a_checkpoint_needs(told: dict[str, Any], how: str, gib: float) -> None:
    found = compute_need("Qwen3-8B", [run("Qwen3-8B", 1.0, **told)])
    assert found.how == how
    assert found.gib == pytest.approx(gib, abs=0.1)


def test_a_model_nobody_knows() -> None:
    assert compute_need("x", [run("x", 1.0, weight_bytes=3 * GIB)]) == Need(4.0, "files, no KV")
    assert compute_need("x", [run("x", 1.0)]).how == "unknown model"


def test_what_fits_of_the_rtx_page() -> None:
    table = rankings.make_fit_table(compare_runs(list(rtx()), ComparisonOptions()))
    assert [column.title for column in table.columns] == [
        "model",
        "GiB",
        "8",
        "16",
        "24",
        "48",
        "96",
        "how known",
    ]
    answers = {row[0]: row[2:7] for row in table.body}
    assert answers["Qwen3-4B-AWQ"] == ("yes",) * 5
    assert answers["Qwen3-4B"] == ("no", "yes", "yes", "yes", "yes")
    assert answers["Qwen3-30B-A3B"] == ("no", "no", "no", "no", "yes")
    assert "8192 tokens" in table.notes[0]


def test_more_context_needs_more() -> None:
    runs = [run("Qwen3-8B", 1.0)]
    more = compute_need("Qwen3-8B", runs, 32768).gib - compute_need("Qwen3-8B", runs, 8192).gib
    assert more == pytest.approx(24576 * 36 * 2 * 8 * 128 * 2 / GIB)
