"""Blocks: the content of a trace's hashed blocks, a function of each hash and a seed alone.

A block with the hash `id` is the first tokens of the generator SplitMix64 (Steele, Lea, Flood 2014) that
starts at the state `mix(id + mix(seed + G))`, in arithmetic modulo 2⁶⁴, with G = 0x9E3779B97F4A7C15 and
SplitMix64's finaliser `mix`. Token j of it is `allowed[(x >> 32) × len(allowed) >> 32]` of the generator's
output x = mix(state + (j + 1) × G). So equal hashes are equal tokens and a shared list of leading hashes is
a shared prefix, in every process and on every machine, and a block that is cut is the begin of the whole.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64

_UInt64 = NDArray[np.uint64]
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_WORD = 2**64


def block_ids(ids: Int64, seed: int, block: int, allowed: Int64) -> Int64:
    """The tokens of the blocks with these hashes, one after the other: int64[len(ids) × block].

    `seed` counts modulo 2⁶⁴; `allowed` are the token ids to choose from, fewer than 2³² of them.
    """
    tokens: Int64 = allowed[block_places(ids, seed, block, len(allowed))]
    return tokens


def block_places(ids: Int64, seed: int, block: int, count: int) -> Int64:
    """The same tokens as places among `count` allowed ids."""
    start = np.array([(seed + _GOLDEN) % _WORD], np.uint64)
    states = _mixed(ids.astype(np.int64).view(np.uint64) + _mixed(start))
    steps = np.arange(1, block + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    places = _mixed((states[:, None] + steps).ravel())
    places >>= np.uint64(32)
    places *= np.uint64(count)
    places >>= np.uint64(32)
    return places.view(np.int64)


def scoped(ids: Int64, scope: int) -> Int64:
    """Hashes that mean the same only within a scope, made different between scopes: as many."""
    begin = _mixed(np.array([(scope + _GOLDEN) % _WORD], np.uint64))
    return _mixed(ids.astype(np.int64).view(np.uint64) + begin).view(np.int64)


def chained(before: Int64, ids: Int64) -> Int64:
    """For lists of hashes, a hash of each list that ends in `ids` from those of the lists without them."""
    return _mixed(before.view(np.uint64) + _mixed(ids.astype(np.int64).view(np.uint64))).view(np.int64)


class BlockContent(msgspec.Struct, frozen=True):
    """What the prompts of a trace hold: of hashed blocks, and of tokens that no hash covers."""

    block: int  # tokens that a hash stands for; 0: there are no hashes
    seed: int  # of the hashed blocks
    own_seed: int  # of what a request shares with no other
    allowed: Int64  # token ids

    def digest(self) -> bytes:
        """A hash of all that the content of blocks follows from."""
        named = f"{self.block} {self.seed} {self.own_seed} ".encode()
        return hashlib.blake2b(named + self.allowed.astype("<i8").tobytes(), digest_size=16).digest()

    def prompt(self, ids: Int64, length: int, row: int) -> Int64:
        """The prompt of a row of the trace, int64[length]: its blocks, cut."""
        tokens: Int64 = self.allowed[self.places(ids, length, row)]
        return tokens

    def places(self, ids: Int64, length: int, row: int) -> Int64:
        """The same prompt as places in `allowed`.

        What its hashes do not cover is content of this row alone, as if a last block had the row's number
        for a hash under `own_seed`.
        """
        needed, count = -(-length // self.block) if self.block else 0, len(self.allowed)
        places = block_places(ids[:needed], self.seed, self.block, count)[:length]
        if len(places) == length:
            return places
        own = block_places(np.array([row]), self.own_seed, length - len(places), count)
        return np.concatenate([places, own])


class IdTexts:
    """Prompts of token ids as JSON, a tenth of a list's time: each id's text is made once.

    Texts are as long as that of the greatest id, blanks before those that are shorter.
    """

    def __init__(self, allowed: Int64) -> None:
        powers = 10 ** np.arange(len(str(int(allowed.max()))), dtype=np.int64)[::-1]
        digits = (allowed[:, None] // powers % 10 + ord("0")).astype(np.uint8)
        digits[(allowed[:, None] < powers) & (powers > 1)] = ord(" ")
        commas = np.full((len(allowed), 1), ord(","), np.uint8)
        texts = np.ascontiguousarray(np.hstack([digits, commas]))
        self._texts = texts.view(f"V{texts.shape[1]}").ravel()

    def prompt(self, places: Int64) -> msgspec.Raw:
        """The JSON of the ids at these places."""
        return msgspec.Raw(b"[" + self._texts.take(places).tobytes()[:-1] + b"]")


def _mixed(words: _UInt64) -> _UInt64:
    """SplitMix64's finaliser of each word, a bijection; in place, as a prompt has thousands of them."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58_476D_1CE4_E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D0_49BB_1331_11EB)
    words ^= words >> np.uint64(31)
    return words
