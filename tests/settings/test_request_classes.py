"""Request classes: which request is of which class follows from profile, seed and index alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

from loadgen.plan import random_prompts
from loadgen.plan.profile import build
from loadgen.plan.request_sources import RandomStream
from loadgen.settings.load_settings import RequestClass

TABLES: list[dict[str, Any]] = [
    {"name": "long", "share": "30%", "input_len": 8000, "output_len": 200},
    {"name": "short", "share": 70, "input_len": 500, "output_len": 50, "range_ratio": "0.1"},
]
CLASSES: tuple[RequestClass, ...] = build({"classes": TABLES}).classes
STREAM = RandomStream(7, "mix")


def test_classes_have_their_shares() -> None:
    counts = Counter(random_prompts.draw_classes(CLASSES, STREAM, 100_000).tolist())
    assert counts[0] + counts[1] == 100_000
    assert abs(counts[0] - 30_000) < 5 * 145  # standard deviations of a binomial count


def test_each_request_has_the_lengths_of_its_class() -> None:
    numbers = random_prompts.draw_classes(CLASSES, STREAM, 2000)
    inputs, outputs = random_prompts.draw_class_lens(CLASSES, STREAM, 2000, "vllm")
    assert set(inputs[numbers == 0].tolist()) == {8000}
    assert set(outputs[numbers == 0].tolist()) == {200}
    assert (inputs[numbers == 1].min(), inputs[numbers == 1].max()) == (450, 550)
    # In floating point 50 × 1.1 is more than 55, and vLLM rounds it up.
    assert (outputs[numbers == 1].min(), outputs[numbers == 1].max()) == (45, 56)


def test_a_longer_plan_begins_with_the_classes_of_the_shorter() -> None:
    long, short = (random_prompts.draw_classes(CLASSES, STREAM, n).tolist() for n in (1000, 100))
    assert long[:100] == short
    columns = zip(
        *(random_prompts.draw_class_lens(CLASSES, STREAM, n, "vllm") for n in (1000, 100)), strict=True
    )
    assert all(many[:100].tolist() == few.tolist() for many, few in columns)


def test_another_seed_draws_other_classes() -> None:
    other = RandomStream(8, "mix")
    drawn = [random_prompts.draw_classes(CLASSES, stream, 100).tolist() for stream in (STREAM, other)]
    assert drawn[0] != drawn[1]
