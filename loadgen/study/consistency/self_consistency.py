"""Self-consistency: checks that the figures of one run are possible, alone and next to one another.

A printed figure is every value that prints so (`subject.Interval`): rounding is never a contradiction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from msgspec.structs import replace

from loadgen.base import rule
from loadgen.base.rule import Evidence, Rule, invalid, join_evidence, note, suspect
from loadgen.figures.figure_table import COMMON, SELECTABLE
from loadgen.study.consistency.subject import SATURATED, AuditedRun, Interval
from loadgen.study.importers.pasted.pasted_pages import PAGE
from loadgen.study.run_summary import OURS, Reported, is_below_zero
from loadgen.verdict.evidence import least_samples, percent
from loadgen.verdict.load_checks import FAILED, MANY_FAILED
from loadgen.verdict.verdict import Level

SCHEDULE = 1.02  # times the most that a schedule allows
VARIED = 1.5  # the same by a mean TPOT, of which short answers are as great a part as long ones
HALF_TOKEN = 0.5  # off a mean length that is written as a whole one
LONGER = 1.05  # times the tokens of an answer: 1k may be 1024
MOST_SECONDS = 10  # ms of a TTFT that may be one in seconds
FIRST = 20  # times a TTFT: a TPOT beyond it is of another unit
PER_SLOT = 5  # requests, below which ramp and drain alone empty slots
BURST = 0.05  # median gap, of the mean time per token
WHOLE_TOKENS, WHOLE_MS = 16, 0.1  # an answer so long, its tokens so close: it came whole
STREAMS = 256  # that a client of one loop was seen to time within a few per cent
RECOUNTED = 0.8  # of the tokens reported
_METRICS = {figure.key: figure.label for figure in COMMON}
_RATES = {
    "request_throughput": (("completed",), "requests", "req/s"),
    "output_throughput": (("total_output_tokens",), "output tokens", "tok/s"),
    "input_throughput": (("total_input_tokens",), "input tokens", "tok/s"),
    "total_token_throughput": (("total_input_tokens", "total_output_tokens"), "tokens", "tok/s"),
}


@invalid(
    "figures-disagree",
    "a rate is not its count divided by the duration, whatever digits were rounded away; or output tokens "
    f"per second are over {percent(LONGER - 1)} above requests per second times the tokens of a response; "
    "or latencies leave slots of a closed loop empty, and fill them if a TTFT below "
    f"{MOST_SECONDS} ms or a TPOT below 1 ms is one in seconds; or the TTFT of a table's row is below 1 ms "
    f"and {FIRST} times below its TPOT",
    "figures of two runs were mixed, edited by hand, or have another unit than their title: get the client's "
    "own result file",
)
def figures_disagree(run: AuditedRun) -> Evidence | None:
    """Find evidence that a rate is not its count divided by the duration, or that other figures disagree."""
    parts = [*filter(None, [_find_longer_answers(run), _find_seconds(run)])]
    for key, rate, total, duration in _list_rates(run):
        if not (rate * duration).meets(total):
            (_, noun, unit), seconds, reported = _RATES[key], run.figure("duration") or 1.0, run.figure(key)
            count = (total.low + total.high) / 2
            per_s = f"{count / seconds:.2f} {unit}"
            parts.append(f"{count:.0f} {noun} in {seconds:g} s are {per_s}, reported: {reported:g}")
    return join_evidence(parts)


def _find_longer_answers(run: AuditedRun) -> Evidence | None:
    """Find evidence that output tokens/s are over 5 % above requests/s times the tokens of an answer."""
    rate, speed, most = run.interval("request_throughput"), run.interval("output_throughput"), run.most_tokens
    counted = run.interval("duration") is not None and run.interval("total_output_tokens") is not None
    if not run.alike or rate is None or speed is None or not most or counted:
        return None
    if speed.low <= LONGER * rate.high * (most + HALF_TOKEN):
        return None
    requests, tokens = run.figure("request_throughput") or 0.0, run.figure("output_throughput") or 0.0
    each = f"{requests:g} req/s with {most:.0f} output tokens each"
    return f"{each} are {requests * most:.0f} tok/s, reported: {tokens:g}"


def _list_rates(run: AuditedRun) -> Iterator[tuple[str, Interval, Interval, Interval]]:
    """Yield key, rate, total of its counts, and duration, where known; none of a client unlike vLLM's."""
    duration = run.interval("duration")
    if not run.alike or duration is None or not duration.low:
        return
    for key, (counts, _, _) in _RATES.items():
        rate = run.interval(key)
        terms = [term for count in counts if (term := run.interval(count)) is not None]
        if rate is not None and len(terms) == len(counts):
            yield key, rate, terms[0] if len(terms) == 1 else terms[0] + terms[1], duration


