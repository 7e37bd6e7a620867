"""Word gaps: how many tokens a message carries, by the words in it, where the server does not count them.

A token holds no blank between two words, in any tokenizer that cuts a text into words first. So of messages
of one token each nearly none has one within it; of messages of two, about every third.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from loadgen.figures.record import Record

EXAMINED = 64  # answers of a run: their texts are parsed a second time
MORE_TOKENS = 1.25  # than messages with text, in an answer that is examined
_GAP = re.compile(r"(?<=\S)\s+(?=\S)")


def is_to_examine(record: Record) -> bool:
    """Whether an answer's words may show where its tokens are: usage counts more than there are messages."""
    more = record.output_tokens >= MORE_TOKENS * max(len(record.tokens), 2)
    return more and record.usage and not record.exact_tokens


def count_gaps(texts: Iterable[str]) -> tuple[int, int]:
    """The gaps between words in the messages after the first one, and how many of these are within a message.

    The first one may well hold more tokens than the others.
    """
    later = [text for text in texts if text][1:]
    return len(_GAP.findall("".join(later))), sum(len(_GAP.findall(text)) for text in later)
