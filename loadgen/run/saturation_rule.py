"""Saturation rule: an open loop ends once the server falls further and further behind its rate."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64

# A request's place in the plan, when it was sent, and when its first token came (ns).
BegunRequest = tuple[int, int, int]
LEAST = 40  # requests that have ended before anything is judged
_LEAST_JUDGED = 24  # of them in the window
_WINDOW = 2 / 3  # of the time in which they were sent: the first third may be a cold start
_TREND_Z = 5.0
_BLOCKS = 8
_LAG_T = 3.25
_LEAST_LAG = 0.1  # of the planned time between requests; and of the window, by which TTFT rises
_FLIGHT_SIGMAS = 2.0  # of a Poisson count, by which the requests in flight have risen
_PAIRED = 256  # requests of which each pair is compared
_HELD = 2048  # requests that are kept: of more, an even part
_EVERY_S = 0.5


class SaturationRule(msgspec.Struct):
    """Decides from an open loop's ended requests whether the server is saturated at the planned rate.

    Three signs must hold at once, each of which a healthy server shows too at times:

    * TTFT rises, by the trend test of Mann and Kendall over the requests in order of sending, and by a tenth
      of the window's length. It also rises in a burst.
    * Requests in flight rise by two standard deviations, as they do until the first answers end, and in a
      burst.
    * First tokens come over a tenth more slowly than the plan's rate sends requests, in successive blocks so
      evenly that Student's t of their lags shows it. A server that is catching up after a burst is faster
      than the plan; one that is idle may get fewer requests than planned, but then TTFT does not rise.
    """

    rate_per_s: float
    _begun: list[BegunRequest] = []
    _every: int = 1  # of the plan's requests that are kept
    _times_s: list[float] = []  # at which requests in flight were counted
    _flights: list[int] = []
    _judged_s: float = -math.inf

    def note_several(self, several: Iterable[BegunRequest]) -> None:
        """Keep ended requests that had a first token; of more than 2048, those of every 2nd, 4th, … index."""
        self._begun += [begun for begun in several if not begun[0] % self._every]
        while len(self._begun) > _HELD:
            self._every *= 2
            self._begun = [begun for begun in self._begun if not begun[0] % self._every]

    def reason(self, elapsed_s: float, in_flight: int) -> str:
        """Explain with figures that the server is saturated; "" if that is not shown, or not judged now.

        It is judged every 0.5 s at most, once 40 requests are kept; each time the number in flight is kept.
        `elapsed_s` is since the first request could be sent.
        """
        if elapsed_s - self._judged_s < _EVERY_S:
            return ""
        self._judged_s = elapsed_s
        self._times_s.append(elapsed_s)
        self._flights.append(in_flight)
        return self._judge(in_flight) if len(self._begun) >= LEAST else ""

    def _judge(self, in_flight: int) -> str:
        """Explain with figures that all three signs hold over the last two thirds of the sending.

        "" if one does not, or fewer than 24 requests were sent then.
        """
        rows = np.array(sorted(self._begun), np.int64)
        first_sent_ns, last_sent_ns = int(rows[0, 1]), int(rows[-1, 1])
        window_ns = int(_WINDOW * (last_sent_ns - first_sent_ns))
        index, sent_ns, first_ns = rows[rows[:, 1] >= last_sent_ns - window_ns].T
        if len(index) < _LEAST_JUDGED:
            return ""
        ttft_ns, block = first_ns - sent_ns, len(index) // _BLOCKS
        before_s, after_s = (float(np.median(part)) / 1e9 for part in (ttft_ns[:block], ttft_ns[-block:]))
        place = bisect_left(self._times_s, (int(sent_ns[0]) - first_sent_ns) / 1e9)
        before = self._flights[min(place, len(self._flights) - 1)]  # by the first count after that time
        share = measure_paces(index, first_ns) * self.rate_per_s
        lag = float(share.mean()) - 1
        shown = (
            in_flight - before > _FLIGHT_SIGMAS * math.sqrt(in_flight)
            and after_s - before_s > _LEAST_LAG * window_ns / 1e9
            and lag > _LEAST_LAG
            and lag * math.sqrt(_BLOCKS) > _LAG_T * float(share.std(ddof=1))
            and trend_z(ttft_ns) > _TREND_Z
        )
        if not shown:
            return ""
        return (
            f"TTFT rose from {before_s:.2f} to {after_s:.2f} s and requests in flight from {before} to "
            f"{in_flight}; first tokens came at {100 / (1 + lag):.0f} % of the rate of {self.rate_per_s:g} "
            "requests/s"
        )


def measure_paces(index: Int64, first_ns: Int64) -> Float64:
    """Compute the mean seconds between first tokens, float64[8], in each of 8 blocks of successive requests.

    It is the time from a block's first request to the next block's by their distance in the plan: requests
    between that have not ended count too.
    """
    edges = np.linspace(0, len(index) - 1, _BLOCKS + 1).astype(np.int64)
    paces_s: Float64 = np.diff(first_ns[edges]) / 1e9 / np.diff(index[edges])
    return paces_s


def trend_z(values: Int64) -> float:
    """Return Mann and Kendall's S of a series in standard deviations: 0 without a trend, > 0 if it rises.

    Of a series over 256 values an even part is compared.
    """
    some = values[:: math.ceil(len(values) / _PAIRED)]
    n = len(some)
    earlier, later = np.triu_indices(n, 1)
    rises = float(np.sign(some[later] - some[earlier]).sum())
    return rises / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
