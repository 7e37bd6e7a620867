"""Time that passes only when it is waited for: what is due on it is done at its instant, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

START_NS = 1_000_000_000_000
WALL_OFFSET_NS = 1_700_000_000_000_000_000
NEVER_NS = 1 << 62


class VirtualTime:
    """Both clocks of a machine, and what is to happen on it."""

    def __init__(self, ns: int = START_NS, wall_offset_ns: int = WALL_OFFSET_NS) -> None:
        self.ns, self.wall_offset_ns = ns, wall_offset_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return self.ns

    def wall_ns(self) -> int:
        """CLOCK_REALTIME."""
        return self.ns + self.wall_offset_ns

    def after(self, delay_ns: int, do: Callable[[], None]) -> None:
        """Have something done so much later."""
        heapq.heappush(self._due, (self.ns + delay_ns, next(self._order), do))

    def step(self, until_ns: int = NEVER_NS) -> bool:
        """Jump to the next thing due and do it; False, at `until_ns`, where nothing is due by then."""
        if self._due and self._due[0][0] <= until_ns:
            at_ns, _, do = heapq.heappop(self._due)
            self.ns = max(self.ns, at_ns)
            do()
            return True
        if until_ns < NEVER_NS:
            self.ns = max(self.ns, until_ns)
        return False

    def pass_by(self, ns: int) -> None:
        """Let some time pass, and do all that is due in it."""
        until_ns = self.ns + ns
        while self.step(until_ns):
            pass

    def sleep(self, seconds: float) -> None:
        """As time.sleep."""
        self.pass_by(round(seconds * 1e9))
