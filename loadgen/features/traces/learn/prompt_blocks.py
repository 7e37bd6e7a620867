"""Prompt blocks: prompts as salted hashes of their blocks, and lengths in tokens as far as a log has them.

The hash of a block is BLAKE2b under a key that is the salt, over the hash of the block before it and the
block's own tokens or bytes, cut to 63 bits. Equal hashes are equal prompts up to the end of the block.
Without the salt nothing can be tried against them, and under another salt the same block has an unrelated
hash.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.features.traces.learn.calls import UNKNOWN, Call, CallEnd, Found
from loadgen.plan.tokenizers import Tokenizer

BLOCK = 16  # tokens: a server's prefix cache keeps no smaller ones
_USUAL_BYTES = 4.0  # of a token of text
_SAMPLED = 1000  # calls by which the bytes of a token are measured
_ID_BYTES = 4
_TEMPLATE_IDS = 8  # tokens that a chat's template may have after a prompt, and not before the next turn
_KEY_BYTES, _HASH_BYTES = 32, 8
_MASK = np.uint64(2**63 - 1)


class Salt:
    """The key of all hashes of one workload: made of a text, or drawn at random; it is never written."""

    def __init__(self, text: str | None = None) -> None:
        drawn = os.urandom(_KEY_BYTES) if text is None else text.encode()
        self._key = blake2b(drawn, digest_size=_KEY_BYTES).digest()

    def hash_blocks(self, data: bytes, width: int, count: int) -> Int64:
        """Hash the first `count` blocks of `width` bytes, each with all before it, int64[count]."""
        key, before, hashes = self._key, b"", bytearray()
        for at in range(0, count * width, width):
            before = blake2b(before + data[at : at + width], digest_size=_HASH_BYTES, key=key).digest()
            hashes += before
        return (np.frombuffer(bytes(hashes), "<u8") & _MASK).astype(np.int64)

    def hash_tail(self, before: int, tail: bytes) -> int:
        """Hash the bytes after the last whole block together with that block's hash, to 64 bits."""
        hashed = blake2b(
            before.to_bytes(_HASH_BYTES, "little") + tail, digest_size=_HASH_BYTES, key=self._key
        )
        return int.from_bytes(hashed.digest(), "little")

    def hash_name(self, kind: str, name: str) -> int:
        """Hash an id of one kind to 64 bits, never 0; equal ids of a kind have equal hashes."""
        named = f"{kind}\0{name}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(named, digest_size=_HASH_BYTES, key=self._key).digest(), "little") or 1


class Measured(msgspec.Struct, frozen=True):
    """What is kept of a call's prompt and answer: lengths in tokens, and the hashes of whole blocks."""

    input_len: int
    output_len: int  # UNKNOWN: neither its length, its text nor a limit is in the log
    blocks: Int64
    data: bytes = b""  # of the prompt, while it is measured
    width: int = 1  # bytes of a block
    slack: int = 0  # last bytes of a prompt that its next turn may not begin with


