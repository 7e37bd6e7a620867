"""What a server spends on a scrape: apart from the way to it, and so how often it is sampled."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from itertools import pairwise

import pytest

from builders.loops import loop_over
from fakes import virtual_network
from fakes.scripted_server import Answer, Asked, whole
from fakes.virtual_loop import VirtualLoop
from fakes.virtual_network import VirtualServer
from loadgen.server import scraper
from loadgen.server.exchange import AnswerTime, AnswerWatch, ServerAddress
from loadgen.server.scraper import MetricsScraper

_RUN_S = 12.0
_LARGE = 40_000  # bytes: 10 segments, and the others a round trip later


@loop_over(
    ("time", "server_s", "on_way_s"),
    [
        (AnswerTime(0.008), 0.008, 0.0),
        (AnswerTime(0.008, 0.001), 0.009, 0.0),
        (AnswerTime(0.018, 0.0, 0.010), 0.008, 0.005),
        (AnswerTime(0.028, 0.0, 0.010, first_rounds=2), 0.008, 0.005),
        (AnswerTime(0.018, 0.020, 0.010, rest_rounds=1), 0.018, 0.015),  # it wrote slowly
        (AnswerTime(0.018, 0.004, 0.010, rest_rounds=1), 0.008, 0.009),  # more was on its way at first
        (AnswerTime(0.009, 0.009, 0.010, rest_rounds=2), 0.0, 0.014),
    ],
)
def test_known_round_trips_are_taken_off(time: AnswerTime, server_s: float, on_way_s: float) -> None:
    assert (time.server_s, time.on_way_s) == pytest.approx((server_s, on_way_s))


@loop_over(
    ("earlier", "later", "least"),
    [
        (AnswerTime(3, 2, 1, 2, 1), AnswerTime(2, 3, 0.5, 3, 0), AnswerTime(2, 2, 0.5, 2, 0)),
        (AnswerTime(3, 2, 1), AnswerTime(2, 1), AnswerTime(3, 2, 1)),
        (AnswerTime(2, 1), AnswerTime(3, 2, 1), AnswerTime(3, 2, 1)),
        (AnswerTime(2, 1), AnswerTime(1, 2), AnswerTime(1, 1)),
    ],
)
def test_the_least_of_several_answers(earlier: AnswerTime, later: AnswerTime, least: AnswerTime) -> None:
    assert earlier.merge(later) == least


@loop_over(
    ("size", "rounds"),
    [(0, 0), (1, 0), (14_480, 0), (14_481, 1), (43_440, 1), (43_441, 2), (101_360, 2), (1 << 20, 6)],
)
def test_windows_double_from_ten_segments_on(size: int, rounds: int) -> None:
    async def watch() -> AnswerTime | None:
        watching = AnswerWatch()
        watching.note_last(size)
        return watching.time

    time = asyncio.run(watch())
    assert time is not None
    assert time.rest_rounds == rounds


@loop_over(("version", "rounds"), [("TLSv1.3", 2), ("TLSv1.2", 3), (None, 2), ("a later one", 2)])
def test_a_handshake_has_its_round_trips(version: str | None, rounds: int) -> None:
    async def watch() -> AnswerTime | None:
        watching = AnswerWatch()
        watching.note_tls(version)
        watching.note_last(0)
        return watching.time

    time = asyncio.run(watch())
    assert time is not None
    assert time.first_rounds == rounds


def _sample(rtt_ms: float, server_ms: float, known_ms: float = 0.0) -> list[float]:
    """Sample a virtual server for 12 s; return the instants (s) at which it was scraped."""
    asked_s = list[float]()

    def script(asked: Asked) -> Answer:
        asked_s.append(server.time.ns / 1e9)
        answer = whole(b"vllm:num_requests_running 1\n" + b"#\n" * (_LARGE // 2))
        return Answer([server_ms / 1e3, answer[:14_000], rtt_ms / 1e3, answer[14_000:]])

    server = VirtualServer(script)
    server.tcp_info = lambda connection: bytes(148) + struct.pack("=I", round(known_ms * 1e3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_network, "LATENCY_NS", round(rtt_ms * 1e6 / 2))
        patch.setattr(scraper, "_SCRAPES_PER_S", 1000)  # which is of real seconds
        observer = MetricsScraper(ServerAddress(server.base_url))
        with contextlib.closing(VirtualLoop(server)) as loop, contextlib.suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(observer.sample_gauges(), _RUN_S))
    assert [lines.error for _, lines in observer.samples] == [""] * len(asked_s)
    return asked_s


@loop_over(
    ("rtt_ms", "server_ms", "known_ms", "samples"),
    [
        (0.02, 1.0, 0.02, 12),
        (0.02, 8.0, 0.02, 3),  # one in 4 s, as of a server on this machine
        (10.0, 1.0, 10.0, 12),
        (10.0, 8.0, 10.0, 3),
        (10.0, 8.0, 9.0, 3),  # a little less is known than was
        (200.0, 1.0, 200.0, 7),
        (200.0, 8.0, 200.0, 3),
        (10.0, 1.0, 0.0, 1),  # not known: the whole counts
    ],
)
def test_a_far_server_is_sampled_as_often_as_a_near_one(
    rtt_ms: float, server_ms: float, known_ms: float, samples: int
) -> None:
    asked_s = _sample(rtt_ms, server_ms, known_ms)
    assert len(asked_s) == samples
    # What the server spends is 0.2 % of the time at most.
    assert all(
        later - earlier >= server_ms / 1e3 / scraper.SAMPLING_SHARE for earlier, later in pairwise(asked_s)
    )
