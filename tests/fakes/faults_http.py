"""Faults of connections and of HTTP."""

from __future__ import annotations

from fakes.faults import (
    BODY,
    ONCE,
    WHOLE,
    A,
    Fault,
    K,
    U,
    Z,
    cut,
    events,
    fails,
    headed,
    lasting,
    pieces,
    raw,
    refused,
    succeeds,
    whole_answer,
)
from fakes.scripted_server import DONE, HEAD, LAST, PING, Answer, Asked, End, chunk

STREAM = HEAD + b"".join(map(chunk, WHOLE)) + LAST
STALLED = fails(K.STALL, "no token within --stall-timeout")
# h11 waits for more where llhttp knows: the timeout ends it.
WAITS = fails(K.STALL, STALLED.says)
UNANSWERED = fails(K.TRUNCATED, "without a byte of a response")
CUT = fails(K.TRUNCATED, r"without a finish reason or \[DONE\], after \d+ chunks|closed connection|reset")
NO_HTTP = fails(K.MALFORMED, r"\w{3}")
TOO_LONG = fails(K.MALFORMED, "larger than")
COMPRESSED = fails(K.MALFORMED, "compressed|coding")
CHUNKED = "transfer-encoding: chunked"


def chunked(*lines: bytes) -> Answer:
    """A body of these bytes, said to be chunked; the connection stays open."""
    return Answer([HEAD, *lines], End.HANG)


def _idle_closed(asked: Asked) -> Answer:
    return Answer([], End.CLOSE) if asked.on_connection else whole_answer()


def _idle_reset(asked: Asked) -> Answer:
    return Answer([], End.RESET) if asked.on_connection else whole_answer()


RESENT = frozenset({"many-resent"})
CONNECTIONS = [
    Fault("closed while idle", _idle_closed, succeeds(), resent=1, doubts=RESENT),
    Fault("reset while idle", _idle_reset, succeeds(), resent=1, doubts=RESENT),
    Fault("closed between requests", events(*WHOLE, end=End.CLOSE), succeeds(), resent=None),
    Fault("closed before headers", Answer([], End.CLOSE), UNANSWERED, resent=1, doubts=RESENT),
    Fault("reset before headers", Answer([], End.RESET), UNANSWERED, resent=1, doubts=RESENT),
    Fault("held, then closed", Answer([0.3], End.CLOSE), UNANSWERED, requests=ONCE, stall_s=5),
    Fault("held, then reset", Answer([0.3], End.RESET), UNANSWERED, requests=ONCE, stall_s=5),
    Fault("closed after the head", Answer([HEAD], End.CLOSE), CUT),
    Fault("closed inside the head", Answer([HEAD[:30]], End.CLOSE), fails(K.TRUNCATED, r"\w{3}")),
    Fault("cut", cut(A, A), CUT),
    Fault("reset mid-stream", Answer([HEAD, chunk(A), 0.02], End.RESET), fails(K.TRUNCATED, r"\w{3}")),
    Fault("cut after the finish reason", cut(A, A, Z), CUT),
    Fault("cut after usage", cut(A, A, Z, U), succeeds()),
    Fault("cut after [DONE]", cut(*WHOLE), succeeds()),
    Fault("cut inside a chunk", Answer([HEAD, chunk(A), chunk(A)[:-20]], End.CLOSE), CUT),
    Fault("half-closed mid-stream", Answer([HEAD, chunk(A)], End.HALF), CUT),
    Fault("half-closed before the answer", Answer([0.2], End.HALF), UNANSWERED, requests=ONCE, stall_s=5),
    Fault("half-closed after the answer", Answer([STREAM], End.HALF), succeeds(), resent=None),
    Fault("stalled before the head", Answer([], End.HANG), STALLED, requests=ONCE),
    Fault("stalled inside the head", Answer([HEAD[:30]], End.HANG), STALLED, requests=ONCE),
    Fault("stalled after the head", Answer([HEAD], End.HANG), STALLED, requests=ONCE),
    Fault("stalled mid-stream", cut(A, end=End.HANG), STALLED, requests=ONCE),
    Fault("stalled after [DONE]", cut(*WHOLE, end=End.HANG), STALLED, requests=ONCE),
    Fault("pings for ever", Answer([HEAD, *lasting(chunk(PING), 200, 0.02)]), STALLED, requests=ONCE),
    Fault(
        "a token, then pings for ever",
        Answer([HEAD, chunk(A), *lasting(chunk(PING), 200, 0.02)]),
        STALLED,
        requests=ONCE,
    ),
    Fault(
        "2,500 pings a second",
        Answer([HEAD, *lasting(chunk(PING) * 5, 300, 0.002), *map(chunk, WHOLE), LAST]),
        succeeds(),
        requests=ONCE,
        stall_s=9,
    ),
    Fault(
        "slower than --request-timeout",
        Answer([HEAD, *lasting(chunk(A), 100, 0.05)]),
        fails(K.TIMEOUT, "not finished within --request-timeout"),
        requests=ONCE,
        request_s=0.4,
    ),
]

