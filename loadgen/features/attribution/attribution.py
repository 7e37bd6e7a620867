"""Attribution: each TTFT, and each gap beyond P99, divided into parts that sum to it exactly; its doubts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64, sum_exactly, sum_rows
from loadgen.base.clock import MS_NS, SECOND_NS, US_NS
from loadgen.base.rule import Evidence, join_evidence, note, suspect
from loadgen.facts.run_facts import Facts
from loadgen.features.attribution.stalls import (
    LEAST_STREAMS,
    EngineStalls,
    find_prefill_ns,
    find_stalls,
    trace_timeline,
)
from loadgen.figures.distribution import Piece, rank_pieces
from loadgen.figures.metrics import list_gaps
from loadgen.figures.session_rows import find_sessions
from loadgen.records.record import NO_CAUSE, PATH, REORDERING, RETRANSMISSION, UNKNOWN, MessageBlock, Records
from loadgen.server.server_counters import ServerSample, ServerWindow
from loadgen.verdict.arrival_checks import arrivals_not_tokens
from loadgen.verdict.evidence import MeasuredRun, RunEvidence, has_tail, limit_doubts, mark_counted, percent

Group = Literal["client", "network", "server", "engine", "unknown"]
Wait = Literal["ttft", "tail"]  # for a first token, and a gap beyond P99
_FIRST: tuple[Wait, ...] = ("ttft",)
_GAP: tuple[Wait, ...] = ("tail",)
_BOTH = _FIRST + _GAP


class WaitPart(msgspec.Struct, frozen=True):
    """A part of a wait: whose it is, and what a user can do about it; "" where nothing can be advised."""

    key: str
    label: str
    group: Group
    waits: tuple[Wait, ...]  # that it can be a part of
    about: str
    remedy: str = ""


# The whole wait of a request, intended → first token's arrival, is sent_late + handshake + TTFT; TTFT, sent →
# first token's arrival, and a gap are the sums of the other parts. `read_lag` is in no sum but that of a gap
# whose reads had no kernel timestamp, or ended with a read of several messages.
PARTS: tuple[WaitPart, ...] = (
    WaitPart("sent_late", "sent late", "client", _FIRST,
        "from when the request was due until it was sent, without opening its connection",
        "use a faster or less busy machine for the client, or --workers"),
    WaitPart("read_lag", "read late", "client", _GAP,
        "what the client's own late reads can explain of gaps without a kernel timestamp, or that end with a "
        "read of several chunks, which has the timestamp of the last",
        "use --transport ring, which timestamps each segment, and leave the client a core; never stop it or "
        "its container"),
    WaitPart("handshake", "handshake", "network", _FIRST,
        "opening the connection (TCP, TLS) after the request was due",
        "keep connections open, or measure nearer to the server"),
    WaitPart("request_resent", "request resent", "network", _FIRST,
        "until the segment of the request that got through was sent: earlier ones were lost",
        "find what loses segments on the way to the server"),
    WaitPart("round_trip", "round trip", "network", _FIRST,
        "the connection's least round trip: once for each request", "measure nearer to the server"),
    WaitPart("retransmission", "retransmission", "network", _BOTH,
        "a segment of the response was lost and sent again",
        "find what loses segments on the way from the server"),
    WaitPart("reordering", "reordering", "network", _BOTH,
        "a segment of the response came after later ones, which waited for it"),
    WaitPart("path_delay", "path delay", "network", _BOTH,
        "transit beyond the quickest that the connection has shown: queues on the way"),
    WaitPart("http", "HTTP, tokenizing", "server", _FIRST,
        "in the server before the engine's queue and after its first token: HTTP, tokenizing, routing",
        "add API server processes or tokenizer workers"),
    WaitPart("queue", "queue", "server", _FIRST, "in the engine's queue, until it was scheduled",
        "lower the load, or raise what runs at once (vLLM: --max-num-seqs, SGLang: --max-running-requests)"),
    WaitPart("prefill", "prefill", "engine", _FIRST, "from when it was scheduled up to its first token",
        "cache prefixes, or shorten prompts"),
    WaitPart("decode_step", "decode step", "engine", _GAP, "the typical step at that time, of all streams"),
    WaitPart("slow_step", "slow step", "engine", _GAP,
        "beyond the typical step, of all streams at once, with no one's prefill in it",
        "check the server's CPU, clocks and log at that time"),
    WaitPart("preemption", "preemption", "engine", _GAP,
        "the engine took the request's memory for others, and computed it again",
        "give the KV cache more memory (vLLM: --gpu-memory-utilization), or lower the load"),
    WaitPart("others_prefill", "others' prefill", "engine", _GAP,
        "beyond the typical step, of all streams at once, while another request's prompt was computed",
        "limit the prompt tokens of a step, at the cost of TTFT (vLLM: --max-num-batched-tokens or "
        "--long-prefill-token-threshold, SGLang: --chunked-prefill-size, llama.cpp: --batch-size)"),
    WaitPart("unknown", "unknown", "unknown", _BOTH, "what nothing that was measured explains"),
)  # fmt: skip
ROWS: dict[str, int] = {part.key: row for row, part in enumerate(PARTS)}  # of an array int64[len(PARTS), …]
BEFORE_SENT = ("sent_late", "handshake")  # of the whole wait, not of TTFT
CAUSES = {RETRANSMISSION: "retransmission", REORDERING: "reordering", PATH: "path_delay"}  # of a delay
NEAR_NS = 2 * MS_NS  # a round trip on a network without long queues, which does not pause for all at once
IMPAIRED = ("request_resent", *CAUSES.values())  # by the network, but for the round trip itself


class Division:
    """Waits that are divided: their parts so far, int64[len(PARTS), waits], and what is left of each (ns)."""

    def __init__(self, whole_ns: Int64) -> None:
        self.parts = np.zeros((len(PARTS), len(whole_ns)), np.int64)
        self.left_ns = whole_ns.copy()

    def take(self, key: str, most_ns: Int64) -> None:
        """Add to a part what is left of each wait, `most_ns` at most; nothing where that is negative."""
        taken_ns = np.minimum(self.left_ns, most_ns.clip(0))
        self.parts[ROWS[key]] += taken_ns
        self.left_ns -= taken_ns


class EvidenceKind(msgspec.Struct, frozen=True):
    """A kind of evidence that waits are divided by: its words, the parts that it shows, how to get it."""

    key: str
    label: str
    parts: tuple[str, ...]  # their keys
    remedy: str  # "": it depends on the engine
    transports: tuple[str, ...] = ()  # that have it where it can be had: with these the remedy is no advice


SEGMENTED = ("ring",)  # transports whose arrivals are those of segments, not of reads
OF_EACH_REQUEST = ("server", "spans")  # evidence by which queue and prefill of a request are known
_TIMESTAMPED = (
    "--transport wire or ring: the kernel then timestamps arrivals, and reports round trips", ("wire", "ring")
)  # fmt: skip
EVIDENCE: tuple[EvidenceKind, ...] = (
    EvidenceKind("kernel", "kernel timestamps of arrivals", ("read_lag",), *_TIMESTAMPED),
    EvidenceKind("rtt", "TCP's least round trip of each connection", ("round_trip",), *_TIMESTAMPED),
    EvidenceKind("segments", "TCP timestamps of each segment", IMPAIRED,
        "--transport ring: it shows the network's part of each wait", SEGMENTED),
    EvidenceKind("server", "the server's own times of each request", ("http", "queue", "prefill"), ""),
    EvidenceKind("spans", "the server's spans", ("http", "queue", "prefill"),
        "--receive-spans: a server that exports spans then reports each request's HTTP, queue and prefill"),
    EvidenceKind("preemptions", "samples of the server's preemptions", ("preemption",),
        "a server whose /metrics counts preemptions, without --no-observe"),
    EvidenceKind("streams", "what all streams do at one instant",
        ("decode_step", "slow_step", "others_prefill"),
        "more requests at once: with few streams a pause of one looks like a pause of all"),
)  # fmt: skip


TAIL = 99.0  # the percentile beyond which a gap or a TTFT is of the tail
_ORDINARY = 1.5  # typical steps: where as little of a gap is no stall, all its excess is the stall's
_MISSED = 0.75  # typical steps: a stream that was preempted has no token of at least one step
_BURST = 16  # messages that come closer than this part of the mean gap come together
_ENDS = 1  # reads of a response without a kernel timestamp, as that of its end
_UNSTAMPED = 0.01  # of its reads


class TailGaps(msgspec.Struct, frozen=True):
    """The gaps beyond P99 of those that ITL counts, a row each."""

    request: Int64  # row of the records
    message: Int64  # place in the request of the later message
    whole_ns: Int64
    arrival_ns: Int64  # of the later message
    delay_ns: Int64  # of the later message on the way, 0 where nothing is known
    before_ns: Int64  # delay of the earlier message
    cause: Int64  # of the delay
    coalesced: Int64  # 1: the same read brought the message after the later one; 0: it did not
    threshold_ns: float = math.nan  # P99 of all gaps, as of the report's ITL; NaN without any
    typical_ns: float = math.nan  # their median
    mean_ns: float = math.nan

    @property
    def sent_ns(self) -> Int64:
        """When the server sent the later message."""
        return self.arrival_ns - self.delay_ns

    @property
    def begin_ns(self) -> Int64:
        """When the server sent the earlier message."""
        return self.arrival_ns - self.whole_ns - self.before_ns


def find_tail_gaps(records: Records, counts: Bool) -> TailGaps:
    """Find the gaps beyond P99 of the requests in `counts`, bool[requests]; no rows, and NaN, without any."""

    def list_pieces() -> Iterator[Piece]:
        for block in records.blocks():
            yield list_gaps(block, counts[block.first : block.last])[0], None

    count, total, low, high = 0, 0.0, math.inf, -math.inf
    for gap_ns, _ in list_pieces():
        if len(gap_ns):
            count, total = count + len(gap_ns), total + float(gap_ns.sum(dtype=np.float64))
            low, high = min(low, int(gap_ns.min())), max(high, int(gap_ns.max()))
    found = [np.zeros((8, 0), np.int64)]
    if not count:
        return TailGaps(*found[0])
    if records.in_one_block:  # the last of the pieces is the only one
        typical_ns, threshold_ns = np.percentile(gap_ns, (50, TAIL)).tolist()
    else:
        typical_ns, threshold_ns = rank_pieces(list_pieces, count, (low, high), (50, TAIL))
    found += [
        _select_beyond(block, counts[block.first : block.last], threshold_ns) for block in records.blocks()
    ]
    gaps = TailGaps(*np.concatenate(found, axis=1))
    return replace(gaps, threshold_ns=threshold_ns, typical_ns=typical_ns, mean_ns=total / count)


def _select_beyond(block: MessageBlock, counts: Bool, threshold_ns: float) -> Int64:
    """Select a block's gaps beyond the threshold: the columns of TailGaps, int64[8, gaps]."""
    messages = np.diff(block.start)
    gap_ns = np.diff(block.arrival_ns, prepend=0)
    firsts = block.start[:-1][messages > 0]
    beyond = (gap_ns > threshold_ns) & np.repeat(counts, messages)
    beyond[firsts] = False
    at = np.flatnonzero(beyond)
    row = block.start.searchsorted(at, side="right") - 1
    delay_ns = before_ns = cause = np.zeros(len(at), np.int64)
    if len(block.delay_us):
        delay_ns, before_ns = (block.delay_us[each].astype(np.int64) * US_NS for each in (at, at - 1))
        cause = block.delay_cause[at].astype(np.int64)
    arrival_ns = block.arrival_ns[at]
    columns = (block.first + row, at - block.start[row], gap_ns[at], arrival_ns)
    coalesced = (at + 1 < block.start[row + 1]) & (np.append(gap_ns, 0)[at + 1] == 0)
    return np.stack([*columns, delay_ns, before_ns, cause, coalesced])


