"""Image sizes: what their texts mean, and that draws have the shares that were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen.features.images import image_sizes
from loadgen.features.images.image_sizes import ImageSizes, parse_counts, parse_sizes

TABLES = read_tables("image_sizes")

RNG = np.random.default_rng


@loop_over(
    ("text", "sizes", "shares"),
    [
        ("1024x768", ((1024, 768),), (1.0,)),
        (" 640 x 480 ", ((640, 480),), (1.0,)),
        ("640x480, 1024x768", ((640, 480), (1024, 768)), (0.5, 0.5)),
        ("640x480 70%, 1024x768 30%", ((640, 480), (1024, 768)), (0.7, 0.3)),
        ("1x1 0.25,8192x8192 0.75", ((1, 1), (8192, 8192)), (0.25, 0.75)),
    ],
)
def test_sizes_and_their_shares(text: str, sizes: Any, shares: Any) -> None:
    assert parse_sizes(text) == ImageSizes(sizes, shares)


def test_distributions_give_64_sizes_within_their_bounds() -> None:
    sizes, numbers = parse_sizes("uniform:min=100,max=200 x fixed:mean=64").draw(RNG(1), 1000)
    assert len(sizes) == 64
    assert all(100 <= width <= 200 and height == 64 for width, height in sizes)
    assert set(numbers.tolist()) <= set(range(64))
    assert len(parse_sizes("uniform:min=1,max=9 x 8").draw(RNG(1), 3)[0]) == 3


@loop_over(
    ("text", "least", "most"),
    [("", 1, 1), ("3", 3, 3), ("1-4", 1, 4), ("0-2", 0, 2), ("uniform:min=2,max=5", 2, 5)],
)
def test_numbers_of_images_are_drawn_between_their_bounds(text: str, least: int, most: int) -> None:
    counts = parse_counts(text).draw(RNG(1), 6000)
    assert (counts.min(), counts.max()) == (least, most)
    assert counts[:1904].tolist() == counts[4096:].tolist()


@loop_over("text", ["0", "4-1", "300", "many", "1.5", "normal:mean=2"])
def test_a_number_of_images_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^-].*images|^sd is missing"):
        parse_counts(text)


@loop_over(("keys", "size", "images"), TABLES["random mm"])
def test_vllms_random_mm_is_written_in_our_settings(keys: dict[str, Any], size: str, images: str) -> None:
    filled = {"dataset_name": "random-mm", **keys}
    image_sizes.fill_keys(filled)
    assert filled == {"dataset_name": "random", "image_size": size, "images": images}