CONTINUE, SWITCHING = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n"
HEADS = [
    Fault(
        "a head that never ends",
        Answer([HEAD[:-2], *lasting(b"x: y\r\n", 100, 0.03)]),
        STALLED,
        requests=ONCE,
    ),
    Fault("a head of 300 kB", Answer([HEAD[:-2], b"x: y\r\n" * 50_000], End.HANG), NO_HTTP),
    Fault("a header of 300 kB", Answer([HEAD[:-2], b"x: " + b"y" * 300_000], End.HANG), NO_HTTP),
    Fault("a head of 50 kB", Answer([HEAD[:-2], b"x: y\r\n" * 8000, STREAM[len(HEAD) - 2 :]]), succeeds()),
    Fault("a 100 first", Answer([CONTINUE, STREAM]), succeeds()),
    Fault("a 103 first", Answer([b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n" + STREAM]), succeeds()),
    Fault("a 100 alone", Answer([CONTINUE], End.HANG), STALLED, requests=ONCE),
    Fault("a 102 now and then", Answer(lasting(CONTINUE, 100, 0.03)), STALLED, requests=ONCE),
    Fault("1xx without end", Answer([CONTINUE * 8000], End.HANG), NO_HTTP),
    Fault("101", raw(SWITCHING + b"upgrade: x\r\nconnection: upgrade\r\n\r\n", End.HANG), NO_HTTP),
    Fault("101 without upgrade", raw(SWITCHING + b"\r\n", End.HANG), NO_HTTP),
    Fault("a status of 099", raw(b"HTTP/1.1 099 Odd\r\n\r\n", End.HANG), NO_HTTP),
    Fault("a status of letters", raw(b"HTTP/1.1 abc OK\r\n\r\n", End.HANG), NO_HTTP),
    Fault("no status line", raw(BODY, End.CLOSE), NO_HTTP),
    Fault("SSH", raw(b"SSH-2.0-OpenSSH_9\r\n", End.HANG), NO_HTTP),
    Fault("HTTP/2", raw(bytes([0, 0, 18, 4, 0, 0, 0, 0, 0]) + bytes(18), End.HANG), NO_HTTP),
    Fault("HTTP/2's preface", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", End.HANG), NO_HTTP),
    Fault(
        "a page of HTTP/0.9",
        raw(b"<html>\n<h1>It works</h1>\n</html>\n", End.CLOSE),
        NO_HTTP,
        httpx=fails(K.TRUNCATED, "without sending a response"),  # its parser waits for an empty line
    ),
    Fault("a NUL in a header", headed("x: a\0b", CHUNKED, end=End.HANG), NO_HTTP),
    Fault("a header without a colon", headed("odd", CHUNKED, end=End.HANG), NO_HTTP),
]

STATUSES = [
    Fault(
        f"{code} with a redirect",
        refused(f"{code} Moved", b"", "location: http://127.0.0.1:9/elsewhere"),
        fails(K.HTTP_STATUS, f"^{code}"),
    )
    for code in (301, 302, 303, 307, 308)
]
STATUSES += [
    Fault(
        f"{code}",
        refused(f"{code} Odd", b'{"error":{"message":"not you"}}'),
        fails(K.HTTP_STATUS, f"^{code}: not you"),
    )
    for code in (201, 400, 401, 403, 404, 408, 413, 500, 502, 503, 504, 600)
]
STATUSES += [
    Fault("204", Answer([b"HTTP/1.1 204 No Content\r\n\r\n"]), fails(K.HTTP_STATUS, "^204")),
    Fault("304", Answer([b"HTTP/1.1 304 Not Modified\r\n\r\n"]), fails(K.HTTP_STATUS, "^304")),
    Fault(
        "422 with a list",
        refused("422 Odd", b'{"detail":[{"loc":["body","prompt"],"msg":"field required"}]}'),
        fails(K.HTTP_STATUS, "^422: .*field required"),
    ),
    Fault(
        "429 with Retry-After",
        refused("429 Too Many", b'{"error":{"message":"slow down"}}', "retry-after: 7"),
        fails(K.RATE_LIMITED, r"^429.*slow down.*retry.after\D{1,5}7|^429.*retry.after\D{1,5}7.*slow down"),
    ),
    Fault("503 without a body", refused("503 Odd", b""), fails(K.HTTP_STATUS, "^503")),
    Fault("500 of blanks", refused("500 Odd", b"  \n "), fails(K.HTTP_STATUS, "^500")),
    Fault(
        "500 of HTML",
        refused("500 Odd", b"<html>\n<h1>Bad</h1>"),
        fails(K.HTTP_STATUS, "^500: <html> <h1>Bad"),
    ),
    Fault(
        "500 of a stream",
        headed(CHUNKED, status="HTTP/1.1 500 Odd", body=chunk(b'data: {"error":"gone"}\n\n') + LAST),
        fails(K.HTTP_STATUS, "^500: .*gone"),
    ),
    Fault("500 of deep JSON", refused("500 Odd", b'{"error":' * 20_000), fails(K.HTTP_STATUS, "^500")),
    Fault(
        "500 of deep whole JSON",
        refused("500 Odd", b"[" * 20_000 + b"]" * 20_000),
        fails(K.HTTP_STATUS, "^500"),
    ),
    Fault("500 of a huge number", refused("500 Odd", b'{"error":1e999}'), fails(K.HTTP_STATUS, "^500")),
    Fault(
        "500 cut",
        Answer([b"HTTP/1.1 500 Odd\r\ncontent-length: 99\r\n\r\nhalf"], End.CLOSE),
        fails(K.HTTP_STATUS, "^500: half"),
    ),
]

_LENGTH = len(BODY)
LENGTHS = [
    Fault("the length", headed(f"content-length: {_LENGTH}"), succeeds()),
    Fault(
        "a length too short",
        headed(f"content-length: {len(A) + 10}"),
        fails(K.MALFORMED, "truncated"),
        resent=None,
    ),
    Fault("a length of one event", headed(f"content-length: {len(A)}"), CUT, resent=None),
    Fault(
        "a length too long", headed(f"content-length: {_LENGTH + 9}", end=End.HANG), STALLED, requests=ONCE
    ),
    Fault("a length too long, closed", headed(f"content-length: {_LENGTH + 9}", end=End.CLOSE), succeeds()),
    Fault("two lengths", headed(f"content-length: {_LENGTH}", "content-length: 7", end=End.HANG), NO_HTTP),
    Fault("a negative length", headed("content-length: -5", end=End.HANG), NO_HTTP),
    Fault("a length of letters", headed("content-length: abc", end=End.HANG), NO_HTTP),
    Fault("a length of 2^72", headed(f"content-length: {2**72}", end=End.HANG), NO_HTTP),
    Fault(
        "a length of 10^12", headed(f"content-length: {10**12}", end=End.HANG), TOO_LONG, WAITS, requests=ONCE
    ),
    Fault("a length of 5000 digits", headed("content-length: " + "9" * 5000, end=End.HANG), NO_HTTP),
    Fault("until close", headed(end=End.CLOSE), succeeds()),
    Fault("until close, cut", headed(body=A + A, end=End.CLOSE), CUT),
    Fault("HTTP/1.0", headed(status="HTTP/1.0 200 OK", end=End.CLOSE), succeeds()),
    Fault("HTTP/1.0, cut", headed(status="HTTP/1.0 200 OK", body=A, end=End.CLOSE), CUT),
    Fault("connection: close", headed("connection: close", end=End.CLOSE), succeeds()),
    Fault(
        "connection: close, kept open",
        headed("connection: close", f"content-length: {_LENGTH}", end=End.HANG),
        succeeds(),
    ),
    Fault(
        "keep-alive, closed",
        headed("connection: keep-alive", f"content-length: {_LENGTH}", end=End.CLOSE),
        succeeds(),
        resent=None,
    ),
]

_CHUNKS = b"".join(map(chunk, WHOLE))
CHUNKS = [
    Fault(
        "chunk extensions",
        Answer([HEAD, b'%x;a=b;c="d"\r\n%b\r\n' % (_LENGTH, BODY), b"0;last\r\n\r\n"]),
        succeeds(),
    ),
    Fault("trailers", Answer([HEAD, _CHUNKS, b"0\r\nx-checksum: 7\r\n\r\n"]), succeeds()),
    Fault("a last chunk of 000", Answer([HEAD, _CHUNKS, b"000\r\n\r\n"]), succeeds()),
    Fault("one chunk", Answer([HEAD, chunk(BODY), LAST]), succeeds()),
    Fault("a size of zz", chunked(b"zz\r\n" + A + b"\r\n"), NO_HTTP),
    Fault("a size of zz later", chunked(chunk(A), b"zz\r\n" + A + b"\r\n"), NO_HTTP),
    Fault("a size of -5", chunked(b"-5\r\n" + A + b"\r\n"), NO_HTTP),
    Fault("a size of 2^72", chunked(b"%x\r\n" % 2**72 + A + b"\r\n"), NO_HTTP, WAITS, requests=ONCE),
    Fault("a size too small", chunked(b"%x\r\n" % (len(A) - 5) + A + b"\r\n"), NO_HTTP),
    Fault("a chunk cut", Answer([HEAD, b"ffff\r\n" + A], End.CLOSE), CUT),
    Fault("a stream that is not chunked", chunked(A, A, Z, U, DONE), NO_HTTP, WAITS, requests=ONCE),
    Fault(
        "gzip unasked",
        headed("content-encoding: gzip", CHUNKED, body=chunk(b"\x1f\x8b" + bytes(20)) + LAST),
        COMPRESSED,
    ),
    Fault(
        "br unasked",
        headed("content-encoding: br", CHUNKED, body=chunk(b"\x0b\x02" + bytes(20)) + LAST),
        COMPRESSED,
    ),
    Fault(
        "gzip as a transfer coding",
        headed("transfer-encoding: gzip, chunked", body=chunk(b"\x1f\x8b" + bytes(20)) + LAST),
        COMPRESSED,
    ),
]

_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# The request after such an answer meets a connection of no more use, and goes out again.
EXTRA = [
    Fault("bytes after the answer", raw(STREAM + b"\r\ngarbage"), succeeds(), resent=None),
    Fault("a second answer", raw(STREAM + STREAM), succeeds(), resent=None),
    Fault("a 408 after the answer", raw(STREAM + _LATE, End.CLOSE), succeeds(), resent=None),
    Fault("byte by byte", Answer(pieces(STREAM, len(STREAM))), succeeds()),
    Fault("in one segment", raw(STREAM), succeeds()),
]
