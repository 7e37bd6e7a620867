"""What a client sends without an end, or never reads, ends its connection and takes little memory."""

from __future__ import annotations

import socket

import pytest

from builders.loops import loop_over
from builders.required import require
from loadgen_servers import http_server
from loadgen_servers.http_server import Connection

HEAD = b"POST /v1/completions HTTP/1.1\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
BODY = b"content-length: 100000\r\n\r\n" + bytes(100_000)


def feed(first: bytes, rest: bytes, most: int) -> int | None:
    """Send bytes to a connection, then others until it is given up; return how many, None if it never is."""
    client, served = socket.socketpair()
    served.setblocking(False)
    connection, sent = Connection(served), 0
    with client, served:
        while sent < most:
            client.sendall(first)
            sent, first = sent + len(first), rest
            if connection.receive(0) is None:
                return sent
    return None


@loop_over(("first", "rest"), [
    pytest.param(b"POST /", b"x" * 4000, id="a path"),
    pytest.param(HEAD, b"x" * 4000, id="a name"),
    pytest.param(HEAD, b"x: y\r\n" * 500, id="headers"),
    pytest.param(CHUNKED + b"1;", b"x" * 4000, id="an extension of a chunk"),
    pytest.param(CHUNKED + b"0\r\n", b"x: y\r\n" * 500, id="trailers"),
])  # fmt: skip
def test_what_is_no_body_has_64_kib(first: bytes, rest: bytes) -> None:
    ended = require(feed(first, rest, 1 << 20))
    assert 64 << 10 < ended < 80 << 10


def test_a_body_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LARGEST_BODY", 1 << 20)
    ended = require(feed(HEAD + b"content-length: 99999999\r\n\r\n", bytes(4000), 8 << 20))
    assert 2 << 20 < ended < (2 << 20) + (80 << 10)


def test_requests_one_after_the_other_go_on() -> None:
    assert feed(HEAD + BODY, HEAD + BODY, 2 << 20) is None


def test_a_client_that_never_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MOST_PENDING", 1 << 20)
    client, served = socket.socketpair()
    served.setblocking(False)
    connection = Connection(served)
    with client, served:
        sends = [connection.send(bytes(100_000)) for _ in range(40)]
    assert sends.index(False) > 10
    assert len(connection.pending) < 2 << 20
