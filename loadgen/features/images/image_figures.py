"""Image figures: how many images the server answered, how fast, and the prompt tokens it counted of them."""

from __future__ import annotations

import msgspec

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.features.images.image_counts import count_image_tokens, count_images
from loadgen.records.record import Records
from loadgen.report.run_directory import Result


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
    if run.facts.images is None:
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
        prompt_share=_find_share(tokens, records, known),
        counted=int(known.sum()),
        how=how,
    )


def _find_share(tokens: Int64, records: Records, known: Bool) -> float:
    prompts: Int64 | Float64 = records.input_tokens[known]
    return _divide(int(tokens[known].sum()), int(prompts.sum()))


def _divide(number: float, by: float) -> float:
    return number / by if by > 0 else 0.0


def list_counts(run: Result) -> list[int | None]:
    """List the images of each request, in the records' order."""
    return list(count_images(run.facts, run.records).tolist())


def list_tokens(run: Result) -> list[int | None]:
    """List the tokens of each request's images, in the records' order; None where they are not known."""
    tokens, _ = count_image_tokens(run.facts, run.records)
    return [None if count < 0 else count for count in tokens.tolist()]
