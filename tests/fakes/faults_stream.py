"""Faults of what a stream says: errors in band, ends, JSON, text, and the form of the events."""

from __future__ import annotations

import json
from typing import Any

from fakes.faults import (
    INPUT,
    ONCE,
    OUTPUT,
    WHOLE,
    A,
    Ending,
    Fault,
    K,
    U,
    Z,
    cut,
    events,
    fails,
    headed,
    pieces,
    raw,
    succeeds,
)
from fakes.scripted_server import DONE, HEAD, Answer, End, chunk, token, usage, whole

CUT = fails(
    K.TRUNCATED, r"without a finish reason or (\[DONE\]|usage), after \d+ chunks|closed connection without"
)
NO_JSON = fails(K.MALFORMED, r"event \d+: \W?\w{3}")
EMPTY = fails(K.EMPTY, r"\w{3}")
NOT_STREAMED = fails(K.NOT_STREAMED, "one JSON body")
MIB = 1 << 20
IMPOSSIBLE = fails(K.MALFORMED, r"\w{3}")
WRONG_LENGTH = frozenset({"answer-lengths"})


def event(message: object) -> bytes:
    """A message as an event."""
    return b"data: %b\n\n" % json.dumps(message).encode()


def choice(text: object = "a", reason: object = None, **more: Any) -> bytes:
    """An event with one choice of whatever types."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": reason, **more}]})


def in_band(says: str) -> Ending:
    """The request fails with what the server says."""
    return fails(K.IN_BAND, says)


def broken_off(name: str, last: bytes, ending: Ending) -> Fault:
    """One token, then this event, then [DONE]: without the event the answer would be cut."""
    return Fault(name, events(A, last, DONE), ending)


def ended(name: str, reason: object, ending: Ending) -> Fault:
    """A whole answer that ends for this reason."""
    return Fault(name, events(A, A, choice("z", reason), U, DONE), ending)


UNSAID = in_band("an error without a message")
ERRORS = [
    broken_off(
        "an error", event({"error": {"message": "CUDA out of memory", "code": 500}}), in_band("500: CUDA out")
    ),
    broken_off(
        "an error, a code of letters", event({"error": {"message": "gone", "code": "x"}}), in_band("x: gone")
    ),
    broken_off("an error of text", event({"error": "gone"}), in_band("gone")),
    broken_off("an error without words", event({"error": {}}), UNSAID),
    broken_off("an error of blanks", event({"error": " \n "}), UNSAID),
    broken_off("an error with a blank message", event({"error": {"message": ""}}), UNSAID),
    broken_off("an error with no message", event({"error": {"odd": 1}}), UNSAID),
    broken_off("an error that is true", event({"error": True}), UNSAID),
    broken_off("an object of error", event({"object": "error", "message": "gone"}), in_band("gone")),
    broken_off("a detail", event({"detail": "worker died"}), in_band("worker died")),
    broken_off("a detail of a list", event({"detail": [{"msg": "worker died"}]}), in_band("worker died")),
    broken_off("event: error", b'event: error\ndata: {"message":"gone"}\n\n', in_band("gone")),
    broken_off("event: error of text", b"event: error\ndata: gone\n\n", in_band("gone")),
    broken_off("event: error without data", b"event: error\n\n", in_band(r"\w{3}")),
    broken_off("llama.cpp's error field", b'error: {"code":500,"message":"gone"}\n\n', in_band("gone")),
    broken_off("an error that is a list", event({"error": ["gone"]}), in_band("gone")),
    broken_off("an error that is a number", event({"error": 7}), in_band("7")),
    broken_off("an error that is null", event({"error": None}), CUT),
    broken_off("an error that is false", event({"error": False}), CUT),
    Fault("an error and no more", cut(A, event({"error": "gone"}), end=End.CLOSE), in_band("gone")),
    Fault("an error first", events(event({"error": "gone"}), DONE), in_band("gone")),
    Fault(
        "an error after the finish reason", events(A, A, Z, event({"error": "gone"}), DONE), in_band("gone")
    ),
    Fault(
        "an error that is null in each",
        events(*(event({**json.loads(e[6:]), "error": None}) for e in (A, A, Z, U)), DONE),
        succeeds(),
    ),
    Fault("an error in one piece", raw(whole(b'{"error":{"message":"gone"}}')), in_band("gone")),
    Fault(
        "an error with a surrogate",
        events(A, b'data: {"error":"g\\ud800one"}\n\n'),
        Ending(K.MALFORMED, r"\w{3}"),
    ),
    broken_off("an error with escapes", event({"error": "g\x1b[2J\x1b]0;x\x07one\u202e"}), in_band("g.*one")),
    broken_off("an error with NUL", event({"error": "g\0one"}), in_band("g.one")),
    broken_off("an error of 1 MB", event({"error": "gone " * (MIB // 5)}), in_band("gone gone")),
    broken_off(
        "an error of deep JSON", b'data: {"error":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n\n", NO_JSON
    ),
]

STOPPED, NOT_WHOLE = fails(K.ABORTED, "finish_reason"), 2
ENDS = [
    ended("abort", "abort", STOPPED),
    ended("an end of error", "error", STOPPED),
    ended("content_filter", "content_filter", STOPPED),
    ended("an end of 10 MB", "stop" * (10 * MIB // 4), succeeds(reason="stop" * 7 + "sto…")),
    ended("an end with NUL", "st\0op", succeeds(reason="st\ufffdop")),
    ended("an end with escapes", "st\x1b[2Jop", succeeds(reason="st\ufffd[2Jop")),
    ended("an end that is a number", 7, NO_JSON),
    Fault(
        "an end with a surrogate",
        events(A, A, b'data: {"choices":[{"index":0,"text":"z","finish_reason":"\\ud800"}]}\n\n', U, DONE),
        NO_JSON,
    ),
    Fault(
        "an early stop",
        events(A, token("z", "stop"), usage(2), DONE),
        succeeds(tokens=2, reason="stop"),
        doubts=frozenset({"answer-lengths"}),
    ),
    Fault("two of three, without end or usage", events(A, A, DONE), CUT),
    Fault("two of three, without [DONE] either", events(A, A), CUT),
    Fault("no finish reason, with usage", events(A, A, A, U, DONE), succeeds(reason="")),
    Fault("no [DONE]", events(A, A, Z, U), succeeds()),
    Fault("no [DONE], no usage", events(A, A, Z), succeeds(usage=False)),
    Fault("[DONE] twice", events(*WHOLE, DONE), succeeds()),
    Fault("data after [DONE]", events(*WHOLE, A, event({"error": "gone"})), succeeds()),
    Fault("tokens after the finish reason", events(A, Z, A, U, DONE), succeeds()),
    Fault("zero tokens", events(choice("", "stop"), usage(0), DONE), EMPTY),
    Fault("zero messages", events(DONE), EMPTY),
    Fault("an empty stream", events(), EMPTY),
    Fault("usage without a token", events(U, DONE), EMPTY),
    Fault("an empty body", headed("content-length: 0", body=b""), EMPTY),
    Fault(
        "more tokens than asked",
        events(*[A] * 29, Z, usage(30), DONE),
        succeeds(tokens=30),
        doubts=frozenset({"answer-lengths"}),
    ),
]

_HALF = A[: len(A) // 2]
_BAD_UTF8, _DEEP = b'data: {"choices":[{"index":0,"text":"\xe2\x82"}]}\n\n', b"[" * 20_000
JSON = [
    Fault("JSON cut, the stream goes on", events(A, _HALF + b"\n\n", Z, U, DONE), NO_JSON),
    Fault("JSON cut by the end", Answer([HEAD, chunk(A), chunk(_HALF)], End.CLOSE), CUT),
    Fault("UTF-8 cut inside a character", events(A, _BAD_UTF8, Z, U, DONE), NO_JSON),
    Fault("no JSON", events(A, b"data: hello\n\n", Z, U, DONE), NO_JSON),
    Fault("an array", events(A, event([]), Z, U, DONE), NO_JSON),
    Fault("a number", events(A, event(7), Z, U, DONE), NO_JSON),
    Fault("choices of text", events(A, event({"choices": "x"}), Z, U, DONE), NO_JSON),
    Fault("a choice that is null", events(A, event({"choices": [None]}), Z, U, DONE), NO_JSON),
    Fault("a text that is a number", events(A, choice(5), Z, U, DONE), NO_JSON),
    Fault("an index of 2^62", events(A, choice("a", index=2**62), Z, U, DONE), NO_JSON),
    Fault("an index of 10^30", events(A, choice("a", index=10**30), Z, U, DONE), NO_JSON),
    Fault("deep JSON", events(A, b'data: {"x":' + _DEEP + b"]" * 20_000 + b"}\n\n", Z, U, DONE), NO_JSON),
    Fault("deep JSON without its end", events(A, b"data: " + _DEEP + b"\n\n", Z, U, DONE), NO_JSON),
    Fault(
        "deep JSON in one piece",
        raw(whole(b'{"x":' + _DEEP + b"]" * 20_000 + b"}")),
        fails(K.NOT_STREAMED, r"\w{3}"),
    ),
    Fault(
        "one JSON body",
        raw(whole(b'{"choices":[{"index":0,"text":"abc","finish_reason":"length"}]}')),
        NOT_STREAMED,
    ),
    Fault("a page of HTML", raw(whole(b"<html><h1>Log in</h1></html>\n", kind="text/html")), EMPTY),
    Fault("a page of HTML in one line", raw(whole(b"<p>" * 22_000, kind="text/html")), EMPTY),
    Fault(
        "ndjson",
        headed(body=b"".join(e[6:-1] for e in (A, A, Z, U)), end=End.CLOSE),
        fails(K.NOT_STREAMED, r"\w{3}"),
    ),
]

_BIG = token("x" * (10 * MIB))
_EURO = token("€")
FORMS = [
    Fault("several events in a chunk", events(A + A, Z + U + DONE), succeeds()),
    Fault("one event over fifty chunks", events(*pieces(A, 50), A, Z, U, DONE), succeeds()),
    Fault("a character over two chunks", events(*pieces(_EURO, len(_EURO)), A, Z, U, DONE), succeeds()),
    Fault("CRLF", events(*(e.replace(b"\n", b"\r\n") for e in WHOLE)), succeeds()),
    Fault("CR", events(*(e.replace(b"\n", b"\r") for e in WHOLE)), succeeds()),
    Fault("CRLF and LF", events(A, A.replace(b"\n", b"\r\n"), Z, U, DONE), succeeds()),
    Fault("a byte order mark", events(b"\xef\xbb\xbf" + A, *WHOLE[1:]), succeeds()),
    Fault("comments", events(b": one\n\n", A, b":\n", A, b": two\n", Z, U, DONE), succeeds()),
    Fault(
        "event, id and retry", events(*(b"event: message\nid: 7\nretry: 9\n" + e for e in WHOLE)), succeeds()
    ),
    Fault("data without a blank", events(*(e.replace(b"data: ", b"data:") for e in WHOLE)), succeeds()),
    Fault("data over lines", events(A.replace(b",", b",\ndata: "), A, Z, U, DONE), succeeds()),
    Fault("blank data", events(b"data:\n\n", A, b"data: \n\n", A, b"data\n\n", Z, U, DONE), succeeds()),
    Fault("blanks after [DONE]", events(A, A, Z, U, b"data: [DONE] \n\n"), succeeds()),
    Fault("other fields", events(A, b"other: x\n\n", b"nonsense\n\n", A, Z, U, DONE), succeeds()),
    Fault("an event of 10 MB", events(_BIG, A, Z, U, DONE), succeeds(), requests=ONCE, stall_s=9),
    Fault("64 kB without a line end, cut", cut(A, b"data: " + b"x" * 65536), CUT, requests=ONCE, stall_s=9),
    Fault(
        "10 MB without a line end, cut", cut(A, b"data: " + b"x" * 10 * MIB), CUT, requests=ONCE, stall_s=9
    ),
    Fault(
        "64 kB without a line end, stalled",
        cut(A, b"x" * 65536, end=End.HANG),
        fails(K.STALL, r"\w{3}"),
        requests=ONCE,
    ),
    Fault("an end without an empty line", events(A, A, Z, U, b"data: [DONE]"), succeeds()),
    Fault(
        "tokens for ever",
        Answer([HEAD, *[chunk(A * 2000)] * 400], End.HANG),
        fails(K.MALFORMED, "limit of 1 MiB"),
        requests=ONCE,
        answer_bytes=MIB,
        stall_s=9,
    ),
]


def counts(**fields: Any) -> bytes:
    """The server's counts on a chunk of their own."""
    counted = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, **fields}
    return b"data: %b\n\n" % json.dumps({"choices": [], "usage": counted}).encode()


