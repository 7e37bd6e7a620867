"""Load checks: the run ended early, requests failed, the load was not the one requested, or too small."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.rule import Evidence, Origin, Rule, invalid, join_evidence, note, suspect
from loadgen.base.text import format_count
from loadgen.figures import steady_state
from loadgen.figures.figure_table import SELECTABLE, percentile_name
from loadgen.figures.metrics import peak_concurrency
from loadgen.figures.session_rows import find_dry_ns
from loadgen.plan.profile import Profile
from loadgen.records import text_tokens
from loadgen.settings.setting import list_rows
from loadgen.settings.table import PROFILE_KEYS
from loadgen.verdict.evidence import RunEvidence, least_samples, overlap_mean, percent

FAILED, MANY_FAILED = 0.01, 0.1  # of the requests
UNCOUNTED = 0.01  # of the responses
ANSWER_OFF, ANSWER_SHORT = 0.01, 0.9  # of the tokens requested
IDS_OFF, TEXT_OFF = (0.01, 2), (0.1, 100)  # of the prompt: a share and tokens, both exceeded
WORDS_OFF = (0.01, 1)  # of words, whose length the server's own count has set
_OFF = {"ids": IDS_OFF, "words": WORDS_OFF}  # by format; of any other text TEXT_OFF
HELD, RATE = 0.95, 0.95  # of what was requested
LATE_GAPS, LATE_MS = 0.1, 1.0  # of the mean gap, and absolute
TRACE_LATE_MS = 10.0  # by P99, where the rate changes; a burst is sent one request after the other
GROWN, NOISE = 1.5, 3.0  # a ratio, and standard deviations of the difference of two Poisson counts
OUTSIDE, PER_SLOT = 0.2, 5  # of the duration, requests
RESENT = 0.01  # of the requests
THIN = 0.1  # of the samples of a point estimate
# The settings that hold due requests back: their waiting is not the client's fault.
_HOLDING = [row for row in list_rows(*PROFILE_KEYS) if row.name in ("prefill_concurrency", "max_requests")]
_HOLDING_FLAGS = " or ".join(row.option for row in _HOLDING)
_FIX_FAILURES = "resolve the errors listed under `failed:`, or lower --max-concurrency or --request-rate"
_LESS_LATE = (
    f"raise --max-concurrency or {_HOLDING_FLAGS}, or lower --request-rate, --schedule, --bursts or "
    "--speed-up"
)
_KEEP_ALIVE = (
    "raise the server's keep-alive timeout (vLLM: VLLM_HTTP_TIMEOUT_KEEP_ALIVE, uvicorn: "
    "--timeout-keep-alive), or that of the proxy before it"
)


cut_short: Rule[RunEvidence] = invalid(
    "cut-short",
    "the run ended before all planned requests were done, and neither Ctrl-C nor a stop rule ended it",
    "run again; if it happens again, lower the load",
    origin=Origin.LOAD,
)(lambda run: None if run.facts.interrupted or run.facts.stop_rule else _describe_end(run))


stopped_by_signal: Rule[RunEvidence] = suspect(
    "interrupted",
    "Ctrl-C ended the run: slow requests had less time to finish, so latencies are too low",
    "let it run to its end, or plan fewer requests (--num-prompts)",
)(lambda run: _describe_end(run) if run.facts.interrupted else None)


def _describe_end(run: RunEvidence) -> Evidence:
    return f"{run.facts.partial}: {run.metrics.completed} of {run.facts.own_requests} requests succeeded"


stopped_by_rule: Rule[RunEvidence] = suspect(
    "stopped-by-rule",
    "a stop rule (--max-failures, --max-consecutive-failures, --max-duration, --stop-when-saturated) ended "
    "the run: slow requests had less time to finish",
    "resolve the errors listed under `failed:`, or relax the rule",
)(lambda run: _describe_end(run) if run.facts.stop_rule and not run.facts.interrupted else None)


def _find_failures(run: RunEvidence, above: float, most: float) -> Evidence | None:
    """Find that a share of the requests over `above` and up to `most` failed."""
    sent = max(run.judged, 1)
    if not above < run.failed / sent <= most:
        return None
    kinds = ", ".join(f"{count} × {kind}" for kind, count in run.failed_kinds.items() if count)
    return f"{run.failed} of {sent} requests failed ({percent(run.failed / sent)}): {kinds}"


many_failures = invalid(
    "many-failures",
    f"more than {percent(MANY_FAILED)} of the requests failed (not counting those cancelled by Ctrl-C): "
    "percentiles of the surviving requests are not meaningful",
    _FIX_FAILURES,
    origin=Origin.LOAD,
)(partial(_find_failures, above=MANY_FAILED, most=1.0))
failures = suspect(
    "failures",
    f"more than {percent(FAILED)} and up to {percent(MANY_FAILED)} of the requests failed: most likely "
    "the slowest ones, so P99 of the others is too low",
    _FIX_FAILURES,
)(partial(_find_failures, above=FAILED, most=MANY_FAILED))


@invalid(
    "all-cancelled",
    "requests were cancelled as planned, and none of the others was completed: there is nothing to "
    "measure by",
    "lower --cancel-rate, or raise --cancel-after",
)
def all_cancelled(run: RunEvidence) -> Evidence | None:
    """Find evidence that the plan cancelled requests and none of the others succeeded."""
    cancelled, completed = run.metrics.cancelled, run.metrics.completed
    if completed or not cancelled:
        return None
    return f"{cancelled} of {run.metrics.requests} requests were cancelled, none was completed"


def _find_resent(run: RunEvidence, above: float, most: float) -> Evidence | None:
    """Find that a share of the requests over `above` and up to `most` were sent again."""
    count, sent = int((run.records.resends > 0).sum()), max(run.metrics.requests, 1)
    if not above < count / sent <= most:
        return None
    return (
        f"{count} of {sent} requests ({percent(count / sent)}) were retried: the server had closed the "
        "idle connection they were sent on"
    )


many_resent = suspect(
    "many-resent",
    f"more than {percent(RESENT)} of the requests were retried because the server had closed the idle "
    "connection: TTFT of each includes a new connection and the lost attempt",
    _KEEP_ALIVE,
)(partial(_find_resent, above=RESENT, most=1.0))
resent = note(
    "resent",
    f"up to {percent(RESENT)} of the requests were retried because the server had closed the idle connection",
    _KEEP_ALIVE,
)(partial(_find_resent, above=0.0, most=RESENT))


@suspect(
    "tokens-not-counted",
    f"more than {percent(UNCOUNTED)} of the responses have no usage, their text could not be counted by a "
    "tokenizer, and they do not end by length with as many chunks as tokens were requested: their chunks "
    "were counted, and a chunk may carry several tokens",
    "pass the model's own --tokenizer DIR (with the tokenizer extra: in the clone, .venv/bin/pip install "
    "'.[tokenizer]'), or have the server send usage (a gateway must pass stream_options.include_usage on)",
)
def tokens_not_counted(run: RunEvidence) -> Evidence | None:
    """Find evidence that messages were counted as tokens, although they may carry several."""
    metrics = run.metrics
    if metrics.uncounted <= UNCOUNTED * metrics.completed:
        return None
    count = f"{metrics.uncounted} of {metrics.completed} responses have no usage"
    if not metrics.streamed:
        return f"{count}: their tokens are not known and count 0"
    return f"{count}: their chunks were counted, so TPOT and tok/s are of chunks, not of tokens"


answer_lengths: Rule[RunEvidence] = suspect(
    "answer-lengths",
    "ignore_eos was sent and the responses' lengths differ from the requested one by more than "
    f"{percent(ANSWER_OFF)} on average, without those whose tokens were not counted; a server that honours "
    "it is exact; or it was not sent, and they are that much longer than the longest that was requested",
    "pass --no-ignore-eos if the server does not know ignore_eos, as most hosted APIs; else check that "
    "prompt and output fit its context (--context-len with --launch; vLLM: --max-model-len), and that it "
    "does not cap the length of outputs",
)(lambda run: _find_other_lengths(run, 1 - ANSWER_OFF if run.ignores_eos else 0.0, 1 + ANSWER_OFF))


early_ends: Rule[RunEvidence] = note(
    "early-ends",
    f"ignore_eos was not sent and responses average under {percent(ANSWER_SHORT)} of the maximum length",
    "use --ignore-eos if all responses should have the same length",
)(lambda run: None if run.ignores_eos else _find_other_lengths(run, ANSWER_SHORT, math.inf))


def _find_other_lengths(run: RunEvidence, low: float, high: float) -> Evidence | None:
    """Find that counted answers are on average below `low` or above `high` times the requested length."""
    records = run.records
    comparable = run.per_request.ok & (records.planned_output > 0) & (records.output_tokens >= 0)
    comparable &= ~text_tokens.mark_uncounted(records)
    planned, received = records.planned_output[comparable], records.output_tokens[comparable]
    if not len(received) or low <= received.sum() / planned.sum() <= high:
        return None
    reasons = [records.finish_reasons[i] or "none" for i in np.flatnonzero(comparable).tolist()]
    ends = ", ".join(f"{reason} {reasons.count(reason)}" for reason in sorted(set(reasons)))
    return (
        f"{received.mean():.1f} tokens per response, {planned.mean():.1f} requested "
        f"({percent(received.sum() / planned.sum())}), {int((received < planned).sum())} of {len(received)} "
        f"shorter; finish reasons: {ends}"
    )


@suspect(
    "prompt-lengths",
    "the server's count of the prompts differs from the plan on average: ids by more than "
    f"{percent(IDS_OFF[0])} and {IDS_OFF[1]} tokens (a server may add BOS), words by more than "
    f"{percent(WORDS_OFF[0])} and {WORDS_OFF[1]} (the server's own count set their length), other text by "
    f"more than {percent(TEXT_OFF[0])} and {TEXT_OFF[1]} (tokenization and chat templates change it)",
    "use --prompt-format ids, or pass the model's own --tokenizer; words: check that one server answers, "
    "with a context as long as the prompts",
)
def prompt_lengths(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server counts other lengths than were planned of prompts without images."""
    if run.facts.data.images is not None:
        return None
    records = run.records
    comparable = run.per_request.ok & (records.input_tokens >= 0) & (records.planned_input > 0)
    if run.facts.profile.assistant != "recorded":  # whose prompts hold the server's own answers
        comparable &= run.begins
    if not comparable.any():
        return None
    planned = float(records.planned_input[comparable].mean())
    counted = float(records.input_tokens[comparable].mean())
    share, tokens = _OFF.get(run.facts.prompt_format, TEXT_OFF)
    if abs(counted - planned) <= max(tokens, share * planned):
        return None
    cut = _describe_cut(records.planned_input[comparable], records.input_tokens[comparable])
    means = f"{counted:.1f} prompt tokens by usage, {planned:.1f} planned (means of {comparable.sum()})"
    return means + (f"; {cut}" if cut else "")


