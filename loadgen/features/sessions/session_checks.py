"""Session checks: sessions ended early, their turns were late, or the server did not keep what they share."""

from __future__ import annotations

from functools import partial

import numpy as np

from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.rule import Evidence, Origin, Source, note, suspect
from loadgen.base.text import format_count
from loadgen.figures.metrics import count_cached_tokens
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.gate import NEVER_NS
from loadgen.verdict.evidence import RunEvidence, limit_doubts, percent

ENDED = 0.05  # of the sessions
WAITED = 0.05  # of the turns of users
LATE_MS = 10.0  # by P99; a client with a core of its own is below 1
KEPT = 0.1  # of the prompt tokens that a session had sent before
CACHED_OFF = 0.02  # of the prompt tokens
TAIL = 0.5  # of the run's time


@suspect(
    "sessions-ended-early",
    f"more than {percent(ENDED)} of the sessions that began were ended by a turn that failed (not those at "
    "the model's context limit): their later turns, with the longest prompts, are in no figure",
    "resolve the errors listed under `sessions ended early:`, or raise --turn-timeout",
)
def sessions_ended_early(run: RunEvidence) -> Evidence | None:
    """Find evidence that over 5 % of the begun sessions were ended by a failed turn."""
    sessions = run.sessions
    if sessions is None:
        return None
    ended, dropped = 0, 0
    for at in np.flatnonzero(sessions.early).tolist():
        failure = run.records.failures[sessions.ending[at]]
        if failure is None or failure.kind in (FailureKind.CONTEXT_LIMIT, FailureKind.USER_CANCELLED):
            continue
        ended += 1
        dropped += int(sessions.planned[at] - sessions.sent[at])
    if ended <= ENDED * len(sessions):
        return None
    share = percent(ended / len(sessions))
    unsent = f"{format_count(dropped, 'later turn')} {'was' if dropped == 1 else 'were'} not sent"
    return f"{ended} of {len(sessions)} sessions ({share}) ended early: {unsent}"


@suspect(
    "turns-late",
    f"turns of sessions after the first were sent more than {LATE_MS:.0f} ms later than intended (the end of "
    "the response before them, and their delay), by P99: TTFT from sent leaves that out",
    "give the client a core, use --transport wire, or hold fewer sessions at once",
    origin=Origin.CLIENT,
)
def turns_late(run: RunEvidence) -> Evidence | None:
    """Find evidence that turns after the first were sent over 10 ms after they were due, by P99."""
    later = run.records.sent & ~run.begins
    late_ns = (run.records.sent_ns - run.records.intended_ns)[later]
    if run.sessions is None or not len(late_ns) or run.facts.profile.max_requests is not None:
        return None
    most_ms, p99_ns = float(late_ns.max()) / MS_NS, float(np.percentile(late_ns, 99))
    if p99_ns <= LATE_MS * MS_NS:
        return None
    return f"later turns were sent {p99_ns / MS_NS:.2f} ms late by P99, {most_ms:.2f} ms at most"


@suspect(
    "users-waited",
    f"--user-rate: more than {percent(WAITED)} of the users' turns were due before the response to the turn "
    "before had ended, and waited for it: the rate was lower than requested, and their latencies leave that "
    "wait out (coordinated omission)",
    "lower --user-rate, or read the rate that was reached",
)
def users_waited(run: RunEvidence) -> Evidence | None:
    """Find evidence that over 5 % of users' turns were sent late, waiting for the answer before."""
    sessions, records = run.sessions, run.records
    rate_per_s = run.facts.profile.user_rate
    if sessions is None or not rate_per_s or not run.records.sent.any():
        return None
    slots, due_ns = records.slot[run.records.sent], records.intended_ns[run.records.sent]
    first_ns = np.full(int(slots.max()) + 1, NEVER_NS)
    np.minimum.at(first_ns, slots, due_ns)
    # A user's turns are whole periods apart, unless an answer was still on its way.
    waited = int(((due_ns - first_ns[slots]) % round(SECOND_NS / rate_per_s) != 0).sum())
    if waited <= WAITED * len(slots):
        return None
    turns = f"{waited} of {len(slots)} turns ({percent(waited / len(slots))})"
    return f"{turns} waited for the response before them: users did not reach their rate"


@note(
    "context-limit",
    "sessions grew to the model's context limit and ended there: figures of their earlier turns count, later "
    "turns were not sent",
    "serve the model with a longer context (--context-len with --launch; vLLM: --max-model-len), or send "
    "shorter conversations (--turns)",
)
def context_limit(run: RunEvidence) -> Evidence | None:
    """Find evidence that conversations reached the model's context limit."""
    count, sessions = run.context_ends, run.sessions
    if sessions is None or not count:
        return None
    return f"{count} of {len(sessions)} sessions ended at the model's context limit"


