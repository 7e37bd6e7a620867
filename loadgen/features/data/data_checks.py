"""Data checks: requests that a cache knows, that are noise to the model, or that are not as in the file."""

from __future__ import annotations

import math
from functools import partial

from loadgen.base.rule import Evidence, note, suspect
from loadgen.facts.run_facts import EarlierRun
from loadgen.plan.planned_requests import CAPS
from loadgen.plan.request_sources import TRACES
from loadgen.settings.data_settings import RANDOM
from loadgen.verdict import evidence
from loadgen.verdict.evidence import RunEvidence, percent

CACHED, REPEATED = 0.05, 0.01  # of the prompt tokens, of the prompts
FELL, CHANCE = 0.5, 0.001  # now ÷ before; of as many lower ones by chance
REUSE_OFF = (0.02, 0.1)  # of the prompt tokens, and of the expected share: both exceeded
BURST = 0.05  # of the requests that share their instant with an earlier one
CUT, MUCH_CUT = 0.01, 0.1  # of the requests, or of a trace's rows
_NOISE = ("ids", "text-vllm", "text-vllm-0.9")  # formats of random tokens
_TOKENS = "prefix_repetition"  # a source of texts of random tokens
_RAISE = (
    "raise --trace-max-input-len and --trace-max-output-len, as far as the model's context allows, or report "
    "the figures as those of the shorter requests"
)


@suspect(
    "prefix-cache",
    f"more than {percent(CACHED)} of the prompt tokens were prefix cache hits (by the server's counters or "
    "cached_tokens), beyond what the plan itself repeats: shared prefixes, the hashes of a trace, earlier "
    "turns of a session, what the prompts of a file begin alike with, a chat template; or, where neither is "
    f"reported, the TTFT of a file's prompts fell below {percent(FELL)} of that of their first run in the "
    "last day under this load or a lighter one (of the latest 50 in the same directory), by more than TPOT "
    f"did, in more of them than chance gives in {percent(CHANCE)} of runs",
    "leave out --seed, start the server again (or by --launch), or without a prefix cache (vLLM: "
    "--no-enable-prefix-caching, SGLang: --disable-radix-cache); --reset-cache empties that of SGLang, and "
    "of a vLLM that was started with VLLM_SERVER_DEV_MODE=1; if only TTFT fell, warm the server up too: "
    "--num-warmups wave",
)
def prefix_cache(run: RunEvidence) -> Evidence | None:
    """Find evidence of over 5 % cached prompt tokens beyond the plan's share; unreported, by fallen TTFT."""
    by = evidence.reported_reuse(run.facts, run.records)
    if not by:
        earlier = run.facts.earlier
        if earlier is None or not has_fallen(earlier):
            return None
        return (
            f"TTFT of {earlier.fell} of {earlier.requests} prompts fell since the first run that sent them, "
            f"from {earlier.before_ms:.3g} to {earlier.now_ms:.3g} ms (medians), as if a prefix cache knew "
            "them; the server reports no cached tokens"
        )
    source, (hits, queries) = max(by.items(), key=lambda item: item[1][0] / item[1][1])
    if hits <= CACHED * queries:
        return None
    expected = evidence.explain_reuse(run)
    if expected is None or hits <= (expected + CACHED) * queries:
        return None
    how = "by --random-prefix-len" if run.facts.data.kind == RANDOM else "by the plan"
    shared = f", at most {percent(expected)} shared {how}" if expected else ""
    return (
        f"prefix cache hits: {percent(hits / queries)} of {queries} prompt tokens ({source}{shared}), "
        "so TTFT is not of prefill"
    )


def has_fallen(earlier: EarlierRun) -> bool:
    """Whether TTFT fell below half of an earlier run's, by more than TPOT, and not by chance (sign test)."""
    if earlier.ratio > FELL * min(earlier.tpot_ratio, 1.0):
        return False
    ways = sum(math.comb(earlier.requests, k) for k in range(earlier.fell, earlier.requests + 1))
    return bool(ways <= CHANCE * 2**earlier.requests)


@suspect(
    "identical-prompts",
    f"more than {percent(REPEATED)} of the planned prompts equal an earlier one (long random ones never do), "
    "or rows of a file are sent again since it has too few, or --extra-body sets the prompt, which is then "
    "the same in every request; a trace's own repeats are none",
    "rows of a file: lower --num-prompts, or pass --no-oversample; random prompts: raise --random-input-len "
    "or --vocab-size; a prompt in --extra-body: leave it out",
)
def identical_prompts(run: RunEvidence) -> Evidence | None:
    """Find evidence that over 1 % of the planned prompts equal an earlier one, or --extra-body's."""
    repeated, requests, data = run.facts.repeated_prompts, run.facts.requests, run.facts.data
    if run.facts.prompt_replaced and requests > 1:
        return f"--extra-body replaces the prompt: all {requests} are the same, so a prefix cache serves them"
    if repeated <= REPEATED * requests or data.kind in TRACES:
        return None
    if data.repeated:
        rows = f"{repeated} of {requests} requests send one of {data.sent} rows again"
        return f"{rows}: a prefix cache need not compute them"
    return f"{repeated} of {requests} prompts equal an earlier one: a prefix cache need not compute them"


