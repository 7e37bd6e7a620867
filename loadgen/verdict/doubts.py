"""Doubts: the closed set of what can be wrong with a run, in the order in which it is reported.

Of two doubts as severe, the one that explains the other comes first. Every threshold stands in a doubt's
condition, with why a healthy idle server does not reach it.
"""

from __future__ import annotations

from loadgen.base.rule import Rule
from loadgen.features.data import data_checks as data
from loadgen.features.sessions import session_checks as sessions
from loadgen.features.shards import shard_checks as shards
from loadgen.features.targets import target_checks as target
from loadgen.verdict import arrival_checks as arrivals
from loadgen.verdict import client_checks as client
from loadgen.verdict import load_checks as load
from loadgen.verdict import server_checks as answers
from loadgen.verdict import server_checks as server
from loadgen.verdict.evidence import RunEvidence

DOUBTS: tuple[Rule[RunEvidence], ...] = (
    # The run itself.
    server.counters_reset,
    load.cut_short,
    shards.load_lost,
    load.many_failures,
    load.all_cancelled,
    server.tokens_far_off,
    load.interrupted,
    load.stopped_by_rule,
    shards.rest_of_the_load,
    load.failures,
    sessions.sessions_ended_early,
    load.many_resent,
    # Less work than requested.
    data.prefix_cache,
    data.identical_prompts,
    server.beyond_roofline,
    # Another load than requested.
    data.lengths_cut,
    shards.shards_started_apart,
    load.tokens_not_counted,
    arrivals.arrivals_not_tokens,
    arrivals.hidden_tokens,
    load.answer_lengths,
    load.prompt_lengths,
    load.concurrency_not_held,
    load.sends_late,
    load.rate_not_reached,
    sessions.users_waited,
    sessions.turns_late,
    answers.few_slots,
    server.server_limit,
    data.trace_grid,
    data.random_acceptance,
    server.prefill_while_queued,
    # The server was not idle, not alone, or counts differently.
    server.foreign_requests,
    server.first_wave,
    server.tpot_trend,
    server.throughput_trend,
    server.preemptions,
    server.tokens_differ,
    answers.timings_differ,
    server.no_abort,
    target.targets_unequal,
    # This machine, not the server, made the figures.
    client.clock_unusable,
    client.stopped_unstamped,
    client.other_processes,
    client.client_stopped,
    client.reads_late,
    client.acks_late,
    client.client_busy,
    client.beyond_capacity,
    client.impossible_timestamps,
    client.clock_stepped,
    client.network_lossy,
    shards.clock_offset,
    client.throttled,
    server.slow_kernel,
    # Notes.
    load.resent,
    sessions.reconnected,
    sessions.context_limit,
    sessions.session_forgotten,
    sessions.cached_tokens_differ,
    client.journal,
    arrivals.tokens_not_located,
    arrivals.ends_not_reported,
    arrivals.reasoning_alone,
    load.early_ends,
    load.overload,
    server.queued,
    data.reuse_not_as_expected,
    data.few_lengths_cut,
    data.random_routing,
    server.latencies_differ,
    server.several_models,
    server.unsettled,
    client.messages_together,
    client.network_losses,
    client.unstamped,
    client.busy_loop,
    client.ring_incomplete,
    client.late_bodies,
    client.headroom,
    load.thin_percentiles,
    load.ran_out,
    sessions.sessions_ran_dry,
    load.ramp_and_drain,
    load.few_per_slot,
)
