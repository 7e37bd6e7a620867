"""Load findings: signs that the load was not the one asked for, or too little of it to speak of."""

from __future__ import annotations

import math

import numpy as np

from loadgen.metrics import steady_state
from loadgen.metrics.vllm_keys import percentile_name
from loadgen.validity.evidence import RunEvidence, least_samples, percent

FAILED, MANY_FAILED = 0.01, 0.1  # of the requests
ANSWER_OFF, ANSWER_SHORT = 0.01, 0.9  # of the tokens asked for
IDS_OFF, TEXT_OFF = (0.01, 2), (0.1, 100)  # of the prompt: a share and tokens, both exceeded
HELD, RATE = 0.95, 0.95  # of what was asked
LATE_GAPS, LATE_MS = 0.1, 1.0  # of the mean gap, and at all
GROWN, NOISE = 1.5, 3.0  # a ratio, and standard deviations of the difference of two Poisson counts
CACHED, REPEATED = 0.05, 0.01  # of the prompt tokens, of the prompts
OUTSIDE, PER_SLOT = 0.2, 5  # of the duration, requests
RESENT = 0.01  # of the requests


def cut_short(case: RunEvidence) -> str:
    """The run ended before its plan, not because it was asked to."""
    asked = case.facts.interrupted or case.facts.stop_rule
    return _partial(case) if case.facts.partial and not asked else ""


def interrupted(case: RunEvidence) -> str:
    """The run was asked to end before its plan."""
    return _partial(case) if case.facts.interrupted else ""


def _partial(case: RunEvidence) -> str:
    return f"{case.facts.partial}: {case.metrics.completed} of {case.facts.requests} requests ended well"


def stopped_by_rule(case: RunEvidence) -> str:
    """A rule that was given ended the run before its plan."""
    return _partial(case) if case.facts.stop_rule and not case.facts.interrupted else ""


def many_failures(case: RunEvidence) -> str:
    """So many failed that the rest says nothing."""
    return _failures(case, MANY_FAILED, 1.0)


def failures(case: RunEvidence) -> str:
    """Some failed: the slowest, most likely."""
    return _failures(case, FAILED, MANY_FAILED)


def _failures(case: RunEvidence, above: float, most: float) -> str:
    sent = max(case.metrics.requests, 1)
    if not above < case.failed / sent <= most:
        return ""
    kinds = ", ".join(f"{tally.count} × {kind}" for kind, tally in case.metrics.failures.items())
    return f"{case.failed} of {sent} requests failed ({percent(case.failed / sent)}): {kinds}"


def answer_lengths(case: RunEvidence) -> str:
    """Answers are not as long as they were made to be."""
    # Where there is no usage, messages are counted: too few are a cut answer, or tokens that nobody counted.
    return _answers(case, 1 - ANSWER_OFF, 1 + ANSWER_OFF, counted=True) if case.ignores_eos else ""


def many_resent(case: RunEvidence) -> str:
    """Many requests met a connection that the server was closing."""
    return _resent(case, RESENT, 1.0)


def resent(case: RunEvidence) -> str:
    """Some did."""
    return _resent(case, 0.0, RESENT)


def _resent(case: RunEvidence, above: float, most: float) -> str:
    count, sent = int((case.records.resends > 0).sum()), max(case.metrics.requests, 1)
    if not above < count / sent <= most:
        return ""
    return (
        f"{count} of {sent} requests ({percent(count / sent)}) were sent again: the server had closed the "
        "idle connection that they went out on"
    )


def early_ends(case: RunEvidence) -> str:
    """Answers are shorter than allowed, as they may be."""
    return "" if case.ignores_eos else _answers(case, ANSWER_SHORT, math.inf, counted=False)


def _answers(case: RunEvidence, low: float, high: float, counted: bool) -> str:
    records = case.records
    by_usage = records.usage > 0
    known = case.each.ok & (records.planned_output > 0) & (records.output_tokens >= 0)
    known &= by_usage | counted
    planned, got = records.planned_output[known], records.output_tokens[known]
    if not len(got) or low <= got.sum() / planned.sum() <= high:
        return ""
    reasons = [records.finish_reasons[i] or "none" for i in np.flatnonzero(known).tolist()]
    ends = ", ".join(f"{reason} {reasons.count(reason)}" for reason in sorted(set(reasons)))
    messages = int((known & ~by_usage).sum())
    how = f"; no usage for {messages} of them, so their messages were counted" if messages else ""
    return (
        f"{got.mean():.1f} tokens an answer of {planned.mean():.1f} asked "
        f"({percent(got.sum() / planned.sum())}), {int((got < planned).sum())} of {len(got)} shorter; "
        f"finish reasons: {ends}{how}"
    )


def prompt_lengths(case: RunEvidence) -> str:
    """The server counted other prompts than were planned."""
    records = case.records
    known = case.each.ok & (records.input_tokens >= 0) & (records.planned_input > 0)
    if not known.any():
        return ""
    planned, got = float(records.planned_input[known].mean()), float(records.input_tokens[known].mean())
    share, tokens = IDS_OFF if case.facts.prompt_format == "ids" else TEXT_OFF
    if abs(got - planned) <= max(tokens, share * planned):
        return ""
    return f"{got:.1f} prompt tokens by usage, {planned:.1f} planned (means of {known.sum()})"


