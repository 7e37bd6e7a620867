"""Attribution: each TTFT, and each gap beyond P99, divided into parts that sum to it exactly."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64, sum_exactly
from loadgen.base.clock import MS_NS
from loadgen.facts.run_facts import Facts
from loadgen.features.attribution.gap_parts import TAIL, divide_gaps, find_tail_gaps, mark_unstamped
from loadgen.features.attribution.parts import (
    BEFORE_SENT,
    EVIDENCE,
    OF_EACH_REQUEST,
    PARTS,
    ROWS,
    SEGMENTED,
)
from loadgen.features.attribution.preemptions import CountedPreemptions, read_counts
from loadgen.features.attribution.stalls import LEAST_STREAMS
from loadgen.features.attribution.ttft_parts import (
    divide_mean,
    divide_waits,
    find_first_tokens,
    find_prefill_ns,
)
from loadgen.figures.distribution import compute_medians, compute_percentiles
from loadgen.figures.session_rows import find_sessions
from loadgen.records.record import UNKNOWN, Records
from loadgen.server.server_counters import ServerWindow
from loadgen.verdict.evidence import MeasuredRun, mark_counted

_LEAST_EXCESS_NS, _LEAST_SHARE = MS_NS, 0.2  # of the typical: below either a tail has nothing to explain


class PartRows(msgspec.Struct, frozen=True):
    """Waits divided into parts, a row each: int64 nanoseconds, none negative."""

    request: Int64  # row of the records
    message: Int64  # place in the request of the message that ended the wait: 0 for TTFT
    whole_ns: Int64  # for TTFT the whole wait, from when the request was due
    excess_ns: Int64  # beyond the typical, at least 0
    parts: Int64  # int64[len(PARTS), rows]: they sum to whole_ns

    def __len__(self) -> int:
        return len(self.request)

    def sum_parts(self) -> dict[str, int]:
        """Sum each part over the rows, exactly."""
        return {part.key: sum_exactly(row) for part, row in zip(PARTS, self.parts, strict=True)}

    def share(self, key: str) -> float:
        """Compute the share of a part in the sum of the waits, 0 to 1; 0 without rows."""
        whole_ns = sum_exactly(self.whole_ns)
        return sum_exactly(self.parts[ROWS[key]]) / whole_ns if whole_ns else 0.0

    def select(self, chosen: Bool | Int64) -> PartRows:
        """Select rows by a mask, bool[rows], or by their places, int64[selected]."""
        return PartRows(
            self.request[chosen],
            self.message[chosen],
            self.whole_ns[chosen],
            self.excess_ns[chosen],
            self.parts[:, chosen],
        )

    @property
    def after_sent_ns(self) -> Int64:
        """The waits without what came before the request was sent, int64[rows]: TTFT as figures define it."""
        before_ns: Int64 = self.parts[[ROWS[key] for key in BEFORE_SENT]].sum(axis=0)
        return self.whole_ns - before_ns

    @property
    def is_long(self) -> bool:
        """Whether the mean excess of a tail is one to explain: 1 ms, and a fifth of what is typical."""
        if not len(self):
            return False
        excess_ns = sum_exactly(self.excess_ns) / len(self)
        typical_ns = sum_exactly(self.after_sent_ns) / len(self) - excess_ns
        return excess_ns >= max(_LEAST_EXCESS_NS, _LEAST_SHARE * typical_ns)


class Attribution(msgspec.Struct, frozen=True, dict=True):
    """Where the TTFT of each request that counts, and each gap beyond P99 of theirs, comes from."""

    ttft: PartRows
    gaps: PartRows
    threshold_ns: float  # P99 of the gaps, as the report's P99 ITL; NaN without gaps
    typical_ns: float  # their median; NaN without gaps
    evidence: tuple[str, ...]  # what there was to divide by, by key
    # The mean of all TTFT, a row, where parts of it are the server's means alone; None: it has none.
    mean_ttft: PartRows | None = None

    @property
    def tails(self) -> tuple[tuple[str, PartRows], ...]:
        """What is beyond P99 of each figure, by its name."""
        return ("TTFT", self.tail_ttft), ("ITL", self.gaps)

    @property
    def nothing_to_explain(self) -> bool:
        """Whether no tail is much longer than what is typical."""
        return not any(tail.is_long for _, tail in self.tails)

    @cached_property
    def tail_ttft(self) -> PartRows:
        """The requests whose TTFT is beyond P99 of all; those at P99 where none is."""
        if not len(self.ttft):
            return self.ttft
        ttft_ns = self.ttft.after_sent_ns
        (threshold_ns,) = compute_percentiles(ttft_ns.copy(), (TAIL,))
        beyond = ttft_ns > threshold_ns
        return self.ttft.select(beyond if beyond.any() else ttft_ns >= threshold_ns)


def attribute_run(run: MeasuredRun) -> Attribution:
    """Divide a run's waits into parts; for its `derive`, by which all that is shown of it shares them."""
    return attribute(run.facts, run.records)