def divide_gaps(records: Records, gaps: TailGaps, counted: CountedPreemptions, by_read: bool) -> Int64:
    """Divide the gaps into parts that sum to them: int64[len(PARTS), gaps] (ns).

    In this order: what the network added between the two messages, a typical step, what the client read late
    if arrivals are those of whole reads (`by_read`), what this stream was silent alone if it was preempted,
    and what all were silent together.
    """
    division = Division(gaps.whole_ns)
    if not len(gaps.request):
        return division.parts
    take = division.take
    # If bursts of messages belong to one step, the typical gap is not one between steps.
    usual_ns = gaps.typical_ns if gaps.typical_ns * _BURST >= gaps.mean_ns else gaps.mean_ns
    timeline = trace_timeline(records, max(round(usual_ns), 1))
    added_ns = (gaps.delay_ns - gaps.before_ns).clip(0)
    for cause, key in {**CAUSES, NO_CAUSE: "unknown"}.items():
        take(key, np.where(gaps.cause == cause, added_ns, 0))
    step_ns = timeline.step_at(gaps.begin_ns)
    take("decode_step", step_ns)
    # Messages that one read brought have the arrival of the last, and the wait of all is the first one's.
    spanned = (gaps.coalesced > 0) & by_read
    take("read_lag", share_lag(records, gaps.request, np.where(spanned, division.left_ns, 0)))
    stalls, unstamped = find_stalls(timeline, records), mark_unstamped(records)[gaps.request]
    stalled_ns, kinds_ns = divide_stalled(gaps, stalls, step_ns, division.left_ns)
    alone, preempted = division.left_ns - stalled_ns > _MISSED * step_ns, np.zeros(len(step_ns), np.bool_)
    preempted[alone] = mark_preempted(counted, gaps.begin_ns[alone], step_ns[alone])
    # It would have waited through the stalls too.
    take("preemption", np.where(preempted, division.left_ns, 0))
    take("others_prefill", kinds_ns["others_prefill"])
    # A far network may pause for all connections at once: only delays of its segments show that it did not.
    rtt_ns = records.rtt_ns[records.rtt_ns >= 0]
    pauses = len(rtt_ns) > 0 and float(np.median(rtt_ns)) > NEAR_NS and not len(records.delay_us)
    take("slow_step", np.where(unstamped | pauses, 0, kinds_ns["slow_step"]))
    take("read_lag", np.where(unstamped, share_lag(records, gaps.request, division.left_ns), 0))
    take("unknown", division.left_ns)
    return division.parts


