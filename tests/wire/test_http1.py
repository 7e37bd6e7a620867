from __future__ import annotations

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen.wire.http1 import (
    Chunked,
    ContentLength,
    Framing,
    Heads,
    HttpBody,
    NoBody,
    ResponseHead,
    UntilClose,
    unframe_response,
)

TABLES = read_tables("http1")

OK = b"HTTP/1.1 200 OK\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
# What follows CHUNKED, as (bytes, whether they are the body's).
BODIES = {name: [(data.encode(), own) for data, own in parts] for name, parts in TABLES["parts"].items()}


class Reads(list[bytes]):
    def list_since(self, count: int) -> list[bytes]:
        return self[count:]


def unframed(reads: list[bytes]) -> HttpBody:
    return unframe_response(b"".join(reads), np.array([len(read) for read in reads], np.int64).cumsum())


@pytest.mark.parametrize("before", [b"", CONTINUE, CONTINUE + b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"])
def test_a_head_is_read_once_all_of_it_is_there(before: bytes) -> None:
    raw = before + CHUNKED
    assert [Heads().feed(raw[:cut]) for cut in range(len(raw))] == [None] * len(raw)
    for after in (b"", b"9\r\ndata: x"):
        head = Heads().feed(raw + after)
        assert isinstance(head, ResponseHead)
        assert (head.status, head.keep_alive, head.length) == (200, True, len(raw))
        assert head.headers == {"content-type": "text/event-stream", "transfer-encoding": "chunked"}


@loop_over(
    ("head", "framing", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n", Chunked(), True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n", Chunked(), False),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 22\r\n\r\n", ContentLength(46 + 22), True),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n", ContentLength(38 + 2), False),
        (b"HTTP/1.1 200 OK\r\n\r\n", UntilClose(), False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", UntilClose(), False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", NoBody(), True),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", NoBody(), True),
    ],
)
def test_the_head_tells_where_the_body_ends(head: bytes, framing: Framing, keep_alive: bool) -> None:
    read = Heads().feed(head)
    assert isinstance(read, ResponseHead)
    assert (read.framing, read.keep_alive) == (framing, keep_alive)


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP response: b'SSH-2.0-OpenSSH_9.6\\r\\n'"),
        (b"H2", "not an HTTP response: b'H2'"),
        (OK + b"x: " + b"y" * 70000, "a response head of more than 65536 bytes"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
            "the server switched protocols, though the request did not ask for that",
        ),
    ],
)
def test_what_is_not_http_is_said_as_a_value(raw: bytes, detail: str) -> None:
    assert Heads().feed(raw) == detail


@pytest.mark.parametrize(
    "raw",
    [
        OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        OK + b"a b: c\r\n\r\n",
    ],
)
def test_a_head_that_the_parser_refuses_is_malformed(raw: bytes) -> None:
    assert isinstance(Heads().feed(raw), str)


@loop_over("name", sorted(BODIES.keys() - {"data like the end"}))
def test_a_chunked_body_is_done_with_its_last_byte_however_it_is_split(name: str) -> None:
    raw = CHUNKED + b"".join(data for data, _ in BODIES[name])
    for cut in range(len(CHUNKED), len(raw)):
        framing = Chunked()
        assert [framing.is_done(Reads([raw[:cut]])), framing.is_done(Reads([raw[:cut], raw[cut:]]))] == [
            False,
            True,
        ]
    framing, reads = Chunked(), Reads([CHUNKED[:-1]])
    done = []
    for at in range(len(CHUNKED) - 1, len(raw)):
        reads.append(raw[at : at + 1])
        done.append(framing.is_done(reads))
    assert done == [False] * (len(done) - 1) + [True]


def test_a_chunked_body_that_is_no_chunks_is_done_at_once() -> None:
    assert Chunked().is_done(Reads([CHUNKED + b"zz\r\n\r\n"]))


@pytest.mark.parametrize(
    ("framing", "done"),
    [
        (ContentLength(5), [False, False, False, False, False, True, True]),
        (UntilClose(), [False] * 7),
        (NoBody(), [True] * 7),
    ],
)
def test_other_bodies_are_done_by_length_never_or_at_once(framing: Framing, done: list[bool]) -> None:
    reads = Reads([b""])
    found = [framing.is_done(reads)]
    for _ in range(6):
        reads.append(b"x")
        found.append(framing.is_done(reads))
    assert found == done


@loop_over("before", [b"", CONTINUE])
@loop_over("name", BODIES)
def test_each_byte_of_a_body_belongs_to_the_read_it_came_in(name: str, before: bytes) -> None:
    parts = [(before + CHUNKED, 0), *BODIES[name]]
    raw = b"".join(data for data, _ in parts)
    body = b"".join(data for data, is_body in parts if is_body)
    so_far = np.cumsum([is_body for data, is_body in parts for _ in data])
    for cut in range(1, len(raw)):
        whole = unframed([raw[:cut], raw[cut:]])
        assert (whole.status, whole.body, whole.complete, whole.malformed) == (200, body, True, None)
        assert whole.body_ends.tolist() == [so_far[cut - 1], len(body)]
        cut_off = unframed([raw[:cut]])
        assert (cut_off.body, cut_off.complete) == (body[: so_far[cut - 1]], False)
    bytewise = unframed([raw[i : i + 1] for i in range(len(raw))])
    assert (bytewise.body, bytewise.body_ends.tolist()) == (body, so_far.tolist())


@loop_over(("reads", "body", "body_ends", "complete", "malformed"), TABLES["bodies"])
def test_a_body_is_taken_out_of_its_framing(
    reads: list[str], body: str, body_ends: list[int], complete: bool, malformed: str | None
) -> None:
    answer = unframed([read.encode("latin-1") for read in reads])
    assert (answer.body, answer.body_ends.tolist()) == (body.encode("latin-1"), body_ends)
    assert (answer.complete, answer.malformed) == (complete, malformed)


@pytest.mark.parametrize(
    ("server", "framing", "kept"),
    [
        (b"llama.cpp", b"Transfer-Encoding: chunked", False),  # it closes after each stream
        (b"llama.cpp", b"Content-Length: 5", True),
        (b"uvicorn", b"Transfer-Encoding: chunked", True),
    ],
)
def test_a_connection_that_is_known_to_be_closed_is_not_kept(
    server: bytes, framing: bytes, kept: bool
) -> None:
    head = b"%bServer: %b\r\nKeep-Alive: timeout=5, max=100\r\n%b\r\n\r\n" % (OK, server, framing)
    read = Heads().read(Reads([head]))
    assert isinstance(read, ResponseHead)
    assert read.keep_alive is kept
