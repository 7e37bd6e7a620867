"""Made files: traces and data sets as large as a bar needs, the same each time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import numpy as np

BLOCK_TOKENS = 512  # of Mooncake's traces
_SEED = 20
_CONVERSATIONS = 5_000
_MOST_BLOCKS = 39  # 20 in the mean
_WORDS = ("what", "does", "the", "server", "do", "with", "a", "prompt", "that", "it", "has", "seen", "before")


def mooncake(
    path: Path, rows: int, rate_per_s: float, most_blocks: int = _MOST_BLOCKS, output_len: int = 128
) -> None:
    """A trace as Mooncake's: ms, blocks of 512 tokens, Poisson arrivals; each conversation shares its blocks.

    A row has 1 to `most_blocks` blocks, all equally likely, and as many `hash_ids`.
    """
    rng = np.random.default_rng(_SEED)
    due_ms = np.cumsum(rng.exponential(1e3 / rate_per_s, rows)).astype(np.int64)
    blocks = rng.integers(1, most_blocks + 1, rows)
    input_lens = BLOCK_TOKENS * blocks - rng.integers(0, BLOCK_TOKENS, rows)
    firsts = most_blocks * rng.integers(0, _CONVERSATIONS, rows)
    columns = (column.tolist() for column in (due_ms, input_lens, firsts, blocks))
    with path.open("w", encoding="ascii") as file:
        for due, length, first, count in zip(*columns, strict=True):
            ids = ", ".join(map(str, range(first, first + count)))
            file.write(
                f'{{"timestamp": {due}, "input_length": {length}, "output_length": {output_len}, '
                f'"hash_ids": [{ids}]}}\n'
            )


def bodies(path: Path, rows: int) -> None:
    """Whole chat bodies of about 300 bytes, no two alike."""
    head = '{"messages":[{"role":"system","content":"You answer in one sentence."},{"role":"user","content":"'
    tail = '"}],"temperature":0.7,"max_tokens":64}\n'
    _texts(path, rows, lambda number, text: f"{head}{number}: {text}{tail}")


def prompts(path: Path, rows: int) -> None:
    """Rows of vLLM's `custom` of about 200 bytes, no two alike."""
    _texts(path, rows, lambda number, text: f'{{"prompt": "{number}: {text}", "output_tokens": 64}}\n')


def _texts(path: Path, rows: int, row: Callable[[int, str], str]) -> None:
    """One row a line, each with its number and up to 40 words."""
    rng = np.random.default_rng(_SEED)
    words = " ".join(_WORDS[i] for i in rng.integers(0, len(_WORDS), 1000))
    begins = rng.integers(0, len(words) // 2, rows).tolist()
    with path.open("w", encoding="ascii") as file:
        file.writelines(
            map(row, range(rows), (words[at : at + length] for at, length in zip(begins, repeat(150))))
        )
