"""Random mm: vLLM's data set of that name, in the settings of images here."""

from __future__ import annotations

import ast
import math
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.features.images.image_sizes import MOST_IMAGES
from loadgen.settings.image_settings import ImageKeys

# vLLM's defaults (vllm/benchmarks/datasets, 0.32).
_BUCKETS = "{(256, 256, 1): 0.5, (720, 1280, 1): 0.5, (720, 1280, 16): 0.0}"
_LIMIT = '{"image": 255, "video": 1}'
_ITEMS, _RATIO = 1, 0.0
_PREFIX = "random_mm_"
_FORM = 'as in vLLM: "{(768, 1024, 1): 1.0}", of (height, width, 1) and shares'


def fill_keys(keys: dict[str, Any]) -> None:
    """Replace `random-mm` and its keys by random prompts, `images` and `image_size`, in place.

    A size or number of images that is given stays. Raises UsageError for keys that vLLM refuses too, and for
    videos.
    """
    own = {row.name: keys.pop(row.name, None) for row in ImageKeys.rows if row.name.startswith(_PREFIX)}
    keys["dataset_name"] = "random"
    if not keys.get("image_size") and not keys.get("image_dir"):
        keys["image_size"] = _write_sizes(own[f"{_PREFIX}bucket_config"] or _BUCKETS)
    if not keys.get("images"):
        items, ratio = own[f"{_PREFIX}base_items_per_request"], own[f"{_PREFIX}num_mm_items_range_ratio"]
        limit = own[f"{_PREFIX}limit_mm_per_prompt"] or _LIMIT
        keys["images"] = _write_counts(
            _ITEMS if items is None else items, _RATIO if ratio is None else ratio, limit
        )


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
        raise UsageError(f"{flag}: it is no table of sizes: write it {_FORM}") from None
    if not chosen or any(share < 0 for _, share in rows):
        raise UsageError(f"{flag}: shares are 0 or more, and one of them above 0: write it {_FORM}")
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
