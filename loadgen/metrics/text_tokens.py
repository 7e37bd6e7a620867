"""Text tokens: answers without usage, counted after a run by the model's own tokenizer.

A message may carry several tokens, so a count of messages is no count of tokens. Text encoded again is: it
lacks special tokens (the end of the answer, what surrounds reasoning and tool calls), and a text that the
model wrote in unusual pieces may be encoded in fewer.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from loadgen.arrays import Bool
from loadgen.errors import UsageError
from loadgen.metrics.record import UNKNOWN, Record, Records
from loadgen.metrics.token_counts import spread
from loadgen.workload.vllm_prompts import load_tokenizer
from loadgen.workload.vocabulary import locate

_FAST = "tokenizer.json"
_SLOW = ("vocab.json", "tokenizer.model", "tekken.json", "tiktoken.model", "spiece.model")


@dataclass(frozen=True)
class TextTokenizer:
    """The tokenizer in a directory; it is loaded when the first text is counted."""

    directory: Path

    @cached_property
    def _encode(self) -> Callable[[str], int]:
        path = self.directory / _FAST
        if not path.is_file():
            slow = load_tokenizer(str(self.directory), "text")
            return lambda text: len(slow.encode(text, add_special_tokens=False))
        # All of transformers takes seconds to import; its fast tokenizers are these.
        library = importlib.import_module("tokenizers")
        try:
            fast = library.Tokenizer.from_buffer(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read ({error}): pass another --tokenizer") from error
        fast.no_truncation()
        fast.no_padding()
        # One by one: the threads of a batch would be there when the next run forks.
        return lambda text: len(fast.encode(text, add_special_tokens=False).ids)

    def count(self, text: str) -> int:
        """How many tokens a text is, without special tokens; raises UsageError if it cannot be loaded."""
        whole = text.encode("utf-8", "replace").decode()  # a server may have written half a character
        return self._encode(whole)


def find(places: Iterable[str | None]) -> TextTokenizer | None:
    """The first tokenizer that can be loaded here, of directories and names in the Hugging Face cache."""
    for directory in (locate(place) for place in places if place):
        if directory is None:
            continue
        if os.path.isfile(directory / _FAST) and find_spec("tokenizers"):
            return TextTokenizer(directory)
        if any(os.path.isfile(directory / name) for name in _SLOW) and find_spec("transformers"):
            return TextTokenizer(directory)
    return None


def one_each(finish_reason: str, messages: int, planned: int) -> bool:
    """Whether a stream shows that each of its messages carried one token.

    It ended at the length that was asked for, and has as many messages.
    """
    return finish_reason == "length" and 0 < messages == planned


def needs_text(record: Record) -> bool:
    """Whether nothing but its text shows how many tokens an answer has."""
    if record.usage:
        return False
    if record.output_tokens == UNKNOWN:  # in one piece
        return True
    return not record.exact_tokens and not one_each(
        record.finish_reason, record.output_tokens, record.planned_output
    )


def uncounted(records: Records) -> Bool:
    """The successes whose tokens are not known: their messages stand for them, bool[requests]."""
    unknown: Bool = records.ok & (records.usage == 0) & (records.text_tokens < 0)
    unknown &= (records.output_tokens < 0) | (records.exact_tokens == 0)
    for row in np.flatnonzero(unknown).tolist():
        messages, planned = int(records.output_tokens[row]), int(records.planned_output[row])
        unknown[row] = not one_each(records.finish_reasons[row], messages, planned)
    return unknown


def counted(parts: Iterable[Records], tokenizer: TextTokenizer) -> dict[int, int]:
    """The tokens of each answer in these parts of a run whose text was kept for that, by plan index.

    Raises UsageError where the tokenizer cannot be loaded.
    """
    tokens: dict[int, int] = {}
    for part in parts:
        for row in np.flatnonzero(uncounted(part)).tolist():
            if text := part.texts[row]:
                tokens[int(part.index[row])] = tokenizer.count(text)
    return tokens


def with_counts(part: Records, tokens: Mapping[int, int], keep_text: bool = False) -> Records:
    """A part of a run with these counts, spread evenly over the messages; texts go, unless they are kept."""
    rows = [row for row, index in enumerate(part.index.tolist()) if index in tokens]
    texts = part.texts if keep_text else [None] * len(part)
    if not rows:
        return replace(part, texts=texts)
    output, exact, by_text = part.output_tokens.copy(), part.exact_tokens.copy(), part.text_tokens.copy()
    messages = part.tokens.copy()
    for row in rows:
        count, begin, end = tokens[int(part.index[row])], int(part.start[row]), int(part.start[row + 1])
        output[row] = by_text[row] = count
        exact[row] = count == end - begin
        messages[begin:end] = spread(count, end - begin)
    return replace(
        part, output_tokens=output, exact_tokens=exact, text_tokens=by_text, tokens=messages, texts=texts
    )


def revision(
    parts: Iterable[Records], tokenizer: TextTokenizer | None, keep_text: bool = False
) -> tuple[Callable[[Records], Records], str]:
    """What gives each part of a run its counts, and why these could not be made, "" where they were.

    The parts are gone through once, a part at a time: what stays of a text is its count.
    """
    tokens, why = dict[int, int](), ""
    if tokenizer is not None:
        try:
            tokens = counted(parts, tokenizer)
        except UsageError as error:
            why = str(error)
    return partial(with_counts, tokens=tokens, keep_text=keep_text), why
