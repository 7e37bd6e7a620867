"""What is learned of a run after its last request."""

from __future__ import annotations

import pytest

import loadgen
from builders import made_cases as made
from builders.loops import loop_over
from loadgen.roofline.flags import Flags
from loadgen.run import followup
from loadgen.run.command import options


@loop_over(
    ("given", "hardware", "count"),
    [(0, "4xh100", 4), (0, "l4", 1), (2, "4xh100", 2), (0, None, 0)],
)
def test_the_hardware_that_is_named_says_how_many_gpus(given: int, hardware: str | None, count: int) -> None:
    facts = made.run(gpus=given).facts
    assert followup.add_ceiling(facts, Flags(hardware=hardware)).gpus == count


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
