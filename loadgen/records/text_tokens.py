"""Text tokens: answers without usage, counted after a run by the model's own tokenizer.

A message may carry several tokens, so a count of messages is not a count of tokens. Text encoded again is: it
lacks special tokens (the end of the answer, what surrounds reasoning and tool calls), and a text that the
model wrote in unusual pieces may be encoded in fewer.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64
from loadgen.base.errors import UsageError
from loadgen.plan.model_files import find_tokenizer
from loadgen.plan.tokenizers import load_tokenizer
from loadgen.records.decoded_stream import spread_tokens
from loadgen.records.record import UNKNOWN, Record, Records
from loadgen.wire.openai import Message

_FAST = "tokenizer.json"
_LEAST = 0.8  # of the tokens requested: what a text that ended there has at least, encoded again


@dataclass(frozen=True)
class TextTokenizer:
    """The tokenizer in a directory; it is loaded when the first text is counted."""

    directory: Path

    @cached_property
    def _encode(self) -> Callable[[str], int]:
        """The function that counts a text's tokens, loaded once; raises UsageError if that fails."""
        path = self.directory / _FAST
        if not path.is_file():
            slow = load_tokenizer(str(self.directory), "text")
            return lambda text: len(slow.encode(text, add_special_tokens=False))
        # All of transformers takes seconds to import; its fast tokenizers are these.
        import tokenizers

        try:
            fast = tokenizers.Tokenizer.from_buffer(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read ({error}): pass another --tokenizer") from error
        fast.no_truncation()
        fast.no_padding()
        # One by one: the threads of a batch would be there when the next run forks.
        return lambda text: len(fast.encode(text, add_special_tokens=False).ids)

    def count(self, text: str) -> int:
        """Count the tokens of a text, without special ones; raises UsageError if loading fails."""
        whole = text.encode("utf-8", "replace").decode()  # a server may have written half a character
        return self._encode(whole)


def find_text_tokenizer(models: Iterable[str | None]) -> TextTokenizer | None:
    """Find the tokenizer of the first of these models that is here; None also without its library."""
    directory = find_tokenizer(*(model for model in models if model))
    if directory is None:
        return None
    library = "tokenizers" if os.path.isfile(directory / _FAST) else "transformers"
    return TextTokenizer(directory) if find_spec(library) else None


def join_written(messages: Iterable[Message]) -> str:
    """Join all text that a model wrote in these messages, one choice after another."""
    choices = (choice for message in messages for choice in message.choices or ())
    parts = [(choice.index, choice.read_content()) for choice in choices]
    return "".join(text for _, text in sorted(parts, key=itemgetter(0)))


def has_one_token_each(finish_reason: str, messages: int, planned: int) -> bool:
    """Whether a stream ended at the requested length with as many messages, so that each carried a token."""
    return finish_reason == "length" and 0 < messages == planned


def settle_count(count: int, finish_reason: str, planned: int) -> int:
    """Return the tokens of an answer: the planned length if it ended there, else the tokenizer's count.

    It writes no more than these; odd bytes, as a model of random weights writes them, are more tokens when
    encoded again. Far fewer are an answer that the context's length ended.
    """
    return planned if finish_reason == "length" and 0 < _LEAST * planned <= count else count


def needs_text(record: Record) -> bool:
    """Whether only its text can show how many tokens an answer has."""
    if record.usage:
        return False
    if record.output_tokens == UNKNOWN:  # in one piece
        return True
    reason, planned = record.finish_reason, record.planned_output
    return not record.exact_tokens and not has_one_token_each(reason, record.output_tokens, planned)


def mark_uncounted(records: Records) -> Bool:
    """Mark the successes whose tokens neither usage, text nor messages of one token count, bool[requests]."""
    unknown: Bool = records.ok & (records.usage == 0) & (records.text_tokens < 0)
    unknown &= (records.output_tokens < 0) | (records.exact_tokens == 0)
    for row in np.flatnonzero(unknown).tolist():
        messages, planned = int(records.output_tokens[row]), int(records.planned_output[row])
        unknown[row] = not has_one_token_each(records.finish_reasons[row], messages, planned)
    return unknown


class TextCounts(msgspec.Struct, frozen=True):
    """Answers' token counts by the tokenizer: ascending plan indices and counts, int64[answers] each."""

    index: Int64
    tokens: Int64

    @classmethod
    def count(cls, parts: Iterable[Records], tokenizer: TextTokenizer) -> TextCounts:
        """Count the tokens of those answers without a count whose text was kept; raises UsageError."""
        index, tokens = array("q"), array("q")
        for part in parts:
            for row in np.flatnonzero(mark_uncounted(part)).tolist():
                if text := part.texts[row]:
                    planned, reason = int(part.planned_output[row]), part.finish_reasons[row]
                    index.append(int(part.index[row]))
                    tokens.append(settle_count(tokenizer.count(text), reason, planned))
        order = np.argsort(np.array(index, np.int64))
        return cls(np.array(index, np.int64)[order], np.array(tokens, np.int64)[order])

    def look_up(self, index: Int64) -> Int64:
        """Return the counts of the requests with these plan indices, UNKNOWN for those without one."""
        if not len(self.index):
            return np.full(len(index), UNKNOWN, np.int64)
        place = np.minimum(self.index.searchsorted(index), len(self.index) - 1)
        return np.where(self.index[place] == index, self.tokens[place], UNKNOWN)


NO_COUNTS = TextCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


def add_counts(part: Records, counts: TextCounts, keep_text: bool = False) -> Records:
    """Return a part with its answers' counts set and spread over messages, and without texts unless kept."""
    texts = part.texts if keep_text else [None] * len(part)
    by_text = counts.look_up(part.index)
    known = by_text != UNKNOWN
    if not known.any():
        return replace(part, texts=texts)
    held, messages = np.diff(part.start), part.tokens.copy()
    for row in np.flatnonzero(known).tolist():
        messages[part.start[row] : part.start[row + 1]] = spread_tokens(int(by_text[row]), int(held[row]))
    return replace(
        part,
        output_tokens=np.where(known, by_text, part.output_tokens),
        exact_tokens=np.where(known, by_text == held, part.exact_tokens),
        text_tokens=by_text,
        tokens=messages,
        texts=texts,
    )


def make_revision(
    parts: Iterable[Records], tokenizer: TextTokenizer | None, keep_text: bool = False
) -> tuple[Callable[[Records], Records], str]:
    """Make the function that adds tokenizer counts to a part of a run; also return why it adds none, or "".

    The parts are gone through once, a part at a time: of each text only its count stays in memory.
    """
    counts, why = NO_COUNTS, ""
    if tokenizer is not None:
        try:
            counts = TextCounts.count(parts, tokenizer)
        except UsageError as error:
            why = str(error)
    return partial(add_counts, counts=counts, keep_text=keep_text), why
