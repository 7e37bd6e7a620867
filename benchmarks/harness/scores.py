"""Scores: how much of the time that was injected an attribution finds in the right part, and in a wrong one.

Nothing here uses how the attribution divides: its rows are compared with the truth log, row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.stalled_run import StalledRun, Truth
from loadgen.features.attribution.attribution import PARTS, Attribution
from loadgen.records.record import Records
from loadgen_servers.engine.stalling import RequestRow, StallRow

_UNKNOWN = "unknown"
_LATE = ("decode_step", "slow_step", "others_prefill")
_NETWORK = ("retransmission", "reordering", "path_delay")
# What a stall is in a gap of a stream; and those that are in a request's wait under their own names.
_IN_GAPS = {"slow_step": "slow_step", "preemption": "preemption", "prefill": "others_prefill"}
_IN_WAITS = ("http", "queue", "request_resent")


@dataclass
class Score:
    """Time that was injected in rows that the attribution divides, and where it was found (ns)."""

    injected_ns: int = 0
    found_ns: int = 0  # in the right part
    wrong_ns: int = 0  # in a wrong one; the rest is unknown
    rows: int = 0

    @property
    def found(self) -> float:
        return self.found_ns / self.injected_ns if self.injected_ns else 1.0

    @property
    def wrong(self) -> float:
        return self.wrong_ns / self.injected_ns if self.injected_ns else 0.0

    @property
    def unknown(self) -> float:
        return max(1.0 - self.found - self.wrong, 0.0)

    def add(self, injected_ns: int, found_ns: int, wrong_ns: int) -> None:
        """Count a row."""
        self.injected_ns += injected_ns
        self.found_ns += found_ns
        self.wrong_ns += wrong_ns
        self.rows += 1


@dataclass
class Wait:
    """The truth of one row: by part, what would have been without stalls, and what they added (ns)."""

    natural_ns: dict[str, int] = field(default_factory=dict)
    injected_ns: dict[str, int] = field(default_factory=dict)
    late_ns: int = 0  # by which the machine was late with its steps: in any part of the engine it is right

    def inject(self, part: str, longer_ns: int) -> None:
        """Add what a stall made longer."""
        if longer_ns > 0:
            self.injected_ns[part] = self.injected_ns.get(part, 0) + longer_ns


def score_run(run: StalledRun, found: Attribution, round_trip_ns: int = 0) -> dict[str, Score]:
    """Score a run's attribution, by part; only parts into which something was injected are there.

    `round_trip_ns` is that of the path, without what was done to it on purpose.
    """
    prefix = run.result.facts.request_id_prefix or ""
    scores: dict[str, Score] = {}
    records = run.result.records
    for rows, of_wait in ((found.ttft, _read_wait), (found.gaps, _read_gap)):
        for at in range(len(rows)):
            row, message = int(rows.request[at]), int(rows.message[at])
            request = run.truth.requests.get(f"{prefix}{records.index[row]}")
            if request is None or len(request.wrote_ns) != records.start[row + 1] - records.start[row]:
                continue
            wait = of_wait(records, row, message, request, run.truth)
            if rows is found.ttft:
                wait.natural_ns["round_trip"] = round_trip_ns
            score_row(scores, wait, {part.key: int(rows.parts[n, at]) for n, part in enumerate(PARTS)})
    return scores


def merge_scores(scores: Iterable[Mapping[str, Score]]) -> dict[str, Score]:
    """Add the scores of several runs, by part."""
    merged: dict[str, Score] = {}
    for one in scores:
        for part, score in one.items():
            whole = merged.setdefault(part, Score())
            whole.add(score.injected_ns, score.found_ns, score.wrong_ns)
            whole.rows += score.rows - 1
    return merged


def score_row(scores: dict[str, Score], wait: Wait, found_ns: Mapping[str, int]) -> None:
    """Score a row: what is missing of a stall and is too much elsewhere, is in a wrong part."""
    missing_ns, too_much_ns = {}, 0
    for part in dict.fromkeys((*found_ns, *wait.injected_ns)):
        beyond_ns = found_ns.get(part, 0) - wait.natural_ns.get(part, 0)
        injected_ns = wait.injected_ns.get(part, 0)
        if injected_ns:
            missing_ns[part] = injected_ns - min(max(beyond_ns, 0), injected_ns)
        if part != _UNKNOWN:
            late_ns = wait.late_ns if part in _LATE else 0
            too_much_ns += max(beyond_ns - injected_ns - late_ns, 0)
    whole_ns = sum(missing_ns.values())
    wrong_ns = min(whole_ns, too_much_ns)
    for part, part_ns in missing_ns.items():
        injected_ns = wait.injected_ns[part]
        mine_ns = round(wrong_ns * part_ns / whole_ns) if whole_ns else 0
        scores.setdefault(part, Score()).add(injected_ns, injected_ns - part_ns, mine_ns)


def _read_wait(records: Records, row: int, message: int, request: RequestRow, truth: Truth) -> Wait:
    """The truth of a request's whole wait, from when it was due to its first token."""
    sent_ns, intended_ns = int(records.sent_ns[row]), int(records.intended_ns[row])
    first_ns = request.wrote_ns[0]
    natural = {
        "sent_late": max(sent_ns - intended_ns, 0),
        "handshake": max(int(records.connect_ns[row]), 0),
        "http": request.queued_ns - request.received_ns,
        "queue": request.scheduled_ns - request.queued_ns,
        "prefill": first_ns - request.scheduled_ns,
    }
    wait = Wait()
    for stall in truth.stalls:
        if stall.kind == "sent_late":
            wait.inject(stall.kind, _overlap_ns(stall, intended_ns, sent_ns))
        elif request.number not in stall.requests:
            continue
        elif stall.kind in _NETWORK:
            wait.inject(stall.kind, _overlap_ns(stall, sent_ns, int(records.arrival_ns[records.start[row]])))
        elif stall.kind in _IN_WAITS or stall.prefilled == request.number:
            wait.inject(stall.kind, stall.to_ns - stall.from_ns)
    for part, part_ns in natural.items():
        wait.natural_ns[part] = max(part_ns - wait.injected_ns.get(part, 0), 0)
    return wait


