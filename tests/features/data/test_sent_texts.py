"""What recorded prompts share, and how often a fall of TTFT is taken for a cache, rightly or not."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base.arrays import Float64
from loadgen.facts.run_facts import EarlierRun
from loadgen.features.data.data_checks import has_fallen
from loadgen.features.data.sent_texts import compare_answers, count_shared_bytes


@loop_over(
    ("texts", "shared"),
    [
        ([], 0),
        ([b"abc"], 0),
        ([b"abc", b"xyz"], 0),
        ([b"abc", b"abd"], 2),
        ([b"abc", b"abc"], 3),
        ([b"abcd", b"ab", b"abcx"], 2 + 3),
        ([b"ax", b"ay", b"bx", b"by"], 1 + 1),
        ([b"", b"a", b""], 0),
    ],
)
def test_the_shared_bytes_are_those_that_an_earlier_text_begins_with(texts: list[bytes], shared: int) -> None:
    for order in permutations(texts):
        seen: set[bytes] = set()
        found = 0
        for text in order:
            beginnings = [text[:end] for end in range(1, len(text) + 1)]
            found += sum(beginning in seen for beginning in beginnings)
            seen |= {*beginnings}
        assert count_shared_bytes(list(order)) == found == shared


def draw_answers(rng: np.random.Generator, lengths: Float64, wave: int, **of: Any) -> Float64:
    """TTFT and TPOT (ns) of prompts of such lengths: a queue in each wave, and one speed of the run."""
    speed = rng.lognormal(0, of.get("run_sd", 0.1))
    prefill = 5 + lengths * 0.1 * (1 - of.get("cached", 0.0))
    position = np.arange(len(lengths)) % wave
    waits = np.array([prefill[at - place : at].sum() for at, place in enumerate(position)])
    noise = rng.lognormal(0, of.get("sd", 0.3), len(lengths))
    ttft = speed * noise * (prefill + waits) * rng.lognormal(0, of.get("ttft_sd", 0.0))
    ttft[:wave] *= of.get("warm_up", 1.0)
    tpot = speed * rng.lognormal(0, 0.05, len(lengths)) * 10
    return np.stack([ttft, tpot], axis=1) * 1e6


def find_falls(runs: int, requests: int, wave: int, first: dict[str, Any], later: dict[str, Any]) -> float:
    """The share of later runs that are taken for cached ones."""
    found = 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, requests, wave])
        lengths = rng.lognormal(np.log(500), 0.7, requests)
        before, now = (draw_answers(rng, lengths, wave, **of) for of in (first, later))
        found += has_fallen(compare_answers(before, now, wave))
    return found / runs


# Requests, at once: one after another, in waves, all in one.
LOADS = [(16, 1), (24, 2), (64, 8), (200, 16), (40, 40)]
NOISES: list[dict[str, float]] = [
    {"sd": 0.1, "run_sd": 0.05},
    {"sd": 0.3, "run_sd": 0.1, "ttft_sd": 0.1},
    {"sd": 0.5, "run_sd": 0.15, "ttft_sd": 0.2},
]


def check_calibration(runs: int, most_false: float, least_power: float) -> None:
    """Repeats of the same work are hardly ever taken for cached ones, a warm-up or not; cached ones are."""
    for (requests, wave), noise in product(LOADS, NOISES):
        warmed = 4.0 if requests > wave + 10 else 1.0  # a first run of one wave that warmed up is as a cache
        false = find_falls(runs, requests, wave, {**noise, "warm_up": warmed}, noise)
        power = find_falls(runs, requests, wave, noise, {**noise, "cached": 0.95})
        assert false <= most_false, (requests, wave, noise, false)
        assert power >= least_power, (requests, wave, noise, power)


def test_a_fall_of_ttft_tells_cached_repeats_from_others() -> None:
    check_calibration(20, 0.05, 0.85)


@pytest.mark.long
def test_the_error_rates_of_the_fall_of_ttft() -> None:
    check_calibration(1000, 0.02, 0.95)


@loop_over(
    ("fell", "ratio", "tpot_ratio", "is_fall"),
    [
        (24, 0.2, 1.0, True),
        (24, 0.49, 1.0, True),
        (24, 0.51, 1.0, False),
        (24, 0.5, 0.5, False),  # all of it is faster
        (24, 0.2, 0.5, True),
        (24, 0.49, 2.0, True),
        (12, 0.2, 1.0, False),  # as many rose
    ],
)
def test_a_fall_is_large_of_ttft_alone_and_of_nearly_all(
    fell: int, ratio: float, tpot_ratio: float, is_fall: bool
) -> None:
    assert has_fallen(EarlierRun(24, fell, 100.0, 100 * ratio, ratio, tpot_ratio)) is is_fall
