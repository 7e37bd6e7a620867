"""Poll pacing: with many streams, a short sleep between two polls, so that each finds several reads."""

from __future__ import annotations

_SHARE = 50  # of the mean gap between a stream's reads: a rest makes few of them meet, and none late by much
ENOUGH = 8  # reads: fewer are not worth a rest's two switches between processes
_SHORTEST_S, _LONGEST_S = 0.00005, 0.0002  # the kernel wakes a sleeper up to 50 µs late


class PollPacing:
    """How long to sleep between two polls, learnt from the streams; not at all where few are open.

    What arrives meanwhile has the kernel's timestamp. Where the kernel gives none, there is no pause; nor
    after a poll that found ENOUGH reads: no pause while the loop is behind.
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
