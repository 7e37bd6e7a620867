"""Image album: noise in whole files that others read, of the size of photos, each another one."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.features.images import image_requests
from loadgen.features.images.image_requests import JPEG, PNG, Pixels, Texture, finish_image, make_head

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
