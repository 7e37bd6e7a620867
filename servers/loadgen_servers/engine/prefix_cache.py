"""The KV cache: the blocks of running sequences, and those of old prompts kept in the remaining room."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

# Some presets have unlimited KV; this process, at about 150 bytes a block, does not.
MOST_IDLE_BLOCKS = 1 << 18


def block_hashes(prompt: tuple[int, ...] | bytes, stride: int, salt: str = "") -> tuple[int, ...]:
    """The identities of a prompt's full blocks of `stride` items: each of its own items and all before it.

    Blocks of another salt are others.
    """
    hashes = []
    parent = hash(salt) if salt else 0
    # The hash is not cryptographic, as a simulation is not attacked: 64 bits for 0.2 µs a block of 16 ids.
    for end in range(stride, len(prompt) + 1, stride):
        parent = hash((parent, prompt[end - stride : end]))
        hashes.append(parent)
    return tuple(hashes)


@dataclass
class PrefixCache:
    """Counts KV in tokens; a prompt's full blocks are shared while held and found again when not.

    A block is held by the running sequences whose prompts begin with it and takes room once. When
    the last of them ends it is idle: still found, but evicted, least recently used first, when running
    sequences need the room. With `enabled` off nothing is counted, and prompts must come without blocks.
    """

    capacity_tokens: int
    block_size: int = 16
    enabled: bool = True
    in_use: int = 0  # tokens of running sequences; beyond the capacity only if they `grow`
    queried: int = 0  # prompt tokens looked up
    found: int = 0
    _holders: dict[int, int] = field(default_factory=dict)  # block → how many sequences hold it
    _idle: OrderedDict[int, None] = field(default_factory=OrderedDict)  # least recently used first

    def admit(self, blocks: tuple[int, ...], prefill_tokens: int, tokens: int) -> list[int] | None:
        """Reserve room for `tokens`; returns the blocks found, which need not be computed, None without room.

        At least the last of `prefill_tokens` is always left to compute, and so is the rest of its
        block: blocks are found whole, as in vLLM.
        """
        holders, idle = self._holders, self._idle
        hits: list[int] = []
        shared = 0
        for block in blocks[: (prefill_tokens - 1) // self.block_size]:
            if block in holders:
                shared += 1
            elif block not in idle:
                break
            hits.append(block)
        needed = tokens - shared * self.block_size
        if self.in_use + needed > self.capacity_tokens:
            return None
        for block in hits:
            idle.pop(block, None)
            holders[block] = holders.get(block, 0) + 1
        self.grow(needed)
        return hits

    def count(self, queried: int, found: int) -> None:
        """Count the lookup of an admitted prompt."""
        if self.enabled:
            self.queried += queried
            self.found += found

    def computed(self, blocks: tuple[int, ...]) -> list[int]:
        """Make computed blocks findable; returns those that the computing sequence now holds.

        If another sequence computed the same block meanwhile, its copy stays the one that is found.
        """
        fresh = [block for block in blocks if block not in self._holders]
        for block in fresh:
            self._idle.pop(block, None)
            self._holders[block] = 1
        return fresh

    def grow(self, tokens: int) -> None:
        """Take room for `tokens` more of running sequences; idle blocks are evicted for it."""
        self.in_use += tokens
        self._evict()

    def release(self, held: list[int], tokens: int) -> None:
        """Free a sequence's `tokens`; blocks that no other sequence holds stay until the room is needed."""
        holders, idle = self._holders, self._idle
        shared = 0
        for block in reversed(held):  # a prompt's end is of no use without its beginning: evicted first
            left = holders[block] - 1
            if left:
                holders[block] = left
                shared += 1
            else:
                del holders[block]
                idle[block] = None
        self.in_use -= tokens - shared * self.block_size
        self._evict()

    def reset(self) -> bool:
        """Drop all blocks; does nothing and returns False while sequences run."""
        if not self.in_use:
            self._idle.clear()
        return not self.in_use

    def _evict(self) -> None:
        room = max(0, self.capacity_tokens - self.in_use) // self.block_size
        excess = len(self._idle) - min(room, MOST_IDLE_BLOCKS)
        for _ in range(excess):
            self._idle.popitem(last=False)