def concurrency_not_held(case: RunEvidence) -> str:
    """Between ramp and drain fewer requests were under way than asked."""
    held = case.held_concurrency
    if not case.closed or case.facts.partial or (held is not None and held >= HELD * case.asked):
        return ""
    turn = f"{case.metrics.queue_time.mean_ms:.2f} ms from a slot's last token to its next request"
    if held is None:
        return f"never {case.asked} under way at once, {case.metrics.peak_concurrency} at most; {turn}"
    return f"{held:.2f} under way between ramp and drain, {case.asked} asked (Little's law); {turn}"


def sends_late(case: RunEvidence) -> str:
    """Requests left later than they were due."""
    late_ns = (case.records.sent_ns - case.records.intended_ns)[case.sent]
    if not case.paced or not len(late_ns):
        return ""
    late_ms, gap_ms = float(late_ns.mean()) / 1e6, 1e3 / case.facts.profile.request_rate
    if late_ms <= max(LATE_GAPS * gap_ms, LATE_MS):
        return ""
    limit = case.facts.profile.max_concurrency
    capped = limit is not None and case.metrics.peak_concurrency >= limit
    cause = f"--max-concurrency {limit} held them back" if capped else "the client was late"
    worst_ms = float(late_ns.max()) / 1e6
    said = f"sent {late_ms:.2f} ms after they were due (mean; worst {worst_ms:.2f})"
    return f"{said}, {gap_ms:.4g} ms apart: {cause}"


def rate_not_reached(case: RunEvidence) -> str:
    """Requests left over a longer time than planned."""
    sent_ns, intended_ns = case.records.sent_ns[case.sent], case.records.intended_ns[case.sent]
    if not case.paced or len(sent_ns) < 2:
        return ""
    planned_s, taken_s = np.ptp(intended_ns) / 1e9, np.ptp(sent_ns) / 1e9
    if not planned_s or planned_s >= RATE * taken_s:
        return ""
    n = len(sent_ns) - 1
    return f"{n / taken_s:.3g} requests/s sent, {n / planned_s:.3g} planned"


def overload(case: RunEvidence) -> str:
    """Requests pile up while they are sent."""
    sent_ns = case.records.sent_ns[case.sent]
    if not case.paced or len(sent_ns) < 2:
        return ""
    half = case.under_way(int(sent_ns.min() + np.ptp(sent_ns) // 2))
    end = case.under_way(int(sent_ns.max()))
    if end <= GROWN * half or end - half <= NOISE * math.sqrt(half + end):
        return ""
    return f"{half} requests under way when half of the sending was done, {end} at its end"


def prefix_cache(case: RunEvidence) -> str:
    """Prompts were not computed but found."""
    records, window, profile = case.records, case.window, case.facts.profile
    told = case.each.ok & (records.cached_tokens >= 0)
    found = {"usage": (int(records.cached_tokens[told].sum()), int(case.each.input_tokens[told].sum()))}
    if window is not None and window.prefix_hits is not None and window.prefix_queries is not None:
        found["the server's counters"] = (window.prefix_hits, window.prefix_queries)
    source, (hits, queries) = max(found.items(), key=lambda item: item[1][0] / max(item[1][1], 1))
    expected = profile.prefix_len / (profile.prefix_len + profile.input_len)
    if not queries or hits <= (expected + CACHED) * queries:  # hits of nothing looked up are no share of it
        return ""
    beyond = f", {percent(expected)} shared on purpose" if expected else ""
    return (
        f"prefix cache answered: {percent(hits / queries)} of {queries} prompt tokens ({source}{beyond}), "
        "so TTFT is not of prefill"
    )


def identical_prompts(case: RunEvidence) -> str:
    """The same was asked more than once."""
    repeated, requests = case.facts.repeated_prompts, case.facts.requests
    if case.facts.prompt_replaced and requests > 1:
        return f"--extra-body replaces the prompt: all {requests} are the same, and a prefix cache knows them"
    if repeated <= REPEATED * requests:
        return ""
    return f"{repeated} of {requests} prompts equal an earlier one: a prefix cache need not compute them"


def thin_percentiles(case: RunEvidence) -> str:
    """A percentile of too few samples."""
    metrics, shown = case.metrics, case.facts.block().selected
    thin: dict[tuple[float, int], list[str]] = {}
    for key, distribution in metrics.selectable.items():
        for percentile in distribution.percentiles_ms if key in shown else ():
            if 0 < distribution.n < least_samples(percentile)[1]:
                thin.setdefault((percentile, distribution.n), []).append(key.upper())
    said = []
    for (percentile, n), names in thin.items():
        point, bound = least_samples(percentile)
        said.append(
            f"P{percentile_name(percentile)} of {', '.join(names)} from {n} samples: "
            f"{point} at least for a point, {bound} for a 95 % upper bound"
        )
    return "; ".join(said)


def ran_out(case: RunEvidence) -> str:
    """There was more time than prompts."""
    return steady_state.ran_out(case.records, case.facts.profile)


def ramp_and_drain(case: RunEvidence) -> str:
    """Much of the duration is not at the asked concurrency."""
    outside = 1 - case.held_share
    if not case.closed or outside <= OUTSIDE:
        return ""
    return f"{percent(outside)} of the duration is ramp or drain, below the asked {case.asked} at once"


def few_per_slot(case: RunEvidence) -> str:
    """Each slot served only a few requests."""
    each = case.metrics.requests / case.asked
    return f"{each:.3g} requests a slot" if case.closed and each < PER_SLOT else ""