def _describe_cut(planned: Int64, counted: Int64) -> str:
    """State that all longer prompts have the same, highest count, as if truncated; "" if not."""
    most = int(counted.max())
    cut = (counted == most) & (planned > most * (1 + TEXT_OFF[0]))
    if cut.sum() < 2 or (planned > most * (1 + TEXT_OFF[0])).sum() > cut.sum():
        return ""
    return (
        f"{cut.sum()} count exactly {most}, as of a server that cuts prompts to its context (Ollama: num_ctx)"
    )


def _name_holding(profile: Profile) -> str:
    """Name the given settings that hold due requests back, with their values; "" if there are none."""
    values = [(row, getattr(profile, row.name)) for row in _HOLDING]
    return " and ".join(f"{row.option} {value}" for row, value in values if value != row.default)


@suspect(
    "concurrency-not-held",
    f"closed loop: mean concurrency between ramp and drain (Little's law) is below {percent(HELD)} of "
    f"--max-concurrency, without {_HOLDING_FLAGS}; a slot is empty only during its turnaround; a session "
    "holds its slot between turns too, and users at a rate of their own hold none",
    "turnaround is the client's time: give it a core, use --transport wire, or request longer outputs",
    origin=Origin.CLIENT,
)
def concurrency_not_held(run: RunEvidence) -> Evidence | None:
    """Find evidence that between ramp and drain fewer requests ran at once than were requested."""
    held = run.held_concurrency
    if not run.closed_loop or _name_holding(run.facts.profile):
        return None
    if run.facts.profile.users is not None:
        return None
    if run.facts.partial or (held is not None and held >= HELD * run.target):
        return None
    turnaround = f"turnaround {run.metrics.queue_time.mean_ms:.2f} ms (response end → next send)"
    of = "" if run.sessions is None else " of sessions"
    if of:
        turnaround = f"turns sent {run.metrics.queue_time.mean_ms:.2f} ms late on average"
    if held is None:
        peak = "" if of else f", peak {run.metrics.peak_concurrency}"
        return f"concurrency {run.target}{of} was never reached{peak}; {turnaround}"
    return f"mean concurrency{of} {held:.2f} between ramp and drain, {run.target} requested; {turnaround}"


