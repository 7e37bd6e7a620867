"""Rest: with many streams, the time in which the epoll is left alone, so that a look at it finds several."""

from __future__ import annotations

_SHARE = 50  # of the mean gap between a stream's reads: a rest makes few of them meet, and none late by much
ENOUGH = 8  # reads: fewer are not worth a rest's two switches between processes
_SHORTEST_S, _LONGEST_S = 0.00005, 0.0002  # the kernel wakes a sleeper up to 50 µs late


class Rest:
    """How long to rest between two looks, learnt from the streams; not at all where few are open.

    What arrives meanwhile has the kernel's stamp. Where the kernel gives none, to rest is forbidden. After a
    look that found ENOUGH there is none either: who is late must not rest.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.forbidden = False
        self._reads = self._at_ns = 0

    def learn(self, streams: int, reads: int, now_ns: int) -> None:
        """From the streams under way and all reads so far; called a few times a second."""
        gathered = streams / _SHARE  # reads, in the rest that this is about to choose
        added, passed_s = reads - self._reads, (now_ns - self._at_ns) / 1e9
        self._reads, self._at_ns = reads, now_ns
        worthwhile = gathered >= ENOUGH and added > 0 and not self.forbidden
        rest_s = gathered * passed_s / added if worthwhile else 0.0
        self.seconds = min(rest_s, _LONGEST_S) if rest_s >= _SHORTEST_S else 0.0