def beside(event: bytes, **more: Any) -> bytes:
    """An event with something besides its choices."""
    return b"data: %b\n\n" % json.dumps({**json.loads(event[6:]), **more}).encode()


def running(event: bytes, tokens: object) -> bytes:
    """An event that counts the tokens so far."""
    return beside(event, usage={"prompt_tokens": INPUT, "completion_tokens": tokens})


def counted(name: str, fields: dict[str, Any], ending: Ending, doubts: frozenset[str] = frozenset()) -> Fault:
    """A whole answer whose usage says this."""
    return Fault(name, events(A, A, Z, counts(**fields), DONE), ending, doubts=doubts)


PLACES = [
    Fault("usage missing", events(A, A, Z, DONE), succeeds(usage=False)),
    Fault("usage on the last", events(A, A, running(Z, OUTPUT), DONE), succeeds()),
    Fault("usage alone", events(A, A, Z, U, DONE), succeeds()),
    Fault("usage on every message", events(running(A, 1), running(A, 2), running(Z, 3), DONE), succeeds()),
    Fault(
        "usage on every message and alone",
        events(running(A, 1), running(A, 2), running(Z, 3), U, DONE),
        succeeds(),
    ),
    Fault(
        "usage that is null on every message",
        events(*(beside(e, usage=None) for e in (A, A, Z)), U, DONE),
        succeeds(),
    ),
    Fault("usage twice", events(A, A, Z, U, U, DONE), succeeds()),
    Fault("usage first", events(U, A, A, Z, DONE), succeeds()),
    Fault("usage of nothing", events(A, A, Z, beside(U, usage={}), DONE), succeeds(usage=False)),
    Fault(
        "usage that runs backwards", events(running(A, 2), running(A, 1), running(Z, 3), U, DONE), succeeds()
    ),
    Fault(
        "usage that runs to 2^62",
        events(running(A, 1), running(A, 2**62 + 1), Z, counts(completion_tokens=2**62 + 1), DONE),
        IMPOSSIBLE,
    ),
    Fault(
        "usage that runs below zero", events(running(A, -1), running(A, 1), running(Z, 3), DONE), IMPOSSIBLE
    ),
    Fault("usage of runs cut", events(running(A, 1), running(A, 2), DONE), fails(K.TRUNCATED, r"\w{3}")),
]