def has_relations(run: AuditedRun) -> bool:
    """Whether a run has figures that depend on one another, so that they could contradict each other.

    A rate with its count and the duration; several ranks of a latency, or one with the mean; the requests'
    times with the duration and the concurrency; rates with the tokens of an answer, or with the concurrency.
    """
    ranked = (
        len([*_list_ranks(run, key)]) + (run.interval(f"mean_{key}_ms") is not None) > 1 for key in _METRICS
    )
    timed = run.alike and run.figure("duration") and run.limit and run.least_seconds is not None
    rates = (run.figure("request_throughput"), run.figure("output_throughput"), run.most_tokens)
    timed = timed or (run.alike and (all(rates) or (run.limit and run.least_concurrency is not None)))
    return any(True for _ in _list_rates(run)) or any(ranked) or bool(timed)


@invalid(
    "impossible-order",
    "no sample has such values: a percentile below a lower one, one above the sum of all, a mean below half "
    "of its median or beyond its extremes, a standard deviation above √n means, several values of one "
    "request, or a TTFT above the E2EL of the same requests",
    "get the client's own result file",
)
def impossible_order(run: AuditedRun) -> Evidence | None:
    """Find evidence that statistics of a latency contradict each other, or TTFT's those of E2EL."""
    lines = [line for key, word in _METRICS.items() for line in _find_disorder(run, key, word)]
    for name in run.reported.figures:  # no TTFT is above its E2EL: the first token comes before the last
        statistic, _, metric = name.partition("_")
        whole = run.interval(f"{statistic}_e2el_ms") if metric == "ttft_ms" and statistic != "std" else None
        first = run.interval(name)
        if first is not None and whole is not None and first.low > whole.high:
            late = f"{statistic} TTFT ({first.low:.2f} ms) is above {statistic} E2EL ({whole.high:.2f})"
            lines.append(late)
    return join_evidence(lines)


@invalid(
    "longer-than-the-run",
    "a TTFT or an E2EL is longer than the duration of the run that all requests were sent and ended in",
    "latencies and duration are of different runs, or in different units",
)
def longer_than_the_run(run: AuditedRun) -> Evidence | None:
    """Find evidence that a TTFT or E2EL is over 2 % longer than the whole run."""
    duration = run.interval("duration")
    if not run.alike or duration is None or not duration.high:
        return None
    long = re.compile(r"(?:mean|median|max|p[\d.]+)_(?:ttft|e2el)_ms")
    names = filter(long.fullmatch, run.reported.figures)
    each = ((name, run.interval(name)) for name in names)
    most = SCHEDULE * duration.high * 1e3
    return join_evidence(
        f"{name} {time_ms.low / 1e3:.2f} s in a run of {duration.high:.2f} s"
        for name, time_ms in each
        if time_ms is not None and time_ms.low > most
    )


@invalid(
    "counts-disagree",
    "more requests completed and failed than were sent, by the client's own file",
    "figures of two runs were mixed, or edited by hand: get the client's own result file",
)
def counts_disagree(run: AuditedRun) -> Evidence | None:
    """Find evidence that a file's answered and failed requests are more than there were; None of a page."""
    n, asked, failed = run.requests, _count_sent(run), run.figure("failed") or 0.0
    if n is None or asked is None or run.reported.told_by == PAGE or n + failed <= asked:
        return None
    return f"{n:.0f} completed and {failed:.0f} failed of {asked:.0f} requests"