@suspect(
    "sends-late",
    f"at a finite rate, or the times of a trace, requests were sent later than scheduled by more than "
    f"{percent(LATE_GAPS)} of the mean gap and {LATE_MS:.0f} ms on average, or, where the rate changes (a "
    "trace, a schedule, a ramp, bursts), by P99 more than that share and "
    f"{TRACE_LATE_MS:.0f} ms: that is another arrival process",
    f"{_LESS_LATE}; TTFT from when requests were due is in the report",
    origin=Origin.CLIENT,
)
def sends_late(run: RunEvidence) -> Evidence | None:
    """Find evidence that requests left later than scheduled."""
    if not len(run.late_ns):
        return None
    late_ms, gap_ms = float(run.late_ns.mean()) / 1e6, 1e3 / run.facts.planned_rate_per_s
    uneven = run.uneven
    p99_late = uneven and run.late_p99_ms > max(LATE_GAPS * gap_ms, TRACE_LATE_MS)
    if late_ms <= max(LATE_GAPS * gap_ms, LATE_MS) and not p99_late:
        return None
    limit = run.facts.max_concurrency
    capped = limit is not None and peak_concurrency(*run.held_spans_ns) >= limit
    holding = _name_holding(run.facts.profile)
    cause = f"{holding} held them back" if holding else "the client was late"
    cause = f"--max-concurrency {limit} held them back" if capped else cause
    delay = "" if run.sessions is None else "first turns "
    delay += f"sent {late_ms:.2f} ms late on average, {float(run.late_ns.max()) / 1e6:.2f} ms at most"
    apart = f"{gap_ms:.4g} ms apart"
    if uneven:
        delay += f", {run.late_p99_ms:.2f} ms by P99"
        apart += " on average" if run.facts.data.schedule is None else " in the mean of the trace"
    return f"{delay}, scheduled {apart}: {cause}"


