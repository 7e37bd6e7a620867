"""Doubts: the closed set of what can be wrong with a run, in the order in which it is reported.

Of two doubts as severe, the one that explains the other comes first; a feature's stand after the doubt of the
core that its module names. Every threshold stands in a doubt's condition, with why a healthy idle server does
not reach it.
"""

from __future__ import annotations

from loadgen.base.rule import Rule
from loadgen.features import combine_rows
from loadgen.verdict import arrival_checks as arrivals
from loadgen.verdict import client_checks as client
from loadgen.verdict import load_checks as load
from loadgen.verdict import server_checks as server
from loadgen.verdict.evidence import RunEvidence

_OF_THE_CORE: tuple[Rule[RunEvidence], ...] = (
    # The run itself.
    server.counters_reset,
    load.cut_short,
    load.many_failures,
    load.all_cancelled,
    server.tokens_far_off,
    load.stopped_by_signal,
    load.stopped_by_rule,
    load.failures,
    load.many_resent,
    # Another load than requested.
    load.tokens_not_counted,
    arrivals.arrivals_not_tokens,
    arrivals.hidden_tokens,
    load.answer_lengths,
    load.prompt_lengths,
    load.concurrency_not_held,
    load.sends_late,
    load.rate_not_reached,
    server.few_slots,
    server.server_limit,
    server.prefill_while_queued,
    # The server was not idle, not alone, or counts differently.
    server.foreign_requests,
    server.first_wave,
    server.tpot_trend,
    server.throughput_trend,
    server.preemptions,
    server.tokens_differ,
    server.timings_differ,
    server.no_abort,
    # This machine, not the server, made the figures.
    client.clock_unusable,
    client.stopped_unstamped,
    client.other_processes,
    client.client_stopped,
    client.reads_late,
    client.client_busy,
    client.beyond_capacity,
    client.impossible_timestamps,
    client.clock_stepped,
    client.network_lossy,
    client.machine_throttled,
    # Notes.
    load.resent,
    client.journal,
    arrivals.tokens_not_located,
    arrivals.ends_not_reported,
    arrivals.reasoning_alone,
    load.early_ends,
    load.overload,
    server.requests_queued,
    server.latencies_differ,
    server.several_models,
    server.counters_unsettled,
    client.messages_together,
    client.network_losses,
    client.reads_not_timed,
    client.busy_loop,
    client.late_bodies,
    client.headroom,
    load.thin_percentiles,
    load.ran_out,
    load.ramp_and_drain,
    load.few_per_slot,
)
DOUBTS = combine_rows(_OF_THE_CORE, "doubts", lambda doubt: doubt.code)
