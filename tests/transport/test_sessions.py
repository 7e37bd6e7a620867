"""Sessions on every transport: turns in order over one connection, each when it is due, and no gap's cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.scripted_server import Answer, Asked, Driven, End, drive, job_of, kinds, stream, whole
from fakes.virtual_network import LATENCY_NS, WRITE_NS, KeepAliveServer, VirtualServer
from loadgen.features.sessions.turn_sending import SessionJob, TurnOrder
from loadgen.plan.planned_requests import Cancellations, make_turns
from loadgen.records.decode import Decoder
from loadgen.settings.load_settings import CancelPoint
from loadgen.transport.capture import Capture
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Job
from loadgen.wire.openai import Completions

MS, SECOND = 1_000_000, 1_000_000_000
NEAR_NS = 3 * MS  # of the portable transport, whose own times are late


def judged(capture: Capture) -> dict[str, Any] | None:
    record = Decoder(Completions(), streamed=True).decode(capture)
    return None if record.failure else {"index": record.index}


def sessions_of(
    server: VirtualServer, counts: Sequence[int], delay_s: float, most: int | None, **changes: Any
) -> Job:
    """A job of sessions with so many turns each; a body is its plan index."""
    session_keys = {key: changes.pop(key) for key in list(changes) if key in SessionJob.__struct_fields__}
    counted = np.asarray(counts, np.int64)
    turns = make_turns(counted, np.full(int(counted.sum()), round(delay_s * SECOND), np.int64))
    sessions = replace(SessionJob(turns, judged), **session_keys)
    order = TurnOrder(turns, range(len(turns)))
    return job_of(
        server.target(),
        0,
        most,
        body=lambda i: b'{"model":"m","turn":%d}' % i,
        order=order,
        sessions=sessions,
        **changes,
    )


def asked_of(server: VirtualServer) -> list[int]:
    return [int(asked.body.rpartition(b":")[2][:-1]) for asked in server.asked]


def waits_ns(driven: Driven) -> list[int]:
    """From each capture's end to when the one after it was due."""
    pairs = zip(driven.captures, driven.captures[1:], strict=False)
    return [after.intended_ns - before.end_ns for before, after in pairs]


def late_ns(driven: Driven) -> int:
    return max(capture.sent_ns - capture.intended_ns for capture in driven.captures)


