"""The engine in virtual time: what a client would measure, without a socket or a wait."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from statistics import fmean

from loadgen_servers.engine.scheduler import Scheduler, Sequence, Step

TURNAROUND_NS = 1_000_000  # a client and its front end between an answer's end and the next request


@dataclass
class Outcome:
    """A simulated run: the sequences, and how many token gaps of each length (ns) there were."""

    duration_ns: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    gaps: dict[int, int] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        return sum(s.output_tokens for s in self.sequences)

    @property
    def mean_ttft_ns(self) -> float:
        return fmean(s.first_ns - s.arrived_ns for s in self.sequences)

    @property
    def mean_tpot_ns(self) -> float:
        """Mean over requests of (last - first token) / (tokens - 1); single-token ones left out."""
        return fmean(
            (s.last_ns - s.first_ns) / (s.output_tokens - 1) for s in self.sequences if s.output_tokens > 1
        )

    def gap_percentile_ns(self, percent: float) -> int:
        """The smallest gap that at least `percent` % of all gaps do not exceed."""
        left = sum(self.gaps.values()) * percent / 100
        for gap_ns, count in sorted(self.gaps.items()):
            left -= count
            if left <= 0:
                return gap_ns
        return max(self.gaps)


def closed_loop(
    scheduler: Scheduler,
    requests: Iterable[tuple[int, int]],
    concurrency: int,
    turnaround_ns: int = TURNAROUND_NS,
) -> Outcome:
    """Run (prompt, output) token pairs from `concurrency` slots, each slot's next as its last one ends."""
    left = deque(requests)
    arrivals = [0] * min(concurrency, len(left))
    outcome = Outcome()
    now_ns = 0
    while True:
        while arrivals and left and arrivals[0] <= now_ns:
            prompt, output = left.popleft()
            scheduler.add(Sequence(prompt, output, prompt + output, heapq.heappop(arrivals)))
        step = scheduler.begin(now_ns)
        if step is None:
            if not (arrivals and left):
                break
            now_ns = arrivals[0]
            continue
        now_ns = step.end_ns
        for _ in _ended(scheduler, step, outcome):
            heapq.heappush(arrivals, now_ns + turnaround_ns)
    outcome.duration_ns = now_ns
    return outcome


def open_loop(scheduler: Scheduler, arrivals_ns: Several[int], lengths: Several[tuple[int, int]]) -> Outcome:
    """Run (prompt, output) token pairs that arrive at these times, ascending, until all have ended."""
    outcome = Outcome()
    now_ns, arrived = 0, 0
    while True:
        while arrived < len(lengths) and arrivals_ns[arrived] <= now_ns:
            prompt, output = lengths[arrived]
            scheduler.add(Sequence(prompt, output, prompt + output, arrivals_ns[arrived]))
            arrived += 1
        step = scheduler.begin(now_ns)
        if step is not None:
            now_ns = step.end_ns
            _ended(scheduler, step, outcome)
        elif arrived < len(lengths):
            now_ns = arrivals_ns[arrived]
        else:
            break
    outcome.duration_ns = now_ns
    return outcome


def _ended(scheduler: Scheduler, step: Step, outcome: Outcome) -> list[Sequence]:
    """Account for a step, and return the sequences that ended in it."""
    ended = scheduler.end(step, step.end_ns)
    # Every sequence that had a token in the step before has one in this: the gap is the step.
    _count_gaps(outcome, step.end_ns - step.start_ns, ended.plain_gaps)
    for pause_ns in ended.pauses_ns:
        _count_gaps(outcome, pause_ns, 1)
    outcome.sequences += ended.finished
    return ended.finished


def _count_gaps(outcome: Outcome, gap_ns: int, times: int) -> None:
    if times:
        outcome.gaps[gap_ns] = outcome.gaps.get(gap_ns, 0) + times
