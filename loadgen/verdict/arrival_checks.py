"""Arrival checks: what arrives is not the server's tokens, one by one: held back, hidden, or miscounted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, sum_exactly
from loadgen.base.clock import MS_NS
from loadgen.base.rule import Evidence, join_evidence, note, suspect
from loadgen.records.decode import MORE_TOKENS
from loadgen.records.record import UNKNOWN
from loadgen.verdict.evidence import LATE_GAPS, LEAST_TOKENS, AnswerShapes, RunEvidence, percent

MOST, SOME = 0.5, 0.01  # of the answers; of the answers or the tokens
HELD_MS = 5.0  # between clumps: faster servers are beyond what a client can tell apart
FASTEST_MS = 0.05  # a token: no server is faster, so a read that waited less did not gather the answer
IDLE_CORES = 0.5  # of a client without kernel timestamps that is not late by milliseconds
MORE_MESSAGES = 1.1  # than tokens
LATE_TEXT = 3  # gaps
MOST_DRAFTED = 16  # messages at once: speculative decoding drafts fewer
LEAST_GAPS, INNER_GAPS = 16, 0.05  # between words; of these within a message
FULL_TOKENS, FULL_TIMES, FULL_SHARE = 8, 4, 0.2  # of a first message; the mean of the others; the answer


def _is_most(which: Bool) -> bool:
    return bool(np.count_nonzero(which) > MOST * len(which))


def _tally(which: Bool) -> str:
    """Write how many answers `which` marks, as `in 3 of 9 answers`."""
    return f"in {np.count_nonzero(which)} of {len(which)} responses"


def _find_whole_answers(run: RunEvidence) -> Evidence | None:
    """Find that most answers came at one instant each, though the client read in time."""
    shapes = run.shapes
    which = (shapes.messages > 1) & (shapes.instants == 1) & (shapes.first_ns > HELD_MS * MS_NS)
    if not _is_most(which):
        return None
    tokens = float(shapes.tokens[which].mean())
    late = (
        run.usual_lag_ms > tokens * FASTEST_MS / 2
        if run.stamped
        else run.facts.client.busy_cores > IDLE_CORES
    )
    if late:
        return None
    return (
        f"{_tally(which)} all chunks came at one instant, so they were not streamed: a proxy, or a "
        "parser of the server, holds each response back until its end; TTFT is E2EL, TPOT and ITL are 0"
    )


def _find_clumps(run: RunEvidence) -> Evidence | None:
    """Find that most answers came in clumps, the first one too, and the client was not late."""
    shapes = run.shapes
    clump = shapes.messages / shapes.instants
    which = (shapes.instants > 1) & (clump >= 2) & (shapes.at_first >= np.maximum(2, clump / 2))
    apart_ms = shapes.span_ns / np.maximum(shapes.instants - 1, 1) / MS_NS
    which &= apart_ms > HELD_MS
    if not _is_most(which) or _is_late(run):
        return None
    return (
        f"{_tally(which)} chunks came {float(clump[which].mean()):.3g} at a time, "
        f"{float(apart_ms[which].mean()):.3g} ms apart: a proxy gathers them; TTFT is that of the first "
        "clump, TPOT leaves out what came with it, and ITL is of clumps"
    )


def _find_later_clumps(run: RunEvidence) -> Evidence | None:
    """Find that most answers came in clumps of 16 and more after the first message."""
    shapes = run.shapes
    clump = (shapes.messages - shapes.at_first) / np.maximum(shapes.instants - 1, 1)
    apart_ms = shapes.span_ns / np.maximum(shapes.instants - 1, 1) / MS_NS
    which = (shapes.instants > 1) & (clump >= MOST_DRAFTED) & (apart_ms > HELD_MS)
    if not _is_most(which) or _is_late(run):
        return None
    return (
        f"{_tally(which)} the chunks after the first came {float(clump[which].mean()):.3g} at a "
        f"time, {float(apart_ms[which].mean()):.3g} ms apart: a proxy, or a parser of the server, holds them "
        "back; ITL is of clumps, and TPOT is that of the last one"
    )


def _is_late(run: RunEvidence) -> bool:
    """Whether the client's own read lag, of some gaps, may have made messages come together."""
    if not run.stamped:
        return run.facts.client.busy_cores > IDLE_CORES
    return run.usual_lag_ms > LATE_GAPS * run.metrics.itl.mean_ms


