"""Words: a column of strings as numbers of distinct ones, each stored once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64, check_row, check_start

SHARED_WORDS = ("words", "word_start")  # columns of the words that all columns share; older files have none


class Words:
    """A set of strings, each stored once as UTF-8 and referred to by its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number_words(self, words: Sequence[str]) -> Int64:
        """Return the number of each word, int64[words], adding new words to the set."""
        known = self._numbers
        return np.fromiter((known.setdefault(word, len(known)) for word in words), np.int64, len(words))

    def pack(self) -> tuple[NDArray[np.uint8], Int64]:
        """Join the distinct strings as bytes; also return where each begins, and the end of the last."""
        parts = [encode_text(word) for word in self._numbers]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.frombuffer(b"".join(parts), np.uint8), np.concatenate([[0], np.cumsum(lengths)])


def read_words(stored: dict[str, NDArray[Any]], name: str, requests: int) -> list[str]:
    """Read a column of strings; older files hold them as numpy strings; raises ValueError."""
    column = stored[name]
    if len(column) != requests:
        raise ValueError(f"column {name} has {len(column)} values for {requests} requests")
    if column.dtype.kind == "U":
        return list(map(str, column.tolist()))
    if column.dtype != np.int64 or not all(part in stored for part in SHARED_WORDS):
        raise ValueError(f"column {name} holds no words")
    return pick_words(unpack_words(*(stored[part] for part in SHARED_WORDS)), column)


def unpack_words(stored: NDArray[np.uint8], start: Int64) -> list[str]:
    """Split what `Words.pack` returned into its strings; raises ValueError for anything else."""
    if stored.dtype != np.uint8 or stored.ndim != 1:
        raise ValueError("column words is not a row of bytes")
    if not check_row("word_start", start):
        raise ValueError("column word_start is empty")
    check_start(start, len(start) - 1, len(stored))
    data = stored.tobytes()
    return [decode_text(data[begin:end]) for begin, end in pairwise(start.tolist())]


def pick_words(words: Sequence[str], numbers: Int64) -> list[str]:
    """Return the word of each number; raises ValueError for a number without a word."""
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(words)):
        raise ValueError("a word's number is beyond the words")
    return [words[number] for number in numbers.tolist()]


def encode_text(text: str) -> bytes:
    """Encode a text as UTF-8; half a surrogate pair, which JSON may hold, is kept."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Decode the bytes that `encode_text` made; raises ValueError."""
    return data.decode("utf-8", "surrogatepass")
