"""HTTP/1.1 responses: the head, where the body ends, and which read each of its bytes came in."""

from __future__ import annotations

from typing import ClassVar, Protocol

import httptools
import msgspec
import numpy as np

from loadgen.arrays import Int64

HEAD_END = b"\r\n\r\n"
LONGEST_TAIL = len(HEAD_END)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_LONGEST_HEAD_BYTES = 65536
_WITHOUT_BODY = (204, 304)

Headers = dict[str, str]


class Reads(Protocol):
    """The reads of a response so far, head included."""

    def __len__(self) -> int: ...

    def since(self, count: int) -> list[bytes]:
        """Those after the first `count`; where that is negative the last ones, as of a slice."""
        ...


class Framing(Protocol):
    """Tells from the reads of a response whether it is whole."""

    @property
    def tail(self) -> bytes:
        """No read ends the response that does not end so, or is shorter."""
        ...

    @property
    def broken(self) -> bool:
        """Whether the bytes are not of this framing: the connection cannot be used again."""
        ...

    def done(self, reads: Reads) -> bool: ...


class Chunked(msgspec.Struct):
    """Ends with the last chunk: nearly always one fixed mark, else the parser is asked."""

    tail: ClassVar[bytes] = HEAD_END  # whatever the last chunk looks like, an empty line is its end
    broken: bool = False
    _ended: bool = False
    _fed: int = 0  # reads
    _parser: httptools.HttpResponseParser | None = None

    def done(self, reads: Reads) -> bool:
        """A test of the last bytes; a read too short to hold the whole mark is joined to those before."""
        (last,) = reads.since(-1)
        if len(last) < len(_LAST_CHUNK):
            last = b"".join(reads.since(-len(_LAST_CHUNK)))
        if not last.endswith(self.tail):
            return False
        return last.endswith(_LAST_CHUNK) or self._asked(reads)

    def _asked(self, reads: Reads) -> bool:
        """Trailers, a chunk extension, `00`, or merely events with CRLF line ends: let the parser tell."""
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        begin, self._fed = self._fed, len(reads)
        try:
            self._parser.feed_data(b"".join(reads.since(begin)))
        except httptools.HttpParserError:
            self.broken = True  # it will not get better: decoding says what is wrong
        return self._ended or self.broken

    def on_message_complete(self) -> None:
        self._ended = self._parser is not None and self._parser.get_status_code() >= 200


class ContentLength(msgspec.Struct):
    """Ends after a number of bytes known from the head."""

    total: int  # head and body
    tail: ClassVar[bytes] = b""
    broken: ClassVar[bool] = False
    _counted: int = 0  # reads
    _received: int = 0  # their bytes

    def done(self, reads: Reads) -> bool:
        self._received += sum(map(len, reads.since(self._counted)))
        self._counted = len(reads)
        return self._received >= self.total


class UntilClose(msgspec.Struct, frozen=True):
    """Ends when the server closes the connection."""

    tail: ClassVar[bytes] = bytes(LONGEST_TAIL)  # text never ends so
    broken: ClassVar[bool] = False

    def done(self, reads: Reads) -> bool:
        return False


class NoBody(msgspec.Struct, frozen=True):
    """Ends with the head."""

    tail: ClassVar[bytes] = b""
    broken: ClassVar[bool] = False

    def done(self, reads: Reads) -> bool:
        return True


class Head(msgspec.Struct):
    """A response's status line and headers, with lower-case names."""

    status: int = 0
    headers: Headers = msgspec.field(default_factory=dict)
    keep_alive: bool = False
    length: int = 0  # bytes, with any 1xx heads before it
    framing: Framing = msgspec.field(default_factory=UntilClose)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")


class Malformed(msgspec.Struct, frozen=True):
    """Why these bytes are not HTTP."""

    detail: str