@note(
    "reuse-not-as-expected",
    "the share of prompt tokens that the server reports as cached differs from the share that an empty cache "
    f"without a limit would come to hold, in the order of the plan, by more than {percent(REUSE_OFF[0])} of "
    f"the tokens and {percent(REUSE_OFF[1])} of that share",
    "less: give the server more KV cache, or turn its prefix cache on (short prefixes lose their last block, "
    "since whole blocks are cached); more: --reset-cache, or start it again",
)
def reuse_not_as_expected(run: RunEvidence) -> Evidence | None:
    """Find evidence that the cached share is off the expected one by over 2 % of tokens and 10 % of it."""
    expected, by = evidence.expected_reuse(run.facts), evidence.reported_reuse(run.facts, run.records)
    if not expected or not by or prefix_cache.find(run) is not None:
        return None
    source, (hits, queries) = next(reversed(by.items()))  # the counters, where there are any
    share = hits / queries
    if abs(share - expected) <= max(REUSE_OFF[0], REUSE_OFF[1] * expected):
        return None
    engine = run.facts.as_run
    why = "the cache was warm" if share > expected else "its cache is small, cold or off"
    if share < expected and engine is not None and engine.prefix_caching == "off":
        why = "its prefix cache is off"
    return f"{percent(share)} of the prompt tokens cached ({source}), {percent(expected)} expected: {why}"


@suspect(
    "random-acceptance",
    "the server decodes speculatively and the prompts are random tokens: how many draft tokens are accepted "
    "is that of noise, not of text",
    "use --prompt-format corpus, or prompts of a file; `loadgen compare --acceptance-length N` compares the "
    "step times of such runs",
)
def random_acceptance(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server decoded random tokens speculatively, by its settings or draft counts."""
    engine, window = run.facts.as_run, run.window
    drafted = (window.draft_tokens or 0) if window is not None else 0
    if not _is_of_noise(run) or not (drafted or (engine is not None and engine.speculative)):
        return None
    how = engine.speculative if engine is not None and engine.speculative else "draft tokens counted"
    accepted = (window.accepted_tokens or 0) if window is not None else 0
    share = f", {percent(accepted / drafted)} of {drafted} draft tokens accepted" if drafted else ""
    return f"random tokens measure noise: speculative decoding ({how}){share}, which is not that of text"


@note(
    "random-routing",
    "the model routes tokens to experts and the prompts are random tokens: which experts work, and how "
    "evenly, is that of noise, not of text",
    "use --prompt-format corpus, or prompts of a file",
)
def random_routing(run: RunEvidence) -> Evidence | None:
    """Find evidence that a mixture of experts, by its files or kernel, was measured with random tokens."""
    facts = run.facts
    by_files = facts.checkpoint.experts if facts.checkpoint is not None else None
    experts = by_files or (facts.ceiling.weights.experts if facts.ceiling is not None else 0)
    kernel = facts.as_run.moe_kernel if facts.as_run is not None else ""
    if not _is_of_noise(run) or not (experts > 1 or kernel):
        return None
    what = f"{experts} experts" if experts > 1 else f"experts by {kernel}"
    return f"random tokens measure noise: the model has {what}, and routing is not that of text"


def _is_of_noise(run: RunEvidence) -> bool:
    facts = run.facts
    made = facts.data.kind in (RANDOM, *TRACES) and facts.prompt_format in _NOISE
    return made or facts.data.kind == _TOKENS


@suspect(
    "trace-grid",
    f"the trace's timestamps lie on a coarse grid, more than {percent(BURST)} of its requests share their "
    "instant with an earlier one, and they are not spread: bursts that never were",
    "use --trace-jitter uniform, or read TTFT as that of bursts",
)
def trace_grid(run: RunEvidence) -> Evidence | None:
    """Find evidence that over 5 % of a trace's requests shared their instant on a coarse grid, not spread."""
    schedule = run.facts.data.schedule
    if schedule is None or not schedule.grid_s or schedule.spread:
        return None
    together = schedule.requests - schedule.instants
    if together <= BURST * schedule.requests:
        return None
    return (
        f"{schedule.instants} instants for {schedule.requests} requests: the trace's timestamps are "
        f"multiples of {schedule.grid_s:g} s, so requests left in bursts that never were"
    )


def _find_cut(run: RunEvidence, above: float, most: float) -> Evidence | None:
    """Find evidence that the larger share, of requests clipped or rows left out, is in (above, most]."""
    data = run.facts.data
    left_out = data.skipped if data.kind in TRACES else {}
    capped = sum(left_out.get(why, 0) for why in CAPS)
    others = sum(left_out.values()) - capped
    missing = f"{capped + others} rows of the trace were left out, {data.sent} were sent"
    shares = {
        f"{data.clipped} of {run.facts.requests} requests were clipped": data.clipped / run.facts.requests,
        f"{missing} ({', '.join(left_out)})": max(
            capped / max(capped + data.sent, 1), others / max(data.rows, 1)
        ),
    }
    if not above < max(shares.values()) <= most:
        return None
    return "; ".join(sentence for sentence, share in shares.items() if share > CUT)


lengths_cut = suspect(
    "lengths-cut",
    f"more than {percent(MUCH_CUT)} of the requests were cut to a length limit, or of a trace that share of "
    "rows was left out: the figures are of other lengths, another rate and other shared prefixes than those "
    "of the file",
    _RAISE,
)(partial(_find_cut, above=MUCH_CUT, most=1.0))
few_lengths_cut = note(
    "few-lengths-cut",
    f"as lengths-cut, of more than {percent(CUT)} and up to {percent(MUCH_CUT)} of them",
    _RAISE,
)(partial(_find_cut, above=CUT, most=MUCH_CUT))