def _find_one_message(run: RunEvidence) -> Evidence | None:
    """Find that most answers have all their tokens on one message."""
    shapes = run.shapes
    which = shapes.messages == 1
    if not _is_most(which):
        return None
    return (
        f"{_tally(which)} all tokens ({float(shapes.tokens[which].mean()):.3g}) are counted on one "
        "chunk: the others had no text where a response has it, or a parser of the server held the response "
        "back; TTFT is the time of that chunk, TPOT and ITL are not measured"
    )


def _find_late_text(run: RunEvidence) -> Evidence | None:
    """Find that most answers begin with a message without text, long before the next."""
    shapes = run.shapes
    which = (shapes.text_late_ns > 0) & _has_late_second(shapes)
    if not _is_most(which):
        return None
    return (
        f"{_tally(which)} the first chunk that counts as a token has no text, and the first text "
        f"came {float(shapes.text_late_ns[which].mean()) / MS_NS:.3g} ms after it: that one is not a token, "
        "or hides one; TTFT is its time, and TPOT has the wait"
    )


def _has_late_second(shapes: AnswerShapes) -> Bool:
    """Mark the answers whose second message came far later than their gaps suggest, bool[answers]."""
    later = shapes.messages - 2
    later_gap_ns = np.where(later > 0, (shapes.span_ns - shapes.second_ns) / np.maximum(later, 1), 0.0)
    which: Bool = shapes.second_ns > LATE_TEXT * later_gap_ns
    return which & (shapes.second_ns > HELD_MS * MS_NS)


def _find_extra_first(run: RunEvidence) -> Evidence | None:
    """Find that most answers have more messages than tokens, the first long before the second."""
    shapes = run.shapes
    which = (shapes.messages > shapes.tokens) & _has_late_second(shapes)
    if not _is_most(which):
        return None
    return (
        f"{_tally(which)} more chunks have text than usage counts tokens, and the first one came "
        f"{float(shapes.second_ns[which].mean()) / MS_NS:.3g} ms before the others: it is not a token (a "
        "blank to keep the connection open, or the prompt); TTFT is its time, and TPOT has the wait"
    )


def _find_more_messages(run: RunEvidence) -> Evidence | None:
    """Find that most answers have 1.1 times as many messages with text as tokens by usage."""
    messages = np.diff(run.records.start)
    which = run.records.ok & (run.records.output_tokens > 0) & (run.records.usage > 0)
    more = which & (messages > np.maximum(MORE_MESSAGES * run.records.output_tokens, 2))
    if not np.count_nonzero(more) > MOST * np.count_nonzero(which):
        return None
    return (
        f"in {np.count_nonzero(more)} of {np.count_nonzero(which)} responses more chunks have text than "
        f"usage counts tokens ({sum_exactly(messages[more])} and "
        f"{sum_exactly(run.records.output_tokens[more])}): the count is wrong, or a proxy splits or repeats "
        "chunks; tok/s and TPOT rest on it"
    )


class _Fewer(msgspec.Struct, frozen=True):
    """The answers whose usage counts more tokens than messages came, and gaps between words in messages."""

    answers: int
    completed: int
    tokens: int
    messages: int
    gaps: int  # between words, in those that were examined
    inner: int  # of these, within a message

    @classmethod
    def count(cls, run: RunEvidence) -> _Fewer:
        """Count these successes, and the gaps of all whose words were counted."""
        records = run.records
        messages, examined = np.diff(records.start), records.ok & (records.word_gaps >= 0)
        fewer = records.ok & (records.usage > 0) & (records.exact_tokens == 0) & (messages > 0)
        fewer &= records.output_tokens >= MORE_TOKENS * messages.clip(2)
        return cls(
            answers=int(np.count_nonzero(fewer)),
            completed=run.metrics.completed,
            tokens=sum_exactly(records.output_tokens[fewer]),
            messages=sum_exactly(messages[fewer]),
            gaps=sum_exactly(records.word_gaps[examined]),
            inner=sum_exactly(records.inner_gaps[examined]),
        )

    def __str__(self) -> str:
        of = f"in {self.answers} of {self.completed} responses"
        return f"{of} usage counts {self.tokens} tokens in {self.messages} chunks"


