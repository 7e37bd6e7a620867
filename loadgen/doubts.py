"""Doubts: the closed set of what can be wrong with a run, each with its condition, severity and remedy.

The order is that of telling: of two doubts as severe, the one that explains the other comes first. Every
threshold stands in its condition, with why a healthy server at rest does not reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import msgspec

from loadgen import client_findings as client
from loadgen import load_findings as load
from loadgen import roofline_findings as roofline
from loadgen import server_findings as server
from loadgen.evidence import LATE_GAPS, LEAST_GAUGES, LEAST_WAVES, Case, Source, percent


class Severity(IntEnum):
    """What a doubt does to the verdict; the worst one decides."""

    NOTE = 0  # good to know, changes nothing
    SUSPECT = 1  # a figure may not be what it is called
    INVALID = 2  # the run does not say what it was made to say


class Doubt(msgspec.Struct, frozen=True):
    """One thing that can be wrong; `find` gives the evidence with its figures, "" where there is none."""

    name: str
    severity: Severity
    find: Callable[[Case], str]
    condition: str
    remedy: str
    source: Source = Source.RECORDS


NOTE, SUSPECT, INVALID = Severity.NOTE, Severity.SUSPECT, Severity.INVALID

DOUBTS = (
    # The run itself.
    Doubt(
        "counters-reset",
        INVALID,
        server.counters_reset,
        "a counter of the server went backwards: it was another process at the end",
        "look in the server's log for why it restarted, then run again",
        Source.COUNTERS,
    ),
    Doubt(
        "cut-short",
        INVALID,
        load.cut_short,
        "the run ended before its plan though nobody stopped it",
        "run again; if it stays so, lower the load",
    ),
    Doubt(
        "many-failures",
        INVALID,
        load.many_failures,
        f"more than {percent(load.MANY_FAILED)} of the requests failed (without those that Ctrl-C ended): "
        "P90 of all requests is no latency",
        "mend what the failures say, or lower --max-concurrency or --request-rate",
    ),
    Doubt(
        "tokens-far-off",
        INVALID,
        server.tokens_far_off,
        f"without failures, client and server differ by more than {percent(server.TOKENS_FAR_OFF)} of "
        "output or prompt tokens, and foreign requests do not explain it",
        "give the address of the one server that answers, and let it send usage",
        Source.COUNTERS,
    ),
    Doubt(
        "interrupted",
        SUSPECT,
        load.interrupted,
        "Ctrl-C ended the run: what was slow had less time to end",
        "let it run, or plan fewer requests (--num-prompts)",
    ),
    Doubt(
        "failures",
        SUSPECT,
        load.failures,
        f"more than {percent(load.FAILED)} and up to {percent(load.MANY_FAILED)} of the requests failed: "
        "the slowest, most likely, so P99 of the others is too good",
        "mend what the failures say, or lower --max-concurrency or --request-rate",
    ),
    # The cache answered.
    Doubt(
        "prefix-cache",
        SUSPECT,
        load.prefix_cache,
        f"more than {percent(load.CACHED)} of the prompt tokens came from the prefix cache (the server's "
        "counters, or cached_tokens), beyond what --random-prefix-len shares; random prompts have nothing "
        "in common, a chat template has a few tokens",
        "leave out --seed, reset the cache (vLLM: POST /reset_prefix_cache) or run the server without one",
    ),
    Doubt(
        "identical-prompts",
        SUSPECT,
        load.identical_prompts,
        f"more than {percent(load.REPEATED)} of the plan's prompts equal an earlier one; long random ones "
        "never do",
        "give a greater --random-input-len or --vocab-size",
    ),
    Doubt(
        "beyond-roofline",
        SUSPECT,
        roofline.beyond_roofline,
        f"over {percent(roofline.BEYOND)} of the roofline (good kernels reach 90 %): by TPOT, unless the "
        "engine says that it speculates, or at concurrency 1 by TTFT and the peak of the type that computes",
        "look for speculative decoding, a prefix cache, another model; see that --hardware is right",
        Source.ROOFLINE,
    ),
    # The load was not the one asked for.
    Doubt(
        "answer-lengths",
        SUSPECT,
        load.answer_lengths,
        "ignore_eos was sent and answers are off the length asked for by more than "
        f"{percent(load.ANSWER_OFF)} on average; a server that obeys is exact",
        "see that the server honours ignore_eos and its context (--max-model-len) holds prompt and answer",
    ),
    Doubt(
        "prompt-lengths",
        SUSPECT,
        load.prompt_lengths,
        f"usage.prompt_tokens is off the plan on average: ids by more than {percent(load.IDS_OFF[0])} and "
        f"{load.IDS_OFF[1]} tokens (a server may add BOS), text by more than {percent(load.TEXT_OFF[0])} "
        f"and {load.TEXT_OFF[1]} (tokenizing and a template change it a little)",
        "use --prompt-format ids, or give --tokenizer the model's own",
    ),
    Doubt(
        "concurrency-not-held",
        SUSPECT,
        load.concurrency_not_held,
        "closed loop: requests under way on average between ramp and drain (Little's law) are below "
        f"{percent(load.HELD)} of --max-concurrency; a slot is empty only for its turn-around",
        "the turn-around is the client's: give it a core, use --transport wire, or ask for longer answers",
    ),
    Doubt(
        "sends-late",
        SUSPECT,
        load.sends_late,
        f"at a finite rate, requests left later than due by more than {percent(load.LATE_GAPS)} of the "
        f"mean gap and {load.LATE_MS:.0f} ms on average: that is another arrival process",
        "raise --max-concurrency or lower --request-rate; TTFT from the intended time is in the JSON",
    ),
    Doubt(
        "rate-not-reached",
        SUSPECT,
        load.rate_not_reached,
        f"the requests were sent at less than {percent(load.RATE)} of the rate that the plan's own times "
        "have",
        "raise --max-concurrency or lower --request-rate",
    ),
    Doubt(
        "server-limit",
        SUSPECT,
        server.server_limit,
        f"closed loop: in most of at least {LEAST_GAUGES} samples requests waited, in more than "
        f"{percent(server.PINNED)} of those the server ran exactly as many as it ever did, and that is "
        "below --max-concurrency; where prefill is the bottleneck, running varies",
        "raise the server's limit (vLLM: --max-num-seqs, SGLang: --max-running-requests) or its KV cache, or "
        "lower --max-concurrency",
        Source.GAUGES,
    ),
    # The server was not at rest, or not alone.
    Doubt(
        "foreign-requests",
        SUSPECT,
        server.foreign_requests,
        f"requests were on the server before the run, or it finished more than {percent(server.FOREIGN)} "
        "beyond ours in it, or in two samples held more than we had under way",
        "have the server to yourself",
        Source.COUNTERS,
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
        Source.COUNTERS,
    ),
    Doubt(
        "tokens-differ",
        SUSPECT,
        server.tokens_differ,
        f"as tokens-far-off, by more than {percent(server.TOKENS_OFF)}; equal where both count the same",
        "let the server send usage; see that nothing else answers at this address",
        Source.COUNTERS,
    ),
    # The client was the bottleneck.
    Doubt(
        "reads-late",
        SUSPECT,
        client.reads_late,
        f"more than {percent(client.SHARED)} of the messages shared a read with an earlier one, or enough "
        "that mean TTFT or P99 ITL is that much too long, and the client was late (mean lag, of all or of "
        f"these reads, over {percent(LATE_GAPS)} of the mean gap; for P99, once over a gap) or is unstamped",
        "leave the client a core (taskset), or share by process: sysctl kernel.sched_autogroup_enabled=0",
    ),
    Doubt(
        "client-busy",
        SUSPECT,
        client.client_busy,
        f"without kernel stamps, the client used {client.CORES} of a core or more: one loop is one core, "
        "and reads wait for it",
        "use --transport wire, or spread the load over several clients",
    ),
    Doubt(
        "beyond-capacity",
        SUSPECT,
        client.beyond_capacity,
        "more messages per second than the self-test could measure with P99 gap error under 5 %",
        "use --transport wire, a machine with more cores, or several clients",
        Source.SELFTEST,
    ),
    Doubt(
        "clock-stepped",
        SUSPECT,
        client.clock_stepped,
        f"the wall clock stepped against the monotonic one by more than {client.STEP_MS:.0f} ms, and "
        "kernel stamps are wall-clock: latencies across the step are off by it",
        "run again once the clock is in step (chronyc tracking, timedatectl)",
    ),
    Doubt(
        "throttled",
        SUSPECT,
        client.throttled,
        "this machine, which the server shares, was held back: a governor or power mode below its best, "
        "or a count of throttling that rose in the run",
        "cool it, set governor and power mode (cpupower, nvpmodel, jetson_clocks), and run again",
    ),
    Doubt(
        "slow-kernel",
        SUSPECT,
        roofline.slow_kernel,
        f"under {percent(roofline.SLOW)} of the roofline by TPOT at concurrency 1, else by median ITL if few "
        f"steps prefill; not below {roofline.LEAST_MS:.0f} ms a step: healthy small models reach 12 to 27 %",
        "look in the server's log for a fallback kernel or eager mode; see that --hardware is right",
        Source.ROOFLINE,
    ),
    # Notes.
    Doubt(
        "early-ends",
        NOTE,
        load.early_ends,
        f"ignore_eos was not sent and answers average under {percent(load.ANSWER_SHORT)} of the length "
        "allowed",
        "use --ignore-eos where answers are to be equally long",
    ),
    Doubt(
        "overload",
        NOTE,
        load.overload,
        f"at a finite rate, {load.GROWN} times as many requests were under way at the end of sending as at "
        f"half of it, beyond {load.NOISE:.0f} standard deviations of two Poisson counts: latencies depend on "
        "the run's length",
        "lower --request-rate for a steady state, or take it as a test of overload",
    ),
    Doubt(
        "queued",
        NOTE,
        server.queued,
        f"in most of at least {LEAST_GAUGES} samples requests waited, though the server's own limit is not "
        "the reason: prefill is the bottleneck, or the KV cache is full",
        "read TTFT as prefill and queue; lower --max-concurrency to see prefill alone",
        Source.GAUGES,
    ),
    Doubt(
        "latencies-differ",
        NOTE,
        server.latencies_differ,
        "a mean of the server's own histograms is off the client's by more than the places of the two "
        "clocks explain",
        "read the client's: it is what a user waits for",
        Source.COUNTERS,
    ),
    Doubt(
        "several-models",
        NOTE,
        server.several_models,
        "counters of more than one model moved behind the port",
        "see that no other model has work, or figures of the server are of all",
        Source.COUNTERS,
    ),
    Doubt(
        "unsettled",
        NOTE,
        server.unsettled,
        "requests ran or counters moved until the last look at them",
        "compare with the server's figures only after a run that settled",
        Source.COUNTERS,
    ),
    Doubt(
        "messages-together",
        NOTE,
        client.messages_together,
        f"more than {percent(client.SHARED)} of the messages shared a read and the client was not late: "
        "the server writes several at once",
        "read TPOT instead of ITL",
    ),
    Doubt(
        "unstamped",
        NOTE,
        client.unstamped,
        "more reads lack a kernel stamp than 1 % and one a request (a response's end may): latencies hold "
        "the client's delay, which `loadgen selftest` measures",
        "use --transport wire on Linux",
    ),
    Doubt(
        "busy-loop",
        NOTE,
        client.busy_loop,
        f"kernel stamps, and {client.CORES} of a core busy or a mean lag over {percent(client.LAG_GAPS)} "
        "of the mean gap: the stamps do not suffer until reads meet (reads-late)",
        "leave the client a core, or spread the load over several clients",
    ),
    Doubt(
        "late-bodies",
        NOTE,
        client.late_bodies,
        f"more than {percent(client.LATE_BODIES)} of the requests were not built when due; what it cost is "
        "in concurrency-not-held and sends-late",
        "shorten the prompts, lower --request-rate, or give the client a core",
    ),
    Doubt(
        "headroom",
        NOTE,
        client.headroom,
        f"messages per second within {client.HEADROOM} times of what the self-test could measure",
        "see `loadgen selftest` for the error at this load",
        Source.SELFTEST,
    ),
    Doubt(
        "thin-percentiles",
        NOTE,
        load.thin_percentiles,
        "a percentile q of fewer samples than ln 0.05 / ln q, which an upper bound that holds in 95 % of "
        "runs needs (P99: 299); a point needs 1 / (1 - q) (P99: 100)",
        "raise --num-prompts, or ask for a lower --metric-percentiles",
    ),
    Doubt(
        "ran-out",
        NOTE,
        load.ran_out,
        "closed loop with --duration: the last prompt was sent while there was time for more",
        "give more --num-prompts, or none",
    ),
    Doubt(
        "ramp-and-drain",
        NOTE,
        load.ramp_and_drain,
        f"closed loop: more than {percent(load.OUTSIDE)} of the duration lies before the asked concurrency "
        "is reached or after the first request that is not replaced, and every rate is over the duration",
        "raise --num-prompts, or read the steady state's figures",
    ),
    Doubt(
        "few-per-slot",
        NOTE,
        load.few_per_slot,
        f"closed loop: fewer than {load.PER_SLOT} requests a slot, so first and last wave are most of the "
        "run",
        "raise --num-prompts",
    ),
)
