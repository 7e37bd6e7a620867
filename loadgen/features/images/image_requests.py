"""Image requests: the requests of any source, with images in their last message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.features.images.image_album import Album
from loadgen.plan.planned_requests import Requests, fingerprint
from loadgen.wire.openai import Dialect

if TYPE_CHECKING:
    from loadgen.features.images.image_server import ImageServer


class ImageRequests:
    """Requests of another source, to whose last message the images of each are added, after its text.

    `own` are those of the source, `counts` the images of each, int64[requests]. With a server, images are
    sent as its URLs.
    """

    def __init__(self, own: Requests, album: Album, counts: Int64, server: ImageServer | None) -> None:
        self.own, self._album, self._server = own, album, server
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
        urls = [self._write_url(image) for image in range(first, first + int(self._counts[i]))]
        return dialect.add_images(fields, urls) if urls else fields

    def digest(self) -> str:
        """Return a hash of the source's requests, of how many images each has, and of all images' parts."""
        contents = (self.own.digest().encode(), self._album.digest().encode())
        return fingerprint("images", (self._counts,), contents)

    def _write_url(self, image: int) -> bytes:
        """Return the URL of an image: of our server, or with its data."""
        return self._album.write(image) if self._server is None else self._server.name_url(image).encode()