def divide_stalled(
    gaps: TailGaps, stalls: EngineStalls, step_ns: Int64, left_ns: Int64
) -> tuple[Int64, dict[str, Int64]]:
    """Return how long of each gap's rest all streams were silent, of it `others_prefill` and `slow_step`.

    A stall lies in a gap whole or not at all, since a gap's ends are messages. Where a gap is hardly longer
    than its stalls and a step, all its excess is theirs; else theirs is what they have beyond a step each.
    What is of neither is of unknown cause. All are int64[gaps] (ns).
    """
    first = stalls.begin_ns.searchsorted(gaps.begin_ns)
    last = np.maximum(stalls.end_ns.searchsorted(gaps.sent_ns, side="right"), first)

    def sum_per_gap(values: Int64) -> Int64:
        total = np.concatenate([[0], np.cumsum(values)])
        within: Int64 = total[last] - total[first]
        return within

    silent_ns, excess_ns = sum_per_gap(stalls.end_ns - stalls.begin_ns), sum_per_gap(stalls.excess_ns)
    ordinary = gaps.sent_ns - gaps.begin_ns - silent_ns <= _ORDINARY * step_ns
    stalled_ns = np.where(ordinary, left_ns, np.minimum(left_ns, excess_ns))
    stalled_ns[silent_ns == 0] = 0
    kinds_ns = {}
    for key, of_kind_ns in (("others_prefill", stalls.prefill_ns), ("slow_step", stalls.slow_ns)):
        share = sum_per_gap(of_kind_ns) / np.maximum(excess_ns, 1)
        kinds_ns[key] = np.minimum(np.rint(stalled_ns * share).astype(np.int64), stalled_ns)
    kinds_ns["slow_step"] = np.minimum(kinds_ns["slow_step"], stalled_ns - kinds_ns["others_prefill"])
    return stalled_ns, kinds_ns


