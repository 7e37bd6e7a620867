"""HTTP/1.1: a response's head, the end of its body, and the read in which each byte came."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Protocol

import httptools
import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.engines.engines import ENGINES

HEAD_END = b"\r\n\r\n"
LONGEST_TAIL = len(HEAD_END)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
LONGEST_HEAD_BYTES = 65536
_SHOWN_BYTES = 40  # of what is not HTTP
_WITHOUT_BODY = (204, 304)
# Servers that end a connection after each stream, although its head offers more.
_CLOSING_STREAMS = frozenset(engine.closing_server for engine in ENGINES if engine.closing_server)
_PLAIN = ("", "identity", "chunked")  # codings that leave the bytes as they are
_LEAST, SWITCHING, _FINAL = 100, 101, 200  # statuses
SWITCHED = "the server switched protocols, though the request did not ask for that"
# A first chunk in order, or not all of its size has come; of anything else the parser reports what it is.
_FIRST_SIZE = re.compile(rb"[0-9a-fA-F]{0,8}(?:\Z|[\r;])")

Headers = dict[str, str]


class Reads(Protocol):
    """The reads of a response so far, head included."""

    def __len__(self) -> int: ...

    def list_since(self, count: int) -> list[bytes]:
        """Return the reads after the first `count`; a negative one counts from the end, as in a slice."""


class Framing(msgspec.Struct, kw_only=True):
    """How a response's body ends; finds from its reads whether it is complete."""

    tail: ClassVar[bytes] = b""  # no read ends the response that does not end so, or is shorter
    broken: bool = False  # the bytes are not of this framing: the connection cannot be used again

    def is_done(self, reads: Reads) -> bool:
        """Whether the last read completed the response; call it once per read, as it counts bytes.

        True also where the framing is seen to be broken; some breaks only `check_end` finds.
        """
        return False

    def begins_well(self, rest: bytes) -> bool:
        """Whether the first bytes of a body fit this framing; if not, the response is malformed."""
        return True

    def check_end(self, reads: Reads) -> bool:
        """Whether a parser, fed the reads that it lacks, sees the response complete or broken; False here."""
        return False


class Chunked(Framing):
    """A chunked body: ends with the last chunk, nearly always one fixed mark, else found by the parser."""

    tail: ClassVar[bytes] = HEAD_END  # however the last chunk is written, an empty line is its end
    _ended: bool = False
    _fed: int = 0  # reads
    _parser: httptools.HttpResponseParser | None = None

    def is_done(self, reads: Reads) -> bool:
        """Whether the reads end with the usual last chunk, or with an empty line and the parser says so."""
        (last,) = reads.list_since(-1)
        if len(last) < len(_LAST_CHUNK):
            last = b"".join(reads.list_since(-len(_LAST_CHUNK)))
        if not last.endswith(self.tail):
            return False
        return last.endswith(_LAST_CHUNK) or self.check_end(reads)

    def begins_well(self, rest: bytes) -> bool:
        return _FIRST_SIZE.match(rest) is not None

    def check_end(self, reads: Reads) -> bool:
        """Whether what came ends in another form (trailers, a chunk extension, `00`), or sets `broken`.

        Each byte is parsed once. `broken` is set by a chunk size that is not a number.
        """
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        begin, self._fed = self._fed, len(reads)
        try:
            self._parser.feed_data(b"".join(reads.list_since(begin)))
        except httptools.HttpParserError:
            self.broken = True  # it will not get better: decoding reports what is wrong
        return self._ended or self.broken

    def on_message_complete(self) -> None:
        self._ended = self._parser is not None and self._parser.get_status_code() >= 200


class ContentLength(Framing):
    """A body that ends after a number of bytes known from the head."""

    total: int  # head and body
    _counted: int = 0  # reads
    _received: int = 0  # their bytes

    def is_done(self, reads: Reads) -> bool:
        self._received += sum(map(len, reads.list_since(self._counted)))
        self._counted = len(reads)
        return self._received >= self.total


class UntilClose(Framing):
    """A body that ends when the server closes the connection."""

    tail: ClassVar[bytes] = bytes(LONGEST_TAIL)  # text never ends so


class NoBody(Framing):
    """A response that ends with its head."""

    def is_done(self, reads: Reads) -> bool:
        return True


class ResponseHead(msgspec.Struct):
    """A response's status line and headers, with lower-case names."""

    status: int = 0
    headers: Headers = msgspec.field(default_factory=dict)
    keep_alive: bool = False
    length: int = 0  # bytes, with any 1xx heads before it
    framing: Framing = msgspec.field(default_factory=UntilClose)
    rest: bytes = b""  # what of the body came in the read that ended the head
    ended: bool = False  # the parser has seen all of it

    def on_headers_complete(self) -> None:
        self.ended = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")


