"""The ceiling's formulas by hand, and the embedded engine by the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders.loops import loop_over
from builders.virtual_engine import closed_loop
from loadgen.base.errors import UsageError
from loadgen.facts.ceiling import Ceiling, Machine, Weights
from loadgen.features.roofline import estimate
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.features.roofline.machines import find_machine, make_machine
from loadgen.features.roofline.models import list_models
from loadgen_servers.engine.presets import given
from loadgen_servers.engine.scheduler import Scheduler
from loadgen_servers.engine.step_times import Age, RooflineTiming, Work

GB = 10**9
BOX = Machine(
    key="box",
    name="box",
    bandwidth_bytes_per_s=100e9,
    peak_flop_per_s={"bf16": 1e12},
    memory_bytes=64 * GB,
    source="made up",
)
DENSE = Weights(
    how="made up",
    total_bytes=11 * GB,
    dense_bytes=10 * GB,
    kv_bytes_per_token=10**6,
    flop_per_token=9e9,
    head_flop=1e9,
    pair_flop=1e6,
    computes="bf16",
)
MIXTURE = DENSE.model_copy(
    update={"dense_bytes": GB, "expert_bytes": GB, "experts": 8, "experts_per_token": 2}
)
WINDOWED = DENSE.model_copy(
    update={"window": 100, "window_kv_bytes_per_token": 10**7, "window_pair_flop": 1e7}
)


def on(weights: Weights, box: Machine = BOX) -> Ceiling:
    return Ceiling(machine=box, model="m", weights=weights)


@loop_over(
    ("weights", "batch", "context", "expected"),
    [
        (DENSE, 1, 0, 10 * GB),
        (DENSE, 1, 2000, 12 * GB),
        (DENSE, 4, 2000, 18 * GB),
        (MIXTURE, 1, 0, 3 * GB),  # two experts of eight
        (MIXTURE, 2, 0, GB + 8 * GB * (1 - 0.75**2)),
        (MIXTURE, 1000, 0, 9 * GB),
        (WINDOWED, 1, 50, 10 * GB + 50 * (10**6 + 10**7)),
        (WINDOWED, 2, 1000, 10 * GB + 2 * (10**9 + 10**9)),
    ],
)
def test_a_step_reads_weights_and_the_contexts_of_its_requests(
    weights: Weights, batch: float, context: float, expected: float
) -> None:
    found = on(weights)
    assert found.step_bytes(batch, context) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "tokens", "flop"),
    [
        (DENSE, 1000, 9e12 + 1e9 + 1e6 * 1e6 / 2),
        (WINDOWED, 80, 9e9 * 80 + 1e9 + (1e6 + 1e7) * 80 * 80 / 2),
        (WINDOWED, 1000, 9e12 + 1e9 + 1e6 * 1e6 / 2 + 1e7 * (100 * 1000 - 100 * 100 / 2)),
    ],
)
def test_a_prompt_passes_the_parameters_and_half_of_its_pairs(
    weights: Weights, tokens: int, flop: float
) -> None:
    found = on(weights)
    assert found.prefill_flop(tokens) == pytest.approx(flop)
    assert found.prefill_ms(tokens) == pytest.approx(flop / 1e9)
    assert on(weights, make_machine(100)).prefill_ms(tokens) is None


def engine(found: Ceiling) -> RooflineTiming:
    return RooflineTiming(**json.loads(json.dumps(found.timing())))


REAL = {
    "dense": estimate_ceiling("Qwen3-8B-FP8", find_machine("jetson-thor")),
    "mixture": estimate_ceiling("Qwen3-30B-A3B", find_machine("jetson-thor")),
    "latent": estimate_ceiling("DeepSeek-V3", find_machine("8xh200")),
    "windowed": estimate_ceiling("gemma-3-12b-it", find_machine("l4")),
    "experts in four bits": estimate_ceiling("gpt-oss-20b", find_machine("h20-96gb")),
    "bandwidth alone": estimate_ceiling("Qwen3-8B", make_machine(100)),
}


@loop_over("name", REAL)
@loop_over("batch", [1, 2, 8, 64, 500])
@loop_over("context", [1, 900, 2112, 40_000])
def test_the_embedded_engine_decodes_in_the_ceilings_time(name: str, batch: int, context: int) -> None:
    found = REAL[name]
    took_ns = engine(found).step_ns(Work(batch, 0, batch * context, 0), Age(0, 0))
    assert took_ns / 1e6 == pytest.approx(found.tpot_ms(batch, context), rel=1e-6)


@pytest.mark.parametrize("name", ["dense", "mixture", "latent"])
def test_the_embedded_engine_prefills_in_the_ceilings_time(name: str) -> None:
    found, tokens = REAL[name], 8000
    took_ns = engine(found).step_ns(Work(0, tokens, 0, tokens * tokens // 2), Age(0, 0))
    least = found.prefill_ms(tokens)
    assert least is not None
    read = 1e3 * found.weight_bytes(tokens) / found.machine.bandwidth_bytes_per_s
    assert took_ns / 1e6 == pytest.approx(max(least, read), rel=1e-3)  # but for the one head


def make_preset(name: str, config: Path | None = None) -> str:
    """A preset as a command names it."""
    return estimate.make_preset(SimpleNamespace(preset=name, model_config=config and str(config)))


def test_a_run_on_such_an_engine_takes_what_the_ceiling_says() -> None:
    name = "roofline/jetson-thor/Qwen3-30B-A3B"
    played = given(make_preset(name))
    assert (played.name, played.model) == (name, "Qwen3-30B-A3B")
    outcome = closed_loop(Scheduler(played.limits, played.timing), [(2048, 128)] * 3, concurrency=1)
    assert outcome.mean_tpot_ns / 1e6 == pytest.approx(REAL["mixture"].tpot_ms(1, 2048 + 64), rel=1e-3)


@loop_over(
    ("name", "said"),
    [
        ("roofline/jetson-thor", "write roofline/MACHINE/MODEL"),
        ("roofline/jetson-thor/", "write roofline/MACHINE/MODEL"),
        ("roofline/jetson-thr/Qwen3-8B", "the nearest is jetson-thor"),
        ("roofline/jetson-thor/tiny", "pass --model-config"),
        ("roofline/l4/Qwen3-32B", "65.5 GB of weights do not fit L4's 24 GB"),
    ],
)
def test_a_preset_that_cannot_be_says_why(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_preset(name)


def test_a_preset_of_a_model_that_only_its_config_tells() -> None:
    config = Path(__file__).parents[1] / "data" / "configs" / "qwen3-8b.json"
    played = given(make_preset("roofline/l40s/mine/tuned", config))
    assert played.model == "mine/tuned"
    assert played.limits.kv_cache_tokens == int(0.9 * 48e9 - 2 * list_models()["Qwen3-8B"].total) // 147_456


@pytest.mark.parametrize("text", ["{", "{}", '{"name": "a", "model": "m"}', "[]"])
def test_a_preset_that_is_no_row_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--preset-json"):
        given(text)


def test_a_preset_with_a_constant_that_is_none_is_refused() -> None:
    row = json.loads(make_preset("roofline/l4/Qwen3-0.6B"))
    row["timing"]["dense_hours"] = 1.0
    with pytest.raises(ValueError, match="dense_hours"):
        given(json.dumps(row))


@loop_over(
    ("name", "model", "expected"),
    [
        ("roofline/jetson-thor/Qwen/Qwen3-8B", "x", ("jetson-thor", "Qwen/Qwen3-8B")),
        ("h20/qwen3-8b-fp8", "Qwen/Qwen3-8B-FP8", ("h20-96gb", "Qwen/Qwen3-8B-FP8")),
        ("jetson-thor/qwen3-8b-bf16", "Qwen/Qwen3-8B", ("jetson-thor", "Qwen/Qwen3-8B")),
        ("instant", "instant", None),
        ("bench/1024x50", "bench", None),
    ],
)
def test_what_a_preset_plays(name: str, model: str, expected: tuple[str, str] | None) -> None:
    assert estimate.find_simulated(name, model) == expected
