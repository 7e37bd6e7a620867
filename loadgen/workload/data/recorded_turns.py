"""Recorded turns: each recorded answer of a file's conversations is one request with the turns before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.arrays import Int64
from loadgen.protocol.openai import Chat, Dialect
from loadgen.workload.data import bodies, sent_rows
from loadgen.workload.data.conversations import Conversations
from loadgen.workload.data.lines import Lines
from loadgen.workload.plan_inputs import PlanInputs, SourcedRequests
from loadgen.workload.requests import UNKNOWN_LEN, fingerprint


class RecordedTurns:
    """Requests of conversations: the messages that were recorded before an answer, built when it is due.

    Tools, tool results, calls and reasoning have the bytes that they have in the file.
    """

    def __init__(self, conversations: Conversations, answers: Int64, output_lens: Int64, form: str) -> None:
        self.format = form
        self._conversations, self._answers = conversations, answers
        self.output_lens = output_lens
        with_tools = conversations.with_tools
        asks = with_tools is not None and with_tools < len(answers)
        self.features = {"tools": with_tools} if asks else {}  # by name, the first request that asks for it
        self.models = {name: i for name, i in conversations.models.items() if i < len(answers)}
        self.input_lens: Int64 = np.full(len(answers), UNKNOWN_LEN, dtype=np.int64)

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """The whole chat body of request i."""
        conversation, turn = self._conversations.generated[self._answers[i]].tolist()
        recorded = self._conversations.before(conversation, turn)
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


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """A request for each recorded answer; raises UsageError of rows that are no conversations."""
    conversations = Conversations(lines)
    if not isinstance(inputs.dialect, Chat):
        raise bodies.other_api(lines, kind, inputs.dialect, "openai-chat")
    answers = sent_rows.order(len(conversations.generated), inputs)
    output_lens = conversations.output_lens[answers]
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    if asked > 0:
        output_lens = np.full_like(output_lens, asked)
    facts = sent_rows.facts(kind, lines, answers)
    asked_for = f"{len(conversations)} conversations, {len(conversations.generated)} recorded answers"
    note = f"{asked_for}: each is a request of its own, with the recorded turns before it"
    made = RecordedTurns(conversations, answers, output_lens, kind)
    return SourcedRequests(made, facts, notes=(note,), sessions=conversations.generated[answers, 0])
