"""Checks: the closed set of what an audit looks for in anyone's figures, as `doubts` has that of our runs.

A check needs no more than what is published. Those whose question our own verdict answers better, from every
arrival, are not asked of our own runs (`of_ours`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from loadgen.analysis.audit import known_prompts
from loadgen.analysis.audit import peer_checks as peers
from loadgen.analysis.audit import roofline_checks as roofline
from loadgen.analysis.audit import self_consistency as within
from loadgen.analysis.audit.subject import SATURATED, AuditedRun
from loadgen.roofline import bound
from loadgen.validity.doubts import Severity
from loadgen.validity.evidence import percent

NOTE, SUSPECT, INVALID = Severity.NOTE, Severity.SUSPECT, Severity.INVALID


class Check(msgspec.Struct, frozen=True):
    """One thing that can be wrong with published figures; `find` gives the evidence, "" of none."""

    name: str
    severity: Severity
    find: Callable[[AuditedRun], str]
    condition: str
    remedy: str
    needs: str = ""  # beside the run's own figures
    of_ours: bool = False  # asked of our own runs too
    like: str = ""  # the doubt of our own verdict that says the same: where it holds, this is not told again


ROOFLINE, PAGE = "machine and model", "its page"

CHECKS = (
    # What cannot be.
    Check(
        "beyond-roofline",
        INVALID,
        roofline.beyond_roofline,
        f"decoding would read more than {roofline.FAR_BEYOND} times what the memory bus carries (weights "
        "once a step, of a mixture one token's, and the KV cache of all): no engine does, but for "
        "speculative decoding, and there a message carries several tokens",
        "it is another model, another machine, or a client that counts what was not generated",
        ROOFLINE,
    ),
    Check(
        "figures-disagree",
        INVALID,
        within.figures_disagree,
        "a rate is not its count over the duration, whatever the last printed digit leaves open",
        "figures of two runs were mixed, or edited by hand: ask for the client's own file",
    ),
    Check(
        "impossible-order",
        INVALID,
        within.impossible_order,
        "no sample has these: a percentile below a lower one, one above the sum of all, a mean below "
        "half of its median or beyond its extremes, or several values of one request",
        "ask for the client's own file",
    ),
    Check(
        "beyond-schedule",
        INVALID,
        within.beyond_schedule,
        "the requests' times (E2EL, or TTFT and the smaller of TPOT and ITL for each token) come to "
        f"more than {percent(within.SCHEDULE - 1)} beyond what so many at a time have in the "
        "duration (Little's law)",
        "latencies and duration are of different runs, or more were under way than is told",
    ),
    Check(
        "nothing-measured",
        INVALID,
        within.nothing_measured,
        "0 requests, 0 s, 0 output tokens, or a mean or median TTFT or E2EL of 0",
        "a client that calls an empty answer a success: look at its errors",
    ),
    Check(
        "many-failures",
        INVALID,
        within.many_failures,
        f"more than {percent(within.MANY_FAILED)} of the requests failed: P90 of all requests is no latency",
        "mend what failed, then measure again",
    ),
    # What a figure is not.
    Check(
        "warm-cache",
        SUSPECT,
        peers.warm_cache,
        "one request at a time, its prompts the first of another run's of the same checkpoint on the "
        "page (by their mark, known-prompts, their seed or their digest), and mean TTFT below their "
        f"arithmetic at the machine's peak or {peers.FAR_BELOW:g} times below what a full load leaves "
        f"for each prompt, which a cold TTFT comes close to; without a mark {peers.FARTHER_BELOW:g} times",
        "TTFT is the prefix cache's: give every run a seed of its own, or reset the cache between them",
        PAGE,
        of_ours=True,
        like="prefix-cache",
    ),
    Check(
        "beyond-peak",
        SUSPECT,
        roofline.beyond_peak,
        "one request at a time: the prompt's arithmetic in mean TTFT exceeds the machine's peak by more "
        f"than {percent(bound.TOLERANCE - 1)}",
        "TTFT is not of prefill: a prefix cache, or another model",
        ROOFLINE,
    ),
    Check(
        "above-roofline",
        SUSPECT,
        roofline.above_roofline,
        f"as beyond-roofline, by {percent(bound.TOLERANCE - 1)} to {percent(roofline.FAR_BEYOND - 1)}: what "
        "a name does not tell of a checkpoint (a quantized head, an FP8 KV cache) may explain it, a bus "
        "alone carries 90 % at most",
        "see how the weights are stored (--model-config, or the checkpoint's own headers)",
        ROOFLINE,
    ),
    Check(
        "slow-kernel",
        SUSPECT,
        roofline.slow_kernel,
        f"a token takes so long that under {percent(bound.SLOW)} of the roofline is reached, at "
        f"concurrency 1 or by the median ITL, where a step takes {bound.LEAST_MS:g} ms at best; or a "
        "full load leaves so much time for each prompt that prefill reaches under "
        f"{percent(roofline.SLOW_PREFILL)} of the peak, where it takes {bound.LEAST_MS:g} ms at best",
        "see in the engine's log which kernel ran: a fallback for this quantization is likely",
        ROOFLINE,
    ),
    Check(
        "unstreamed",
        SUSPECT,
        within.unstreamed,
        f"answers of {within.WHOLE_TOKENS} tokens or more, under {within.WHOLE_MS} ms a token "
        "after the first",
        "TTFT is E2EL, and TPOT is nothing: have the server stream",
    ),
    Check(
        "failures",
        SUSPECT,
        within.failures,
        f"more than {percent(within.FAILED)} and up to {percent(within.MANY_FAILED)} of the "
        "requests failed: the slowest, most likely, so P99 of the others is too good",
        "mend what failed, then measure again",
    ),
    Check(
        "duplicate",
        SUSPECT,
        peers.duplicate,
        f"at least {peers.ALIKE_FIGURES} latencies and the duration equal those of another run of the "
        "page to the digit: two runs never do",
        "one of them was copied: ask which",
        PAGE,
        of_ours=True,
    ),
    Check(
        "single-request",
        SUSPECT,
        within.single_request,
        "one request was answered; and vLLM's client of 2025 sends the first prompt once before, as a "
        "test, so that a prefix cache has all of it",
        "measure ten at least",
    ),
    # Another load than the others'.
    Check(
        "answers-short",
        SUSPECT,
        peers.answers_short,
        f"output tokens more than {percent(peers.LENGTH_OFF)} below those asked for; where that is not "
        "told, below the whole number that half of the page's other runs (of its checkpoint or load) "
        "have to the token",
        "use --ignore-eos: throughput is of less work than that of the others",
        PAGE,
    ),
    Check(
        "prompts-off",
        SUSPECT,
        peers.prompts_off,
        f"a prompt's tokens are more than {percent(peers.PROMPT_OFF)} and {peers.PROMPT_TOKENS} tokens "
        "off those asked for, where that is told: random texts that were never encoded again come out 5 "
        "% long, SGLang's random ones half",
        "send token ids, or read input throughput and TTFT as of the tokens counted",
    ),
    Check(
        "prompts-differ",
        SUSPECT,
        peers.prompts_differ,
        f"a prompt's tokens are more than {percent(peers.LENGTH_OFF)} (and 2) off those that most runs "
        "of its load have",
        "compare only what had the same prompts",
        PAGE,
    ),
    Check(
        "concurrency-differs",
        SUSPECT,
        peers.concurrency_differs,
        "another --max-concurrency than most runs of its load have",
        "compare only what had the same concurrency",
        PAGE,
    ),
    Check(
        "concurrency-not-held",
        SUSPECT,
        within.concurrency_not_held,
        f"closed loop, {within.PER_SLOT} requests a slot or more: their times ÷ the duration are below "
        f"{percent(SATURATED)} of --max-concurrency",
        "the client was slow to send, or waited for something after the last answer",
    ),
    Check(
        "tokens-recounted",
        SUSPECT,
        within.tokens_recounted,
        f"SGLang: the texts hold under {percent(within.RECOUNTED)} of the output tokens told: "
        "without usage its client takes the length asked for as the answer's",
        "read throughput and TPOT from the retokenized count",
    ),
    # Notes.
    Check(
        "requests-differ",
        NOTE,
        peers.requests_differ,
        "another number of requests than most runs of its load have: ramp, drain and percentiles weigh "
        "otherwise",
        "compare only what was asked as often",
        PAGE,
        of_ours=True,
    ),
    Check(
        "known-prompts",
        NOTE,
        peers.known_prompts,
        f"the input tokens lack at least {known_prompts.LEAST_MISSING} of whole lengths and are exactly "
        "those of a seed known here: whoever measures with it again asks the same prompts",
        "look whether a run before it had them too; give a seed of one's own",
    ),
    Check(
        "thin-percentiles",
        NOTE,
        within.thin_percentiles,
        "a percentile q of fewer requests than 1 / (1 − q)",
        "take it as the slowest request",
    ),
    Check(
        "peak-below-mean",
        NOTE,
        within.peak_below_mean,
        "the peak in every second of the run would not make up all tokens: vLLM's client counts messages",
        "do not read the peak; messages carry several tokens, so ITL is not per token either",
    ),
    Check(
        "peak-over-limit",
        NOTE,
        within.peak_over_limit,
        "more requests at once than --max-concurrency: both clients count who was there at any time of a "
        "whole second",
        "read it as at most the limit",
    ),
    Check(
        "gaps-are-not-tokens",
        NOTE,
        within.gaps_are_not_tokens,
        "vLLM's client: mean ITL and mean TPOT are more than 10 % apart",
        "read TPOT",
    ),
    Check(
        "bursts",
        NOTE,
        within.bursts,
        f"the median ITL is under {percent(within.BURST)} of the mean TPOT: several messages came in "
        "one read, or several tokens' messages at once",
        "read TPOT; no percentile of ITL below the mean is a time per token",
    ),
    Check(
        "client-untold",
        NOTE,
        within.client_untold,
        f"more than {within.STREAMS} requests at once: one Python loop stamps what it reads late, "
        "and its result has no word on it",
        "measure the client: `loadgen selftest`",
    ),
)


def table() -> str:
    """Every check as Markdown, gravest first, as docs/audit.md has it."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    for severity in sorted(Severity, reverse=True):
        yield f"### {severity.name.capitalize()}\n"
        yield "| doubt | condition | beside the figures, it needs | remedy |"
        yield "| --- | --- | --- | --- |"
        for check in (one for one in CHECKS if one.severity is severity):
            yield f"| `{check.name}` | {check.condition} | {check.needs or '–'} | {check.remedy} |"
        yield ""
