"""vLLM's order: which rows of a file `vllm bench serve` sends, in which order, and which of them again."""

from __future__ import annotations

import random

import numpy as np

from loadgen.base.arrays import Int64


def shuffled(rows: int, seed: int, disable_shuffle: bool) -> list[int]:
    """The rows in the order in which vLLM meets them: that of `random.Random(seed).shuffle`."""
    order = list(range(rows))
    if not disable_shuffle:
        random.Random(seed).shuffle(order)
    return order


def oversampled(kept: int, most: int | None, seed: int, no_oversample: bool) -> Int64:
    """Which of the kept rows each request sends: int64[requests].

    Each once, then as many as are missing of `most`, drawn by `random.Random(seed).choice`.
    """
    missing = 0 if most is None or no_oversample else max(most - kept, 0)
    again = random.Random(seed)
    return np.array([*range(kept), *(again.choice(range(kept)) for _ in range(missing))], np.int64)