NUMBERS = [
    counted(f"{name} of {shown}", {name: value}, IMPOSSIBLE)
    for name in ("completion_tokens", "prompt_tokens")
    for shown, value in (
        ("10^30", 10**30),
        ("10^18", 10**18),
        ("2^62", 2**62),
        ("2^63", 2**63),
        ("2^31", 2**31),
        ("-1", -1),
        ("2.5", 2.5),
        ("text", "3"),
        ("a list", [3]),
        ("true", True),
        ("an object", {"n": 3}),
    )
]
NUMBERS += [
    counted("2e9 tokens in 200 bytes", {"completion_tokens": 2_000_000_000}, IMPOSSIBLE),
    counted("usage of zero next to text", {"completion_tokens": 0}, succeeds(usage=False)),
    counted("usage that is null", {"completion_tokens": None}, succeeds(usage=False)),
    counted("usage of more than came", {"completion_tokens": 30}, succeeds(tokens=30), WRONG_LENGTH),
    counted("usage of less than came", {"completion_tokens": 1}, succeeds(tokens=1), WRONG_LENGTH),
    counted(
        "a longer prompt than was sent", {"prompt_tokens": 500}, succeeds(), frozenset({"prompt-lengths"})
    ),
    counted("a prompt of no tokens", {"prompt_tokens": 0}, succeeds()),
]


