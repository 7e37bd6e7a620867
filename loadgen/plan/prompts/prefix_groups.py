"""Prefix groups: which of a few shared prefixes each prompt begins with, and what a cache gains by it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.plan.streams import RandomStream

P = TypeVar("P")
_MOST_KEPT = 256  # prefixes in memory


class PrefixGroups(Generic[P]):
    """The shared prefixes of a plan: `of`, int64[requests], says which one each prompt begins with.

    With `zipf` 0 every prefix has the same number of prompts, give or take one, in random order; else
    prefix g = 0, 1, … has a prompt with probability ∝ (g + 1)^−zipf. `make` makes a prefix from its own
    generator: one that is alone is the same as without groups.
    """

    def __init__(
        self, n: int, groups: int, zipf: float, stream: RandomStream, make: Callable[[np.random.Generator], P]
    ) -> None:
        self.groups = groups
        self.of = _assigned(n, groups, zipf, stream)
        self._stream, self._make = stream, make
        self._made: dict[int, P] = {}

    def prefix(self, i: int) -> P:
        """The prefix of prompt i."""
        group = int(self.of[i])
        if group not in self._made:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            self._made[group] = self._make(self._stream.rng("prefix", group))
        return self._made[group]

    def reusable(self, prefix_len: int) -> int:
        """Tokens of prefixes that an earlier prompt begins with too: all but the first of each group.

        An engine caches whole blocks, as vLLM of 16 tokens: its hits are so much fewer.
        """
        begun = 1 if self.groups == 1 else len(np.unique(self.of))
        return prefix_len * max(0, len(self.of) - begun)

    def digest(self, prompts: str) -> str:
        """A fingerprint of the prompts' own and of who shares what; that itself where all share one."""
        if self.groups == 1:
            return prompts
        return hashlib.blake2b(prompts.encode() + self.of.astype("<i8").tobytes(), digest_size=16).hexdigest()


def _assigned(n: int, groups: int, zipf: float, stream: RandomStream) -> Int64:
    """The group of each prompt, int64[n]."""
    if groups == 1:
        return np.broadcast_to(np.int64(0), n)  # takes no memory
    rng = stream.rng("groups")
    if zipf == 0:
        return rng.permutation(n) % groups
    shares = np.cumsum(np.arange(1, groups + 1, dtype=np.float64) ** -zipf)
    return np.searchsorted(shares / shares[-1], rng.random(n), side="right").astype(np.int64)
