"""The presets reproduce what was published, in virtual time."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from builders.virtual_engine import Outcome, closed_loop
from loadgen_servers.engine.presets import DEFAULT, Preset, Published, preset, presets
from loadgen_servers.engine.scheduler import Scheduler, Sequence

# vLLM's random dataset of mid-2025 cut prompts to 2048 tokens but never padded them: these nine of a
# hundred (seed 0, Qwen tokenizer) came out shorter. The ready check had sent the first: it was cached.
SHORT = {5: 1999, 12: 1901, 14: 2026, 28: 1994, 41: 1907, 57: 1891, 71: 2024, 84: 2012, 98: 2047}
CACHED_FIRST = 16
# The pages' mean TTFT at concurrency 1, after a run of the same prompts; no constant comes from them.
LOW_TTFT_MS = {"bf16": 78.19, "fp8": 23.06, "gptq-int4": 36.87, "gptq-int8": 50.83, "awq": 36.95}
TABLE = presets()
HIGH = {name: row for name, row in TABLE.items() if name.startswith("jetson-thor/")}
SPEED = {f"{name} {run.prompt_tokens}": (row, run) for name, row in TABLE.items() for run in row.published}
SPEED = {name: pair for name, pair in SPEED.items() if name.startswith("h20/")}


def outputs(run: Published) -> list[int]:
    """Output lengths that add up to the published total: what is missing is taken from a few requests."""
    lengths = [run.output_tokens] * run.requests
    missing = sum(lengths) - run.total_output_tokens
    short = -(-missing // (run.output_tokens // 2))
    for i in range(short):
        lengths[(2 * i + 1) * run.requests // (2 * short)] -= missing // short + (i < missing % short)
    return lengths


def simulate(row: Preset, run: Published) -> Outcome:
    prompts = [run.prompt_tokens] * run.requests
    if run.concurrency > 1:
        prompts = [SHORT.get(i % 100, run.prompt_tokens) for i in range(run.requests)]
        prompts[0] = CACHED_FIRST
    scheduler = Scheduler(row.limits, row.timing)
    return closed_loop(scheduler, zip(prompts, outputs(run), strict=True), run.concurrency)


def test_every_preset_names_its_source_and_can_run() -> None:
    assert DEFAULT in TABLE
    for row in TABLE.values():
        assert row.source
        assert row.limits.max_num_batched_tokens >= row.limits.max_num_seqs
        assert row.max_model_len <= row.limits.kv_cache_tokens


@loop_over("row", HIGH.values())
def test_high_load_is_as_published(row: Preset) -> None:
    run = next(run for run in row.published if run.concurrency == 8)
    outcome = simulate(row, run)
    assert outcome.output_tokens == run.total_output_tokens
    assert outcome.duration_ns / 1e9 == pytest.approx(run.duration_s, rel=0.01)
    assert outcome.gap_percentile_ns(50) / 1e6 == pytest.approx(run.median_itl_ms, rel=0.01)
    # Nothing was fitted to these three.
    assert outcome.mean_tpot_ns / 1e6 == pytest.approx(run.mean_tpot_ms, rel=0.07)
    assert outcome.mean_ttft_ns / 1e6 == pytest.approx(run.mean_ttft_ms, rel=0.23)
    assert outcome.gap_percentile_ns(99) / 1e6 == pytest.approx(run.p99_itl_ms, rel=0.17)


@loop_over("row", HIGH.values())
def test_low_load_decodes_as_published_and_prefills_for_real(row: Preset) -> None:
    low = next(run for run in row.published if run.concurrency == 1)
    outcome = simulate(row, low)
    assert outcome.mean_tpot_ns / 1e6 == pytest.approx(low.mean_tpot_ms, rel=0.01)
    # The published low-load TTFT (a prefix-cache hit) is below two decodes; a real prefill is not.
    assert outcome.mean_ttft_ns > 4 * outcome.mean_tpot_ns


@loop_over(("name", "published_ms"), LOW_TTFT_MS.items())
def test_the_published_low_load_ttft_is_that_of_a_prompt_sent_before(name: str, published_ms: float) -> None:
    row = TABLE[f"jetson-thor/qwen3-8b-{name}"]
    scheduler = Scheduler(row.limits, row.timing)
    ttfts_ms, now_ns = [], 0
    for _ in range(2):
        request = Sequence(2048, 128, 2176, now_ns, blocks=tuple(range(1, 129)))
        scheduler.add(request)
        while (step := scheduler.begin(now_ns)) is not None:
            scheduler.end(step, now_ns := step.end_ns)
        ttfts_ms.append((request.first_ns - request.arrived_ns) / 1e6)
    assert request.cached_tokens == 2032
    # What is left is their way through the server and the client: the same for every weight format.
    assert published_ms - ttfts_ms[1] == pytest.approx(15.0, abs=0.6)
    assert published_ms < ttfts_ms[0] / 5


@loop_over(("row", "run"), SPEED.values())
def test_batch_one_speed_is_as_published(row: Preset, run: Published) -> None:
    assert simulate(row, run).duration_ns / 1e9 == pytest.approx(run.duration_s, rel=0.016)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="nearest is 'jetson-thor/qwen3-8b-awq'"):
        preset("jetson-thor/qwen3-8b-aqw")