def _find_disorder(run: AuditedRun, key: str, word: str) -> Iterator[Evidence]:
    """Yield evidence that a latency's percentiles fall, or that they or its deviation contradict its mean."""
    ranks = dict(_list_ranks(run, key))
    ordered = sorted(ranks.items())
    for (lower, below), (upper, above) in pairwise(ordered):
        if below.low > above.high:
            top_ms = f"P{upper:g} of {word} ({above.high:.2f} ms at most)"
            yield f"{top_ms} is below its P{lower:g} ({below.low:.2f})"
    mean = run.interval(f"mean_{key}_ms")
    if mean is None:
        return
    yield from _find_impossible_spread(run, key, word, mean)
    if 50.0 in ranks and mean.high < ranks[50.0].low / 2:
        yield f"mean {word} ({mean.high:.2f} ms) is below half of its median ({ranks[50.0].low:.2f})"
    if 100.0 in ranks and mean.low > ranks[100.0].high:
        yield f"mean {word} ({mean.low:.2f} ms) is above its maximum ({ranks[100.0].high:.2f})"
    if 0.0 in ranks and mean.high < ranks[0.0].low:
        yield f"mean {word} ({mean.high:.2f} ms) is below its minimum ({ranks[0.0].low:.2f})"


def _find_impossible_spread(run: AuditedRun, key: str, word: str, mean: Interval) -> Iterator[Evidence]:
    """Yield evidence that n requests of this mean cannot have the printed deviation or percentiles."""
    n, ranks, spread = run.requests, dict(_list_ranks(run, key)), run.interval(f"std_{key}_ms")
    if not n or not run.alike or SELECTABLE[key].of != "requests":
        return
    if spread is not None and n > 1 and spread.low > math.sqrt(n) * mean.high:
        yield (
            f"the standard deviation of {word} ({spread.low:.2f} ms) is above √n means "
            f"({mean.high:.2f} ms each)"
        )
    if not ranks:
        return
    top, highest = max(ranks.items())
    if n > 1 and highest.low > n * mean.high:
        yield (
            f"P{top:g} of {word} ({highest.low:.2f} ms) exceeds the sum of all {n:.0f} requests' "
            f"({mean.high:.2f} ms on average)"
        )
    if n == 1 and not all(rank.meets(mean) for rank in ranks.values()):
        yield f"mean and percentiles of {word} differ for a single request"


def _list_ranks(run: AuditedRun, key: str) -> Iterator[tuple[float, Interval]]:
    """Yield each percentile of a latency as (rank, values); the minimum is of rank 0, the maximum of 100."""
    names = {f"min_{key}_ms": 0.0, f"median_{key}_ms": 50.0, f"max_{key}_ms": 100.0}
    for name in run.reported.figures:
        match = re.fullmatch(rf"p([\d.]+)_{key}_ms", name)
        rank = float(match[1]) if match else names.get(name)
        if rank is not None and (value := run.interval(name)) is not None:
            yield rank, value


@invalid(
    "beyond-schedule",
    "the requests' times (E2EL, or TTFT plus the smaller of TPOT and ITL per token) add up to more than "
    f"{percent(SCHEDULE - 1)} beyond what the concurrency limit allows in the duration, or in each second by "
    f"the printed rates ({percent(VARIED - 1)} by TPOT, of which short outputs are as great a part as long "
    "ones; Little's law)",
    "latencies and duration are of different runs, or more requests ran at once than reported",
)
def beyond_schedule(run: AuditedRun) -> Evidence | None:
    """Find evidence that more requests ran at once than the concurrency limit allows (Little's law)."""
    duration, limit, seconds = run.interval("duration"), run.limit, run.least_seconds
    if not run.alike or not limit:
        return None
    if duration is None or seconds is None:  # by the printed rates and latencies
        whole = run.figure("request_throughput") is not None and run.figure("mean_e2el_ms") is not None
        most = (SCHEDULE if whole or run.figure("mean_itl_ms") is not None else VARIED) * limit
        if (least := run.least_concurrency) is None or least <= most:
            return None
        named = ("request_throughput", "output_throughput", "mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms")
        parts = [f"{key} {value:g}" for key in named if (value := run.figure(key)) is not None]
        return f"{', '.join(parts)}: at least {least:.1f} requests at once, {limit:.0f} reported"
    if seconds <= SCHEDULE * limit * duration.high:
        return None
    return (
        f"TTFT and the time of all tokens add up to {seconds:.2f} s over {run.requests:.0f} requests; "
        f"{limit:.0f} at a time in {duration.high:.2f} s have {limit * duration.high:.2f} s"
    )


