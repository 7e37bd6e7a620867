"""Parts: what a request's wait and a gap between its tokens are divided into, each part declared once."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.records.record import PATH, REORDERING, RETRANSMISSION

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
        "read of several messages, which has the timestamp of the last",
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
        "a segment of the answer was lost and sent again",
        "find what loses segments on the way from the server"),
    WaitPart("reordering", "reordering", "network", _BOTH,
        "a segment of the answer came after later ones, which waited for it"),
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