def cached(name: str, tokens: object, ending: Ending, **fields: Any) -> Fault:
    """A usage that says so much of the prompt was cached."""
    return counted(name, {"prompt_tokens_details": {"cached_tokens": tokens}, **fields}, ending)


CACHED = [
    cached("more cached than the prompt", 500, succeeds()),
    cached("cached, of a prompt of zero", 5, succeeds(), prompt_tokens=0),
    cached("cached, of a prompt unknown", 5, succeeds(), prompt_tokens=None),
    cached("cached -1", -1, succeeds()),
    cached("cached -2", -2, IMPOSSIBLE),
    cached("cached 10^30", 10**30, IMPOSSIBLE),
    cached("cached text", "5", IMPOSSIBLE),
]

TIMES = [
    Fault(
        f"a queue time of {shown}",
        events(A, A, beside(Z, metrics={"queue_time_ms": value}), U, DONE),
        succeeds(),
    )
    for shown, value in (("1e308", 1e308), ("10^30", 10**30), ("-5", -5), ("text", "x"), ("null", None))
]
TIMES += [
    Fault("metrics of text", events(A, A, beside(U, metrics="x"), Z, DONE), succeeds()),
    Fault(
        "a queue time of 1e308, last",
        events(A, A, Z, beside(U, metrics={"queue_time_ms": 1e308, "time_to_first_token_ms": -1}), DONE),
        succeeds(),
    ),
]
