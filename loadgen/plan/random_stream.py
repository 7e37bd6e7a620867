"""Random stream: independent streams of random numbers, each known by its name."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

Purpose = Literal["measure", "warmup", "when"]


class RandomStream(msgspec.Struct, frozen=True):
    """The name of one independent stream of random numbers.

    Two streams that differ in any field have nothing in common, so a repeat, another profile, another
    attempt at the same run or the warm-up never meets prompts that the server has in its prefix cache. The
    same name gives the same numbers in every process: the key is a hash of the fields (blake2b, not
    Python's salted `hash`).
    """

    seed: int
    profile: str = ""
    repeat: int = 0
    purpose: Purpose = "measure"
    attempt: int = 0

    def rng(self, part: str, index: int = 0) -> np.random.Generator:
        """Make a fresh generator for one part of this stream and its piece `index`, at its start."""
        return np.random.default_rng(np.random.SeedSequence(self.key(part), spawn_key=(index,)))

    def key(self, part: str) -> int:
        """Return the 128-bit key of one part of this stream."""
        # The first attempt is not in the name, so that its numbers are those of a run without attempts.
        again = [self.attempt] if self.attempt else []
        name = msgspec.json.encode([str(self.seed), self.profile, self.repeat, self.purpose, part, *again])
        return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")


def make_arrival_rng(stream: RandomStream) -> np.random.Generator:
    """Make the generator of arrival times, independent of the one of content."""
    return replace(stream, purpose="when").rng("gaps")
