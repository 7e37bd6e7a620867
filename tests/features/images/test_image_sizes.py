"""Images: sizes and their shares, and the pictures of an album that are cut to them."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.features.images import image_requests, image_sizes
from loadgen.features.images.image_requests import JPEG, PNG, Pixels, Texture, finish_image, make_head
from loadgen.features.images.image_sizes import ImageSizes, parse_counts, parse_sizes

TABLES = read_tables("image_sizes")

RNG = np.random.default_rng


@loop_over(("text", "sizes", "shares"), TABLES["sizes"])
def test_sizes_and_their_shares(text: str, sizes: list[list[int]], shares: list[float]) -> None:
    expected = ImageSizes(tuple((width, height) for width, height in sizes), tuple(shares))
    assert parse_sizes(text) == expected


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


TEXTURE = Texture(np.random.default_rng(0))
_ERROR = 6.0  # mean of a byte's difference after JPEG at quality 85; the pixels' own spread is 45


def cut(seed: int, width: int, height: int) -> Pixels:
    return TEXTURE.cut(np.random.default_rng(seed), width, height)


def read(content: bytes) -> Pixels:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image)


@loop_over("size", [(1, 1), (16, 16), (17, 33), (100, 64), (1100, 40)])
@loop_over("form", [PNG, JPEG])
def test_a_head_and_last_rows_are_a_whole_picture(form: str, size: tuple[int, int]) -> None:
    pixels = cut(1, *size)
    head = make_head(form, pixels)
    rows = cut(2, size[0], head.last_rows)
    expected = np.concatenate([pixels[: -head.last_rows], rows])
    found = read(head.start + finish_image(head, rows))
    assert found.shape == expected.shape
    difference = np.abs(found.astype(int) - expected).mean()
    assert difference == 0 if form == PNG else difference < _ERROR


@loop_over(("form", "least", "most"), [(PNG, 10.0, 18.0), (JPEG, 1.2, 2.8)])
def test_noise_has_the_bits_a_pixel_that_photos_have(form: str, least: float, most: float) -> None:
    head = make_head(form, cut(3, 1024, 768))
    assert least < 8 * len(head.start) / (1024 * 768) < most


def test_without_pillow_jpeg_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"JPEG needs the images extra: .*; or pass --image-format png"):
        image_requests.import_pillow()


@loop_over(("width", "least"), [(64, 2000), (32, 2000), (16, 1980)])
def test_last_rows_are_hardly_ever_equal(width: int, least: int) -> None:
    rng = np.random.default_rng(3)
    assert len({TEXTURE.cut_strip(rng, width, 1).tobytes() for _ in range(2000)}) >= least
