"""TTFT parts: each request's wait, from when it was due to its first token's arrival, divided into parts."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import MS_NS, US_NS
from loadgen.features.attribution.parts import CAUSES, NEAR_NS, ROWS, Division
from loadgen.records.record import UNKNOWN, Records
from loadgen.server.server_counters import ServerWindow

_ALIKE = 0.02  # by which counts, and sums of means, may differ and be of the same requests


class FirstTokens(msgspec.Struct, frozen=True):
    """The first token of each request that counts and has one, a row each."""

    request: Int64  # row of the records
    arrival_ns: Int64
    delay_ns: Int64  # on the way, 0 where nothing is known
    cause: Int64  # of that
    coalesced: Int64  # 1: the same read brought the next message; 0: it did not


def find_first_tokens(records: Records, counts: Bool) -> FirstTokens:
    """Find the first token of each request that counts, bool[requests]."""
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
    # What was not sent again was sent late by this machine.
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
    clocked, on_path = first_token_ns != UNKNOWN, _find_known_paths(records, tokens)
    inside_ns = np.where(divided & clocked, first_token_ns - queue_ns - prefill_ns, 0)
    around_ns = np.where(clocked & on_path, server_ns - first_token_ns, 0)
    take("http", np.where(divided & on_path, division.left_ns, inside_ns.clip(0) + around_ns.clip(0)))
    take("unknown", division.left_ns)
    return parts


def divide_mean(mean_parts: Int64, tokens: int, window: ServerWindow) -> Int64 | None:
    """Divide the unknown of a mean wait, int64[len(PARTS), 1], by the server's mean queue, prefill and HTTP.

    None where its histograms are not of about as many requests as there are first `tokens`, or have more than
    is unknown: they are then of others' requests too.
    """
    unknown = mean_parts[ROWS["unknown"]].copy()
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
    parts: Int64 = mean_parts + division.parts
    parts[ROWS["unknown"]] -= unknown
    return parts


def _find_known_paths(records: Records, tokens: FirstTokens) -> Bool:
    """Find of which tokens all that the network took is known, bool[tokens].

    Of answers by the timestamps of their segments. Nothing shows how long a request was on its way: where
    most first tokens were delayed, it may have been too. Without timestamps all is known where the round trip
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


def find_prefill_ns(records: Records) -> Int64:
    """Return what the server reports of each request's prefill, int64[requests] (ns); -1: nothing."""
    return np.where(records.server_prefill_ns < 0, records.server_ttft_ns, records.server_prefill_ns)
