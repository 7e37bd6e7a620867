"""Kernel timestamps that cannot be true, because a clock was set, are in no figure."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from builders import made_cases
from builders.loops import loop_over, read_tables
from fakes.scripted_server import Driven, drive, job_of, records
from fakes.scripted_server import stream as scripted
from fakes.virtual_network import VirtualServer
from figures.test_decode_bounds import LAST, A, usage
from loadgen.base.arrays import Int64
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records.decode import Decoder
from loadgen.records.record import Records
from loadgen.transport.capture import Capture, find_arrivals, join_reads, pack_int64s
from loadgen.verdict import verdict
from loadgen.wire.openai import DIALECTS
from records.test_decode import stream

TABLES = read_tables("decode_clock")

# A request is sent at 1 s; reads arrive each 100 ms, and the client has them 50 µs later.
SENT_NS, STEP_NS, LATE_NS = 10**9, 10**8, 50_000
EVENTS = [A, A, A, LAST, usage(completion_tokens=4)]


def stamped(shifts_s: list[float | None]) -> Capture:
    """A head and events, a read each, whose kernel timestamps are off by so much; None: there is none."""
    data = stream(*EVENTS, end=b"")
    arrived = SENT_NS + STEP_NS * np.arange(1, len(data) + 1)
    offset_ns = 1_700_000_000 * 10**9
    wall = [
        0 if s is None else int(t) + offset_ns + int(s * 1e9) for t, s in zip(arrived, shifts_s, strict=True)
    ]
    raw, read_lengths = join_reads(data)
    return Capture(
        index=0,
        slot=0,
        intended_ns=SENT_NS,
        sent_ns=SENT_NS,
        end_ns=10**15,
        raw=raw,
        read_lengths=read_lengths,
        seen_ns=(arrived + LATE_NS).tobytes(),
        kernel=b"".join(pack_int64s(divmod(ns, 10**9)) for ns in wall),
        realtime_offset_ns=offset_ns,
    )


# One is also impossible if it is later than the sending, and earlier than the read before.
@loop_over(("shifts_s", "impossible", "unstamped"), TABLES["timestamps"])
def test_a_kernel_timestamp_that_cannot_be_true_is_not_used(
    shifts_s: list[float | None], impossible: list[int], unstamped: int
) -> None:
    record = Decoder(DIALECTS["completions"], streamed=True).decode(stamped(shifts_s))
    own = [i in impossible or shift is None for i, shift in enumerate(shifts_s)]
    expected = [SENT_NS + STEP_NS * (i + 1) + LATE_NS * late for i, late in enumerate(own)]
    assert record.failure is None
    assert (record.first_byte_ns, record.arrival_ns.tolist(), record.end_ns) == (
        expected[0],
        expected[1:5],
        expected[5],
    )
    assert record.impossible_stamps == len(impossible)
    assert record.unstamped_reads == len(impossible) + unstamped == sum(own)
    assert record.lag_sum_ns == LATE_NS * (6 - sum(own))
    figures = compute_metrics(Records.from_records([record]), MetricOptions())
    for found, true in ((figures.ttft, 200.0), (figures.itl, 100.0), (figures.e2el, 500.0)):
        assert found.mean_ms == pytest.approx(true, abs=1.01 * LATE_NS / 1e6)
    assert figures.duration_s == pytest.approx(0.6, abs=1.01 * LATE_NS / 1e9)


# When reads could be read and were read (ms), their last segments' timestamps, and when they then arrived.
OUT_OF_ORDER = {
    "one waited for a lost one": ([1.0, 2.0, 90.1, 91.2], [0.9, 1.9, 40.0, 91.1], [0.9, 1.9, 90.1, 91.1]),
    "two waited": ([1.0, 50.0, 50.2, 60.0], [0.9, 10.0, 9.0, 59.9], [0.9, 50.0, 50.2, 59.9]),
    "a short wait keeps its order": ([5.0, 5.4, 9.0, 9.5], [4.9, 4.8, 8.1, 9.4], [4.9, 4.9, 8.1, 9.4]),
    "none that was late": ([1.0, 2.0, 3.0, 4.0], [0.9, 1.9, 2.9, 3.9], [0.9, 1.9, 2.9, 3.9]),
    "a clock that is ahead": ([1.0, 2.0, 3.0, 4.0], [0.9, 7.0, 2.9, 3.9], [0.9, 2.0, 2.9, 3.9]),
    "no timestamp": ([1.0, 2.0, 3.0, 4.0], [0.9, None, 2.9, 3.9], [0.9, 2.0, 2.9, 3.9]),
}  # fmt: skip


def read_at(seen_ms: list[float], kernel_ms: list[float | None], **more: Any) -> Capture:
    """A capture of reads at these times after it was sent, ms; None: the kernel gave none."""
    wall = [0 if ms is None else SENT_NS + round(ms * 1e6) for ms in kernel_ms]
    return Capture(
        index=0,
        slot=0,
        intended_ns=SENT_NS,
        sent_ns=SENT_NS,
        end_ns=10**15,
        seen_ns=pack_int64s(SENT_NS + round(ms * 1e6) for ms in seen_ms),
        kernel=b"".join(pack_int64s(divmod(ns, 10**9)) for ns in wall),
        **more,
    )


def after_ms(arrival_ns: Int64) -> list[float]:
    return [(int(ns) - SENT_NS) / 1e6 for ns in arrival_ns]


@loop_over(("seen_ms", "kernel_ms", "arrived_ms"), OUT_OF_ORDER.values())
def test_what_waited_for_a_lost_segment_arrived_when_it_could_be_read(
    seen_ms: list[float], kernel_ms: list[float | None], arrived_ms: list[float]
) -> None:
    arrival_ns, lag_ns, unstamped, impossible = find_arrivals(read_at(seen_ms, kernel_ms, out_of_order=1))
    assert after_ms(arrival_ns) == arrived_ms
    assert (lag_ns >= 0).all()
    assert (unstamped, impossible) == (kernel_ms.count(None), 0)


@pytest.mark.parametrize("more", [{}, {"out_of_order": 0}, {"out_of_order": 3, "segments": True}])
def test_a_late_read_of_segments_in_order_keeps_its_timestamp(more: dict[str, Any]) -> None:
    arrival_ns, *_ = find_arrivals(read_at([1.0, 40.0], [0.9, 2.0], **more))
    assert after_ms(arrival_ns) == [0.9, 2.0]


# A clock that is stepped in mid-run, in virtual time: every instant is known.
STEPPED_AT_NS, DETECTED_MS = 133_300_000, 1.0  # while four answers are under way; a smaller step has no doubt
GAP_MS, NEXT_MS = 4.0, 4.01  # between writes, and until the next of them arrives
OF_THE_CLOCK = {"clock-stepped", "clock-unusable", "impossible-timestamps"}


def stepped(transport: str, step_ms: float) -> Driven:
    """A run in which the wall clock is stepped by so much."""
    server = VirtualServer(lambda _: scripted(12, GAP_MS / 1e3))

    def step() -> None:
        server.time.wall_offset_ns += round(step_ms * 1e6)

    server.time.after(STEPPED_AT_NS, step)
    return drive(job_of(server.target(), 24, 4), transport, server)


def instants_ms(driven: Driven) -> np.ndarray:
    """When the tokens and the end of each response came after it was sent, float64[answers, tokens + 1]."""
    found = records(driven)
    assert [record.failure for record in found] == [None] * 24
    return np.array([np.append(r.arrival_ns, r.end_ns) - r.sent_ns for r in found]) / 1e6


@cache
def undisturbed_ms(transport: str) -> np.ndarray:
    return instants_ms(stepped(transport, 0))


@pytest.mark.parametrize("transport", ["wire", "ring", "httpx"])
@loop_over(
    "step_ms",
    [3000, -3000, 0.4, -0.4, 1.5, -1.5, NEXT_MS, -NEXT_MS, 2 * NEXT_MS, -2 * NEXT_MS, 100, -100, 3_600_000],
)
def test_a_step_in_mid_run_is_doubted_or_in_no_figure(transport: str, step_ms: float) -> None:
    driven, true_ms = stepped(transport, step_ms), undisturbed_ms(transport)
    health = driven.health
    client = made_cases.client(
        transport=transport,
        clock_step_ms=health.clock_step_ns / 1e6,
        segments=health.segments,
        held_segments=health.held_segments,
    )
    doubts = {f.rule.code for f in verdict.judge(made_cases.run(records(driven), client=client)).findings}
    off_ms = np.abs(instants_ms(driven) - true_ms).max()
    seen = transport != "httpx" and abs(step_ms) > DETECTED_MS  # httpx has no timestamps of that clock
    assert off_ms <= 0.02 if seen else off_ms < DETECTED_MS
    assert not seen or doubts & {"clock-stepped", "clock-unusable"}
    assert transport != "httpx" or not doubts & OF_THE_CLOCK
    assert "acks-late" not in doubts
