"""Image checks: whether the server counted the images, and whether it got the same ones again."""

from __future__ import annotations

from functools import partial

import numpy as np

from loadgen.base.rule import Evidence, note, suspect
from loadgen.base.text import format_count
from loadgen.features.images.image_counts import count_image_tokens, count_images
from loadgen.verdict.evidence import RunEvidence, limit_doubts


@suspect(
    "images-ignored",
    "the server's count of prompt tokens does not change with images: less than one token an image more than "
    "the same text without them, or none in its details",
    "check that the model takes images and that nothing before it (a gateway, a chat template) drops them; a "
    "server that only leaves them out of its count answers them all the same: ask it about one",
)
def images_ignored(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server counts no tokens for the images."""
    tokens, how = count_image_tokens(run.facts, run.records)
    known = tokens >= 0
    if run.facts.image_probes:  # what is estimated of others may be some tokens off
        known &= np.isin(run.records.index, [probe.index for probe in run.facts.image_probes])
    images = int(count_images(run.facts, run.records)[known].sum())
    total = int(tokens[known].sum())
    if not images or total >= images:
        return None
    return f"{format_count(total, 'token')} for {format_count(images, 'image')}, by {how}"


@note(
    "images-repeated",
    "images were sent more than once: the files of --image-dir are fewer than the images",
    "give more files, or --image-size, whose images are all different: engines keep what they computed of an "
    "image (vLLM's --mm-processor-cache-gb, prefix caches), so that the same one again costs less",
)
def images_repeated(run: RunEvidence) -> Evidence | None:
    """Find evidence that equal images were sent."""
    images = run.facts.images
    sent = int(count_images(run.facts, run.records)[run.records.sent].sum())
    if images is None or sent <= images.distinct:
        return None
    return f"{sent} images, of {images.distinct} different ones"


limit = partial(limit_doubts, ("images",))
