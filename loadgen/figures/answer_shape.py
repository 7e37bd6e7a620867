"""Answer shape: how the tokens of each answer lie on its messages, in time and by the words in them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.figures.record import Record, Records

LEAST_TOKENS = 8  # of an answer that is judged: fewer may well come at once (speculative decoding)
EXAMINED = 64  # answers of a run: their texts are parsed a second time
MORE_TOKENS = 1.25  # than messages with text, in an answer that is examined
_GAP = re.compile(r"(?<=\S)\s+(?=\S)")


class AnswerShapes(msgspec.Struct, frozen=True):
    """Of each success of LEAST_TOKENS or more that brought a message, int64[answers]; times in ns."""

    rows: Int64  # in the records
    tokens: Int64
    first_tokens: Int64  # of the first message; 0 where the tokens of each are not known
    messages: Int64
    instants: Int64  # at which messages came
    at_first: Int64  # messages that came at the first of them
    first_ns: Int64  # sent → first message
    span_ns: Int64  # first → last message
    second_ns: Int64  # first → second message; 0 where there is one
    text_late_ns: Int64  # first message → first text; 0 where it has text, or none has

    @classmethod
    def of(cls, records: Records) -> AnswerShapes:
        """The shapes of the answers in these records."""
        messages = np.diff(records.start)
        instants, first = np.zeros_like(messages), np.zeros_like(messages)
        at_first = np.zeros_like(messages)
        second, last, tokens = np.zeros_like(messages), np.zeros_like(messages), np.zeros_like(messages)
        for block in records.blocks():
            counts, begins = np.diff(block.start), block.start[:-1]
            some, rows = counts > 0, slice(block.first, block.last)
            moved = np.concatenate([[0], np.cumsum(np.diff(block.arrival_ns, prepend=0) != 0)])
            ends = block.start[1:]
            instants[rows][some] = 1 + moved[ends[some]] - moved[begins[some] + 1]
            first[rows][some] = block.arrival_ns[begins[some]]
            tokens[rows][some] = block.tokens[begins[some]]
            last[rows][some] = block.arrival_ns[ends[some] - 1]
            like_first = np.cumsum(block.arrival_ns == first[rows].repeat(counts))
            before = np.concatenate([[0], like_first])
            at_first[rows] = before[ends] - before[begins]
            second[rows][some] = block.arrival_ns[(begins + (counts > 1))[some]]
        judged: Bool = records.ok & (messages > 0) & (records.output_tokens >= LEAST_TOKENS)
        at = np.flatnonzero(judged)
        text_ns = np.where(records.text_ns == -1, first, records.text_ns)
        return cls(
            rows=at,
            tokens=records.output_tokens[at],
            first_tokens=np.where(records.exact_tokens > 0, tokens, 0)[at],
            messages=messages[at],
            instants=instants[at],
            at_first=at_first[at],
            first_ns=(first - records.sent_ns)[at],
            span_ns=(last - first)[at],
            second_ns=(second - first)[at],
            text_late_ns=(text_ns - first)[at],
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def later_gap_ns(self) -> Float64:
        """The mean gap between the messages after the second, float64[answers]; 0 where there are none."""
        later = self.messages - 2
        return np.where(later > 0, (self.span_ns - self.second_ns) / np.maximum(later, 1), 0.0)


def is_to_examine(record: Record) -> bool:
    """Whether an answer's words may show where its tokens are: usage counts more than there are messages."""
    more = record.output_tokens >= MORE_TOKENS * max(len(record.tokens), 2)
    return more and record.usage and not record.exact_tokens


def count_gaps(texts: Iterable[str]) -> tuple[int, int]:
    """The gaps between words in the messages after the first one, and how many of these are within a message.

    A token holds no blank between two words, in any tokenizer that cuts a text into words first. So of
    messages of one token each nearly none has one within it; of messages of two, about every third.
    The first one may well hold more tokens than the others.
    """
    later = [text for text in texts if text][1:]
    return len(_GAP.findall("".join(later))), sum(len(_GAP.findall(text)) for text in later)
