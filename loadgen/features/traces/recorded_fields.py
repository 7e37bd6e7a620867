"""Recorded fields: how a trace's answers were sampled, and when its clients cancelled them, by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.plan.plan import merge_fields
from loadgen.plan.planned_requests import Cancellations, make_cancellations
from loadgen.settings.load_settings import CancelPoint
from loadgen.settings.request_settings import SAMPLING
from loadgen.wire.openai import Dialect

NO_SAMPLING = -1
# Lengths are the trace's own, and APIs do not agree on what log-probabilities are asked for by.
_UNSENT = ("min_tokens", "logprobs")
SENT = tuple(name for name in SAMPLING if name not in _UNSENT)
_TOP_K, _ALL_TOKENS = "top_k", -1  # where vLLM logs 0, every engine takes -1


class RecordedFields(msgspec.Struct, frozen=True):
    """What a trace recorded of its requests next to times and lengths; int64[rows].

    `cancel_ns` is how long after sending a request was cancelled, `cancel_tokens` after how many tokens where
    that time is not known; both 0 where it was not.
    """

    samplings: tuple[Mapping[str, float], ...]  # the different ones
    sampling: Int64  # the index of each row's; NO_SAMPLING where none is recorded
    cancel_ns: Int64
    cancel_tokens: Int64

    def reorder(self, order: Int64) -> RecordedFields:
        """Return the fields of rows in another order, of which `order` is each one's earlier index."""
        columns = (self.sampling, self.cancel_ns, self.cancel_tokens)
        return RecordedFields(self.samplings, *(column[order] for column in columns))

    def find_sampling(self, row: int, dialect: Dialect) -> dict[str, Any]:
        """Return how the answer of a row is sampled, as far as an API has the fields; {} if not recorded."""
        number = int(self.sampling[row])
        found = {} if number == NO_SAMPLING else self.samplings[number]
        return {
            name: _write_value(name, value)
            for name in SENT
            if (value := found.get(name)) is not None and name not in dialect.lacks
        }

    def add_sampling(self, row: int, dialect: Dialect, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a row's request with its sampling, as the API spells it."""
        sampling = self.find_sampling(row, dialect)
        return merge_fields(fields, dialect.make_fields(sampling, False, False)) if sampling else fields

    def list_features(self, rows: Int64) -> dict[str, int]:
        """List the sampling fields of these rows, each with the index of the first that has it."""
        numbers, firsts = np.unique(self.sampling[rows], return_index=True)
        found: dict[str, int] = {}
        for number, first in zip(numbers.tolist(), firsts.tolist(), strict=True):
            names = () if number == NO_SAMPLING else self.samplings[number]
            found |= {name: min(first, found.get(name, first)) for name in names}
        return {name: found[name] for name in SENT if name in found}

    def make_cancellations(self, rows: Int64) -> Cancellations | None:
        """Make the cancellations of requests that are these rows; None if none of them was cancelled."""
        times_ns, tokens = self.cancel_ns[rows], self.cancel_tokens[rows]
        own = {
            index: CancelPoint(int(times_ns[index]), int(tokens[index]))
            for index in np.flatnonzero((times_ns > 0) | (tokens > 0)).tolist()
        }
        return make_cancellations(own, len(rows)) if own else None

    def lengthen(self, rows: Int64, lens: tuple[Int64, Int64], most: int) -> Int64:
        """Return the longest answers to ask for of these rows, whose prompts and answers have these lengths.

        What a client cancelled would have gone on: it is asked for the median of the other answers more, up
        to `most` tokens and as long as the longest request, prompt and answer, of all.
        """
        inputs, outputs = lens
        cancelled = (self.cancel_ns[rows] > 0) | (self.cancel_tokens[rows] > 0)
        if not cancelled.any():
            return outputs
        more = int(np.median(outputs if cancelled.all() else outputs[~cancelled]))
        room = np.minimum((inputs + outputs).max() - inputs, most)
        return np.where(cancelled, np.maximum(np.minimum(outputs + more, room), outputs), outputs)

    def list_contents(self, rows: Int64) -> Iterator[bytes]:
        """Yield what the sampling of these rows depends on, for a digest; nothing without any."""
        if (self.sampling[rows] != NO_SAMPLING).any():
            yield msgspec.json.encode(self.samplings)
            yield self.sampling[rows].astype("<i8").tobytes()


def _write_value(name: str, value: float) -> float:
    """Return a parameter as servers take it: a whole number where it counts tokens."""
    return (int(value) or _ALL_TOKENS) if name == _TOP_K else value