class Heads:
    """Parses the head of the final response, 64 KiB at most, while it arrives, skipping 1xx responses.

    Every byte is read once, and what is not HTTP is known by its first bytes: the parser is fed as they come,
    not when an empty line has been seen.
    """

    __slots__ = ("_begin", "_fed", "_head", "_length", "_parser", "_skipped", "_tail")

    def __init__(self) -> None:
        self._fed = self._length = self._skipped = 0  # reads; bytes; 1xx heads
        self._begin = b""  # of the whole answer
        self._tail = b""  # of the head under way: the end mark may lie in two reads
        self._renew()

    def _renew(self) -> None:
        self._head, self._tail = ResponseHead(), b""
        self._parser = httptools.HttpResponseParser(self._head)

    def read(self, reads: Reads) -> ResponseHead | str | None:
        """Parse the head from the reads since the last call, as `feed`."""
        new = reads.list_since(self._fed)
        self._fed = len(reads)
        return self.feed(new[0] if len(new) == 1 else b"".join(new))

    def feed(self, data: bytes) -> ResponseHead | str | None:
        """Parse the head from bytes since the last call; None until it is whole, a text if not HTTP."""
        if len(self._begin) < _SHOWN_BYTES:
            self._begin += data[: _SHOWN_BYTES - len(self._begin)]
            if self._begin[:5] != b"HTTP/"[: len(self._begin)]:
                return f"not an HTTP response: {self._begin!r}"
        while data:
            held = len(self._tail)
            end = (self._tail + data).find(HEAD_END) + len(HEAD_END) - held
            whole = end >= len(HEAD_END) - held
            piece = data[:end] if whole else data
            self._length += len(piece)
            if self._length > LONGEST_HEAD_BYTES:
                more = ", with the 1xx ones before it" if self._skipped else ""
                return f"a response head of more than {LONGEST_HEAD_BYTES} bytes{more}"
            if fault := self._feed_parser(piece, whole):
                return fault
            if not whole:
                self._tail = (self._tail + data)[1 - len(HEAD_END) :]
                return None
            if self._parser.get_status_code() >= _FINAL:
                head, parser = self._head, self._parser
                head.status, head.length, head.rest = parser.get_status_code(), self._length, data[end:]
                # Some servers close the connection after a stream, although they offer to keep it.
                is_closed = (
                    head.headers.get("server") in _CLOSING_STREAMS
                    and head.headers.get("transfer-encoding") == "chunked"
                )
                head.keep_alive = parser.should_keep_alive() and not is_closed
                head.framing = _choose_framing(head.status, head.headers, self._length)
                return head
            data = data[end:]
            self._skipped += 1
            self._renew()
        return None

    def _feed_parser(self, piece: bytes, whole: bool) -> str:
        """Feed the parser a piece of a head; return what is wrong with it, or ""."""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return SWITCHED
        except httptools.HttpParserError as error:
            return str(error)
        if not whole:
            return "the response head's lines do not end in CRLF" if self._head.ended else ""
        status = self._parser.get_status_code()
        if status == SWITCHING:
            return SWITCHED
        return f"{status:03d} is not an HTTP status" if status < _LEAST else ""


def _choose_framing(status: int, headers: Headers, head_length: int) -> Framing:
    """Choose the framing of the answer to a POST by RFC 9112, 6.3: by status, then coding, then length."""
    if status in _WITHOUT_BODY:
        return NoBody()
    coding = headers.get("transfer-encoding")
    if coding is not None:
        return Chunked() if coding.lower().rstrip().endswith("chunked") else UntilClose()
    length = headers.get("content-length", "").strip()
    return ContentLength(head_length + int(length)) if length.isdecimal() else UntilClose()


def explain_compression(headers: Mapping[str, str]) -> str:
    """Explain that a response's header names a compression; "" if it names none."""
    for name in ("content-encoding", "transfer-encoding"):
        for coding in headers.get(name, "").lower().split(","):
            if coding.strip() not in _PLAIN:
                header = f"{name}: {coding.strip()}"
                return f"the response is compressed ({header}), though the request allowed no compression"
    return ""


class HttpBody(msgspec.Struct, frozen=True):
    """A response without framing; `body_ends` is int64[reads], the body's length after each read."""

    status: int  # 0: there was no whole head
    headers: Headers
    body: bytes
    body_ends: Int64
    complete: bool  # the framing's end was seen, or there is none but the end of the connection
    malformed: str | None


class Response:
    """The callbacks of a parser for one response."""

    __slots__ = ("complete", "headers", "on_body", "parser", "pieces", "status")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # a C method: no Python frame per chunk
        self.headers: Headers = {}
        self.status = 0
        self.complete = False
        # It must be deleted once fed: it refers to this too, and cycles are not collected here.
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        if not self.complete:
            self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200 and not self.complete:
            self.status = status

    def on_message_complete(self) -> None:
        self.complete = self.complete or self.status > 0


def unframe_response(raw: bytes, read_ends: Int64) -> HttpBody:
    """Remove the framing from a response, noting which read each byte of the body came in.

    `read_ends` is int64[reads], how much of `raw` there was after each. What comes after the response's end
    is left out; what came before malformed bytes is kept.
    """
    response = Response()
    pieces, feed = response.pieces, response.parser.feed_data
    counts: list[int] = []
    malformed, begin = "", 0
    try:
        for end in read_ends.tolist():
            feed(raw[begin:end])
            begin = end
            counts.append(len(pieces))
            if response.complete:
                break
    except httptools.HttpParserUpgrade:
        malformed = SWITCHED
    except httptools.HttpParserError as error:
        malformed = "" if response.complete else str(error)
    finally:
        del response.parser
    counts += [len(pieces)] * (len(read_ends) - len(counts))
    lengths = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, response.pieces), np.int64, len(response.pieces)), out=lengths[1:])
    framing = _choose_framing(response.status, response.headers, 0)
    return HttpBody(
        status=response.status,
        headers=response.headers,
        body=b"".join(pieces),
        body_ends=lengths[counts],
        complete=response.complete or (response.status > 0 and isinstance(framing, UntilClose)),
        malformed=malformed or explain_compression(response.headers) or None,
    )