def test_turns_follow_one_another_over_one_connection(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    driven = drive(sessions_of(server, [3, 2], 0.5, 1), transport, server)
    assert kinds(driven) == [None] * 5
    assert asked_of(server) == [0, 1, 2, 3, 4]
    assert server.connections == 1
    assert {capture.slot for capture in driven.captures} == {0}
    assert driven.health.reconnects == driven.health.late_bodies == 0


@loop_over("gap_s", [4.9, 5.1, 6.0, 20.0])
def test_a_gap_beyond_keep_alive_costs_no_failure_and_no_ttft(transport: str, gap_s: float) -> None:
    server = KeepAliveServer(lambda _: stream(3, 0.01))
    driven = drive(sessions_of(server, [2], gap_s, 1), transport, server)
    assert kinds(driven) == [None, None]
    first, second = driven.captures
    assert second.resends == 0
    ttft_ns = [int(capture.user_ns()[0]) - capture.sent_ns for capture in (first, second)]
    assert ttft_ns[1] == pytest.approx(ttft_ns[0], abs=MS // 2)
    assert late_ns(driven) < NEAR_NS
    assert server.connections == 1 + (gap_s > 5)
    assert driven.health.reconnects == (gap_s > 5)


FAILURES = {
    "a status": (
        Answer([whole(b'{"error":{"message":"too long"}}', "400 Bad Request")]),
        FailureKind.HTTP_STATUS,
    ),
    "an error in the stream": (
        Answer([b"HTTP/1.1 200 OK\r\ncontent-length: 34\r\n\r\n", b'data: {"error":{"message":"no"}}\n\n']),
        FailureKind.IN_BAND,
    ),
    "an answer cut short": (Answer(list(stream(3, 0.01).pieces)[:3], End.CLOSE), FailureKind.TRUNCATED),
    "a connection reset": (Answer([], End.RESET), FailureKind.TRUNCATED),
}


@loop_over("name", FAILURES)
def test_a_failed_turn_ends_its_session_and_not_the_run(transport: str, name: str) -> None:
    failed, kind = FAILURES[name]

    def script(asked: Asked) -> Answer:
        return failed if asked.body.endswith(b":1}") else stream(3, 0.01)

    server = VirtualServer(script)
    driven = drive(sessions_of(server, [4, 2], 0.3, 1), transport, server)
    assert [(capture.index, kind) for capture, kind in zip(driven.captures, kinds(driven), strict=True)] == [
        *((0, None), (1, kind), (4, None), (5, None))
    ]
    assert driven.counters.sent == driven.counters.ended == 4


UNFRAMED = list(stream(3, 0.01).pieces)[:-1]  # all of a response, but for the last chunk of its framing
CANCELLED = Cancellations(np.array([True, False, False]), CancelPoint(after_tokens=1))


@loop_over(
    ("answer", "changes"),
    [
        (Answer(UNFRAMED, End.CLOSE), {}),
        (Answer([*UNFRAMED, 0.01], End.RESET), {}),
        (
            Answer([b"".join(each for each in UNFRAMED if isinstance(each, bytes)), 5.0]),
            {"cancellations": CANCELLED},
        ),
    ],
)
def test_a_turn_follows_each_answer_that_counts_as_a_success(
    transport: str, answer: Answer, changes: dict[str, Any]
) -> None:
    server = VirtualServer(lambda asked: stream(3, 0.01) if asked.number else answer)
    driven = drive(sessions_of(server, [2], 0.1, 1, **changes), transport, server)
    assert kinds(driven) == [None, None]
    assert asked_of(server) == [0, 1]


def test_a_cancelled_turn_ends_its_session_at_once(transport: str) -> None:
    server = VirtualServer(lambda asked: stream(3, 0.01 if asked.number else 1.0))
    driven = drive(sessions_of(server, [2, 1], 30.0, 1, cancellations=CANCELLED), transport, server)
    assert kinds(driven) == [FailureKind.USER_CANCELLED, None]
    assert driven.captures[1].sent_ns - driven.captures[0].end_ns < SECOND


def test_a_session_has_one_name_in_all_its_turns(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    drive(sessions_of(server, [2, 2], 0.1, 1, header="X-Session-ID"), transport, server)
    heads = [dict(line.split(": ", 1) for line in asked.head.split("\r\n")[1:]) for asked in server.asked]
    names = [{name.lower(): value for name, value in head.items()}["x-session-id"] for head in heads]
    assert names == ["loadgen-session-0"] * 2 + ["loadgen-session-1"] * 2


def test_users_have_their_turns_at_their_own_rate(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    job = sessions_of(server, [2] * 4, 0.0, 2, users=2, user_rate_per_s=2.0)
    driven = drive(job, transport, server)
    due_ms = [(capture.intended_ns - driven.health.started_ns) // MS for capture in driven.captures]
    assert due_ms == [0, 500, 250, 750, 1000, 1500, 1250, 1750]
    assert [capture.slot for capture in driven.captures] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_users_turn_waits_for_the_answer_before_it(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.5))
    driven = drive(sessions_of(server, [3], 0.0, 1, users=1, user_rate_per_s=2.0), transport, server)
    near_ns = NEAR_NS if transport == "httpx" else WRITE_NS + LATENCY_NS
    assert waits_ns(driven) == pytest.approx([0, 0], abs=near_ns)


def test_equal_bodies_have_one_digest_in_whatever_order(transport: str) -> None:
    digests = []
    for most, model in ((1, b'"m"'), (3, b'"another"')):
        server = VirtualServer(lambda _: stream(3, 0.01))
        job = sessions_of(server, [2, 3, 1], 0.1, most)
        own = replace(job, body=lambda i, model=model: b'{"model":%b,"turn":%d}' % (model, i))
        digests.append(drive(own, transport, server).health.bodies_digest)
    assert digests[0] == digests[1] != ""
    assert len(digests[0]) == 32


def digest(*bodies: bytes) -> str:
    """The digest of a run that sent these bodies, each in a session of its own."""
    turns = make_turns(np.ones(len(bodies), np.int64), np.zeros(len(bodies), np.int64))
    server = VirtualServer(lambda _: stream(1, 0.01))
    sessions = {"sessions": SessionJob(turns, lambda _: {}), "order": TurnOrder(turns, range(len(turns)))}
    job = job_of(server.target(), 0, 1, body=bodies.__getitem__, **sessions)
    return drive(job, "wire", server).health.bodies_digest


def test_a_models_name_a_salt_of_ours_and_the_order_change_no_digest() -> None:
    salts = [b'"cache_salt":"loadgen-%032x",' % number for number in (1, 2)]
    bodies = [b'{%b"model":"%b","messages":[1]}' % (salt, name) for salt in salts for name in (b"a", b"b")]
    assert {digest(body) for body in bodies} == {digest(b'{"model":"c","messages":[1]}')}
    assert digest(b'{"model":"a","n":1}', bodies[0]) == digest(bodies[3], b'{"model":"b","n":1}')
    assert digest(b'{"cache_salt":"mine","model":"a"}') != digest(b'{"cache_salt":"other","model":"a"}')
