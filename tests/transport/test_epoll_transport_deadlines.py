"""The wire gives up on what takes too long, and on nothing else."""

from __future__ import annotations

import pytest

from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
    PING,
    Answer,
    End,
    ScriptedServer,
    chunk,
    drive,
    job_of,
    kinds,
    records,
    stream,
    token,
    usage,
)
from loadgen.protocol.openai import Chat, Completions
from loadgen.transport.failure import FailureKind
from loadgen.transport.job import Limits

MS = 1_000_000


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


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        pytest.param([], FailureKind.STALL, id="silence"),
        pytest.param([HEAD], FailureKind.STALL, id="a head alone"),
        pytest.param([HEAD, *repeated(PING, 100, 0.02)], FailureKind.STALL, id="pings alone"),
        pytest.param(
            [HEAD, chunk(token()), *repeated(PING, 100, 0.02)], FailureKind.STALL, id="a token, then pings"
        ),
        pytest.param([HEAD, *repeated(token(), 10, 0.15), *FINISH], None, id="slow tokens"),
        pytest.param([HEAD, *halves(token(), 20, 0.08), *FINISH], None, id="tokens split over reads"),
        pytest.param(
            [HEAD, *repeated(token() + PING * 3, 10, 0.15), *FINISH], None, id="slow tokens among pings"
        ),
    ],
)
def test_a_stall_is_the_absence_of_tokens_whatever_else_comes(
    pieces: list[bytes | float], kind: FailureKind | None
) -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    with ScriptedServer(lambda _: Answer(pieces, End.HANG if kind else End.KEEP)) as server:
        driven = drive(job_of(server.target(), 1, 1, limits=limits, token_seen=Completions().token_seen))
    assert kinds(driven) == [kind]


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("gap_s", "found"),
    [
        pytest.param(0.2, [None, None], id="queued behind an answer that goes on"),
        pytest.param(2.5, [FailureKind.STALL, FailureKind.STALL], id="nobody gets a token"),
    ],
)
def test_a_request_waits_for_its_first_token_as_long_as_others_get_theirs(
    gap_s: float, found: list[FailureKind | None]
) -> None:
    """The second request's first byte comes after twice the stall timeout."""
    going_on = Answer([HEAD, *repeated(token(), 12, gap_s), *FINISH], End.KEEP)
    queued = Answer([2.2, HEAD, chunk(token()), *FINISH], End.KEEP)
    limits = Limits(stall_timeout_ns=1000 * MS)
    with ScriptedServer(lambda asked: queued if asked.number else going_on) as server:
        job = job_of(server.target(), 2, 2, limits=limits, token_seen=Completions().token_seen)
        assert kinds(drive(job)) == found


@pytest.mark.realtime
def test_a_role_is_no_token() -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    with ScriptedServer(lambda _: Answer([HEAD, *repeated(role(), 100, 0.02)])) as server:
        driven = drive(job_of(server.target(), 1, 1, limits=limits, token_seen=Chat().token_seen))
    assert kinds(driven) == [FailureKind.STALL]


@pytest.mark.realtime
def test_a_request_timeout_ends_a_request_that_still_gets_tokens_and_the_next_one_is_served() -> None:
    slow = Answer([HEAD, *repeated(token(), 200, 0.02)])
    limits = Limits(request_timeout_ns=200 * MS)
    with ScriptedServer(lambda asked: stream() if asked.number else slow) as server:
        driven = drive(job_of(server.target(), 2, 1, limits=limits))
    assert kinds(driven) == [FailureKind.TIMEOUT, None]
    assert records(driven)[0].output_tokens > 3


@pytest.mark.realtime
def test_deadlines_hold_while_other_streams_never_pause() -> None:
    busy = Answer([HEAD, *[chunk(b": " + b"p" * 500 + b"\n\n")] * 40_000])
    limits = Limits(request_timeout_ns=200 * MS)
    with ScriptedServer(lambda asked: Answer([], End.HANG) if asked.connection == 1 else busy) as server:
        driven = drive(job_of(server.target(), 4, 4, limits=limits))
    assert kinds(driven) == [FailureKind.TIMEOUT] * 4
