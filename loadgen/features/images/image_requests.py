"""Image requests: those of any source, with images in their last message."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.features.images.image_album import AS_THEY_ARE, Album, make_album, name_maker, read_album
from loadgen.features.images.image_sizes import PERIOD, parse_counts, parse_sizes
from loadgen.plan.planned_requests import ImageFacts, Requests, fingerprint
from loadgen.plan.request_sources import PlanInputs, SourcedRequests
from loadgen.wire.openai import Dialect


class ImageRequests:
    """Requests of another source, to whose last message the images of each are added, after its text.

    `own` are those of the source, `counts` the images of each, int64[requests].
    """

    def __init__(self, own: Requests, album: Album, counts: Int64) -> None:
        self.own, self._album = own, album
        self._counts, self._before = counts, np.cumsum(counts) - counts
        self.format, self.input_lens, self.output_lens = own.format, own.input_lens, own.output_lens
        self.features = {**getattr(own, "features", {}), "images": int(np.argmax(counts > 0))}

    def __getattr__(self, name: str) -> Any:
        """Return what else the requests of the source have, as the file's rows."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.own, name)

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i, with its images."""
        fields, first = self.own.request(i, dialect, model), int(self._before[i])
        urls = [self._album.write(image) for image in range(first, first + int(self._counts[i]))]
        return dialect.add_images(fields, urls) if urls else fields

    def digest(self) -> str:
        """Return a hash of the source's requests, of how many images each has, and of all images' parts."""
        contents = (self.own.digest().encode(), self._album.digest().encode())
        return fingerprint("images", (self._counts,), contents)


def add_contents(sourced: SourcedRequests, inputs: PlanInputs) -> SourcedRequests:
    """Add the profile's images to a source's requests; raises UsageError where they cannot have any."""
    profile = inputs.profile
    flag = "--image-dir" if profile.image_dir else "--image-size"
    if not inputs.dialect.chat:
        raise UsageError(f"{flag}: {inputs.dialect.path} takes no images: use --backend openai-chat")
    if sourced.turns is not None:
        raise UsageError(
            f"{flag} is of single requests, and the data has conversations: leave out one of them"
        )
    requests = len(sourced.requests.input_lens)
    counts = parse_counts(profile.images).draw(inputs.stream.rng("image counts"), requests)
    images = int(counts.sum())
    if not images:
        raise UsageError(f"--images {profile.images}: none of {requests} requests has an image: raise it")
    if profile.image_dir:
        album = read_album(profile.image_dir, images)
    else:
        sizes = parse_sizes(profile.image_size)
        album = make_album(sizes, profile.image_format, images, inputs.stream)
    made = ImageRequests(sourced.requests, album, counts)
    alike = len(counts) > 0 and int(counts.min()) == int(counts.max())
    facts = replace(
        sourced.facts,
        images=ImageFacts(
            format=AS_THEY_ARE if profile.image_dir else profile.image_format,
            sizes=album.count_sizes(int(counts.sum())),
            counts=tuple(counts[: 1 if alike else PERIOD].tolist()),
            distinct=album.distinct,
            mean_bytes=album.mean_bytes,
            digest=album.digest(),
            source=profile.image_dir,
            maker="" if profile.image_dir else name_maker(profile.image_format),
        ),
    )
    return replace(sourced, requests=made, facts=facts)