def share_lag(records: Records, request: Int64, left_ns: Int64) -> Int64:
    """Share the lag of each request's reads between its gaps in turn, ascending by request, int64[gaps] (ns).

    None gets more than is left of it or the longest lag, nor all of a request more than the sum of its lags.
    """
    most_ns = np.minimum(left_ns, records.lag_max_ns[request].clip(0))
    before_ns = np.cumsum(most_ns) - most_ns
    begins = np.append(True, request[1:] != request[:-1])
    before_ns -= np.maximum.accumulate(np.where(begins, before_ns, 0))
    shared_ns: Int64 = (records.lag_sum_ns[request] - before_ns).clip(0, most_ns)
    return shared_ns


def mark_unstamped(records: Records) -> Bool:
    """Mark the requests with over one read, and over 1 %, without a kernel timestamp, bool[requests]."""
    marked: Bool = records.unstamped_reads > np.maximum(_UNSTAMPED * records.reads, _ENDS)
    return marked


# A sample may be older than its time by the first: a scrape takes as long. If the start of sampling is not
# stored, it may have preceded the first request by the second.
_SCRAPE_NS, _EARLY_NS = 25 * MS_NS, SECOND_NS // 4
_NEAR_NS = 10 * SECOND_NS  # of the first request; a time further off is of another clock


