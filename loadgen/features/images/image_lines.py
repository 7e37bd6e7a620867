"""Image lines: the images that were sent, and the tokens that the server counted of them."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.base.text import format_count
from loadgen.features.images.image_counts import BY_DETAILS
from loadgen.features.images.image_figures import measure_images
from loadgen.plan.planned_requests import ImageFacts
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions

_MOST_SIZES = 4  # that a line names


def describe_images(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the images and their rate, and one on their tokens."""
    figures, images = result.derive(measure_images), result.facts.images
    if figures is None or images is None:
        return
    yield (
        f"images: {figures.images} in {format_count(figures.requests, 'request')}, {_describe_form(images)}; "
        f"{figures.images_per_s:.3g} images/s"
    )
    if figures.tokens_per_image is None or figures.prompt_share is None or figures.tokens_per_s is None:
        yield "tokens of images: not known: the server reports none"
        return
    how = figures.how
    if how != BY_DETAILS:
        how += f", of {format_count(len(result.facts.image_probes), 'request')}"
    yield (
        f"tokens of images: {figures.tokens_per_image:.4g} an image, {100 * figures.prompt_share:.3g} % of "
        f"the prompt tokens, {figures.tokens_per_s:.4g} tok/s ({how})"
    )


def summarize_images(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the images' rate and tokens."""
    figures = result.derive(measure_images)
    if figures is None:
        return
    tokens = figures.tokens_per_image
    counted = "tokens not known" if tokens is None else f"{tokens:.4g} tokens each"
    yield f"images: {figures.images}, {figures.images_per_s:.3g} a second, {counted}"


def _describe_form(images: ImageFacts) -> str:
    """Describe format, sizes, bytes and transport of images, and how many of the plan are different."""
    named = [
        f"{width}×{height}" + (f" {100 * count / images.planned:.3g} %" if len(images.sizes) > 1 else "")
        for width, height, count in images.sizes[:_MOST_SIZES]
        if width
    ]
    if len(images.sizes) > _MOST_SIZES:
        named.append(f"{len(images.sizes) - _MOST_SIZES} more sizes")
    words = [*named, images.format if not images.source else f"files of {images.source}"]
    if images.distinct < images.planned:
        words.append(f"{images.distinct} different ones")
    words.append(f"{images.mean_bytes / 1000:.4g} kB each")
    words.append("as data URLs" if images.transport == "data" else "fetched from loopback")
    return ", ".join(words)