@suspect(
    "rate-not-reached",
    f"requests, or the first turns of sessions, were sent at less than {percent(RATE)} of the planned rate",
    _LESS_LATE,
    origin=Origin.CLIENT,
)
def rate_not_reached(run: RunEvidence) -> Evidence | None:
    """Find evidence that sending took longer than planned."""
    begun = run.records.sent & run.begins
    sent_ns, intended_ns = run.records.sent_ns[begun], run.records.intended_ns[begun]
    if len(sent_ns) < 2:
        return None
    planned_s, taken_s = np.ptp(intended_ns) / 1e9, np.ptp(sent_ns) / 1e9
    if not planned_s or planned_s >= RATE * taken_s:
        return None
    n = len(sent_ns) - 1
    return f"{n / taken_s:.3g} {run.noun}/s sent, {n / planned_s:.3g} planned"


@note(
    "overload",
    f"at a finite rate, or the times of a trace, {GROWN} times as many requests were in flight when the last "
    f"was sent as halfway through (of --bursts, in the mean of the period before), by more than {NOISE:.0f} "
    "standard deviations of two Poisson counts, and by more than the planned rate rose: latencies depend on "
    "the length of the run",
    "lower --request-rate, --schedule, --bursts or --speed-up for a steady state, or read the run as an "
    "overload test",
)
def overload(run: RunEvidence) -> Evidence | None:
    """Find evidence that requests, or sessions, pile up while they are sent."""
    sent_ns = run.held_spans_ns[0]
    if len(sent_ns) < 2:
        return None
    middle_ns, last_ns = int(sent_ns.min() + np.ptp(sent_ns) // 2), int(sent_ns.max())
    if middle_ns - run.burst_period_ns < sent_ns.min():  # no period of bursts before it
        return None
    half, end = _count_carried(run, middle_ns), _count_carried(run, last_ns)
    expected = half * _measure_rise(run, middle_ns, last_ns)
    if end <= GROWN * expected or end - expected <= NOISE * math.sqrt(expected + end):
        return None
    return f"{half:.0f} {run.noun} in flight halfway through sending, {end:.0f} when the last was sent"


def _count_carried(run: RunEvidence, at_ns: int) -> float:
    """Count the requests in flight at a moment (ns); with bursts, their mean over the period before it."""
    if not run.burst_period_ns:
        return run.in_flight(at_ns)
    window_ns = at_ns - run.burst_period_ns, at_ns
    return overlap_mean(*run.held_spans_ns, window_ns)


def _measure_rise(run: RunEvidence, middle_ns: int, last_ns: int) -> float:
    """Compute how many times more requests an uneven load starts in its last tenth than before its middle."""
    if not run.uneven:
        return 1.0
    sent_ns, period_ns = run.held_spans_ns[0], run.burst_period_ns or 1
    tenth_ns = -(-max((last_ns - middle_ns) // 5, 1) // period_ns) * period_ns  # of bursts, whole periods
    before, last = (((sent_ns > at - tenth_ns) & (sent_ns <= at)).sum() for at in (middle_ns, last_ns))
    return max(1.0, float(last) / max(float(before), 1.0))


@note(
    "thin-percentiles",
    f"a percentile q of fewer than {percent(THIN)} of the 1 / (1 - q) samples that a point estimate needs "
    "(P99: 10 of 100): no sample is likely to lie near it; with fewer than ln 0.01 / ln q (P99: 459), a line "
    "under the block has their number",
    "raise --num-prompts, or request lower --metric-percentiles",
)
def thin_percentiles(run: RunEvidence) -> Evidence | None:
    """Find evidence that a shown percentile rests on hardly any samples."""
    metrics, shown = run.quoted or run.metrics, run.facts.block().selected
    thin: dict[tuple[float, int], list[str]] = {}
    for key, distribution in metrics.selectable.items():
        for percentile in distribution.percentiles_ms if key in shown else ():
            if 0 < distribution.n < THIN * least_samples(percentile)[0]:
                thin.setdefault((percentile, distribution.n), []).append(SELECTABLE[key].label)
    return join_evidence(
        f"P{percentile_name(percentile)} of {', '.join(names)} from {format_count(n, 'sample')}: a point "
        f"estimate needs {least_samples(percentile)[0]}"
        for (percentile, n), names in thin.items()
    )


@note(
    "ran-out",
    "closed loop with --duration: the last prompt was sent, or the last session began, before its end",
    "raise --num-prompts, or leave it out",
)
def ran_out(run: RunEvidence) -> Evidence | None:
    """Find evidence that the prompts ran out before --duration was over."""
    sessions, profile, own = run.sessions, run.facts.profile, run.facts.own_sessions
    if sessions is None:
        return steady_state.describe_run_out(run.records, profile, run.facts.queues) or None
    if profile.duration is None or not run.closed_loop:
        return None
    idle_ns = find_dry_ns(sessions, run.records, profile.duration_ns, own, run.facts.queues)
    if idle_ns is None or len(sessions) < own:
        return None
    idle_s = (idle_ns - int(run.records.sent_ns[run.records.sent].min())) / SECOND_NS
    if idle_s >= profile.duration:
        return None
    return (
        f"all {len(sessions)} sessions began and the load fell {idle_s:.1f} s into the "
        f"{profile.duration:g} s of --duration: raise --num-sessions"
    )


@note(
    "ramp-and-drain",
    f"closed loop: more than {percent(OUTSIDE)} of the duration lies before the requested concurrency is "
    "reached or after the first request that is not replaced; all rates are over the whole duration; not of "
    "sessions, whose rates end there (sessions-ran-dry)",
    "raise --num-prompts, or read the steady-state figures",
)
def ramp_and_drain(run: RunEvidence) -> Evidence | None:
    """Find evidence that much of the duration lies below the requested concurrency."""
    if not run.closed_loop or run.sessions is not None:
        return None
    held_s = 0.0 if run.held_ns is None else (run.held_ns[1] - run.held_ns[0]) / SECOND_NS
    outside = 1 - held_s / run.metrics.duration_s if run.metrics.duration_s else 1.0
    if outside <= OUTSIDE:
        return None
    return (
        f"{percent(outside)} of the duration is ramp or drain, below the requested concurrency {run.target}"
    )


@note(
    "few-per-slot",
    f"closed loop: fewer than {PER_SLOT} requests, or sessions, per slot, so that most of the run is the "
    "first and the last wave",
    "raise --num-prompts, of sessions --num-sessions",
)
def few_per_slot(run: RunEvidence) -> Evidence | None:
    """Find evidence that each slot served only a few requests."""
    count = (run.metrics.requests if run.sessions is None else len(run.sessions)) / run.target
    return f"{count:.3g} {run.noun} per slot" if run.closed_loop and count < PER_SLOT else None
