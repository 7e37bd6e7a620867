"""Block hashes: numbers that are equal where lists of blocks are, and what a server's blocks save."""

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
    """Extend each list's hash, int64[lists], by the next id of the list, int64[lists]; return the hashes."""
    return mix_words(before.view(np.uint64) + mix_words(ids.astype(np.int64).view(np.uint64))).view(np.int64)


def find_savings(shared: Int64, input_lens: Int64) -> Int64:
    """Compute the tokens that a cache saves of prompts whose first `shared` tokens came in earlier ones.

    As vLLM's it has whole blocks of 16 tokens, and never a prompt's last token. int64[prompts], all three.
    """
    saved: Int64 = np.minimum(shared, np.maximum(input_lens - 1, 0)) // SERVER_BLOCK * SERVER_BLOCK
    return saved
