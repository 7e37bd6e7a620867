"""Faults of what a server counts and of the times it reports."""

from __future__ import annotations

import json
from typing import Any

from fakes.faults import INPUT, OUTPUT, A, Ending, Fault, K, U, Z, events, fails, succeeds
from fakes.scripted_server import DONE

IMPOSSIBLE = fails(K.MALFORMED, r"\w{3}")
WRONG_LENGTH = frozenset({"answer-lengths"})


def counts(**fields: Any) -> bytes:
    """The server's counts on a message of their own."""
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
