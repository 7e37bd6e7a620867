"""Image counts: each request's images, the prompt tokens counted of them, and whether any were."""

from __future__ import annotations

from functools import partial

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.rule import Evidence, note, suspect
from loadgen.base.text import format_count
from loadgen.facts.run_facts import Facts
from loadgen.records.record import UNKNOWN, Records
from loadgen.verdict.evidence import RunEvidence, limit_doubts

BY_DETAILS = "the details of the server's usage"
BY_TEXT = "the server's count of a prompt less that of the same text alone"


def count_images(facts: Facts, records: Records) -> Int64:
    """Count the images of each request, int64[requests]; 0 where the run has none."""
    images = facts.data.images
    return np.zeros(len(records), np.int64) if images is None else images.count_images(records.index)


def count_image_tokens(facts: Facts, records: Records) -> tuple[Int64, str]:
    """Return the tokens of each request's images, int64[requests], -1 where unknown, and how they are known.

    By the server's details, where it has any; else prompt tokens − text tokens: of a request whose text was
    counted alone by that count, of others by the planned text and what templates add to it, the mean of the
    former, rounded. All are 0 where those of the former are.
    """
    with_images = records.ok & (count_images(facts, records) > 0)
    if (records.image_tokens[with_images] >= 0).any():
        return np.where(with_images, records.image_tokens, UNKNOWN), BY_DETAILS
    tokens = np.full(len(records), UNKNOWN, np.int64)
    counted = {probe.index: probe.text_tokens for probe in facts.image_probes}
    at = np.flatnonzero(np.isin(records.index, list(counted)) & with_images & (records.input_tokens > 0))
    if not len(at):
        return tokens, ""
    text = np.array([counted[index] for index in records.index[at].tolist()])
    planned = records.planned_input
    if (planned[at] > 0).all():
        added = float((text - planned[at]).mean())
        known = with_images & (records.input_tokens > 0) & (planned > 0)
        tokens[known] = np.rint(records.input_tokens[known] - planned[known] - added).clip(0)
    tokens[at] = (records.input_tokens[at] - text).clip(0)
    if not tokens[at].any():  # the server counts none: what is left of others is how texts vary
        tokens[tokens > 0] = 0
    return tokens, BY_TEXT


@suspect(
    "images-ignored",
    "the server's count of prompt tokens does not change with images: less than one token an image more than "
    "the same text without them, or none in its details",
    "check that the model takes images and that nothing before it (a gateway, a chat template) drops them; a "
    "server that only leaves them out of its count uses them all the same: ask it about one",
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
    images = run.facts.data.images
    sent = int(count_images(run.facts, run.records)[run.records.sent].sum())
    if images is None or sent <= images.distinct:
        return None
    return f"{sent} images, of {images.distinct} different ones"


limit = partial(limit_doubts, ("data.images",))
