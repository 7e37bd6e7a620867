"""Answer time: what a server spent on one control request, apart from its connection's round trips."""

from __future__ import annotations

import asyncio
import math

import msgspec

from loadgen.transport.network import Informed, read_losses

# Linux sends ten segments before the first acknowledgement, then twice as many in each round trip
# (RFC 6928; 1448 bytes are Ethernet's 1500 less IP, TCP and its timestamps).
_WINDOW_BYTES = 10 * 1448
_HANDSHAKE_ROUNDS = {"TLSv1.2": 2}  # of others one at least


class AnswerTime(msgspec.Struct, frozen=True):
    """The time of one answer in two parts, and the round trips in each; of several answers, the least.

    Where the round trip is not known it is 0, and the first part has the connection's making too.
    """

    first_s: float  # until the first byte
    rest_s: float = 0.0  # from then to the last
    rtt_s: float = 0.0
    first_rounds: int = 1
    rest_rounds: int = 0

    @property
    def server_s(self) -> float:
        """The most that the server can have spent, in seconds."""
        first_s = self.first_s - self.first_rounds * self.rtt_s
        return max(0.0, first_s) + max(0.0, self.rest_s - self.rest_rounds * self.rtt_s)

    @property
    def on_way_s(self) -> float:
        """The seconds that its end was here after it was written, as far as the network took them."""
        return self.rtt_s / 2 + min(self.rest_s, self.rest_rounds * self.rtt_s)

    def merge(self, other: AnswerTime) -> AnswerTime:
        """Return the least of two answers' parts; an answer without a round trip yields to one with it."""
        if (self.rtt_s > 0) != (other.rtt_s > 0):
            return self if self.rtt_s > 0 else other
        return AnswerTime(
            *(min(getattr(self, each), getattr(other, each)) for each in self.__struct_fields__)
        )


class AnswerWatch:
    """Notes when a request's connection and its answer come; made as the request begins."""

    def __init__(self) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._began_s = self._first_s = self._now_s()
        self._rtt_ns, self._rounds = 0, 1
        self.time: AnswerTime | None = None  # once the answer is whole

    def note_connected(self, sock: Informed | None) -> None:
        """Note that a socket is connected: the server's part begins, if the round trip is known by now.

        By now it is the kernels' alone: a later one may have waited for the server.
        """
        if (rtt_ns := read_losses(sock).rtt_ns) > 0:
            self._began_s, self._rtt_ns = self._now_s(), rtt_ns

    def note_tls(self, version: str | None) -> None:
        """Note a TLS handshake, which the server spends time on too."""
        self._rounds += _HANDSHAKE_ROUNDS.get(version or "", 1)

    def note_first(self, sock: Informed | None) -> None:
        """Note the answer's first byte; the socket's least round trip may be less by now."""
        self._first_s = self._now_s()
        if self._rtt_ns and 0 < (rtt_ns := read_losses(sock).rtt_ns) < self._rtt_ns:
            self._rtt_ns = rtt_ns

    def note_last(self, size: int) -> None:
        """Note that the answer is whole, of `size` bytes on the way."""
        rest_s = self._now_s() - self._first_s
        rest_rounds = max(0, math.ceil(math.log2(size / _WINDOW_BYTES + 1)) - 1)
        first_s = self._first_s - self._began_s
        self.time = AnswerTime(first_s, rest_s, self._rtt_ns / 1e9, self._rounds, rest_rounds)