def _find_unseen_tokens(run: RunEvidence) -> Evidence | None:
    """Find that usage counts more tokens than messages, which carry one each by their words."""
    fewer = _Fewer.count(run)
    if fewer.gaps < LEAST_GAPS or fewer.inner > INNER_GAPS * fewer.gaps:
        return None
    if fewer.answers <= MOST * fewer.completed or hidden_tokens.find(run) is not None:
        return None
    return (
        f"{fewer}, and by their words the chunks carry one each ({fewer.inner} of {fewer.gaps} gaps "
        "between words are within a chunk): the others were not shown or came with the first chunk, "
        "and then TTFT has their time, TPOT counts them and is too low; or a gateway joins the pieces of "
        "words, and then ITL is that of words"
    )


def _find_full_first(run: RunEvidence) -> Evidence | None:
    """Find that the first message of most answers carries far more tokens than the others."""
    shapes = run.shapes
    first = shapes.first_tokens
    later = (shapes.tokens - first) / np.maximum(shapes.messages - 1, 1)
    which = (shapes.messages > 1) & (first >= FULL_TOKENS) & (first > FULL_SHARE * shapes.tokens)
    which &= first > FULL_TIMES * later
    if not _is_most(which):
        return None
    return (
        f"{_tally(which)} the first chunk carries {float(first[which].mean()):.3g} tokens and the "
        f"others {float(later[which].mean()):.3g} each: the first ones were held back; TTFT has their time, "
        "and TPOT counts them and is too low"
    )


# Arrivals and tokens can differ in these ways: the first that holds is the cause.
_CAUSES: tuple[Callable[[RunEvidence], Evidence | None], ...] = (
    _find_whole_answers,
    _find_extra_first,
    _find_more_messages,
    _find_clumps,
    _find_later_clumps,
    _find_one_message,
    _find_late_text,
    _find_full_first,
    _find_unseen_tokens,
)


@suspect(
    "arrivals-not-tokens",
    f"in more than {percent(MOST)} of the responses (of {LEAST_TOKENS} tokens or more) all chunks came at "
    f"one instant, or two and more at each instant, the first one too, or {MOST_DRAFTED} and more at each "
    "instant after it, and the client was not late; or all tokens are counted on one chunk; or the first "
    f"has no text, or is one more than usage counts tokens, and comes {LATE_TEXT} gaps before the next; or "
    f"{MORE_MESSAGES:g} times as many chunks have text as usage counts tokens; or the first one carries "
    f"{FULL_TOKENS} tokens or more, over {percent(FULL_SHARE)} of the response and over {FULL_TIMES} "
    f"times as many as the others; or usage counts {MORE_TOKENS:g} times as many tokens as there are "
    f"chunks, and at most {percent(INNER_GAPS)} of the gaps between words are within a chunk, so that "
    "each carries one token. Several tokens a chunk, as of vLLM's --stream-interval or speculative "
    "decoding, are none of these: the first one comes alone, and the others hold several words",
    "turn buffering off in what is between (nginx: proxy_buffering off; a gateway that cuts the text into "
    "words or lines), and parsers that hold text back (vLLM's --tool-call-parser, --reasoning-parser); or "
    "read E2EL and throughput alone",
)
def arrivals_not_tokens(run: RunEvidence) -> Evidence | None:
    """Find evidence that the messages that arrived are not the server's tokens, one by one."""
    if not run.metrics.streamed:
        return None
    return next(filter(None, (cause(run) for cause in _CAUSES)), None)


