"""Arithmetic: what one run's figures say of one another, whatever machine and model they are of.

Each function gives the evidence with its figures, "" where there is none. A printed figure is every value
that prints so (`printed`), so that no rounding is ever taken for a contradiction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise

from loadgen.analysis.audit.rounding import Interval
from loadgen.analysis.audit.subject import SATURATED, AuditedRun
from loadgen.validity.evidence import least_samples, percent

FAILED, MANY_FAILED = 0.01, 0.1  # of the requests
SCHEDULE = 1.02  # times the most that a schedule allows
PER_SLOT = 5  # requests, below which ramp and drain alone empty slots
BURST = 0.05  # median gap, of the mean time per token
WHOLE_TOKENS, WHOLE_MS = 16, 0.1  # an answer so long, its tokens so close: it came whole
STREAMS = 256  # that a client of one loop was seen to time within a few per cent
RECOUNTED = 0.8  # of the tokens told
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
_RATES = {
    "request_throughput": (("completed",), "requests", "req/s"),
    "output_throughput": (("total_output_tokens",), "output tokens", "tok/s"),
    "input_throughput": (("total_input_tokens",), "input tokens", "tok/s"),
    "total_token_throughput": (("total_input_tokens", "total_output_tokens"), "tokens", "tok/s"),
}


def figures_disagree(subject: AuditedRun) -> str:
    """A rate is not its count over the duration."""
    duration = subject.interval("duration")
    if not subject.alike or duration is None or not duration.low:
        return ""
    said = []
    for key, (counts, noun, unit) in _RATES.items():
        rate = subject.interval(key)
        parts = [one for count in counts if (one := subject.interval(count)) is not None]
        if rate is None or len(parts) < len(counts):
            continue
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        if not (rate * duration).meets(total):
            seconds, told = subject.figure("duration") or 1.0, subject.figure(key)
            count = (total.low + total.high) / 2
            said.append(
                f"{count:.0f} {noun} in {seconds:g} s are {count / seconds:.2f} {unit}, told: {told:g}"
            )
    return "; ".join(said)


def impossible_order(subject: AuditedRun) -> str:
    """Mean, median and percentiles that no sample has."""
    return "; ".join(said for key, word in _METRICS.items() for said in _disorder(subject, key, word))


def _disorder(subject: AuditedRun, key: str, word: str) -> Iterator[str]:
    ranks = dict(_ranks(subject, key))
    ordered = sorted(ranks.items())
    for (lower, below), (upper, above) in pairwise(ordered):
        if below.low > above.high:
            top_ms = f"P{upper:g} of {word} ({above.high:.2f} ms at most)"
            yield f"{top_ms} is below its P{lower:g} ({below.low:.2f})"
    mean, n = subject.interval(f"mean_{key}_ms"), subject.requests
    if mean is None or not ordered or not n or not subject.alike:
        return
    top, highest = ordered[-1]
    if key != "itl" and n > 1 and highest.low > n * mean.high:
        yield (
            f"P{top:g} of {word} ({highest.low:.2f} ms) exceeds the sum of all {n:.0f} requests' "
            f"({mean.high:.2f} ms on average)"
        )
    if n == 1 and key != "itl" and not all(rank.meets(mean) for rank in ranks.values()):
        yield f"mean and percentiles of {word} differ, of one request"
    if 50.0 in ranks and mean.high < ranks[50.0].low / 2:
        yield f"mean {word} ({mean.high:.2f} ms) is below half of its median ({ranks[50.0].low:.2f})"
    if 100.0 in ranks and mean.low > ranks[100.0].high:
        yield f"mean {word} ({mean.low:.2f} ms) is above its maximum ({ranks[100.0].high:.2f})"
    if 0.0 in ranks and mean.high < ranks[0.0].low:
        yield f"mean {word} ({mean.high:.2f} ms) is below its minimum ({ranks[0.0].low:.2f})"


def _ranks(subject: AuditedRun, key: str) -> Iterator[tuple[float, Interval]]:
    names = {f"min_{key}_ms": 0.0, f"median_{key}_ms": 50.0, f"max_{key}_ms": 100.0}
    for name in subject.reported.figures:
        found = re.fullmatch(rf"p([\d.]+)_{key}_ms", name)
        rank = float(found[1]) if found else names.get(name)
        if rank is not None and (value := subject.interval(name)) is not None:
            yield rank, value


def beyond_schedule(subject: AuditedRun) -> str:
    """The requests' times together are more than were there to be had (Little's law)."""
    duration, limit, seconds = subject.interval("duration"), subject.limit, subject.least_seconds
    if not subject.alike or duration is None or not limit or seconds is None:
        return ""
    if seconds <= SCHEDULE * limit * duration.high:
        return ""
    return (
        f"TTFT and the time of all tokens come to {seconds:.2f} s over {subject.requests:.0f} requests, and "
        f"{limit:.0f} at a time in {duration.high:.2f} s have {limit * duration.high:.2f} s"
    )


def concurrency_not_held(subject: AuditedRun) -> str:
    """A closed loop in which slots stood empty."""
    limit, n, held = subject.reported.load.max_concurrency, subject.requests, subject.concurrency
    if not subject.alike or subject.paced or not limit or not n or held is None:
        return ""
    if n < PER_SLOT * limit or held >= SATURATED * limit or subject.figure("failed"):
        return ""
    return (
        f"{held:.2f} requests under way on average of the {limit} asked for (Σ of their times ÷ the duration)"
    )


def nothing_measured(subject: AuditedRun) -> str:
    """No request, no time, or a latency of nothing."""
    zero = [key for key in ("completed", "duration", "total_output_tokens") if subject.figure(key) == 0]
    for key in ("ttft", "e2el"):
        zero += [f"{name}_{key}_ms" for name in ("mean", "median") if subject.figure(f"{name}_{key}_ms") == 0]
    return f"{', '.join(zero)}: 0" if zero else ""


def unstreamed(subject: AuditedRun) -> str:
    """Answers came whole, so that TTFT is the latency of all of it."""
    tpot, length = subject.figure("mean_tpot_ms"), subject.output_len
    if tpot is None or not length or length < WHOLE_TOKENS or tpot >= WHOLE_MS:
        return ""
    return f"{length:.0f} tokens an answer, {tpot:.2f} ms apart: they came in one message"


def failures(subject: AuditedRun) -> str:
    """Some requests failed."""
    return _failed(subject, FAILED, MANY_FAILED)


def many_failures(subject: AuditedRun) -> str:
    """So many failed that the rest says nothing."""
    return _failed(subject, MANY_FAILED, math.inf)


def _failed(subject: AuditedRun, above: float, most: float) -> str:
    n, asked = subject.requests, subject.reported.load.requests
    failed = subject.figure("failed")
    if failed is None and n is not None and asked is not None:
        failed = asked - n
    if n is None or not failed or not above < failed / (n + failed) <= most:
        return ""
    return f"{failed:.0f} of {n + failed:.0f} requests failed ({percent(failed / (n + failed))})"


def single_request(subject: AuditedRun) -> str:
    """One request: no spread, and nothing that was warm or cold before it."""
    return "mean, median and P99 are of one request" if subject.requests == 1 else ""


def thin_percentiles(subject: AuditedRun) -> str:
    """A percentile of too few requests is its largest value."""
    n = subject.requests
    ranks = {rank for key in ("ttft", "tpot", "e2el") for rank, _ in _ranks(subject, key) if 50 < rank < 100}
    thin = sorted(rank for rank in ranks if n and n < least_samples(rank)[0])
    if not n or n == 1 or not thin:
        return ""
    names = ", ".join(f"P{rank:g}" for rank in thin)
    needed = f"P{thin[-1]:g} needs {least_samples(thin[-1])[0]}"
    return f"{names} of {n:.0f} requests is little but the slowest: {needed}"


def peak_below_mean(subject: AuditedRun) -> str:
    """The busiest second held fewer tokens than an average one: messages were counted."""
    peak, tokens = subject.interval("max_output_tokens_per_s"), subject.figure("total_output_tokens")
    duration = subject.interval("duration")
    if not subject.alike or peak is None or not peak.high or not tokens or duration is None:
        return ""
    most = peak.high * math.ceil(duration.high)
    if most >= tokens:
        return ""
    return (
        f"peak {subject.figure('max_output_tokens_per_s'):g} tok/s in any second of {duration.high:.2f} s "
        f"are {most:.0f} at most, of {tokens:.0f} tokens: {tokens / most:.1f} tokens a message or more"
    )


def peak_over_limit(subject: AuditedRun) -> str:
    """More requests at once than were allowed: whole seconds were counted."""
    peak, limit = subject.figure("max_concurrent_requests"), subject.reported.load.max_concurrency
    if not peak or not limit or peak <= limit or subject.reported.run is not None:
        return ""
    return f"{peak:.0f} at once told, {limit} allowed: the client counts who was there in a whole second"


def gaps_are_not_tokens(subject: AuditedRun) -> str:
    """ITL is of messages, and those do not carry a token each."""
    itl, tpot = subject.figure("mean_itl_ms"), subject.figure("mean_tpot_ms")
    if not itl or not tpot or subject.one_token_a_message or subject.reported.told_by not in ("vllm", "page"):
        return ""
    why = (
        "some of them carry several tokens"
        if itl > tpot
        else "some of them carry none, or answers differ in length"
    )
    return f"mean ITL {itl:g} ms, mean TPOT {tpot:g} ms: ITL is of messages, and {why}"


def bursts(subject: AuditedRun) -> str:
    """Messages come many at once."""
    median, tpot = subject.figure("median_itl_ms"), subject.figure("mean_tpot_ms")
    if median is None or not tpot or median >= BURST * tpot:
        return ""
    return f"median ITL {median:g} ms of {tpot:g} ms a token: most messages come together with another"


def client_untold(subject: AuditedRun) -> str:
    """So many streams that the client's own delay is in the figures, and nothing tells how much."""
    streams = max(subject.reported.load.max_concurrency or 0.0, subject.concurrency or 0.0)
    if streams <= STREAMS or subject.reported.run is not None:
        return ""
    return (
        f"{streams:.0f} streams in one client: its own delay is in TTFT and ITL, and it does not say how much"
    )


def tokens_recounted(subject: AuditedRun) -> str:
    """The answers' own tokens are far fewer than were counted."""
    told, found = subject.figure("total_output_tokens"), subject.figure("total_output_tokens_retokenized")
    if not told or found is None or found >= RECOUNTED * told:
        return ""
    return (
        f"{told:.0f} output tokens told, {found:.0f} in the texts: the length asked for was taken for theirs"
    )
