"""First wave: a warm server's is never doubted however few the waves, a cold one's is found."""

from __future__ import annotations

import numpy as np
import pytest

from builders.made_cases import SLOTS, closed, run
from loadgen.verdict.server_checks import first_wave

_RUNS = 20  # docs/validity.md has the counts of 200


def is_doubted(waves: int, cold: float, spread: float, seed: int) -> bool:
    """Whether a run is doubted whose waves vary, log-normal, with first TTFTs `cold` times as long."""
    rng, requests = np.random.default_rng(seed), waves * SLOTS
    ttft_ms = (
        20 * np.exp(spread * rng.normal(size=waves)).repeat(SLOTS) * np.exp(0.1 * rng.normal(size=requests))
    )
    ttft_ms[:SLOTS] *= cold
    tpot_ms = 5 * np.exp(spread / 1.5 * rng.normal(size=waves)).repeat(SLOTS)
    rows = closed(lambda i: float(ttft_ms[i]), lambda i: float(tpot_ms[i]), requests=requests)
    return first_wave.find(run(rows, {"num_prompts": requests}, requests=requests)) is not None


@pytest.mark.parametrize("waves", [4, 8])
@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_a_warm_server_is_not_doubted_and_a_cold_one_is(waves: int, spread: float) -> None:
    assert sum(is_doubted(waves, 1.0, spread, seed) for seed in range(_RUNS)) == 0
    assert sum(is_doubted(waves, 20.0, spread, seed) for seed in range(_RUNS)) >= 0.8 * _RUNS
