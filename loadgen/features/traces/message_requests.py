"""Message requests: the calls of a trace that recorded its messages, as bodies of chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.features.traces.trace_rows import RecordedMessages, TraceRows
from loadgen.features.traces.trace_schedule import TraceSelection
from loadgen.plan.planned_requests import RECORDED, UNKNOWN_LEN, TurnRequests, Turns, fingerprint
from loadgen.wire.openai import Dialect


class MessageRequests(TurnRequests):
    """The requests of selected rows, with the messages that each had when it was recorded."""

    format = RECORDED

    def __init__(
        self, trace: TraceRows, messages: RecordedMessages, picked: TraceSelection, turns: Turns | None
    ) -> None:
        self.output_lens = picked.output_lens
        self.input_lens: Int64 = np.full(len(picked.places), UNKNOWN_LEN, np.int64)
        self._trace, self._messages, self._places = trace, messages, picked.places
        self._turns = turns
        # What not every server has, by the first request that asks for it.
        self.features: dict[str, int] = {}
        for i, row in enumerate(picked.places.tolist()):
            for name in messages.list_features(row):
                self.features.setdefault(name, i)

    def name_row(self, i: int) -> str:
        """Name request i by file and row, as `trace.jsonl row 17`."""
        return f"{self._trace.file} row {int(self._trace.numbers[self._places[i]])}"

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """Make the chat body with the server's own `answers` to the earlier requests of its lane.

        Each takes the place of the recorded answer where the history has that; tool calls stay.
        """
        row = int(self._places[i])
        messages = self._messages.read_prompt(row)
        if answers:
            messages = self._lay_answers(i, messages, answers)
        body: dict[str, Any] = {"model": model, "messages": messages}
        if tools := self._messages.read_tools(row):
            body["tools"] = tools
        body[dialect.limit_field] = int(self.output_lens[i])
        return dialect.convert_chat(body)

    def digest(self) -> str:
        """Return a hash of the file's bytes, of the rows that are sent and of their lengths."""
        return fingerprint(self.format, (self._places, self.output_lens), [self._trace.digest.encode()])

    def _lay_answers(
        self, i: int, messages: list[dict[str, Any]], answers: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the messages with these answers in place of the recorded ones of the lane, in order."""
        laid, at = list(messages), 0
        for before, answer in zip(self._list_lane(i), answers, strict=False):
            recorded = self._messages.read_answer(int(self._places[before]))
            for place in range(at, len(laid)):
                message = laid[place]
                if message["role"] == "assistant" and message["content"] == recorded:
                    kept = {key: message[key] for key in ("tool_calls",) if key in message}
                    laid[place], at = {**answer, **kept}, place + 1
                    break
        return laid

    def _list_lane(self, i: int) -> list[int]:
        """List the requests of a session before request i, of its lane, in their order."""
        if self._turns is None or self._turns.waits is None:
            return []
        begin = int(self._turns.begins[np.searchsorted(self._turns.begins, i, "right") - 1])
        lanes = self._turns.waits.lanes
        found: list[int] = (begin + np.flatnonzero(lanes[begin:i] == lanes[i])).tolist()
        return found