def read_head(raw: bytes | bytearray) -> Head | Malformed | None:
    """The head of the final response, 1xx ones skipped; None while it is incomplete."""
    if raw[:5] != b"HTTP/"[: len(raw)]:
        return Malformed(f"not an HTTP response: {bytes(raw[:40])!r}")
    begin = 0
    while True:
        end = raw.find(HEAD_END, begin) + len(HEAD_END)
        if end < len(HEAD_END):
            if len(raw) - begin > _LONGEST_HEAD_BYTES:
                return Malformed(f"a response head of more than {_LONGEST_HEAD_BYTES} bytes")
            return None
        head = Head(length=end)
        parser = httptools.HttpResponseParser(head)
        try:
            parser.feed_data(bytes(raw[begin:end]))
        except httptools.HttpParserUpgrade:
            return Malformed("the server switched protocols, though nobody asked it to")
        except httptools.HttpParserError as error:
            return Malformed(str(error))
        head.status = parser.get_status_code()
        if head.status >= 200:
            head.keep_alive = parser.should_keep_alive()
            head.framing = _framing(head.status, head.headers, end)
            return head
        begin = end


def _framing(status: int, headers: Headers, head_length: int) -> Framing:
    """RFC 9112, 6.3, for the answer to a POST."""
    if status in _WITHOUT_BODY:
        return NoBody()
    coding = headers.get("transfer-encoding")
    if coding is not None:
        return Chunked() if coding.lower().rstrip().endswith("chunked") else UntilClose()
    length = headers.get("content-length", "").strip()
    return ContentLength(head_length + int(length)) if length.isdecimal() else UntilClose()


class Unframed(msgspec.Struct, frozen=True):
    """A response without its framing; `body_ends` is int64[reads], the body's length after each read."""

    status: int  # 0: there was no whole head
    headers: Headers
    body: bytes
    body_ends: Int64
    complete: bool  # the framing's end was seen, or there is none but the end of the connection
    malformed: str | None


class Response:
    """What a parser says of one response while it is fed."""

    __slots__ = ("complete", "headers", "on_body", "parser", "pieces", "status")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # a C method: no Python frame per chunk
        self.headers: Headers = {}
        self.status = 0
        self.complete = False
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

    def leave_parser(self) -> None:
        """Once it has been fed: it knows the response too, and nobody collects cycles while decoding."""
        del self.parser

    def lengths(self) -> Int64:
        """Bytes of each piece of the body, int64[pieces]."""
        return np.fromiter(map(len, self.pieces), np.int64, len(self.pieces))

    @property
    def encoding(self) -> str:
        """How the body is compressed; `identity` where it is not."""
        return self.headers.get("content-encoding", "identity").strip().lower()


def unframe(raw: bytes, read_ends: Int64) -> Unframed:
    """The body of a response, each of its bytes in the read in which it arrived.

    `read_ends` is int64[reads], how much of `raw` there was after each. What comes after the response's
    end is left out; what came before malformed bytes is kept.
    """
    response = Response()
    pieces, feed = response.pieces, response.parser.feed_data
    counts: list[int] = []
    malformed = None
    begin = 0
    try:
        for end in read_ends.tolist():
            feed(raw[begin:end])
            begin = end
            counts.append(len(pieces))
            if response.complete:
                break
    except httptools.HttpParserUpgrade:
        malformed = "the server switched protocols, though nobody asked it to"
    except httptools.HttpParserError as error:
        malformed = None if response.complete else str(error)
    finally:
        response.leave_parser()
    counts += [len(pieces)] * (len(read_ends) - len(counts))
    lengths = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(response.lengths(), out=lengths[1:])
    framing = _framing(response.status, response.headers, 0)
    if malformed is None and response.encoding != "identity":
        malformed = (
            f"the answer is compressed (content-encoding: {response.encoding}), though that was not asked for"
        )
    return Unframed(
        status=response.status,
        headers=response.headers,
        body=b"".join(pieces),
        body_ends=lengths[counts],
        complete=response.complete or (response.status > 0 and isinstance(framing, UntilClose)),
        malformed=malformed,
    )
