"""Block hashes: numbers that are equal where lists of blocks are, and the size of a server's block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64

SERVER_BLOCK = 16  # tokens of vLLM's blocks on GPUs; SGLang's pages are of one token


def mix_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood 2014) to each word, in place."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58_476D_1CE4_E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D0_49BB_1331_11EB)
    words ^= words >> np.uint64(31)
    return words


def chain_hashes(before: Int64, ids: Int64) -> Int64:
    """Return the hashes of lists of ids from those of the lists without their last id, and these ids."""
    return mix_words(before.view(np.uint64) + mix_words(ids.astype(np.int64).view(np.uint64))).view(np.int64)
