"""Recorded turns: each recorded answer of a file's conversations is a turn, sent with the turns before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.text import format_count
from loadgen.features.data import bodies, sent_rows
from loadgen.features.data.conversations import ASSISTANT, Conversations, RecordedTurn
from loadgen.plan.json_lines import Lines
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests
from loadgen.plan.requests import UNKNOWN_LEN, fingerprint
from loadgen.plan.turns import Turns, of_counts
from loadgen.wire.openai import Chat, Dialect

_CALLS = "tool_calls"


class RecordedTurns:
    """Requests of conversations: the messages that were recorded before an answer, built when it is due.

    Tools, tool results, calls and reasoning have the bytes that they have in the file.
    """

    def __init__(self, conversations: Conversations, answers: Int64, output_lens: Int64, form: str) -> None:
        self.format = form
        self._conversations, self._answers = conversations, answers
        self.output_lens = output_lens
        sent = {int(answer): i for i, answer in reversed(list(enumerate(answers.tolist())))}
        asking = {"tools": conversations.with_tools, "system": conversations.with_system}
        # What not every server has, by the first request that asks for it.
        self.features = {name: sent[i] for name, i in asking.items() if i is not None and i in sent}
        self.models = {name: sent[i] for name, i in conversations.models.items() if i in sent}
        self.input_lens: Int64 = np.full(len(answers), UNKNOWN_LEN, dtype=np.int64)

    @property
    def held(self) -> Mapping[str, int]:
        """How many messages of each role the file has, and how many tools were called and are offered."""
        return self._conversations.held

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """The whole chat body of request i."""
        return self.request_after(i, (), dialect, model)

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """The same with the server's own `answers`, messages, in place of the first recorded ones.

        Where the recorded answer called tools its calls stay: the recorded results are theirs.
        """
        conversation, turn = self._conversations.generated[self._answers[i]].tolist()
        recorded = self._conversations.before(conversation, turn)
        if answers:
            recorded = msgspec.structs.replace(recorded, turns=_answered(recorded.turns, answers))
        body = {"model": model, "messages": recorded.history(), **recorded.settings()}
        if self.output_lens[i] > 0:
            body[getattr(dialect, "limit_field", bodies.LIMITS[1])] = int(self.output_lens[i])
        return body

    def where(self, i: int) -> str:
        """Request i by the row of the turn that it answers, and by its conversation."""
        return self._conversations.where(*self._conversations.generated[self._answers[i]].tolist())

    def digest(self) -> str:
        """A fingerprint of the file's bytes, of the answers that are asked for and their lengths."""
        file = self._conversations.lines.digest().encode()
        return fingerprint(self.format, (self._answers, self.output_lens), [file])


def _answered(turns: Sequence[RecordedTurn], answers: Sequence[dict[str, Any]]) -> list[RecordedTurn]:
    """The turns with these answers in place of the first recorded ones."""
    live, own = iter(answers), []
    for turn in turns:
        answer = next(live, None) if turn.role == ASSISTANT else None
        if answer is not None:
            fields = {**answer, **{key: turn.fields[key] for key in (_CALLS,) if key in turn.fields}}
            turn = msgspec.structs.replace(turn, fields=fields)
        own.append(turn)
    return own


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """A turn for each recorded answer, conversation by conversation; raises UsageError of other rows."""
    conversations = Conversations(lines)
    if not isinstance(inputs.dialect, Chat):
        raise bodies.other_api(lines, kind, inputs.dialect, "openai-chat")
    answers, turns = _sent(conversations, inputs)
    output_lens = conversations.output_lens[answers]
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    if asked > 0:
        output_lens = np.full_like(output_lens, asked)
    facts = sent_rows.facts(kind, lines, answers)
    recorded = (
        f"{format_count(len(conversations), 'conversation')}, {len(conversations.generated)} recorded answers"
    )
    sent = f"{format_count(len(turns), 'session')} with {format_count(len(answers), 'turn')}"
    made = RecordedTurns(conversations, answers, output_lens, kind)
    return SourcedRequests(made, facts, notes=(f"{recorded}: sent as {sent}",), turns=turns)


def _sent(conversations: Conversations, inputs: PlanInputs) -> tuple[Int64, Turns]:
    """Which recorded answer each request asks for, int64[requests], conversation by conversation."""
    by_conversation = np.argsort(conversations.generated[:, 0], kind="stable").astype(np.int64)
    counts = np.bincount(conversations.generated[:, 0], minlength=len(conversations))
    counts = counts[counts > 0].astype(np.int64)
    whole = of_counts(counts, conversations.delays_ns[by_conversation])
    sessions = _sessions(whole, inputs)
    times = -(-sessions // len(whole))
    repeated = of_counts(np.tile(counts, times), np.tile(whole.delays_ns, times)).first(sessions)
    answers = np.tile(by_conversation, times)[: len(repeated.delays_ns)]
    return _cut(answers, repeated, inputs.most)


def _sessions(whole: Turns, inputs: PlanInputs) -> int:
    """How many sessions there are at most: those of the file, and again where more are asked for."""
    profile, most = inputs.profile, inputs.most or 0
    sessions = profile.num_sessions or max(len(whole), -(-most // int(whole.begins[-1])) * len(whole))
    return min(sessions, len(whole)) if profile.no_oversample else sessions


def _cut(answers: Int64, turns: Turns, most: int | None) -> tuple[Int64, Turns]:
    """The first `most` requests, the last session ended where they are; None: all."""
    if most is None or most >= len(answers):
        return answers, turns
    sessions = int(np.searchsorted(turns.begins, most))
    begins = np.append(turns.begins[:sessions], most)
    return answers[:most], Turns(begins, turns.delays_ns[:most])