class PromptMeter:
    """Measures prompts and answers in tokens, and counts how each length was found."""

    def __init__(
        self, salt: Salt, tokenizer: Tokenizer | None, input_bytes: float, output_bytes: float
    ) -> None:
        self._salt, self._tokenizer = salt, tokenizer
        self._input_bytes, self._output_bytes = input_bytes, output_bytes  # of a token in a body
        self.text_bytes = _USUAL_BYTES  # of a token in a text
        self.prompts, self.answers = Counter[str](), Counter[str]()

    def learn_bytes(self, calls: Iterable[tuple[int, Found]]) -> Iterator[tuple[int, Found]]:
        """Yield all rows; set `text_bytes` by the first 1,000 of them before, if no tokenizer counts."""
        rows = iter(calls)
        first: list[tuple[int, Found]] = []
        size = tokens = 0
        if self._tokenizer is None:
            for row in rows:
                first.append(row)
                call = row[1]
                if isinstance(call, Call) and call.text is not None and call.input_len > 0:
                    size += len(call.text.encode("utf-8", "surrogatepass"))
                    tokens += call.input_len
                if len(first) >= _SAMPLED or size > 64 << 20:
                    break
        if tokens:
            self.text_bytes = max(size / tokens, 1 / BLOCK)
        yield from first
        yield from rows

    def measure(self, call: Call) -> Measured:
        """Measure a call's prompt and answer; `output_len` is UNKNOWN if only its end or limit tells it."""
        input_len, data, width, count = self._measure_prompt(call)
        output_len = UNKNOWN  # where only its end or its limit may tell
        if call.output_len != UNKNOWN:
            output_len = self._note(self.answers, "in the log", call.output_len)
        elif call.answer is not None:
            output_len = self._count_text(self.answers, call.answer)
        elif call.output_bytes != UNKNOWN:
            how = f"estimated, {self._output_bytes:g} bytes of a body a token"
            output_len = self._note(self.answers, how, math.ceil(call.output_bytes / self._output_bytes))
        return Measured(
            min(max(input_len, 1), parsing.MOST_TOKENS),
            output_len,
            self._salt.hash_blocks(data, width, count),
            data,
            width,
            0 if call.text is not None and self._tokenizer is None else _TEMPLATE_IDS * _ID_BYTES,
        )

    def measure_end(self, end: CallEnd, limit: int) -> int:
        """Return the tokens of an answer by what its end says; UNKNOWN if that says nothing."""
        if end.output_len != UNKNOWN:
            return self._note(self.answers, "in the log", end.output_len)
        if end.at_limit and limit != UNKNOWN:
            return self._note(self.answers, "in the log", limit)
        if end.answer is not None:
            return self._count_text(self.answers, end.answer)
        return UNKNOWN

    def _measure_prompt(self, call: Call) -> tuple[int, bytes, int, int]:
        """Return a prompt's tokens, its bytes, those of a block, and how many whole blocks are kept."""
        ids = call.ids
        if ids is None and call.text is not None and self._tokenizer is not None:
            ids = self._tokenizer.encode(call.text, add_special_tokens=False)
        data, width = b"", 1
        if ids is not None:
            data, width, tokens = np.array(ids, np.int64).astype("<i4").tobytes(), BLOCK * _ID_BYTES, len(ids)
            how = "in the log" if call.ids is not None else "by the tokenizer"
        elif call.text is not None:
            data, width = call.text.encode("utf-8", "surrogatepass"), max(1, round(BLOCK * self.text_bytes))
            tokens = math.ceil(len(data) / self.text_bytes)
            how = f"estimated, {self.text_bytes:.3g} bytes of text a token"
        else:
            tokens = math.ceil(max(call.input_bytes, 0) / self._input_bytes)
            how = f"estimated, {self._input_bytes:g} bytes of a body a token"
        if call.input_len != UNKNOWN:
            tokens, how = call.input_len, "in the log"
        self.prompts[how] += 1
        return tokens, data, width, min(len(data) // width, tokens // BLOCK)

    def _count_text(self, counted: Counter[str], text: str) -> int:
        """Return a text's tokens, estimated without a tokenizer, and count the way in `counted`."""
        if self._tokenizer is not None:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            return self._note(counted, "by the tokenizer", len(ids))
        how = f"estimated, {self.text_bytes:.3g} bytes of text a token"
        size = len(text.encode("utf-8", "surrogatepass"))
        return self._note(counted, how, math.ceil(size / self.text_bytes))

    @staticmethod
    def _note(counted: Counter[str], how: str, length: int) -> int:
        counted[how] += 1
        return length


def describe_counting(counted: Counter[str], total: int) -> str:
    """Describe how lengths were counted: the way if all one, else the count of each; "" if empty."""
    ways: list[Any] = counted.most_common()
    if len(ways) == 1 and ways[0][1] == total:
        return str(ways[0][0])
    return "; ".join(f"{count:,} {how}" for how, count in ways)
