"""TLS on the wire: the timestamps of plain sockets, and failures in words."""

from __future__ import annotations

import ssl
import sys
from dataclasses import replace

import pytest

from builders.loops import loop_over, loop_over_named
from fakes.scripted_server import (
    HEAD,
    Answer,
    End,
    ScriptedServer,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    stream,
    token,
)
from fakes.tls import make_contexts
from loadgen.server.exchange import ServerAddress
from loadgen.transport.failure import FailureKind, explain_distrust

BODY = b"".join(events(3))
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY


@pytest.fixture
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return make_contexts("localhost")


@pytest.fixture
def serving(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> ssl.SSLContext:
    return contexts[0]


@pytest.fixture
def trusting(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> ssl.SSLContext:
    return contexts[1]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.usefixtures("timestamping")
def test_streams_over_tls_are_whole_and_keep_their_kernel_timestamps(
    transport: str, serving: ssl.SSLContext, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    serving.minimum_version = serving.maximum_version = version
    with ScriptedServer(lambda _: stream(5, 0.002), tls=serving) as server:
        driven = drive(job_of(server.target(trusting, "localhost"), 12, 3), transport)
        assert (server.connections, len(server.asked)) == (3, 12)
    assert kinds(driven) == [None] * 12
    # Those that poll connect before the run begins.
    connected = [capture.connect_ns > 0 for capture in driven.captures]
    assert sum(connected) == (3 if transport == "httpx" else 0)
    for capture in driven.captures if transport != "httpx" else ():
        if sys.platform == "linux":
            assert (capture.kernel_ns() > 0).all()
        assert (capture.kernel_ns() <= capture.user_ns()).all()


@loop_over_named(
    ("answer", "kind"),
    {
        "FIN, no closing record": (Answer([HEAD, chunk(token())], End.CLOSE), FailureKind.TRUNCATED),
        "RST": (Answer([HEAD, chunk(token())], End.RESET), FailureKind.TRUNCATED),
        "until close": (Answer([UNTIL_CLOSE], End.CLOSE), None),
        # As servers on asyncio do (uvicorn): FIN comes half a minute later, or once the client has closed.
        "a closing record alone": (Answer([], End.NOTIFY), FailureKind.TRUNCATED),
        "a closing record, no FIN": (Answer([HEAD, chunk(token())], End.NOTIFY), FailureKind.TRUNCATED),
        "a late closing record": (Answer([HEAD, chunk(token()), 0.05], End.NOTIFY), FailureKind.TRUNCATED),
        "until a closing record": (Answer([UNTIL_CLOSE], End.NOTIFY), None),
        "idle, then a closing record": (replace(stream(), end=End.NOTIFY), None),
    },
)
def test_a_cut_stream_fails_alone(
    epoll: str, serving: ssl.SSLContext, trusting: ssl.SSLContext, answer: Answer, kind: FailureKind | None
) -> None:
    with ScriptedServer(lambda asked: stream() if asked.number else answer, tls=serving) as server:
        driven = drive(job_of(server.target(trusting, "localhost"), 2, 1), epoll)
    assert kinds(driven) == [kind, None]
    assert driven.captures[1].connect_ns > 0


@loop_over(
    ("trusted", "name", "why"),
    [
        (False, "localhost", "no trusted authority has signed"),
        (True, "elsewhere.example", "is for another host"),
    ],
)
def test_a_wrong_certificate_fails_each_request_and_says_why(
    epoll: str, serving: ssl.SSLContext, trusting: ssl.SSLContext, trusted: bool, name: str, why: str
) -> None:
    context = trusting if trusted else ssl.create_default_context()
    with ScriptedServer(lambda _: stream(), tls=serving) as server:
        driven = drive(job_of(server.target(context, name), 6, 2), epoll)
        assert server.asked == []
    assert kinds(driven) == [FailureKind.CONNECT] * 6
    details = [c.failure.detail for c in driven.captures if c.failure]
    assert [why in detail and "--insecure" in detail for detail in details] == [True] * 6


def test_insecure_takes_any_certificate(epoll: str, serving: ssl.SSLContext) -> None:
    context = ServerAddress("https://localhost", insecure=True).tls
    with ScriptedServer(lambda _: stream(), tls=serving) as server:
        driven = drive(job_of(server.target(context, "elsewhere.example"), 2, 1), epoll)
    assert kinds(driven) == [None, None]


def test_a_plain_server_behind_https_fails_each_request(epoll: str) -> None:
    with ScriptedServer(lambda _: stream(), greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        driven = drive(job_of(server.target(ssl.create_default_context(), "localhost"), 4, 2), epoll)
    assert kinds(driven) == [FailureKind.CONNECT] * 4


# What is wrong with a certificate, in words and with the flags.


def refusal(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@loop_over(
    ("code", "words"),
    [
        (10, ["is out of date (why): renew it", "--insecure", "(--ca-cert does not help)"]),
        (62, ["is for another host (why): check --base-url", "--insecure"]),
        (18, ["is self-signed (why): name it with --ca-cert FILE", "--insecure"]),
        (19, ["no trusted authority has signed (why): name the authority with --ca-cert FILE", "--insecure"]),
        (20, ["no trusted authority has signed (why): name the authority with --ca-cert FILE", "--insecure"]),
    ],
)
def test_each_kind_has_its_own_words(code: int, words: list[str]) -> None:
    told = explain_distrust(refusal(code, "why."))
    assert [word for word in words if word not in told] == []
    assert told.startswith("has a TLS certificate that ")


def test_the_cause_of_an_error_is_searched_and_no_other_error_is_one() -> None:
    outer = OSError("outer")
    outer.__cause__ = refusal(18, "x")
    assert "is self-signed" in explain_distrust(outer)
    assert explain_distrust(OSError("no route")) == ""
