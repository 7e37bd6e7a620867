"""Image counts: the images of each request, and the prompt tokens that the server counted of them."""

from __future__ import annotations

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.facts.run_facts import Facts
from loadgen.records.record import Records

BY_DETAILS = "the details of the server's usage"
BY_TEXT = "the server's count of a prompt less that of the same text alone"
_NONE = -1


def count_images(facts: Facts, records: Records) -> Int64:
    """Count the images of each request, int64[requests]; 0 where the run has none."""
    images = facts.images
    return np.zeros(len(records), np.int64) if images is None else images.count_images(records.index)


def count_image_tokens(facts: Facts, records: Records) -> tuple[Int64, str]:
    """Return the tokens of each request's images, int64[requests], -1 where unknown, and how they are known.

    By the server's details, where it has any; else prompt tokens − text tokens: of a request whose text was
    counted alone by that count, of others by the planned text and what templates add to it, the mean of the
    former, rounded. All are 0 where those of the former are.
    """
    with_images = records.ok & (count_images(facts, records) > 0)
    if (records.image_tokens[with_images] >= 0).any():
        return np.where(with_images, records.image_tokens, _NONE), BY_DETAILS
    tokens = np.full(len(records), _NONE, np.int64)
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
