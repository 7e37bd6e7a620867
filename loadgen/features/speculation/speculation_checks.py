"""Speculation checks: whether a message is a step, by its size and the server's counts of drafts."""

from __future__ import annotations

from functools import partial

import numpy as np

from loadgen.base.rule import Evidence, Source, note, suspect
from loadgen.facts.run_facts import Facts
from loadgen.features.speculation.step_counts import StepCounts
from loadgen.records.record import Records
from loadgen.server.server_counters import ServerWindow
from loadgen.verdict.evidence import RunEvidence, limit_doubts, percent

APART = 0.02  # of the tokens after the first: counts that differ by less agree, as do the figures
MOST_PAST = 16  # draft tokens accepted past an answer's end, where a draft's length is not known
_HIDDEN = 2  # tokens that each message has at least where an interval or a buffer joins steps
_JUDGED = 16  # messages without which that shows nothing


def find_counters(facts: Facts) -> ServerWindow | None:
    """Return the server's counters, if they are of this run alone and no restart is in them; else None."""
    window = facts.own_window
    return None if window is None or window.reset else window


def count_accepted(window: ServerWindow) -> int | None:
    """Return the accepted draft tokens by the server's counters; None if they do not show them.

    SGLang counts steps alone, each of which verifies drafts: what it generated beyond one token each.
    """
    tokens, answers, steps = window.generation_tokens, window.finished, window.drafts
    if window.accepted_tokens is not None or tokens is None or answers is None or steps is None:
        return window.accepted_tokens
    return max(tokens - answers - steps, 0)


def explain_hidden_steps(facts: Facts, counts: StepCounts) -> Evidence | None:
    """Explain why the messages of a server that speculates are not its steps; None if they are.

    A message may hold several steps (an interval, a buffer), or each token comes alone. A server whose drafts
    give as few tokens as that hardly accepts any past an answer's end.
    """
    accepted = _count_accepted(facts)
    tokens, steps = int(counts.tokens.sum()), int(counts.steps.sum())
    if not steps:
        return None
    if accepted is None:
        if counts.least >= _HIDDEN and counts.histogram.sum() >= _JUDGED:
            return f"each message carries {counts.least} tokens or more: it holds several steps"
        return None
    if tokens - steps > accepted + APART * tokens:
        return (
            f"messages carry {tokens - steps} tokens beyond one each, and only {accepted} draft tokens were "
            "accepted: a message holds several steps"
        )
    if tokens - steps <= APART * tokens < accepted - (tokens - steps):
        return f"{accepted} draft tokens were accepted, and each token has a message of its own"
    return None


def explain_apart(facts: Facts, counts: StepCounts) -> Evidence | None:
    """Explain by how much messages miss draft tokens that counters have; None if they agree or hide steps.

    Of each answer the last step may have accepted a whole draft past its end.
    """
    accepted = _count_accepted(facts)
    by_messages = int(counts.tokens.sum() - counts.steps.sum())
    if not counts.steps.any() or accepted is None or explain_hidden_steps(facts, counts):
        return None
    if by_messages >= accepted - _allow_past(facts, counts):
        return None
    return f"accepted draft tokens: {by_messages} by the messages, {accepted} by the server's counters"


def count_all(records: Records) -> StepCounts:
    """Count the steps of all requests, as the server's counters have them."""
    return StepCounts.from_records(records, np.ones(len(records), np.bool_))


def _count_accepted(facts: Facts) -> int | None:
    window = find_counters(facts)
    return None if window is None else count_accepted(window)


def _allow_past(facts: Facts, counts: StepCounts) -> float:
    """Return how many more draft tokens the counters may have than the messages."""
    window = find_counters(facts)
    longest = (len(window.accepted_by_position) if window is not None else 0) or MOST_PAST
    return longest * int((counts.steps > 0).sum()) + APART * int(counts.tokens.sum())


@suspect(
    "drafts-differ",
    "a server that speculates accepted more draft tokens, by its counters, than the messages show: by more "
    f"than {percent(APART)} of the tokens and a draft past each answer's end; steps-hidden does not hold",
    "keep other clients away from the server; a gateway that cuts messages: measure without it; the "
    "acceptance length is then the counters' mean",
    Source.COUNTERS,
)
def drafts_differ(run: RunEvidence) -> Evidence | None:
    """Find evidence that a speculating server's counters and the messages disagree on accepted tokens."""
    return explain_apart(run.facts, count_all(run.records)) if run.facts.profile.stream else None


@note(
    "steps-hidden",
    "a server speculates, and its messages are not its steps: they carry more tokens than it accepted (by "
    f"{percent(APART)}), {_HIDDEN} or more each without counters, or one each although it accepted drafts",
    "start the server with --stream-interval 1, or vLLM with --per-request-spec-decode-metrics summary, and "
    "measure without a gateway that buffers; else the acceptance length is the counters' mean, and the step "
    "time is not known",
)
def steps_hidden(run: RunEvidence) -> Evidence | None:
    """Find evidence that messages hold several of a speculating server's steps, or a part of one."""
    return explain_hidden_steps(run.facts, count_all(run.records)) if run.facts.profile.stream else None


limit = partial(limit_doubts, ("speculates",))
