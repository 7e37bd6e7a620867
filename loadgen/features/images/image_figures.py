"""Image figures: how many images the server answered, how fast, and the prompt tokens it counted of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadgen.base.text import format_count
from loadgen.features.images.image_counts import BY_DETAILS, count_image_tokens, count_images
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions


class ImageFigures(msgspec.Struct, frozen=True):
    """The images of a run's successes."""

    images: int  # of successful requests
    requests: int  # successes with images
    images_per_s: float  # these images / the run's duration
    tokens: int | None = None  # of the prompts' images, by the server's counts; None: not known
    tokens_per_image: float | None = None
    tokens_per_s: float | None = None
    prompt_share: float | None = None  # of the prompt tokens of these requests, 0 to 1
    counted: int = 0  # the requests of which tokens are known
    how: str = ""  # they are known, one of BY_DETAILS and BY_TEXT


def measure_images(run: Result) -> ImageFigures | None:
    """Compute the figures of a run's images; None without any."""
    if run.facts.data.images is None:
        return None
    records, duration_s = run.counted, run.metrics.duration_s
    counts = count_images(run.facts, records)
    among = records.ok & (counts > 0)
    images = int(counts[among].sum())
    figures = ImageFigures(images, int(among.sum()), _divide(images, duration_s))
    tokens, how = count_image_tokens(run.facts, records)
    known = among & (tokens >= 0)
    if not known.any():
        return figures
    total = int(tokens[known].sum())
    return msgspec.structs.replace(
        figures,
        tokens=total,
        tokens_per_image=total / int(counts[known].sum()),
        tokens_per_s=_divide(total, duration_s),
        prompt_share=_divide(total, int(records.input_tokens[known].sum())),
        counted=int(known.sum()),
        how=how,
    )


def _divide(number: float, by: float) -> float:
    return number / by if by > 0 else 0.0


def list_counts(run: Result) -> list[int | None]:
    """List the images of each request, in the records' order."""
    return list(count_images(run.facts, run.records).tolist())


def list_tokens(run: Result) -> list[int | None]:
    """List the tokens of each request's images, in the records' order; None where they are not known."""
    tokens, _ = count_image_tokens(run.facts, run.records)
    return [None if count < 0 else count for count in tokens.tolist()]


_MOST_SIZES = 4  # that a line names


def describe_images(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the images and their rate, and one on their tokens."""
    figures, images = result.derive(measure_images), result.facts.data.images
    if figures is None or images is None:
        return
    words = [
        f"{width}×{height}" + (f" {100 * count / images.planned:.3g} %" if len(images.sizes) > 1 else "")
        for width, height, count in images.sizes[:_MOST_SIZES]
        if width
    ]
    if len(images.sizes) > _MOST_SIZES:
        words.append(f"{len(images.sizes) - _MOST_SIZES} more sizes")
    words.append(f"files of {images.source}" if images.source else images.format)
    if images.distinct < images.planned:
        words.append(f"{images.distinct} different ones")
    words.append(f"{images.mean_bytes / 1000:.4g} kB each")
    words.append("as data URLs")
    yield (
        f"images: {figures.images} in {format_count(figures.requests, 'request')}, {', '.join(words)}; "
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