def _read_gap(records: Records, row: int, message: int, request: RequestRow, truth: Truth) -> Wait:
    """The truth of a gap between two tokens of a stream."""
    before_ns, after_ns = request.wrote_ns[message - 1 : message + 1]
    at = int(records.start[row]) + message
    came_ns: Sequence[int] = records.arrival_ns[at - 1 : at + 1].tolist()
    wait, stalled_ns = Wait(), 0
    # As much longer as it was on the way than the token before: that one may have been late as well.
    longer_way_ns = max(came_ns[1] - came_ns[0] - (after_ns - before_ns), 0)
    for stall in truth.stalls:
        if request.number not in stall.requests:
            continue
        if stall.kind in _NETWORK:
            on_way_ns = min(_overlap_ns(stall, *came_ns), longer_way_ns)
            wait.inject(stall.kind, on_way_ns)
            longer_way_ns -= on_way_ns
        elif stall.kind in _IN_GAPS and stall.prefilled != request.number:
            longer_ns = _overlap_ns(stall, before_ns, after_ns)
            if stall.kind == "preemption":  # a step would have been as slow without it, too
                longer_ns -= sum(_overlap_ns(stall, slow.from_ns, slow.to_ns) for slow in truth.slow_steps)
            stalled_ns += longer_ns
            wait.inject(_IN_GAPS[stall.kind], longer_ns)
    wait.natural_ns["path_delay"] = longer_way_ns
    slow_ns = sum(_overlap_ns(slow, before_ns, after_ns) for slow in truth.slow_steps)
    injected_ns = sum(wait.injected_ns.get(part, 0) for part in ("slow_step", "others_prefill"))
    wait.late_ns = max(slow_ns - injected_ns, 0)
    wait.natural_ns["decode_step"] = max(after_ns - before_ns - stalled_ns - wait.late_ns, 0)
    return wait


def _overlap_ns(stall: StallRow, from_ns: int, to_ns: int) -> int:
    return max(min(stall.to_ns, to_ns) - max(stall.from_ns, from_ns), 0)
