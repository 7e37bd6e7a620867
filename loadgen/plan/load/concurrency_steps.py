"""Concurrency steps: how many requests a closed loop may have in flight, as that changes over time."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Int64


class ConcurrencySteps(msgspec.Struct, frozen=True):
    """A limit that holds from one time after the start to the next; the first time is 0.

    `from_ns` is int64[steps], ascending; `limits` int64[steps], each at least 1, in a part of it at
    least 0. The last one holds on.
    """

    from_ns: Int64
    limits: Int64

    @property
    def most(self) -> int:
        """The highest limit."""
        return int(self.limits.max())

    @property
    def opens_ns(self) -> int:
        """How long after the start the limit is first above 0; 0 where it never is."""
        return int(self.from_ns[np.argmax(self.limits > 0)])

    def limit(self, elapsed_ns: int) -> int:
        """The limit at a time after the start; what is before the start has the first one."""
        return int(self.limits[max(int(np.searchsorted(self.from_ns, elapsed_ns, "right")) - 1, 0)])

    def part(self, number: int, of: int) -> ConcurrencySteps:
        """What one of `of` processes, counted from 0, has of it; at each time their sum is the limit."""
        return ConcurrencySteps(self.from_ns, np.maximum(self.limits - number + of - 1, 0) // of)

    def next_ns(self, elapsed_ns: int) -> int:
        """When it changes next, after the start; -1: never again."""
        at = int(np.searchsorted(self.from_ns, elapsed_ns, "right"))
        return int(self.from_ns[at]) if at < len(self.from_ns) else -1
