"""Image settings: which images each request carries."""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from loadgen.base.parsing import number_between, refuse_blank
from loadgen.settings.load_settings import make_check
from loadgen.settings.setting import IMAGES, Conflict, Makes, Requirement, Setting, convert_number

ImageFormat = Literal["jpeg", "png"]


def _parse_sizes(text: str) -> object:
    from loadgen.features.images import image_sizes  # numpy, which the parser does without

    return image_sizes.parse_sizes(text)


def _parse_counts(text: str) -> object:
    from loadgen.features.images import image_sizes

    return image_sizes.parse_counts(text)


_NEEDED = Requirement(
    lambda values: bool(values["image_size"] or values["image_dir"]),
    "{flag} needs images: pass --image-size 1024x768, or --image-dir DIR",
)
_NO_TURNS = Conflict(
    lambda values: values["turns"] is not None,
    "{flag} is of single requests, and --turns makes conversations: leave out one of them",
)
# fmt: off
_image = partial(Setting, Makes.LOAD, group=IMAGES)
_vllms = partial(Setting, Makes.NOTHING, group=IMAGES, rank=1,
    rules=(Requirement(lambda values: False, "{flag} goes with --dataset-name random-mm"),))


class ImageKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of the images that requests carry."""

    # As 1024x768; several with shares; or two distributions.
    image_size: Annotated[str, AfterValidator(make_check(_parse_sizes)), _image("pixels of generated "
        'images: 1024x768; "640x480 70%%, 1024x768 30%%"; or a distribution of widths and one of heights, '
        '"DIST x DIST"', read=refuse_blank("1024x768"), metavar="SIZE",
        rules=(Conflict("image_dir", "{flag} and {other} are two sources of images: leave out one of "
            "them"), _NO_TURNS))] = ""
    # A number, LEAST-MOST, or a distribution; "": 1.
    images: Annotated[str, BeforeValidator(convert_number), AfterValidator(make_check(_parse_counts)),
        _image("images per request: N, LEAST-MOST, or a distribution (default 1)", read=refuse_blank("1"),
        metavar="N", rules=(_NEEDED,))] = ""
    image_dir: Annotated[str, _image("send the PNG, JPEG, WebP and GIF files of a directory, in turn",
        metavar="DIR", rules=(_NO_TURNS,))] = ""
    image_format: Annotated[ImageFormat, _image("format of generated images (default jpeg)",
        rules=(Requirement("image_size", "--image-format is for generated "
            "images: pass --image-size 1024x768"),))] = "jpeg"
    random_mm_base_items_per_request: Annotated[int | None, Field(ge=0), _vllms(
        "images per request of random-mm (default 1)", metavar="N")] = None
    random_mm_num_mm_items_range_ratio: Annotated[float | None, _vllms("vary the number of images of "
        "random-mm by ± R, 0 to 1", read=number_between(0, 1), metavar="R")] = None
    random_mm_limit_mm_per_prompt: Annotated[str, _vllms("most images per request of random-mm, as "
        '{"image": 3}', metavar="JSON")] = ""
    random_mm_bucket_config: Annotated[str, _vllms('shares of image sizes of random-mm: "{(768, 1024, 1): '
        '1.0}", of (height, width, 1)', metavar="{(H,W,1): SHARE}")] = ""
# fmt: on
