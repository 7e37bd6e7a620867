"""Image server: images by URL from a process that ends with what made it."""

from __future__ import annotations

import os

import httpx
import pytest

from loadgen.features.images.image_album import make_album
from loadgen.features.images.image_server import ImageServer
from loadgen.features.images.image_sizes import parse_sizes
from loadgen.plan.request_sources import RandomStream

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


def test_images_are_served_until_the_server_is_closed() -> None:
    album = make_album(parse_sizes("24x16"), "png", 3, RandomStream(1), as_url=False)
    server = ImageServer(album)
    try:
        with httpx.Client(trust_env=False) as client:
            for image in (2, 0):
                answer = client.get(server.name_url(image))
                assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
                assert answer.content == album.write(image)
            assert client.get(server.name_url(0).replace("image-0", "image-3")).status_code == 404
            assert client.get(server.name_url(0).replace("image-0", "x")).status_code == 404
    finally:
        server.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.name_url(0), trust_env=False)
