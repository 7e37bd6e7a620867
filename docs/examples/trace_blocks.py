"""Content of a trace's blocks as docs/traces.md has it: the token ids that a hash id and a seed make."""

import hashlib
import json
from collections.abc import Sequence

WORD, GOLDEN = 2**64, 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """The finalizer of SplitMix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def block(hash_id: int, seed: int, tokens: int, allowed: Sequence[int]) -> list[int]:
    """The first tokens of SplitMix64 from a state that id and seed make; `allowed` are the token ids."""
    state = mix((hash_id + mix((seed + GOLDEN) % WORD)) % WORD)
    outputs = [mix((state + (j + 1) * GOLDEN) % WORD) for j in range(tokens)]
    return [allowed[(x >> 32) * len(allowed) >> 32] for x in outputs]


def block_seed(seed: int, profile: str = "", repeat: int = 0) -> int:
    """The seed of a run's blocks, from its --seed, its profile's name and the number of the repeat."""
    name = json.dumps(
        [str(seed), profile, repeat, "measure", "blocks"], ensure_ascii=False, separators=(",", ":")
    )
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little") % WORD
