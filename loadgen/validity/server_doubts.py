"""Server doubts: the server was not at rest, not alone, or counts otherwise."""

from __future__ import annotations

from loadgen.validity import server_checks as server
from loadgen.validity.doubt import SUSPECT, Doubt
from loadgen.validity.evidence import LEAST_WAVES, EvidenceSource, percent

SERVER = (
    Doubt(
        "foreign-requests",
        SUSPECT,
        server.foreign_requests,
        f"requests were on the server before the run, or it finished more than {percent(server.FOREIGN)} "
        "beyond ours in it, or in two samples held more than we had under way",
        "have the server to yourself",
        EvidenceSource.COUNTERS,
    ),
    Doubt(
        "first-wave",
        SUSPECT,
        server.first_wave,
        "the first wave's median exceeds the 90th percentile of requests between it and the drain: TTFT, "
        f"per prompt token awaited at the same time, {server.FIRST_TTFT[0]:.0f} times and by "
        f"{server.FIRST_TTFT[1]:.0f} ms, or TPOT {server.FIRST_TPOT[0]:.1f} times and by "
        f"{server.FIRST_TPOT[1]} ms; a burst into a warm server stays below 1.1",
        "warm up: --num-warmups wave",
    ),
    Doubt(
        "tpot-trend",
        SUSPECT,
        server.tpot_trend,
        "the medians of TPOT over successive waves, ramp and drain left out, have a trend: at least "
        f"{LEAST_WAVES} waves, Mann-Kendall p < {server.TREND_CHANCE}, and over "
        f"{percent(server.TREND_CHANGE)} in all by Theil-Sen's slope, since a drift can be significant and "
        "too small to matter",
        "look for heat, other work, or a filling KV cache; warm up longer",
    ),
    Doubt(
        "throughput-trend",
        SUSPECT,
        server.throughput_trend,
        "closed loop: the same of output tokens per second, over the time each wave of answers took",
        "look for heat, other work, or a filling KV cache; warm up longer",
    ),
    Doubt(
        "preemptions",
        SUSPECT,
        server.preemptions,
        f"more preemptions than {percent(server.PREEMPTED)} of the requests: each is computed twice, which "
        "P99 shows",
        "give the server more KV cache, or lower --max-concurrency or the lengths",
        EvidenceSource.COUNTERS,
    ),
    Doubt(
        "tokens-differ",
        SUSPECT,
        server.tokens_differ,
        f"as tokens-far-off, by more than {percent(server.TOKENS_OFF)}; equal where both count the same",
        "let the server send usage; see that nothing else answers at this address",
        EvidenceSource.COUNTERS,
    ),
)
