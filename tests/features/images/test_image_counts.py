"""Image counts: what the server's counts of prompts say of their images."""

from __future__ import annotations

from builders.loops import loop_over
from builders.provoked_data import of_images
from loadgen.features.images.image_counts import BY_TEXT, count_image_tokens


@loop_over(("more", "tokens"), [(0, {0}), (64, {64, 66})])
def test_texts_that_vary_are_not_taken_for_images_that_are_ignored(more: int, tokens: set[int]) -> None:
    run = of_images(more)
    run.records.input_tokens[2::2] += 2  # texts of some other length than planned
    counted, how = count_image_tokens(run.facts, run.records)
    assert (set(counted.tolist()), how) == (tokens, BY_TEXT)