class CountedPreemptions(msgspec.Struct, frozen=True):
    """The server's count of preemptions over the run, ascending: how many there were by each moment."""

    at_ns: Int64
    total: Int64
    early_ns: int  # by which a moment may be too late

    def __len__(self) -> int:
        return len(self.at_ns)


def read_counts(window: ServerWindow | None, records: Records) -> CountedPreemptions:
    """Read the preemptions by each sample, and after the run; empty without samples or sent requests."""
    samples: Sequence[ServerSample] = () if window is None else window.samples
    counted = [(each.at_s, each.preemptions) for each in samples if each.preemptions is not None]
    none = np.zeros(0, np.int64)
    if window is None or not counted or not records.sent.any():
        return CountedPreemptions(none, none, 0)
    first_ns, last_ns = int(records.sent_ns[records.sent].min()), int(records.end_ns.max())
    began_ns = window.sampled_from_ns
    known = began_ns is not None and abs(first_ns - began_ns) <= _NEAR_NS
    from_ns = began_ns if known and began_ns is not None else first_ns
    at_ns = [from_ns + round(at_s * SECOND_NS) for at_s, _ in counted]
    total = [count for _, count in counted]
    if window.preemptions is not None and window.preemptions >= total[-1]:
        at_ns.append(max(at_ns[-1], last_ns) + SECOND_NS)
        total.append(window.preemptions)
    return CountedPreemptions(
        np.array(at_ns, np.int64), np.array(total, np.int64), _SCRAPE_NS if known else _EARLY_NS
    )