def _find_seconds(run: AuditedRun) -> Evidence | None:
    """Find evidence that seconds are called ms: they fill a closed loop, or TTFT is far below a TPOT."""
    limit, rate = run.reported.load.max_concurrency, run.figure("request_throughput")
    speed, ttft, tpot = (run.figure(key) for key in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms"))
    if not run.alike or run.paced or not limit or not speed or not tpot:
        return None
    rate = rate or (speed / run.most_tokens if run.most_tokens else 0.0)
    first, others = rate * (ttft or 0.0) / 1e3 / limit, (speed - rate) * tpot / 1e3 / limit
    early = ttft is not None and 0 < ttft < min(MOST_SECONDS, tpot / 2 if tpot >= 1 else MOST_SECONDS)
    ways = [("TTFT and TPOT", 1e3 * (first + others))] if tpot < 1 and early else []
    if tpot < 1:
        ways.append(("TPOT", first + 1e3 * others))
    elif early:
        ways.append(("TTFT", 1e3 * first + others))
    for named, share in ways if first + others < SATURATED else ():
        if SATURATED <= share <= 2 - SATURATED:
            reported = f"mean TTFT {ttft:g} ms, TPOT {tpot:g} ms" if ttft is not None else f"TPOT {tpot:g} ms"
            held = f"{(first + others) * limit:.2g} of {limit} requests at once"
            return f"{reported} leave {held}; with {named} in seconds it is {share * limit:.1f}"
    if run.reported.told_by == "table" and ttft and ttft < min(1.0, tpot / FIRST):
        return f"mean TTFT {ttft:g} ms next to a TPOT of {tpot:g} ms: a first token takes a pass, too"
    return None


@suspect(
    "concurrency-not-held",
    f"closed loop, {PER_SLOT} requests per slot or more: their times ÷ the duration are below "
    f"{percent(SATURATED)} of --max-concurrency",
    "the client was slow to send, or waited for something after the last response",
)
def concurrency_not_held(run: AuditedRun) -> Evidence | None:
    """Find evidence that a closed loop's mean concurrency was below 85 % of its limit."""
    limit, n, held = run.reported.load.max_concurrency, run.requests, run.concurrency
    if not run.alike or run.paced or not limit or not n or held is None:
        return None
    if n < PER_SLOT * limit or held >= SATURATED * limit or run.figure("failed"):
        return None
    return f"mean concurrency {held:.2f} of the requested {limit} (sum of the requests' times ÷ duration)"


@invalid(
    "nothing-measured",
    "0 requests, 0 s, 0 output tokens, no output throughput, or a mean or median TTFT or E2EL of 0",
    "the client counts empty responses as successes: check its errors",
)
def nothing_measured(run: AuditedRun) -> Evidence | None:
    """Find evidence that a count, the duration, a throughput or a mean or median latency is 0."""
    latencies = ("mean_ttft_ms", "median_ttft_ms", "mean_e2el_ms", "median_e2el_ms")
    rates = ("output_throughput", "total_token_throughput")  # of requests, 0.00 may be one in an hour
    keys = ("completed", "duration", "total_output_tokens", *rates, *latencies)
    zero = [key for key in keys if run.figure(key) == 0]
    return f"{', '.join(zero)}: 0" if zero else None


@suspect(
    "unstreamed",
    f"responses of {WHOLE_TOKENS} tokens or more, under {WHOLE_MS} ms per token after the first, mean or "
    "median",
    "TTFT is E2EL, and TPOT is meaningless: enable streaming",
)
def unstreamed_answers(run: AuditedRun) -> Evidence | None:
    """Find evidence that answers came whole, so that TTFT is E2EL: 16 tokens or more, under 0.1 ms apart."""
    known = [value for key in ("mean", "median") if (value := run.figure(f"{key}_tpot_ms")) is not None]
    tpot, length = min(known, default=math.inf), run.reported.output_len
    if not length or length < WHOLE_TOKENS or tpot >= WHOLE_MS:
        return None
    return f"{length:.0f} tokens per response, {tpot:.2f} ms apart: each response came in one chunk"


def _count_sent(run: AuditedRun) -> float | None:
    """Return the requests that were to be sent; None of a run by time, and of ours, which may end early."""
    load = run.reported.load
    return None if load.duration_s is not None or run.reported.told_by == OURS else load.requests


def _find_failures(run: AuditedRun, above: float, most: float) -> Evidence | None:
    """Find evidence that over `above` and up to `most` of the requests failed, as shares of all."""
    n, asked = run.requests, _count_sent(run)
    failed = run.figure("failed")
    if n is not None and asked is not None and (failed is None or run.reported.told_by != PAGE):
        failed = max(failed or 0.0, asked - n)
    if n is None and (succeeded := run.figure("success_rate")) is not None:
        share = 1 - succeeded / 100
        return f"{percent(share)} of the requests failed" if above < share <= most else None
    if n is None and asked and failed:  # which may be the answered ones: the share is then this at least
        least = failed / (asked + failed)
        return f"{failed:.0f} failed, {asked:.0f} requests" if above < least <= most else None
    if n is None or not failed or not above < failed / (n + failed) <= most:
        return None
    return f"{failed:.0f} of {n + failed:.0f} requests failed ({percent(failed / (n + failed))})"


failures = suspect(
    "failures",
    f"more than {percent(FAILED)} and up to {percent(MANY_FAILED)} of the requests failed: most likely the "
    "slowest ones, so P99 of the others is too low",
    "fix what failed, then measure again",
)(partial(_find_failures, above=FAILED, most=MANY_FAILED))
many_failures = invalid(
    "many-failures",
    f"more than {percent(MANY_FAILED)} of the requests failed: percentiles of the surviving requests are not "
    "meaningful",
    "fix what failed, then measure again",
)(partial(_find_failures, above=MANY_FAILED, most=math.inf))


@suspect(
    "single-request",
    "one request was completed; and vLLM's client of 2025 sends the first prompt once before, as a test, so "
    "that a prefix cache has all of it",
    "measure at least ten",
)
def single_request(run: AuditedRun) -> Evidence | None:
    """Find evidence that one request was answered, so that mean, median and P99 are of it alone."""
    return "mean, median and P99 are of one request" if run.requests == 1 else None


@note(
    "thin-percentiles", "a percentile q of fewer requests than 1 / (1 − q)", "read it as the slowest request"
)
def thin_percentiles(run: AuditedRun) -> Evidence | None:
    """Find evidence that percentiles are of so few requests that they are little below the slowest one."""
    n = run.requests
    ranks = {rank for key in ("ttft", "tpot", "e2el") for rank, _ in _list_ranks(run, key) if 50 < rank < 100}
    thin = sorted(rank for rank in ranks if n and n < least_samples(rank)[0])
    if not n or n == 1 or not thin:
        return None
    names = ", ".join(f"P{rank:g}" for rank in thin)
    needed = f"P{thin[-1]:g} needs {least_samples(thin[-1])[0]}"
    return f"{names} of {n:.0f} requests is little more than the slowest one: {needed}"


@note(
    "peak-below-mean",
    "the peak in every second of the run would not add up to all tokens: vLLM's client counts chunks",
    "ignore the peak; chunks carry several tokens, so ITL is not per token either",
)
def peak_below_mean(run: AuditedRun) -> Evidence | None:
    """Find evidence that the peak in every second is below all tokens: the client counted messages."""
    peak, tokens = run.interval("max_output_tokens_per_s"), run.figure("total_output_tokens")
    duration = run.interval("duration")
    if not run.alike or peak is None or not peak.high or not tokens or duration is None:
        return None
    most = peak.high * math.ceil(duration.high)
    if most >= tokens:
        return None
    return (
        f"a peak of {run.figure('max_output_tokens_per_s'):g} tok/s over {duration.high:.2f} s is at most "
        f"{most:.0f} of {tokens:.0f} tokens: {tokens / most:.1f} tokens per chunk or more"
    )


@note(
    "peak-over-limit",
    "more requests at once than --max-concurrency: both clients count every request that ran at any time "
    "of a whole second",
    "read it as at most the limit",
)
def peak_over_limit(run: AuditedRun) -> Evidence | None:
    """Find evidence that more requests ran at once than allowed: whole seconds were counted."""
    peak, limit = run.figure("max_concurrent_requests"), run.reported.load.max_concurrency
    if not peak or not limit or peak <= limit or run.reported.run is not None:
        return None
    return f"{peak:.0f} at once reported, {limit} allowed: the client counts by whole seconds"


@note("gaps-are-not-tokens", "vLLM's client: mean ITL and mean TPOT are more than 10 % apart", "read TPOT")
def gaps_are_not_tokens(run: AuditedRun) -> Evidence | None:
    """Find evidence that mean ITL and TPOT of vLLM's client differ: ITL is of messages, not of tokens."""
    itl, tpot = run.figure("mean_itl_ms"), run.figure("mean_tpot_ms")
    if not itl or not tpot or run.one_token_a_message or run.reported.told_by not in ("vllm", "page"):
        return None
    why = "several tokens" if itl > tpot else "none, or responses differ in length"
    return f"mean ITL {itl:g} ms, mean TPOT {tpot:g} ms: ITL is of chunks, and some of them carry {why}"


@note(
    "bursts",
    f"the median ITL is under {percent(BURST)} of the mean TPOT: several chunks were coalesced into a "
    "read, or sent at once",
    "read TPOT; no percentile of ITL below the mean is a time per token",
)
def bursts(run: AuditedRun) -> Evidence | None:
    """Find evidence that messages arrive many at once: the median ITL is below 5 % of the mean TPOT."""
    median, tpot = run.figure("median_itl_ms"), run.figure("mean_tpot_ms")
    if median is None or not tpot or median >= BURST * tpot:
        return None
    return f"median ITL {median:g} ms, {tpot:g} ms per token: most chunks arrive with another"


@note(
    "client-untold",
    f"more than {STREAMS} requests at once: one Python loop timestamps reads late, and its result does not "
    "report how late",
    "measure the client: `loadgen selftest`",
)
def client_untold(run: AuditedRun) -> Evidence | None:
    """Find evidence that over 256 streams were measured by a client whose own delay is not reported."""
    streams = max(run.reported.load.max_concurrency or 0.0, run.concurrency or 0.0)
    if streams <= STREAMS or run.reported.run is not None:
        return None
    return (
        f"{streams:.0f} streams in one client: TTFT and ITL include its own delay, which it does not report"
    )


@suspect(
    "tokens-recounted",
    f"SGLang: the texts hold under {percent(RECOUNTED)} of the reported output tokens: without usage its "
    "client takes the requested length as the response's",
    "use throughput and TPOT by the retokenized count",
)
def tokens_recounted(run: AuditedRun) -> Evidence | None:
    """Find evidence that the answers' texts have below 80 % of the output tokens that were reported."""
    reported, recounted = run.figure("total_output_tokens"), run.figure("total_output_tokens_retokenized")
    if not reported or recounted is None or recounted >= RECOUNTED * reported:
        return None
    return (
        f"{reported:.0f} output tokens reported, {recounted:.0f} in the texts: the requested length was "
        "counted instead"
    )


# Figures of these keys can be this at most: percentages, and shares of 1.
MOST = {
    "spec_decode_acceptance_rate": 100.0,
    "success_rate": 100.0,
    "slo_attainment": 100.0,
    "cached_share": 1.0,
}
_PARTS = (("request_goodput", "request_throughput"), ("output_throughput", "total_token_throughput"))
_ROUNDED = 0.006  # of a length or a rate that is printed with two decimals


@invalid(
    "impossible-value",
    "a latency, a rate, a count or a duration is below zero, infinite or beyond 1e15; a share is above all "
    "of it; goodput is above throughput, or output above all tokens; a draft's acceptance length is below 1, "
    "above one more than the tokens of a draft, or not one more than the accepted tokens of a draft",
    "the client subtracted timestamps of two clocks, or the figures were edited: get its own result file",
)
def impossible_value(run: AuditedRun) -> Evidence | None:
    """Find evidence that a figure has a value that no measurement has, or contradicts its parts."""
    return join_evidence([*_list_impossible(run), *_list_draft_contradictions(run)])


@suspect(
    "not-a-number",
    "a latency or a rate is NaN: the client computed it of nothing, or of values that are no numbers",
    "leave the metric out, or find what it was computed from",
)
def not_a_number(run: AuditedRun) -> Evidence | None:
    """Find evidence that a figure of the source is not a number."""
    names = [key for key, value in run.reported.impossible.items() if math.isnan(value)]
    return f"{', '.join(names)}: NaN" if names else None


def _list_impossible(run: AuditedRun) -> Iterator[Evidence]:
    """Yield each figure with an impossible value, or above the total that it is a part of."""
    for key, value in run.reported.impossible.items():
        if is_below_zero(value):
            yield f"{key} {value:.6g} is below zero"
        elif not math.isnan(value):
            yield f"{key} {value:.6g} is beyond any measurement"
    for key, most in MOST.items():
        if (value := run.figure(key) or 0.0) > most:
            yield f"{key} {value:g} is above {most:g}"
    for key, every in _PARTS:
        part, whole = run.interval(key), run.interval(every)
        if part is not None and whole is not None and part.low > whole.high:
            yield f"{key} {part.low:g} is above {every} {whole.high:g}"


def _list_draft_contradictions(run: AuditedRun) -> Iterator[Evidence]:
    """Yield evidence that a draft's acceptance length is below 1, or is not what its counts give."""
    length = run.figure("spec_decode_acceptance_length") or run.figure("accept_length")
    if length and length < 1 - _ROUNDED and length != -1:
        yield f"an acceptance length of {length:g}: a pass gives one token at least"
    drafts, drafted = run.figure("spec_decode_num_drafts"), run.figure("spec_decode_draft_tokens")
    accepted = run.figure("spec_decode_accepted_tokens")
    if drafted is not None and accepted is not None and accepted > drafted:
        yield f"{accepted:.0f} of {drafted:.0f} draft tokens accepted"
    if not length or not drafts:
        return
    if drafted and length > 1 + drafted / drafts + _ROUNDED:
        yield f"an acceptance length of {length:g}: drafts have {drafted / drafts:.2f} tokens each"
    elif accepted is not None and abs(length - 1 - accepted / drafts) > _ROUNDED:
        yield (
            f"an acceptance length of {length:g}: {accepted:.0f} accepted tokens of {drafts:.0f} drafts give "
            f"{1 + accepted / drafts:.2f}"
        )


CONTRADICTIONS: tuple[Rule[AuditedRun], ...] = (
    impossible_value, figures_disagree, counts_disagree, impossible_order, longer_than_the_run,
    beyond_schedule, nothing_measured, many_failures,
)  # fmt: skip


def judge_figures(run: Reported) -> Reported:
    """Return a run with its figures' contradictions as doubts, INVALID if there are any; ours unchanged."""
    if run.told_by == OURS:
        return run
    found = [finding.rule.code for finding in rule.apply_rules(CONTRADICTIONS, AuditedRun(run))]
    doubts = tuple(dict.fromkeys((*found, *run.doubts)))
    return replace(run, level=Level.INVALID.value, doubts=doubts) if found else run
