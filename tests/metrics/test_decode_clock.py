"""Kernel timestamps that cannot be true, because a clock was set, are in no figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadgen.metrics.decode import Decoder
from loadgen.metrics.metrics import MetricOptions, compute
from loadgen.metrics.record import UNKNOWN, Records
from loadgen.protocol.openai import DIALECTS
from loadgen.transport.capture import Capture, int64s, joined
from metrics.test_decode import stream
from metrics.test_decode_bounds import LAST, A, usage

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
    raw, read_lengths = joined(data)
    return Capture(
        index=0,
        slot=0,
        intended_ns=SENT_NS,
        sent_ns=SENT_NS,
        end_ns=10**15,
        raw=raw,
        read_lengths=read_lengths,
        seen_ns=(arrived + LATE_NS).tobytes(),
        kernel=b"".join(int64s(divmod(ns, 10**9)) for ns in wall),
        realtime_offset_ns=offset_ns,
    )


@pytest.mark.parametrize(
    ("shifts_s", "impossible", "unstamped"),
    [
        ([0, 0, 0, 0, 0, 0], [], 0),
        ([0, 2, 2, 2, 2, 0], [1, 2, 3, 4], 0),
        ([0, 0, 2, 0, 0, 0], [2], 0),
        ([2, 2, 2, 2, 2, 2], [0, 1, 2, 3, 4, 5], 0),
        ([-5, -5, -5, -5, -5, -5], [0, 1, 2, 3, 4, 5], 0),
        ([0, 0, -5, -5, 0, 0], [2, 3], 0),
        ([0, 0, -0.15, -0.15, -0.15, 0], [2, 3, 4], 0),  # later than sent, earlier than the read before
        ([94_608_000] * 6, [0, 1, 2, 3, 4, 5], 0),
        ([-94_608_000] * 6, [0, 1, 2, 3, 4, 5], 0),
        ([0, None, 0, 2, None, 0], [3], 2),
        ([None] * 6, [], 6),
        ([None, None, None, -5, 0, 0], [3], 3),
    ],
)  # fmt: skip
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
    figures = compute(Records.of([record]), MetricOptions())
    for found, true in ((figures.ttft, 200.0), (figures.itl, 100.0), (figures.e2el, 500.0)):
        assert found.mean_ms == pytest.approx(true, abs=1.01 * LATE_NS / 1e6)
    assert figures.duration_s == pytest.approx(0.6, abs=1.01 * LATE_NS / 1e9)


def test_a_run_of_before_has_no_count_of_impossible_timestamps(tmp_path: Path) -> None:
    record = Decoder(DIALECTS["completions"], streamed=True).decode(stamped([0, 2, 2, 2, 2, 0]))
    path = tmp_path / "arrivals.npz"
    Records.of([record]).save(path)
    assert Records.load(path).impossible_stamps.tolist() == [4]
    with np.load(path) as stored:
        np.savez(path, **{name: stored[name] for name in stored if name != "impossible_stamps"})
    assert Records.load(path).impossible_stamps.tolist() == [UNKNOWN]