def attribute(facts: Facts, records: Records) -> Attribution:
    """Divide the TTFT of each request that counts, and each gap beyond P99 of theirs, into parts.

    Rows are of the requests, and thresholds those of the figures, that the report's TTFT and ITL are made of.
    """
    turns = facts.session_turns
    rows = find_sessions(records, turns, facts.make_waits()) if turns else None
    counts = mark_counted(facts, records, rows) & records.ok
    if not facts.ask().times_tokens:
        counts = np.zeros(len(records), np.bool_)
    tokens, gaps = find_first_tokens(records, counts), find_tail_gaps(records, counts)
    counted = read_counts(facts.own_window, records)
    ttft = _make_waits(tokens.request, divide_waits(records, tokens))
    tail = PartRows(
        gaps.request,
        gaps.message,
        gaps.whole_ns,
        (gaps.whole_ns - round(gaps.typical_ns)).clip(0) if len(gaps.request) else gaps.whole_ns,
        divide_gaps(records, gaps, counted, by_read=facts.client.transport not in SEGMENTED),
    )
    evidence = _list_evidence(records, counts, counted)
    mean_ttft = None if {*evidence} & {*OF_EACH_REQUEST} else _divide_mean(ttft, facts.own_window)
    return Attribution(ttft, tail, gaps.threshold_ns, gaps.typical_ns, evidence, mean_ttft)


def _divide_mean(ttft: PartRows, window: ServerWindow | None) -> PartRows | None:
    """Divide the mean of all TTFT by the server's means; None where it has none of these requests."""
    if window is None or not len(ttft):
        return None
    mean_parts = np.array([[sum_exactly(row) // len(ttft)] for row in ttft.parts])
    if (parts := divide_mean(mean_parts, len(ttft), window)) is None:
        return None
    (excess_ns,) = [sum_exactly(ttft.excess_ns) // len(ttft)]
    none = np.zeros(1, np.int64)
    return PartRows(none, none, parts.sum(axis=0), none + excess_ns, parts)


def _make_waits(request: Int64, parts: Int64) -> PartRows:
    """Make the rows of waits for first tokens; excess is of TTFT beyond its median."""
    waits = PartRows(request, np.zeros_like(request), parts.sum(axis=0), np.zeros_like(request), parts)
    if not len(request):
        return waits
    ttft_ns = waits.after_sent_ns
    (typical_ns,) = compute_percentiles(ttft_ns.copy(), (50,))
    return replace(waits, excess_ns=(ttft_ns - round(typical_ns)).clip(0))


def _list_evidence(records: Records, counts: Bool, counted: CountedPreemptions) -> tuple[str, ...]:
    """List the keys of the evidence that there is of most of the requests that count."""
    if not counts.any():
        return ()
    queue_ns, prefill_ns = records.server_queue_ns, find_prefill_ns(records)
    held = {
        "kernel": (records.reads > 0) & ~mark_unstamped(records),
        "rtt": records.rtt_ns != UNKNOWN,
        "segments": np.full(len(records), len(records.delay_us) > 0),
        "server": (queue_ns != UNKNOWN) | (prefill_ns != UNKNOWN),
        "spans": records.server_first_token_ns != UNKNOWN,
        "preemptions": np.full(len(records), len(counted) > 0),
        "streams": np.full(len(records), _count_usual_streams(records) >= LEAST_STREAMS),
    }
    most = counts.sum() / 2
    return tuple(kind.key for kind in EVIDENCE if np.count_nonzero(held[kind.key] & counts) > most)


def _count_usual_streams(records: Records) -> float:
    """Count the requests that were under way when a request was sent, its own too: their median."""
    sent = records.select(records.sent)
    begun = np.sort(sent.sent_ns).searchsorted(sent.sent_ns, side="right")
    ended = np.sort(sent.end_ns).searchsorted(sent.sent_ns, side="right")
    return float(compute_medians(begun - ended)) if len(sent) else 0.0
