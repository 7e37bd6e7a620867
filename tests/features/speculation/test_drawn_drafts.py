"""The split against the embedded engine, whose chances of acceptance and step times are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes.virtual_servers import EngineServer, engine_server
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.features.speculation.speculation_figures import Speculation, measure_speculation
from loadgen.report import run_directory

pytestmark = pytest.mark.long
CHANCES = (0.8, 0.7, 0.5, 0.4)
LENGTH = 1 + float(np.cumprod(CHANCES).sum())  # tokens a step: each draft token needs those before it
RUNS = 100


def measure(directory: Path, load: str, seed: int) -> tuple[Speculation, EngineServer]:
    """The split of a run of random ids, and the engine that it was measured on."""
    chances = ",".join(map(str, CHANCES))
    server = engine_server("--preset", "h20/qwen3-4b-bf16", "--acceptance", chances)
    ran = ["--run-dir", str(directory / str(seed)), "--seed", str(seed), *load.split()]
    with VirtualServing(server):
        assert cli.main(["bench", "--base-url", server.base_url, *ran]) == 0
    (run,) = (directory / str(seed)).iterdir()
    split = measure_speculation(run_directory.load(run))
    assert split is not None
    return split, server


def test_both_figures_are_within_1_percent_of_the_truth(tmp_path: Path) -> None:
    load = "--random-input-len 64 --random-output-len 512 --num-prompts 128 --max-concurrency 8"
    split, server = measure(tmp_path, f"{load} --continuous-usage", 0)
    steps = server.engine.metrics.histograms["inter_token_latency"]
    assert split.acceptance_length is not None
    assert split.step_ms is not None
    assert split.acceptance_length.mean == pytest.approx(LENGTH, rel=0.01)
    assert split.step_ms.mean == pytest.approx(1e3 * steps.sum_s / sum(steps.counts), rel=0.01)
    assert split.by_position == pytest.approx(tuple(np.cumprod(CHANCES)), rel=0.03)
    messages, counters = split.sources["messages"], split.sources["counters"]
    assert (messages.tokens, messages.steps) == (counters.tokens, counters.steps)
    past = counters.accepted - messages.accepted if counters.accepted and messages.accepted else -1
    assert 0 <= past <= 128 * len(CHANCES)  # of each answer's last draft


def test_95_percent_intervals_cover_in_93_to_98_of_100_runs(tmp_path: Path) -> None:
    load = "--random-input-len 64 --random-output-len 128 --random-range-ratio 0.5 --num-prompts 40"
    splits = [measure(tmp_path, f"{load} --max-concurrency 1", seed)[0] for seed in range(RUNS)]
    covered = {}
    for name in ("acceptance_length", "step_ms", "tpot_ms"):
        estimates = [getattr(split, name) for split in splits]
        over = "tokens" if name == "tpot_ms" else "steps"
        weights = [getattr(split.sources["messages"], over) for split in splits]
        truth = float(np.average([each.mean for each in estimates], weights=weights))  # of all runs' sums
        covered[name] = sum(each.low <= truth <= each.high for each in estimates)
    assert {name: count for name, count in covered.items() if not 93 <= count <= 98} == {}
