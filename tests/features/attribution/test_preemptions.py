"""Preemptions: the server's count at its samples says which silences of single streams they were."""

from __future__ import annotations

import numpy as np

from builders import made_runs
from builders.loops import loop_over
from loadgen.features.attribution.preemptions import mark_preempted, read_counts
from loadgen.server.server_counters import ServerSample, ServerWindow

MS = 1_000_000
RUN = made_runs.run(requests=8)
FIRST_NS = int(RUN.records.sent_ns.min())
BEGAN_NS = FIRST_NS - 100 * MS  # when sampling began
COUNTS = {0.5: 0, 1.5: 1, 2.5: 1}  # by seconds after that
# When streams fell silent alone (ms after sampling began), which of these were preempted, and after the run.
CASES: dict[str, tuple[list[int], list[bool], list[bool], int | None]] = {
    "one before the count rose": ([800], [True], [True], 1),
    "one after it": ([1700], [False], [False], 1),
    # Without the time of sampling it may have been before the count rose, or after it.
    "one right after it": ([1530], [False], [True], 1),
    "two, while it rose by one": ([800, 900], [False, False], [False, False], 1),
    "one after the last sample": ([2700], [True], [True], 2),
    "one after it, not counted after the run": ([2700], [False], [False], None),
}


@loop_over(("silent_ms", "known", "unknown", "after"), CASES.values())
def test_silences_are_marked_where_the_count_rose(
    silent_ms: list[int], known: list[bool], unknown: list[bool], after: int | None
) -> None:
    samples = tuple(ServerSample(at_s=at_s, preemptions=count) for at_s, count in COUNTS.items())
    begin_ns = BEGAN_NS + np.array(silent_ms, np.int64) * MS
    for from_ns, marks in ((BEGAN_NS, known), (None, unknown), (BEGAN_NS - 10**15, unknown)):
        window = ServerWindow(samples=samples, preemptions=after, sampled_from_ns=from_ns)
        found = mark_preempted(read_counts(window, RUN.records), begin_ns, np.full(len(begin_ns), 10 * MS))
        assert found.tolist() == marks, from_ns


def test_sampling_may_begin_after_the_first_request() -> None:
    samples = tuple(ServerSample(at_s=at_s, preemptions=count) for at_s, count in COUNTS.items())
    late_ns = FIRST_NS + 300 * MS
    window = ServerWindow(samples=samples, preemptions=1, sampled_from_ns=late_ns)
    begin_ns = late_ns + np.array([900, 1600]) * MS  # before the count rose, and after it
    found = mark_preempted(read_counts(window, RUN.records), begin_ns, np.full(2, 10 * MS))
    assert found.tolist() == [True, False]


def test_without_samples_no_silence_is_a_preemption() -> None:
    for window in (None, ServerWindow(preemptions=3)):
        counted = read_counts(window, RUN.records)
        assert len(counted) == 0
        assert not mark_preempted(counted, np.array([FIRST_NS]), np.array([MS])).any()
