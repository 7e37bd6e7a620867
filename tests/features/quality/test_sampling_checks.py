"""Samples are held to what the server reports of them, and its noise is not held against it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from builders.loops import loop_over
from builders.markov_chain import MarkovModel, disturb, make_chain, normalize
from loadgen.features.quality.quality_record import SampledAnswer
from loadgen.features.quality.sampling_checks import check_sampling


@loop_over("floor", [0.001, 0.01, 0.05])
def test_scores_that_are_noisy_are_no_doubt(floor: float) -> None:
    reference = make_chain()
    paths = reference.walk(np.arange(60), 64, np.random.default_rng(1))
    noisy = disturb(reference, floor, seed=2)
    assert check_sampling(reference.answer(paths), [noisy.score(path) for path in paths]) == ()


@loop_over(("temperature", "scale"), [(0.7, "1.3"), (0.9, "1.1"), (1.1, "0.9"), (1.25, "0.8")])
def test_scores_at_another_temperature_are_a_doubt(temperature: float, scale: str) -> None:
    """The server reports what it sampled from, which is not what it scores prompts by."""
    reference = make_chain()
    processed = MarkovModel(normalize(reference.logprobs / temperature))
    paths = processed.walk(np.arange(60), 64, np.random.default_rng(1))
    (doubt,) = check_sampling(processed.answer(paths), [reference.score(path) for path in paths])
    assert doubt.startswith(f"the log-probabilities of its samples are scaled by {scale}")


@pytest.mark.parametrize("ties", [1, 2, 3])
def test_tied_tokens_are_counted_together(ties: int) -> None:
    """Of several equally probable tokens, which are listed is arbitrary: here none that was sampled is."""
    listed = (math.log(0.5), math.log(0.1))
    sampled = [SampledAnswer((1,), (2,), (math.log(0.1),), (listed,)) for _ in range(500)]
    firsts = [SampledAnswer((1,), (3,), (math.log(0.5),), (listed,)) for _ in range(500)]
    assert check_sampling(sampled + firsts, [None] * 1000) == ()
    flat = [SampledAnswer((1,), (2,), (math.log(0.3),), ((math.log(0.3),) * ties,)) for _ in range(500)]
    assert check_sampling(flat, [None] * 500) == ()
