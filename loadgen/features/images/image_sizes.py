"""Image sizes: how many images a request has, and how large they are, as settings say and as drawn."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.parsing import parse_share
from loadgen.plan.lengths import LengthDistribution, parse_lengths

MOST_IMAGES = 256  # of a request
MOST_SIDE = 8192  # pixels
PERIOD = 4096  # requests after which their numbers of images repeat
MOST_SIZES = 64  # of a plan at most: as many are drawn from distributions
_LEAST_SHARE = 1e-6
_SIZE = re.compile(r"([0-9]{1,5})\s*x\s*([0-9]{1,5})(?:\s+([0-9.]+\s*%?))?", re.ASCII)
_TWO = re.compile(r"\s+x\s+", re.ASCII)
_SPAN = re.compile(r"([0-9]{1,5})(?:\s*-\s*([0-9]{1,5}))?", re.ASCII)
_FORM = 'write 1024x768, "640x480 70%, 1024x768 30%", or "DIST x DIST" of widths and heights'
_COUNT_FORM = "write 1, 1-4, or a distribution as uniform:min=1,max=4"


class ImageSizes(msgspec.Struct, frozen=True):
    """Sizes in pixels with their shares, or distributions of widths and heights to draw sizes from."""

    fixed: tuple[tuple[int, int], ...] = ()  # (width, height)
    shares: tuple[float, ...] = ()  # of each, in sum 1
    drawn: tuple[LengthDistribution, LengthDistribution] | None = None  # of widths, of heights

    def draw(self, rng: np.random.Generator, images: int) -> tuple[list[tuple[int, int]], Int64]:
        """Return the sizes, and for each image the index of its size, int64[images].

        Of distributions 64 sizes are drawn, or as many as there are images, all of equal share.
        """
        sizes, shares = list(self.fixed), np.array(self.shares)
        if self.drawn is not None:
            several = max(1, min(images, MOST_SIZES))
            width, height = (dist.draw(rng, several).clip(1, MOST_SIDE).tolist() for dist in self.drawn)
            sizes = list(zip(width, height, strict=True))
            shares = np.full(several, 1 / several)
        numbers = np.searchsorted(np.cumsum(shares), rng.random(images), "right")
        return sizes, np.minimum(numbers, len(sizes) - 1).astype(np.int64)


def parse_sizes(text: str) -> ImageSizes:
    """Parse --image-size, without shares all sizes alike; raises ValueError that says what is wrong."""
    parts = _TWO.split(text.strip())
    if len(parts) == 2 and not _SIZE.fullmatch(text.strip()):
        widths, heights = (_parse_lengths(part.strip(), 1024) for part in parts)
        return ImageSizes(drawn=(widths, heights))
    fixed, shares = list[tuple[int, int]](), list[float | None]()
    for part in text.split(","):
        found = _SIZE.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{part.strip()!r} is no size: {_FORM}")
        width, height = int(found[1]), int(found[2])
        if not (1 <= width <= MOST_SIDE and 1 <= height <= MOST_SIDE):
            raise ValueError(f"{width}x{height}: a side has 1 to {MOST_SIDE} pixels")
        fixed.append((width, height))
        shares.append(None if found[3] is None else parse_share(found[3], _LEAST_SHARE))
    if len(fixed) > MOST_SIZES or len(set(fixed)) < len(fixed):
        raise ValueError(f"there may be {MOST_SIZES} sizes, and each once")
    given = [share for share in shares if share is not None]
    if given and len(given) < len(shares):
        raise ValueError("give each size a share, or none of them")
    if given and abs(sum(given) - 1) > 1e-6:
        raise ValueError(f"the shares are {100 * sum(given):g} % in sum, not 100 %")
    return ImageSizes(tuple(fixed), tuple(given) or (1 / len(fixed),) * len(fixed))


def _parse_lengths(text: str, usual_mean: int) -> LengthDistribution:
    """Parse a number or a distribution; raises ValueError that does not repeat it."""
    if text.isdecimal():
        text = f"fixed:mean={text}"
    try:
        return parse_lengths(text, "", usual_mean)
    except UsageError as error:
        raise ValueError(str(error)) from None


class ImageCounts(msgspec.Struct, frozen=True):
    """The images of a request: whole numbers from `least` to `most`, all as likely, or a distribution."""

    least: int = 1
    most: int = 1
    drawn: LengthDistribution | None = None

    def draw(self, rng: np.random.Generator, requests: int) -> Int64:
        """Draw the number of images of each request, int64[requests], again and again the same 4,096."""
        several = min(requests, PERIOD)
        if self.drawn is not None:
            counts = self.drawn.draw(rng, several).clip(0, MOST_IMAGES)
        else:
            counts = rng.integers(self.least, self.most + 1, several)
        return np.resize(counts, requests)


def parse_counts(text: str) -> ImageCounts:
    """Parse --images, "" as 1; raises ValueError that says what is wrong with it."""
    if not text:
        return ImageCounts()
    if ":" in text:
        return ImageCounts(drawn=_parse_lengths(text, 1))
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no number of images: {_COUNT_FORM}")
    least, most = int(found[1]), int(found[2] or found[1])
    if not 0 <= least <= most <= MOST_IMAGES or most < 1:
        raise ValueError(f"{text}: a request has 1 to {MOST_IMAGES} images, the lower number first")
    return ImageCounts(least, most)


# vLLM's defaults (vllm/benchmarks/datasets, 0.32).
_BUCKETS = "{(256, 256, 1): 0.5, (720, 1280, 1): 0.5, (720, 1280, 16): 0.0}"
_LIMIT = '{"image": 255, "video": 1}'
_ITEMS, _RATIO = 1, 0.0
_BUCKETS_FORM = 'as in vLLM: "{(768, 1024, 1): 1.0}", of (height, width, 1) and shares'


def fill_keys(keys: dict[str, Any]) -> None:
    """Replace `random-mm` and its keys by random prompts, `images` and `image_size`, in place.

    A size or number of images that is given stays. Raises UsageError for keys that vLLM refuses too, and for
    videos.
    """
    items = keys.pop("random_mm_base_items_per_request", None)
    ratio = keys.pop("random_mm_num_mm_items_range_ratio", None)
    limit = keys.pop("random_mm_limit_mm_per_prompt", None)
    buckets = keys.pop("random_mm_bucket_config", None)
    keys["dataset_name"] = "random"
    if not keys.get("image_size") and not keys.get("image_dir"):
        keys["image_size"] = _write_sizes(buckets or _BUCKETS)
    if not keys.get("images"):
        items, ratio = _ITEMS if items is None else items, _RATIO if ratio is None else ratio
        keys["images"] = _write_counts(items, ratio, limit or _LIMIT)


def _write_sizes(text: str) -> str:
    """Write vLLM's buckets as --image-size has them, with shares that are 100 % in sum; raises UsageError."""
    flag = f"--random-mm-bucket-config {text}"
    try:
        buckets = ast.literal_eval(text)
        rows = [
            (ast.literal_eval(key) if isinstance(key, str) else key, float(share))
            for key, share in buckets.items()
        ]
        chosen = [((int(h), int(w), int(frames)), share) for (h, w, frames), share in rows if share > 0]
    except (ValueError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError):
        raise UsageError(f"{flag}: it is no table of sizes: write it {_BUCKETS_FORM}") from None
    if not chosen or any(share < 0 for _, share in rows):
        raise UsageError(f"{flag}: shares are 0 or more, and one of them above 0: write it {_BUCKETS_FORM}")
    if any(frames != 1 for (_, _, frames), _ in chosen):
        raise UsageError(f"{flag}: videos are not made here: leave out buckets of more than one frame")
    total = sum(share for _, share in chosen)
    return ", ".join(f"{w}x{h} {100 * share / total:.10g}%" for (h, w, _), share in chosen)


def _write_counts(items: Any, ratio: Any, limit: str) -> str:
    """Write vLLM's number of items as --images has it: floor(n(1 − r)) to ceil(n(1 + r)), at most the limit.

    Raises UsageError where no number of images lies between.
    """
    try:
        limits = msgspec.json.decode(limit, type=dict[str, int])
    except (msgspec.DecodeError, TypeError):
        raise UsageError(f'--random-mm-limit-mm-per-prompt {limit}: write it as {{"image": 3}}') from None
    most = min(math.ceil(items * (1 + ratio)), limits.get("image", 0), MOST_IMAGES)
    least = math.floor(items * (1 - ratio))
    if not 0 <= least <= most or most < 1:
        raise UsageError(
            f"--random-mm-base-items-per-request {items} with range ratio {ratio:g} and limit {limit}: a "
            f"request would have {least} to {most} images: raise one of them"
        )
    return f"{least}-{most}" if least < most else str(least)
