"""Image facts: the images of a plan, as far as reports need them."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Int64


class ImageFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The images that a plan's requests carry."""

    format: str  # jpeg, png; of files "as they are"
    sizes: tuple[tuple[int, int, int], ...]  # width and height in pixels, and how many images have them
    counts: tuple[int, ...]  # images of each request, in the plan's order; a single one: of every request
    distinct: int  # images that are not equal to an earlier one
    mean_bytes: int  # of an image as it is sent, without base64
    transport: str  # data, or http
    digest: str  # of the images that all are made of
    source: str = ""  # the directory of the files, as it was given; "": made here
    maker: str = ""  # what encoded them, with its version; "": files

    def count_images(self, indices: Int64) -> Int64:
        """Count the images of requests by their plan index, int64[requests]."""
        counts = np.array(self.counts, np.int64)
        return counts[indices % len(counts)]

    @property
    def planned(self) -> int:
        """The images of the whole plan."""
        return sum(count for _, _, count in self.sizes)
