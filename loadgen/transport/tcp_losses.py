"""TCP losses: the kernel's counts of segments that came out of order or were sent again."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Protocol

UNKNOWN = -1  # this kernel does not report it
_TCP_INFO: int = getattr(socket, "TCP_INFO", 0)
_BYTES = 256  # struct tcp_info grows: an older kernel fills less of it
_COUNT = struct.Struct("=I")
# Where Linux has these; the last two from 5.4 on.
_TOTAL_RETRANS, _MIN_RTT, _DSACK_DUPS, _RCV_OOOPACK = 100, 148, 216, 224
_NO_RTT = (1 << 32) - 1  # of a connection without one yet


class Informed(Protocol):
    """A socket that can be asked for a structure."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


class Losses(NamedTuple):
    """Counts of a connection since it was dialed, or of one answer."""

    out_of_order: int = (
        UNKNOWN  # segments that came before one that was sent earlier: that was lost, or slower
    )
    retransmitted: int = UNKNOWN  # segments of ours that were sent again because they were lost

    def subtract(self, before: Losses) -> Losses:
        """Subtract an earlier count of the same connection."""
        return Losses(
            *(
                UNKNOWN if now < 0 else max(now - max(then, 0), 0)
                for now, then in zip(self, before, strict=True)
            )
        )


UNKNOWN_LOSSES = Losses()


def read_losses(sock: Informed | None) -> Losses:
    """Read the counts of a connection's socket; unknown where it is closed, or the kernel has none."""
    info = b"" if sock is None or not _TCP_INFO else _read_info(sock, _BYTES)
    again = _read_count(info, _TOTAL_RETRANS)
    # The receiver reports what it has twice: that was not lost, only acknowledged late. A server that reads a
    # long request slowly gets such probes on loopback too.
    needless = max(_read_count(info, _DSACK_DUPS), 0)
    return Losses(_read_count(info, _RCV_OOOPACK), UNKNOWN if again < 0 else max(again - needless, 0))


def read_least_rtt_ns(sock: Informed) -> int:
    """The shortest time that an acknowledgement of the peer's took; 0 where the kernel reports none."""
    rtt_us = _read_count(_read_info(sock, _MIN_RTT + _COUNT.size), _MIN_RTT)
    return rtt_us * 1000 if 0 <= rtt_us < _NO_RTT else 0


def _read_info(sock: Informed, most_bytes: int) -> bytes:
    """The kernel's report on a connection; empty where it is closed."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, most_bytes)
    except (OSError, ValueError):
        return b""


def _read_count(info: bytes, at: int) -> int:
    if len(info) < at + _COUNT.size:
        return UNKNOWN
    (count,) = _COUNT.unpack_from(info, at)
    return int(count)
