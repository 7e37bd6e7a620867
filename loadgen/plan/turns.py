"""Turns: requests of a plan that are sent one after another, each after the answer to the one before."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.features.sessions.session_settings import NO_DELAYS, RECORDED_DELAYS


class Turns(msgspec.Struct, frozen=True):
    """Which requests of a plan are the turns of which session, and how long each waits; in nanoseconds.

    `begins` is int64[sessions + 1]: the plan index of each session's first turn, and then the number of
    requests: the turns of a session follow one another. `delays_ns` is int64[requests]: the pause before each
    turn, counted from the end of the answer before it; 0 of a first turn.
    """

    begins: Int64
    delays_ns: Int64

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self.begins) - 1

    @property
    def counts(self) -> Int64:
        """The turns of each session, int64[sessions]."""
        return np.diff(self.begins)

    def numbers(self) -> Int64:
        """The session of each request, int64[requests]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    def end(self, session: int) -> int:
        """The plan index after that of a session's last turn."""
        return int(self.begins[session + 1])

    def first(self, sessions: int) -> Turns:
        """The first of the sessions, as many as are asked for."""
        begins = self.begins[: sessions + 1]
        return Turns(begins, self.delays_ns[: begins[-1]])

    def scaled(self, delays: str) -> Turns:
        """With the delays as a profile has them: `recorded`, `none`, or a factor on the recorded ones."""
        if delays == RECORDED_DELAYS:
            return self
        factor = 0.0 if delays == NO_DELAYS else float(delays)
        return Turns(self.begins, np.rint(self.delays_ns * factor).astype(np.int64))


def of_counts(counts: Int64, delays_ns: Int64) -> Turns:
    """The turns of sessions; `counts`, int64[sessions], is the number of turns of each, at least 1."""
    return Turns(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), delays_ns)