@note(
    "session-forgotten",
    "the server reports cached prompt tokens (in usage, else by its counters), and of those that a session "
    f"had sent in the turn before fewer than {percent(KEPT)} were cached: each turn is computed as a whole",
    "turn the prefix cache on, give it more memory, or route a session to one replica (--session-header)",
)
def session_forgotten(run: RunEvidence) -> Evidence | None:
    """Find evidence that under 10 % of the prompt tokens that a session had sent before were cached."""
    sessions, records, waits = run.sessions, run.records, run.waits
    if sessions is None:
        return None
    # Usage shows what later turns share with the turn before on the same line, at most these if a trace says
    # which prompts share blocks.
    lanes = np.zeros(len(records), np.int64) if waits is None else waits.lanes[records.index]
    order = np.lexsort((lanes, sessions.session))  # the turns of a line stay in order
    tokens = records.input_tokens[order]
    both = np.diff(sessions.session[order]) == 0
    both &= (np.diff(lanes[order]) == 0) & records.ok[order][1:] & (tokens[1:] >= 0) & (tokens[:-1] >= 0)
    shared = int(np.minimum(tokens[:-1], tokens[1:])[both].sum())
    recorded = run.facts.data.reusable_tokens if run.facts.profile.trace else None
    shared = shared if recorded is None else min(shared, recorded)
    if not shared:
        return None
    hits, looked_up, _ = count_cached_tokens(records, ~run.begins)
    source = "usage"
    if not looked_up:
        window = run.window
        if window is None or window.prefix_hits is None:
            return None
        hits, source = window.prefix_hits, "the server's counters"
    if hits >= KEPT * shared:
        return None
    repeated = f"of {shared} prompt tokens that sessions had sent in their turn before"
    return f"{repeated}, {hits} ({percent(hits / shared)}) were cached ({source})"


@note(
    "cached-tokens-differ",
    f"sessions: the cached share of the prompt tokens by usage differs by more than {percent(CACHED_OFF)} of "
    "the tokens from that of the server's counters, which no failed or cancelled request explains",
    "check that no other client uses the server, and that every replica's /metrics is scraped",
    Source.COUNTERS,
)
def cached_tokens_differ(run: RunEvidence) -> Evidence | None:
    """Find evidence that usage and counters of sessions give cached shares over 2 % of the tokens apart."""
    window, (hits, looked_up, _) = run.window, count_cached_tokens(run.records, run.records.ok)
    if run.sessions is None or window is None or not window.prefix_queries or not looked_up:
        return None
    if window.prefix_hits is None or run.failed or run.metrics.cancelled:
        return None
    usage, counted = hits / looked_up, window.prefix_hits / window.prefix_queries
    if abs(usage - counted) <= CACHED_OFF:
        return None
    return (
        f"{percent(usage)} of the prompt tokens cached by usage, {percent(counted)} by the server's counters"
    )


@note(
    "sessions-ran-dry",
    f"closed loop of sessions: more than {percent(TAIL)} of the run's time lies after the first slot had no "
    "session left to begin: figures are of the time before that",
    "send more sessions per slot (--num-sessions), or lower --max-concurrency",
)
def sessions_ran_dry(run: RunEvidence) -> Evidence | None:
    """Find evidence that figures leave out over half of the run: after a slot had no session left."""
    if run.quoted is None or not run.metrics.duration_s:
        return None
    measured_s, whole_s = run.quoted.duration_s, run.metrics.duration_s
    if 1 - measured_s / whole_s <= TAIL:
        return None
    first = f"the first {measured_s:.1f} of {whole_s:.1f} s"
    return f"figures are of {first}: then the first slot had no session left"


@note(
    "reconnected",
    "the server closed the connection of a session between two of its turns: the turn after it went over a "
    "new one, opened before the turn was due where there was time",
    "raise the server's keep-alive timeout above the longest delay between turns (vLLM: "
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE, uvicorn: --timeout-keep-alive)",
)
def turns_reconnected(run: RunEvidence) -> Evidence | None:
    """Find evidence that connections did not last from turn to turn."""
    count = run.facts.client.reconnects
    if run.sessions is None or not count:
        return None
    turns = f"{count} of {int(run.records.sent.sum())} turns"
    return f"{turns} went over a new connection: the server had closed the old one"


limit = partial(limit_doubts, ("session_turns",))
