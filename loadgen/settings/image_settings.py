"""Image settings: which images each request carries, and how the server gets them."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from loadgen.base.parsing import number_between, refuse_blank
from loadgen.settings.load_settings import convert_number, make_check
from loadgen.settings.setting import IMAGES, Conflict, KeyRows, Makes, setting

ImageFormat = Literal["jpeg", "png"]
ImageTransport = Literal["data", "http"]
_RANDOM_MM = "{flag} goes with --dataset-name random-mm"


def _parse_sizes(text: str) -> object:
    from loadgen.features.images import image_sizes  # numpy, which the parser does without

    return image_sizes.parse_sizes(text)


def _parse_counts(text: str) -> object:
    from loadgen.features.images import image_sizes

    return image_sizes.parse_counts(text)


_NEEDED = Conflict(
    lambda values: bool(values["image_size"] or values["image_dir"]),
    "{flag} needs images: pass --image-size 1024x768, or --image-dir DIR",
)
_NO_TURNS = Conflict(
    lambda values: values["turns"] is not None,
    "{flag} is of single requests, and --turns makes conversations: leave out one of them",
)
# fmt: off
_image = partial(setting, Makes.LOAD, group=IMAGES)
_vllms = partial(setting, Makes.NOTHING, group=IMAGES, rank=1, swept=False,
    needs=(Conflict(lambda values: False, _RANDOM_MM),))


class ImageKeys(KeyRows, frozen=True):
    """The settings of the images that requests carry."""

    # As 1024x768; several with shares; or two distributions.
    image_size: str = _image("", 'pixels of generated images: 1024x768; "640x480 70%%, 1024x768 30%%"; or a '
        'distribution of widths and one of heights, "DIST x DIST"', read=refuse_blank("1024x768"),
        metavar="SIZE", check=make_check(_parse_sizes),
        not_with=(Conflict("image_dir", "{flag} and {other} are two sources of images: leave out one of "
            "them"), _NO_TURNS), chat=True)
    # A number, LEAST-MOST, or a distribution; "": 1.
    images: str = _image("", "images per request: N, LEAST-MOST, or a distribution (default 1)",
        read=refuse_blank("1"), metavar="N", check=make_check(_parse_counts), convert=convert_number,
        keyword="str | int", needs=(_NEEDED,))
    image_dir: str = _image("", "send the PNG, JPEG, WebP and GIF files of a directory, in turn",
        metavar="DIR", not_with=(_NO_TURNS,), chat=True, path=True)
    image_format: ImageFormat = _image("jpeg", "format of generated images (default jpeg)",
        choices=get_args(ImageFormat), needs=(Conflict("image_size", "--image-format is for generated "
            "images: pass --image-size 1024x768"),))
    image_transport: ImageTransport = setting(Makes.REQUEST, "data", "way of images to the server. data: in "
        "the body, as a data URL (default); http: the server fetches them from this machine's loopback",
        group=IMAGES, choices=get_args(ImageTransport), needs=(_NEEDED,))
    random_mm_base_items_per_request: int | None = _vllms(None, "images per request of random-mm (default 1)",
        read=int, least=0, metavar="N")
    random_mm_num_mm_items_range_ratio: float | None = _vllms(None,
        "vary the number of images of random-mm by ± R, 0 to 1", read=number_between(0, 1), metavar="R")
    random_mm_limit_mm_per_prompt: str = _vllms("", 'most images per request of random-mm, as {"image": 3}',
        metavar="JSON")
    random_mm_bucket_config: str = _vllms("", 'shares of image sizes of random-mm: "{(768, 1024, 1): 1.0}", '
        "of (height, width, 1)", metavar="{(H,W,1): SHARE}")
# fmt: on