def mark_preempted(counted: CountedPreemptions, begin_ns: Int64, step_ns: Int64) -> Bool:
    """Mark the silences of single streams, by when each began (ns), that were preemptions, bool[silences].

    An engine preempts when it makes the next step. Where the counter rose over that time by at least as many
    as streams fell silent alone in it, all of these were preempted; else it is not known which.
    """
    if not len(counted) or not len(begin_ns):
        return np.zeros(len(begin_ns), np.bool_)
    at_ns, early_ns = counted.at_ns, counted.early_ns
    total = np.concatenate([[0], counted.total])
    # The samples between which the counter rose: from one before the time, if sampling began early.
    first = at_ns.searchsorted(begin_ns - step_ns)
    last = at_ns.searchsorted(begin_ns + 2 * step_ns + early_ns).clip(max=len(at_ns) - 1)
    within = first <= last
    rose = total[np.where(within, last + 1, 0)] - total[np.where(within, first, 0)]
    edges_ns = np.concatenate([[np.iinfo(np.int64).min], at_ns])
    ordered = np.sort(begin_ns)
    until = ordered.searchsorted(edges_ns[last + 1], side="right")
    silent = until - ordered.searchsorted(edges_ns[first.clip(max=len(at_ns))] - early_ns)
    marked: Bool = within & (rose > 0) & (rose >= silent)
    return marked


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
        return dict(zip(ROWS, sum_rows(self.parts), strict=True))

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
        threshold_ns = float(np.percentile(ttft_ns, TAIL))
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
    parts, none = divide_waits(records, tokens), np.zeros_like(tokens.request)
    ttft = PartRows(tokens.request, none, parts.sum(axis=0), none, parts)
    if len(ttft):
        typical_ns = float(np.median(ttft.after_sent_ns))
        ttft = replace(ttft, excess_ns=(ttft.after_sent_ns - round(typical_ns)).clip(0))
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
    """Divide the unknown of the mean TTFT by the server's mean queue, prefill and HTTP.

    None where its histograms are not of about as many requests as there are first tokens, or have more than
    is unknown: they are then of others' requests too.
    """
    if window is None or not (tokens := len(ttft)):
        return None
    parts = np.array([[total // tokens] for total in sum_rows(ttft.parts)])
    unknown = parts[ROWS["unknown"]].copy()
    known = {
        name: round(each.mean_ms * MS_NS)
        for name in ("queue", "prefill", "ttft")
        if (each := getattr(window, name)) is not None and abs(each.count - tokens) <= _ALIKE * tokens
    }
    first_token_ns, engine_ns = known.pop("ttft", 0), sum(known.values())
    if not known or max(engine_ns, first_token_ns) > (1 + _ALIKE) * unknown[0]:
        return None
    division = Division(unknown)
    for key, part_ns in known.items():
        division.take(key, np.array([part_ns]))
    if len(known) == len(("queue", "prefill")):
        division.take("http", np.array([first_token_ns - engine_ns]))
    division.take("unknown", division.left_ns)
    parts += division.parts
    parts[ROWS["unknown"]] -= unknown
    none, excess_ns = np.zeros(1, np.int64), sum_exactly(ttft.excess_ns) // tokens
    return PartRows(none, none, parts.sum(axis=0), none + excess_ns, parts)


def _list_evidence(records: Records, counts: Bool, counted: CountedPreemptions) -> tuple[str, ...]:
    """List the keys of the evidence that there is of most of the requests that count."""
    if not counts.any():
        return ()
    queue_ns, prefill_ns = records.server_queue_ns, find_prefill_ns(records)
    sent = records.select(records.sent)
    begun = np.sort(sent.sent_ns).searchsorted(sent.sent_ns, side="right")
    ended = np.sort(sent.end_ns).searchsorted(sent.sent_ns, side="right")
    streams = float(np.median(begun - ended)) if len(sent) else 0.0
    held = {
        "kernel": (records.reads > 0) & ~mark_unstamped(records),
        "rtt": records.rtt_ns != UNKNOWN,
        "segments": np.full(len(records), len(records.delay_us) > 0),
        "server": (queue_ns != UNKNOWN) | (prefill_ns != UNKNOWN),
        "spans": records.server_first_token_ns != UNKNOWN,
        "preemptions": np.full(len(records), len(counted) > 0),
        "streams": np.full(len(records), streams >= LEAST_STREAMS),
    }
    most = counts.sum() / 2
    return tuple(kind.key for kind in EVIDENCE if np.count_nonzero(held[kind.key] & counts) > most)


_ALIKE = 0.02  # by which counts, and sums of means, may differ and be of the same requests


class FirstTokens(msgspec.Struct, frozen=True):
    """The first token of each request that counts and has one, a row each."""

    request: Int64  # row of the records
    arrival_ns: Int64
    delay_ns: Int64  # on the way, 0 where nothing is known
    cause: Int64  # of that
    coalesced: Int64  # 1: the same read brought the next message; 0: it did not


def find_first_tokens(records: Records, counts: Bool) -> FirstTokens:
    """Find the first tokens of the requests marked in `counts`, bool[requests], that have one."""
    found = [np.zeros((5, 0), np.int64)]
    for block in records.blocks():
        some = np.flatnonzero((np.diff(block.start) > 0) & counts[block.first : block.last])
        at = block.start[some]
        delay_ns = cause = np.zeros(len(at), np.int64)
        if len(block.delay_us):
            delay_ns, cause = block.delay_us[at].astype(np.int64) * US_NS, block.delay_cause[at]
        next_at = np.minimum(at + 1, block.start[some + 1] - 1)
        coalesced = (next_at > at) & (block.arrival_ns[next_at] == block.arrival_ns[at])
        found.append(np.stack([block.first + some, block.arrival_ns[at], delay_ns, cause, coalesced]))
    return FirstTokens(*np.concatenate(found, axis=1))


def divide_waits(records: Records, tokens: FirstTokens) -> Int64:
    """Divide the waits for first tokens into parts: int64[len(PARTS), tokens] (ns).

    They sum to arrival − due, or − sent for a request that was sent before. What the network took is taken
    out first, then what the server reports of this request. What is left is the server's HTTP and tokenizing
    where its queue and prefill and all of the network's part are known; else what it has before its own first
    token is, and all besides is unknown.
    """
    sent_ns, rtt_ns = records.sent_ns[tokens.request], records.rtt_ns[tokens.request]
    late_ns = (sent_ns - records.intended_ns[tokens.request]).clip(0)
    division = Division((tokens.arrival_ns - sent_ns).clip(0))
    parts, take = division.parts, division.take
    # A connection that was opened ahead of time delayed no one.
    parts[ROWS["handshake"]] = records.connect_ns[tokens.request].clip(0, late_ns)
    parts[ROWS["sent_late"]] = late_ns - parts[ROWS["handshake"]]
    # A request that was not sent again was sent late by this machine.
    resent = records.retransmitted[tokens.request] != 0
    take("request_resent", np.where(resent, records.request_delay_ns[tokens.request], 0))
    take("round_trip", rtt_ns)
    for cause, key in CAUSES.items():
        take(key, np.where(tokens.cause == cause, tokens.delay_ns, 0))
    server_ns, first_token_ns = division.left_ns.copy(), records.server_first_token_ns[tokens.request]
    queue_ns, prefill_ns = records.server_queue_ns[tokens.request], find_prefill_ns(records)[tokens.request]
    take("queue", queue_ns)
    take("prefill", prefill_ns)
    divided = (queue_ns != UNKNOWN) & (prefill_ns != UNKNOWN)
    clocked, on_path = first_token_ns != UNKNOWN, _mark_known_paths(records, tokens)
    inside_ns = np.where(divided & clocked, first_token_ns - queue_ns - prefill_ns, 0)
    around_ns = np.where(clocked & on_path, server_ns - first_token_ns, 0)
    take("http", np.where(divided & on_path, division.left_ns, inside_ns.clip(0) + around_ns.clip(0)))
    take("unknown", division.left_ns)
    return parts


def _mark_known_paths(records: Records, tokens: FirstTokens) -> Bool:
    """Mark the tokens of which all that the network took is known, bool[tokens].

    With timestamps of segments: all with a round trip, unless most were delayed: nothing shows how long a
    request was on its way, which then may have been too. Without: where the round trip
    is short, no segment of the request or of its answer was lost or overtaken, and it was not read late.
    """
    rtt_ns = records.rtt_ns[tokens.request]
    known: Bool = rtt_ns != UNKNOWN
    if len(records.delay_us):
        known &= 2 * np.count_nonzero(tokens.delay_ns > NEAR_NS) <= len(known)
    else:
        impaired = (records.out_of_order[tokens.request] > 0) | (records.retransmitted[tokens.request] > 0)
        late = (tokens.coalesced > 0) & (records.lag_max_ns[tokens.request] > MS_NS)
        known &= (rtt_ns <= NEAR_NS) & ~impaired & ~late
    return known


STALLED, NETWORK = 0.25, 0.2  # of the time beyond P99
_LEAST = 0.05  # of it: a smaller share is no evidence to add to another doubt
_LONG = "where that tail is longer than typical by 1 ms and a fifth or more"


def _divide_tail(run: RunEvidence) -> Attribution | None:
    """Return where the time beyond P99 comes from; None of few requests, or without a long tail of tokens."""
    if not has_tail(run.facts) or arrivals_not_tokens.find(run) is not None:
        return None
    found = run.derive(attribute_run)
    return None if found.nothing_to_explain else found


def describe_share(run: RunEvidence, key: str) -> Evidence | None:
    """Describe a part's shares of the time beyond P99, as evidence of another doubt; None below 5 %."""
    if (found := run.derive(_divide_tail)) is None:
        return None
    shares = [(name, tail.share(key)) for name, tail in found.tails if tail.is_long]
    large = [
        f"{percent(round(share, 2))} of the time beyond P99 {name}"
        for name, share in shares
        if share >= _LEAST
    ]
    return f"{' and '.join(large)} is that" if large else None


@note(
    "others-prefill-stalls",
    f"other requests' prefill takes {percent(STALLED)} or more of the time beyond P99 ITL, {_LONG}: all "
    "streams pause while a prompt is computed",
    f"{PARTS[ROWS['others_prefill']].remedy}, or serve prefill elsewhere",
)
def others_prefill_stalls(run: RunEvidence) -> Evidence | None:
    """Find evidence that the long gaps are mostly pauses for other requests' prompts."""
    found = run.derive(_divide_tail)
    if found is None or not found.gaps.is_long or (share := found.gaps.share("others_prefill")) < STALLED:
        return None
    return f"{percent(round(share, 2))} of the time beyond P99 ITL is other requests' prefill"


@suspect(
    "network-in-tail",
    f"lost, reordered or delayed segments (not the round trip itself) take {percent(NETWORK)} or more of the "
    f"time beyond P99 TTFT or ITL, {_LONG}: P99 is not the server's alone",
    "measure nearer to the server, or find what loses or queues packets (ip -s link, nstat); read P50",
)
def network_in_tail(run: RunEvidence) -> Evidence | None:
    """Find evidence that the network, not the server, makes a good part of P99."""
    if (found := run.derive(_divide_tail)) is None:
        return None
    sentences = []
    for name, tail in found.tails:
        shares = {key: tail.share(key) for key in IMPAIRED}
        share = sum(shares.values())
        if tail.is_long and share >= NETWORK:
            words = ", ".join(
                f"{key.replace('_', ' ')} {percent(round(part, 2))}"
                for key, part in shares.items()
                if part >= 0.005
            )
            part_of = f"{percent(round(share, 2))} of the time beyond P99 {name}"
            sentences.append(f"{part_of} is the network's ({words})")
    return join_evidence(sentences)


limit = partial(limit_doubts, (has_tail,))