def held_answers(run: RunEvidence) -> Evidence | None:
    """Find evidence that something between engine and client holds messages back, then sends several."""
    if not run.metrics.streamed:
        return None
    return _find_whole_answers(run) or _find_clumps(run) or _find_later_clumps(run)


@suspect(
    "hidden-tokens",
    f"usage counts tokens that are not shown, more than {percent(SOME)} of the output tokens: a total beyond "
    "prompt and output, or reasoning where no reasoning was streamed: TTFT and TPOT are of what is shown, "
    "tok/s are not",
    "have the server stream its reasoning, or turn it off (--chat-template-kwargs, or reasoning_effort in "
    "--extra-body); or read E2EL",
)
def hidden_tokens(run: RunEvidence) -> Evidence | None:
    """Find evidence that the model wrote tokens which no message brought."""
    records = run.records
    apart = np.where(records.ok, records.hidden_tokens.clip(0), 0)
    shown = (records.visible_ns == UNKNOWN) | (records.visible_ns != run.per_request.first_ns)
    if not run.metrics.streamed:
        shown[:] = True
    within = np.where(records.ok & ~shown, records.thought_tokens.clip(0), 0)
    most = SOME * max(run.metrics.total_output_tokens, 1)
    parts = [
        f"usage's total has {sum_exactly(apart)} tokens in {np.count_nonzero(apart)} responses beyond prompt "
        "and output, which no figure counts"
        if sum_exactly(apart) > most
        else None,
        f"{sum_exactly(within)} tokens of reasoning in {np.count_nonzero(within)} responses are counted and "
        "not shown: TTFT has their time, TPOT is too low"
        if sum_exactly(within) > most
        else None,
    ]
    return join_evidence(parts)


@note(
    "tokens-not-located",
    f"usage counts {MORE_TOKENS:g} times as many tokens as there are chunks in more than {percent(MOST)} "
    f"of the responses, no chunk has a count, and there are under {LEAST_GAPS} gaps between words to tell "
    "chunks of several tokens from tokens that are not shown",
    "pass --continuous-usage, where the server knows it; else read E2EL and tok/s",
)
def tokens_not_located(run: RunEvidence) -> Evidence | None:
    """Find evidence that usage counts tokens and nothing shows which messages carry them."""
    fewer = _Fewer.count(run)
    known = not run.metrics.streamed or fewer.gaps >= LEAST_GAPS
    if known or fewer.answers <= MOST * fewer.completed or hidden_tokens.find(run) is not None:
        return None
    return (
        f"{fewer}, and nothing shows whether these carry several or some are not shown: TPOT counts all of "
        "the tokens, and ITL is of chunks"
    )


@note(
    "ends-not-reported",
    f"more than {percent(SOME)} of the responses end without a finish reason: they count as whole because "
    "usage or their number of tokens says so",
    "have the server, or the gateway in front of it, send finish_reason",
)
def ends_not_reported(run: RunEvidence) -> Evidence | None:
    """Find evidence that answers end without a finish reason."""
    ends = (run.records.finish_reasons[row] for row in np.flatnonzero(run.per_request.ok).tolist())
    count, completed = sum(not end for end in ends), run.metrics.completed
    if count <= SOME * completed:
        return None
    return f"{count} of {completed} responses end without a finish reason"


@note(
    "reasoning-alone",
    f"more than {percent(SOME)} of the responses have reasoning and no text of the response itself: they "
    "ended within it; TTFT and TPOT are of reasoning, and TTFVT leaves them out",
    "raise the output length, or turn reasoning off (--chat-template-kwargs)",
)
def reasoning_alone(run: RunEvidence) -> Evidence | None:
    """Find evidence that answers ended within their reasoning, before a user saw anything."""
    records = run.records
    alone = records.ok & (records.text_ns != UNKNOWN) & (records.visible_ns == UNKNOWN)
    count, completed = int(np.count_nonzero(alone)), run.metrics.completed
    if count <= SOME * completed:
        return None
    return f"{count} of {completed} responses ended within their reasoning"
