"""Cancellations: which requests of a plan the client gives up on purpose, and when."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.plan.streams import RandomStream
from loadgen.settings.cancel_point import CancelPoint


class Cancellations(msgspec.Struct, frozen=True):
    """The requests of a plan that are to be given up, bool[requests], and when each is."""

    chosen: NDArray[np.bool_]
    point: CancelPoint

    @property
    def count(self) -> int:
        """How many there are."""
        return int(np.count_nonzero(self.chosen))


def drawn(rate: float, point: CancelPoint, stream: RandomStream, count: int) -> Cancellations:
    """A share of a plan's requests, each drawn apart from its content and its time.

    A longer plan from the same stream has the same requests cancelled, and more.
    """
    return Cancellations(stream.rng("cancelled").random(count) < rate, point)
