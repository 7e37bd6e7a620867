"""What the published pages hold is found: what cannot be, what should not be, and nothing else."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from builders.required import require
from loadgen.facts.ceiling import Ceiling
from loadgen.features.roofline import bound
from loadgen.features.roofline.bound import Lengths
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.features.roofline.machines import find_machine, make_machine
from loadgen.study.speed.speed_rows import OUTPUT, SpeedRow, convert_speed, list_published

TABLES = read_tables("roofline")
PUBLISHED = Path(__file__).parents[2] / "data" / "published"
THOR = find_machine("jetson-thor")


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


BLOCKS = {f"{row['model']} {row['load']}": row for row in rows("jetson_thor_serving.csv")}
SPEEDS = {row["model"]: float(row["tok_s"]) for row in rows("rtx_pro_6000_speed.csv")}


def block(name: str) -> tuple[dict[str, float], Lengths]:
    row = BLOCKS[name]
    limit = row["Maximum request concurrency"]
    return {key: float(row[title]) for title, key in TABLES["columns"].items()}, Lengths(
        max_concurrency=int(limit) if limit else None
    )


def on_thor(name: str) -> Ceiling:
    return estimate_ceiling(BLOCKS[name]["model"], THOR)


def test_tokens_per_second_and_the_share_count_a_drafts_tokens_alike() -> None:
    name = "Qwen3-8B low"
    figures, load = block(name)
    for length in (1.0, 2.5):
        drafted = {**figures, "spec_decode_acceptance_length": length}
        step = require(bound.compare_decode(on_thor(name), drafted, load))
        assert step.per_step == length
        assert step.reached_tps / step.best_tps == pytest.approx(step.share, rel=1e-12)


@loop_over("model", TABLES["low load on Thor"])
def test_low_load_on_thor_next_to_the_roofline(model: str) -> None:
    """In per cent: decoding, prefill."""
    name = f"{model} low"
    step = require(bound.compare_decode(on_thor(name), *block(name)))
    prompt = require(bound.compare_prefill(on_thor(name), *block(name)))
    assert (step.batch, step.by) == (1.0, "mean TPOT")
    shares = [round(100 * step.share), round(100 * require(prompt.share))]
    assert shares == TABLES["low load on Thor"][model]


IMPOSSIBLE = TABLES["impossible on Thor"]


@loop_over("name", BLOCKS)
def test_what_thor_cannot_do_is_named_with_its_figures(name: str) -> None:
    said = bound.explain_impossible(on_thor(name), *block(name)) or ""
    assert all(words in said for words in IMPOSSIBLE.get(name, [])), said
    assert bool(said) == (name in IMPOSSIBLE), said


def test_a_server_that_speculates_may_decode_so_fast_and_not_prefill() -> None:
    said = require(
        bound.explain_impossible(on_thor("Qwen3-8B-FP8 low"), *block("Qwen3-8B-FP8 low"), speculative=True)
    )
    assert said.startswith("2043 tokens prefilled")


@loop_over("name", BLOCKS)
def test_a_fallback_is_named_by_the_median_gap_of_a_high_load(name: str) -> None:
    said = bound.explain_fallback(on_thor(name), *block(name))
    assert said == (
        "88.76 ms per token (median ITL) is 25.6 % of the roofline: 22.8 ms for 6.21 GB at 273 GB/s; "
        "effective bandwidth 70 GB/s"
        if name == "Qwen3-8B-GGUF high"
        else None
    )


def test_the_rtx_pages_own_bandwidth_is_too_little_for_its_own_speed() -> None:
    found = estimate_ceiling("Qwen3-4B", make_machine(1536))
    said = bound.explain_impossible(found, {"speed_tok_s": SPEEDS["Qwen3-4B"]}, Lengths()) or ""
    assert "1.09 × the 1536" in said


MACHINES = {"H20-96GB": "h20-96gb", "A100-80GB": "a100-80gb"}
LADDERS = [row for row in list_published() if row.speed_tok_s is not None]


def ladder(row: SpeedRow) -> tuple[Ceiling, dict[str, float], Lengths]:
    assert row.speed_tok_s is not None
    speed = convert_speed(float(row.speed_tok_s), row.formula, OUTPUT, row.input_length, row.output_length)
    found = estimate_ceiling(
        row.model, find_machine(f"{row.gpu_num or 1}x{MACHINES[row.gpu]}"), quantization=row.quantization
    )
    return found, {"speed_tok_s": speed}, Lengths(row.input_length, row.output_length, 1)


def test_one_row_of_the_qwen_pages_beats_the_roofline() -> None:
    served = [
        row for row in LADDERS if row.backend != "Transformers" and bound.explain_fallback(*ladder(row))
    ]
    assert [(row.model, row.quantization, row.gpu_num, row.input_length) for row in served] == [
        ("Qwen2.5-72B-Instruct", "GPTQ-Int4", 1, 6144)  # enforce_eager, memory nearly full
    ]


QWEN = estimate_ceiling("Qwen3-8B", make_machine(1000))  # a step of 15.14 ms


def run(**figures: Any) -> dict[str, Any]:
    return {"mean_tpot_ms": 60.0, "mean_itl_ms": 60.0, "median_itl_ms": 60.0, **figures}


LOADED = Lengths(100, 100, 4)


@loop_over(
    ("figures", "load", "found"),
    [
        pytest.param(run(), Lengths(100, 100, 1), True, id="alone, by TPOT"),
        pytest.param(run(), LOADED, True, id="several, by the median gap"),
        pytest.param(run(median_itl_ms=20.0), LOADED, False, id="prefill made TPOT slow"),
        pytest.param(run(mean_itl_ms=240.0), LOADED, False, id="several tokens a message"),
        pytest.param(run(), Lengths(100_000, 100, 4), False, id="most steps have a prompt in them"),
        pytest.param(run(mean_tpot_ms=50.0), Lengths(100, 100, 1), False, id="30 % and more"),
        pytest.param({"speed_tok_s": 17.0}, Lengths(1, 2048, 1), True, id="a speed"),
        pytest.param(run(mean_tpot_ms=None), LOADED, False, id="no TPOT"),
        pytest.param({}, LOADED, False, id="nothing"),
    ],
)
def test_a_fallback_is_only_named_where_steps_are_known(
    figures: dict[str, Any], load: Lengths, found: bool
) -> None:
    assert bool(bound.explain_fallback(QWEN, figures, load)) == found


def test_below_five_milliseconds_nobody_is_accused() -> None:
    quick = estimate_ceiling("Qwen3-0.6B", make_machine(1000))
    assert bound.explain_fallback(quick, run(), Lengths(100, 100, 1)) is None


def test_the_batch_is_how_many_decode_on_average() -> None:
    figures = run(request_throughput=2.0, mean_tpot_ms=20.0)
    step = require(bound.compare_decode(QWEN, figures, Lengths(1000, 101, 8)))
    assert (step.batch, step.context) == (4.0, 1050.5)
    few = require(bound.compare_decode(QWEN, figures, Lengths(1000, 101, 2)))
    assert few.batch == 2.0


def test_ttft_is_judged_alone_and_where_the_peak_is_known() -> None:
    figures = run(mean_ttft_ms=1.0)
    thor = estimate_ceiling("Qwen3-8B", THOR)
    assert bound.compare_prefill(thor, figures, LOADED) is None
    assert "tokens prefilled" in (bound.explain_impossible(thor, figures, Lengths(1000, 100, 1)) or "")
    alone = require(bound.compare_prefill(QWEN, figures, Lengths(1000, 100, 1)))
    assert (alone.least_ms, alone.share) == (None, None)


def test_a_report_has_the_best_and_what_was_reached() -> None:
    assert bound.render_lines(on_thor("Qwen3-8B low"), *block("Qwen3-8B low")) == [
        "roofline: 17.7 tok/s at best (15.4 GB a token, Jetson AGX Thor (T5000) at 273 GB/s); reached "
        "15.7 tok/s (mean TPOT), 88.9 %, 243 GB/s",
        "prefill: 29.6 TFLOP in 78.19 ms (mean TTFT), 379 TFLOP/s of 258 (bf16), 147 %",
        "weights: computed from the config of Qwen/Qwen3-8B, config.json as BF16 (16 bits)",
    ]
    high = bound.render_lines(on_thor("Qwen3-8B high"), *block("Qwen3-8B high"))
    assert "a step of 6.94 requests" in high[0]
    assert high[0].endswith("203 GB/s; includes the prefill of other requests")
    assert bound.render_lines(QWEN, {}, LOADED) == []
