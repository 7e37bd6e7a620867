"""Load doubts: the run ended too early, a cache answered, or the load was not the one asked for."""

from __future__ import annotations

from loadgen.validity import load_checks as load
from loadgen.validity import roofline_checks as roofline
from loadgen.validity import server_checks as server
from loadgen.validity.doubt import INVALID, SUSPECT, Doubt
from loadgen.validity.evidence import LEAST_GAUGES, EvidenceSource, percent

RESENT_REMEDY = (
    "raise the server's keep-alive timeout (vLLM: VLLM_HTTP_TIMEOUT_KEEP_ALIVE, uvicorn: "
    "--timeout-keep-alive), or that of the proxy before it"
)
LOAD = (
    # The run itself.
    Doubt(
        "counters-reset",
        INVALID,
        server.counters_reset,
        "a counter of the server went backwards: it was another process at the end",
        "look in the server's log for why it restarted, then run again",
        EvidenceSource.COUNTERS,
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
        EvidenceSource.COUNTERS,
    ),
    Doubt(
        "interrupted",
        SUSPECT,
        load.interrupted,
        "Ctrl-C ended the run: what was slow had less time to end",
        "let it run, or plan fewer requests (--num-prompts)",
    ),
    Doubt(
        "stopped-by-rule",
        SUSPECT,
        load.stopped_by_rule,
        "a rule to stop (--max-failures, --max-consecutive-failures, --max-duration) ended the run: what was "
        "slow had less time to end",
        "fix what the failures say, or give the rule more room",
    ),
    Doubt(
        "failures",
        SUSPECT,
        load.failures,
        f"more than {percent(load.FAILED)} and up to {percent(load.MANY_FAILED)} of the requests failed: "
        "the slowest, most likely, so P99 of the others is too good",
        "mend what the failures say, or lower --max-concurrency or --request-rate",
    ),
    Doubt(
        "many-resent",
        SUSPECT,
        load.many_resent,
        f"more than {percent(load.RESENT)} of the requests were sent again because the server had closed the "
        "idle connection: each paid for a new one, and waited for it",
        RESENT_REMEDY,
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
        "never do; or --extra-body has a prompt, which is then that of every request",
        "give a greater --random-input-len or --vocab-size, and no prompt in --extra-body",
    ),
    Doubt(
        "beyond-roofline",
        SUSPECT,
        roofline.beyond_roofline,
        f"over {percent(roofline.BEYOND)} of the roofline (good kernels reach 90 %): by TPOT, unless the "
        "engine says that it speculates, or at concurrency 1 by TTFT and the peak of the type that computes",
        "look for speculative decoding, a prefix cache, another model; see that --hardware is right",
        EvidenceSource.ROOFLINE,
    ),
    # The load was not the one asked for.
    Doubt(
        "answer-lengths",
        SUSPECT,
        load.answer_lengths,
        "ignore_eos was sent and answers are off the length asked for by more than "
        f"{percent(load.ANSWER_OFF)} on average, by usage, else by messages; a server that obeys is exact",
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
        EvidenceSource.GAUGES,
    ),
)
