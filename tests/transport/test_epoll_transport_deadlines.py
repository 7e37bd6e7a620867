"""Both transports give up on what takes too long, and on nothing else; in virtual time."""

from __future__ import annotations

from builders.loops import loop_over, loop_over_named
from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
    PING,
    Answer,
    End,
    chunk,
    drive,
    job_of,
    kinds,
    records,
    stream,
    token,
    usage,
)
from fakes.virtual_network import VirtualServer
from fakes.virtual_time import START_NS
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Limits
from loadgen.wire.openai import Chat, Completions

MS = 1_000_000
LATE_NS = 200 * MS  # of two sweeps


def role() -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'


def repeated(event: bytes, times: int, gap_s: float) -> list[bytes | float]:
    return [piece for _ in range(times) for piece in (chunk(event), gap_s)]


def halves(event: bytes, times: int, gap_s: float) -> list[bytes | float]:
    """Each read has the end of one event and the beginning of the next."""
    half = len(event) // 2
    middle = [piece for _ in range(times) for piece in (chunk(event[half:] + event[:half]), gap_s)]
    return [chunk(event[:half]), *middle, chunk(event[half:])]


FINISH: list[bytes | float] = [chunk(token("z", "length")), chunk(usage(2)), chunk(DONE), LAST]


@loop_over_named(
    ("pieces", "kind"),
    {
        "silence": ([], FailureKind.STALL),
        "a head alone": ([HEAD], FailureKind.STALL),
        "pings alone": ([HEAD, *repeated(PING, 100, 0.02)], FailureKind.STALL),
        "a token, then pings": ([HEAD, chunk(token()), *repeated(PING, 100, 0.02)], FailureKind.STALL),
        "slow tokens": ([HEAD, *repeated(token(), 10, 0.15), *FINISH], None),
        "tokens split over reads": ([HEAD, *halves(token(), 20, 0.08), *FINISH], None),
        "slow tokens among pings": ([HEAD, *repeated(token() + PING * 3, 10, 0.15), *FINISH], None),
    },
)
def test_a_stall_is_the_absence_of_tokens_whatever_else_comes(
    pieces: list[bytes | float], kind: FailureKind | None, transport: str
) -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    server = VirtualServer(lambda _: Answer(pieces, End.HANG if kind else End.KEEP))
    job = job_of(server.target(), 1, 1, limits=limits, token_seen=Completions().has_token)
    driven = drive(job, transport, server)
    assert kinds(driven) == [kind]
    if kind:
        (capture,) = driven.captures
        assert 1000 * MS < capture.end_ns - capture.sent_ns < 1000 * MS + 2 * LATE_NS


@loop_over_named(
    ("gap_s", "found"),
    {
        "queued behind an answer that goes on": (0.2, [None, None]),
        "nobody gets a token": (2.5, [FailureKind.STALL, FailureKind.STALL]),
    },
)
def test_a_request_waits_for_its_first_token_as_long_as_others_get_theirs(
    gap_s: float, found: list[FailureKind | None], transport: str
) -> None:
    """The second request's first byte comes after twice the stall timeout."""
    going_on = Answer([HEAD, *repeated(token(), 12, gap_s), *FINISH], End.KEEP)
    queued = Answer([2.2, HEAD, chunk(token()), *FINISH], End.KEEP)
    limits = Limits(stall_timeout_ns=1000 * MS)
    server = VirtualServer(lambda asked: queued if asked.number else going_on)
    job = job_of(server.target(), 2, 2, limits=limits, token_seen=Completions().has_token)
    assert kinds(drive(job, transport, server)) == found


def test_a_role_is_no_token(transport: str) -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    server = VirtualServer(lambda _: Answer([HEAD, *repeated(role(), 100, 0.02)]))
    job = job_of(server.target(), 1, 1, limits=limits, token_seen=Chat().has_token)
    assert kinds(drive(job, transport, server)) == [FailureKind.STALL]


def test_a_timeout_ends_a_request_that_gets_tokens_and_the_next_is_served(transport: str) -> None:
    slow = Answer([HEAD, *repeated(token(), 200, 0.02)])
    limits = Limits(request_timeout_ns=200 * MS)
    server = VirtualServer(lambda asked: stream() if asked.number else slow)
    driven = drive(job_of(server.target(), 2, 1, limits=limits), transport, server)
    assert kinds(driven) == [FailureKind.TIMEOUT, None]
    timed_out = records(driven)[0]
    assert 200 * MS < timed_out.end_ns - timed_out.sent_ns < 200 * MS + LATE_NS
    assert 10 <= timed_out.output_tokens <= 16


def test_deadlines_hold_while_other_streams_never_pause(transport: str) -> None:
    busy = Answer([HEAD, *[chunk(b": " + b"p" * 500 + b"\n\n")] * 10_000])
    limits = Limits(request_timeout_ns=200 * MS)
    server = VirtualServer(lambda asked: Answer([], End.HANG) if asked.connection == 1 else busy)
    server.write_ns, server.poll_ns = MS // 10, MS // 5  # each poll finds something
    driven = drive(job_of(server.target(), 4, 4, limits=limits), transport, server)
    assert kinds(driven) == [FailureKind.TIMEOUT] * 4
    assert all(capture.end_ns - capture.sent_ns < 200 * MS + LATE_NS for capture in driven.captures)


@loop_over("silent", [True, False])
def test_a_connection_that_is_never_made_is_given_up_at_its_timeout(transport: str, silent: bool) -> None:
    limits = Limits(connect_timeout_ns=3000 * MS)
    server = VirtualServer(lambda _: stream(), silent=silent, refuses=not silent)
    driven = drive(job_of(server.target(), 2, 2, limits=limits), transport, server)
    assert kinds(driven) == [FailureKind.CONNECT] * 2
    waited_ns = server.time.ns - START_NS
    assert 3000 * MS <= waited_ns < 3000 * MS + 2 * LATE_NS if silent else waited_ns < LATE_NS
