"""What is learned of a run after its last request."""

from __future__ import annotations

import pytest

import loadgen
from builders.loops import loop_over
from loadgen.run.command import options


@pytest.mark.usefixtures("engines")
def test_the_gpus_of_a_simulation_are_those_that_are_given() -> None:
    run = loadgen.bench(preset="instant", num_prompts=4, input_len=8, output_len=4, gpus=2, observe=False)
    metrics = run.metrics
    assert metrics.output_throughput_per_gpu_per_s == metrics.output_throughput_per_s / 2
    report = " ".join(run.report().split())
    assert f"per GPU: {metrics.output_throughput_per_gpu_per_s:.1f} output tok/s" in report


@loop_over(("words", "gpus"), [([], 0), (["--gpus", "8"], 8)])
def test_the_flag_is_the_keyword(words: list[str], gpus: int) -> None:
    assert options.parse(words).gpus == gpus
