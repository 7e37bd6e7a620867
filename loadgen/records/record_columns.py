"""Record columns: the scalars of a run's requests and bounds, checked when files and journals are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Bool, Int64, release_pages, split_blocks

MOST_COUNT = 2**31 - 1  # of tokens, reads, requests: so that no sum of a column wraps
LONGEST_NS = 2**61  # 73 years, either way: neither a difference of two times nor of two differences wraps
_ROWS = 1 << 14  # requests that are checked together

# A column and the bounds of its values. A kernel's timestamp follows a stepped clock: of a board that had no
# time yet, by decades and to below 0.
_Count = Annotated[Int64, (0, MOST_COUNT)]
_MaybeCount = Annotated[Int64, (-1, MOST_COUNT)]
_Flag = Annotated[Int64, (0, 1)]
_Time = Annotated[Int64, (0, LONGEST_NS)]
_MaybeTime = Annotated[Int64, (-1, LONGEST_NS)]
_SignedTime = Annotated[Int64, (-LONGEST_NS, LONGEST_NS)]


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The scalars of several Records, int64[requests] each; journals hold them in this order.

    The order is never changed, and a new column goes to the end: older journals end before it.
    """

    index: _Time  # the request's number in the plan
    slot: _Count
    intended_ns: _Time
    sent_ns: _Time
    end_ns: _SignedTime
    connect_ns: _SignedTime
    resends: _Count
    first_byte_ns: _SignedTime
    planned_input: _MaybeCount
    planned_output: _MaybeCount
    input_tokens: _MaybeCount
    output_tokens: _MaybeCount
    cached_tokens: _MaybeCount
    usage: _Flag
    exact_tokens: _Flag
    shared_reads: _Count
    shared_lag_ns: _SignedTime
    reads: _Count
    unstamped_reads: _Count
    lag_sum_ns: _SignedTime
    lag_max_ns: _SignedTime
    server_queue_ns: _MaybeTime
    server_ttft_ns: _MaybeTime
    impossible_stamps: _MaybeCount
    http_status: _MaybeCount
    text_tokens: _MaybeCount
    visible_ns: _SignedTime  # -1: none
    server_prompt_tokens: _MaybeCount
    server_cached_tokens: _MaybeCount
    server_output_tokens: _MaybeCount
    server_prefill_ns: _MaybeTime
    server_decode_ns: _MaybeTime
    out_of_order: _MaybeCount
    retransmitted: _MaybeCount
    text_ns: _SignedTime  # -1: none
    hidden_tokens: _MaybeCount
    thought_tokens: _MaybeCount
    word_gaps: _MaybeCount
    inner_gaps: _MaybeCount

    def __len__(self) -> int:
        return len(self.index)

    @property
    def columns(self) -> dict[str, Int64]:
        """Each column by its name, in the stored order."""
        return {name: getattr(self, name) for name in BOUNDS}

    @property
    def sent(self) -> Bool:
        """Marks the requests that were sent, bool[requests]."""
        return self.sent_ns > 0

    def select(self, mask: Bool) -> Columns:
        """Select requests by a mask, bool[requests], without messages; self if all are selected."""
        return self if mask.all() else Columns(**{name: rows[mask] for name, rows in self.columns.items()})


# By the annotations' names: typing's get_type_hints takes 5 ms of every start.
BOUNDS: dict[str, tuple[int, int]] = {
    name: globals()[kind].__metadata__[0] for name, kind in Columns.__annotations__.items()
}
# Not in older files.
LATER = (
    "server_queue_ns", "server_ttft_ns", "impossible_stamps", "http_status", "text_tokens", "visible_ns",
    "server_prompt_tokens", "server_cached_tokens", "server_output_tokens", "server_prefill_ns",
    "server_decode_ns", "out_of_order", "retransmitted", "text_ns", "hidden_tokens", "thought_tokens",
    "word_gaps", "inner_gaps",
)  # fmt: skip
_LOWEST = np.array([low for low, _ in BOUNDS.values()], np.int64)[:, None]
_HIGHEST = np.array([high for _, high in BOUNDS.values()], np.int64)[:, None]


def check_columns(columns: Mapping[str, Int64], start: Int64, arrival_ns: Int64, tokens: Int64) -> None:
    """Raise ValueError unless these columns can be a run's: int64, equally long, in order, within bounds."""
    requests = _check_length("index", columns["index"])
    for name in BOUNDS:
        if _check_length(name, columns[name]) != requests:
            raise ValueError(f"column {name} has {len(columns[name])} values for {requests} requests")
    for first in range(0, max(requests, 1), _ROWS):
        table = np.stack([columns[name][first : first + _ROWS] for name in BOUNDS])
        if (beyond := ((table < _LOWEST) | (table > _HIGHEST)).any(axis=1)).any():
            name = list(BOUNDS)[int(beyond.argmax())]
            raise ValueError(f"column {name} holds values beyond {BOUNDS[name][0]} to {BOUNDS[name][1]}")
    if (np.diff(columns["index"]) <= 0).any():
        raise ValueError("column index is not in order, or names a request twice")
    messages = _check_length("arrival_ns", arrival_ns)
    if _check_length("tokens", tokens) != messages:
        raise ValueError(f"column tokens has {len(tokens)} values for {messages} arrivals")
    _check_start(start, requests, messages)
    for name, values, (low, high) in (
        ("arrival_ns", arrival_ns, BOUNDS["end_ns"]),
        ("tokens", tokens, BOUNDS["reads"]),
    ):
        for block in split_blocks(values):
            release_pages(values)
            if len(block) and (int(block.min()) < low or int(block.max()) > high):
                raise ValueError(f"column {name} holds values beyond {low} to {high}")


def _check_length(name: str, column: NDArray[Any]) -> int:
    if column.dtype != np.int64 or column.ndim != 1:
        raise ValueError(f"column {name} is {column.ndim}-dimensional {column.dtype}, not a row of int64")
    return len(column)


def _check_start(start: Int64, requests: int, messages: int) -> None:
    if _check_length("start", start) != requests + 1:
        raise ValueError(f"column start has {len(start)} values for {requests} requests")
    inside = ((start >= 0) & (start <= messages)).all()
    if start[0] != 0 or start[-1] != messages or not inside or (np.diff(start) < 0).any():
        raise ValueError(f"column start does not share {messages} messages out among the requests")


class Words:
    """A set of strings, each stored once as UTF-8 and referred to by its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number_words(self, words: Sequence[str]) -> Int64:
        """Return the number of each word, int64[words], adding new words to the set."""
        number_of = self._numbers
        return np.fromiter(
            (number_of.setdefault(word, len(number_of)) for word in words), np.int64, len(words)
        )

    def pack(self) -> tuple[NDArray[np.uint8], Int64]:
        """Join the distinct strings as bytes; also return where each begins, and the end of the last."""
        parts = [encode_text(word) for word in self._numbers]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.frombuffer(b"".join(parts), np.uint8), np.concatenate([[0], np.cumsum(lengths)])


def unpack_words(stored: NDArray[np.uint8], start: Int64) -> list[str]:
    """Split what `Words.pack` returned into its strings; raises ValueError for anything else."""
    if stored.dtype != np.uint8 or stored.ndim != 1:
        raise ValueError("column words is not a row of bytes")
    if not _check_length("word_start", start):
        raise ValueError("column word_start is empty")
    _check_start(start, len(start) - 1, len(stored))
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
