"""Live totals: the counts of a run while it goes on, for other processes to read."""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import astuple

from loadgen.base.errors import UsageError
from loadgen.base.files import open_unlinked

_BYTES = 4096
_BEATS = 0  # its place; the totals follow
# TTFT is counted in bins of equal ratio, from 0.1 ms to an hour: a percentile is within 4 % at any time.
_BINS, _LEAST_NS = 256, 1e5
_BINS_PER_E = _BINS / math.log(3.6e12 / _LEAST_NS)
NO_TTFTS = (0,) * _BINS


def ttft_bin(ttft_ns: int) -> int:
    """The bin of a TTFT."""
    return min(max(int(math.log(max(ttft_ns, 1) / _LEAST_NS) * _BINS_PER_E), 0), _BINS - 1)


def ttft_percentile_ms(counts: Iterable[int], percent: float) -> float | None:
    """A percentile of the TTFTs in bins, as the middle of its bin (ms); None if empty."""
    bins = list(counts)
    wanted = sum(bins) * percent / 100
    for number, below in enumerate(accumulate(bins)):
        if below >= wanted > 0:
            return _LEAST_NS / 1e6 * math.exp((number + 0.5) / _BINS_PER_E)
    return None


class Totals(msgspec.Struct, frozen=True):
    """What has been counted of a run."""

    sent: int = 0
    ended: int = 0  # their responses are over
    reads: int = 0  # of these, and of what is under way
    decoded: int = 0  # of those that ended
    failed: int = 0  # of the decoded, as all that follows
    tokens: int = 0
    decoded_reads: int = 0
    ttft_sum_ns: int = 0
    ttft_count: int = 0
    cancelled: int = 0  # as the workload asked, or cut off; they neither failed nor succeeded
    ttft_counts: tuple[int, ...] = NO_TTFTS  # by bin

    @classmethod
    def joined(cls, several: Iterable[Totals]) -> Totals:
        """The totals of several processes."""
        flat = zip(*((*counts, *bins) for *counts, bins in map(astuple, (cls(), *several))), strict=True)
        return cls._of_flat(tuple(map(sum, flat)))

    @classmethod
    def _of_flat(cls, counts: tuple[int, ...]) -> Totals:
        fields: dict[str, Any] = dict(zip(cls.__struct_fields__, counts[:-_BINS], strict=False))
        return cls(**fields, ttft_counts=counts[-_BINS:])


_LAYOUT = struct.Struct(f"={len(Totals.__struct_fields__) - 1 + _BINS}q")


class LiveTotals:
    """Totals that one process publishes a few times a second and others read; what they read may be torn.

    Without a `path` they are in memory, which what is forked from here shares. With one they are in that
    file, made where there is none. Raises OSError where that cannot be.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._map = mmap.mmap(-1, _BYTES)
            return
        file = open_unlinked(path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(file, _BYTES)
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)

    def publish(self, totals: Totals) -> None:
        """Publish the totals as they are now."""
        *counts, bins = astuple(totals)
        _LAYOUT.pack_into(self._map, 8, *counts, *bins)
        self.beat()

    def beat(self) -> None:
        """Show that the process that publishes is not stopped."""
        self._map[_BEATS : _BEATS + 8] = (self.beats + 1).to_bytes(8, "little")

    @property
    def beats(self) -> int:
        """How often there was something published."""
        return int.from_bytes(self._map[_BEATS : _BEATS + 8], "little")

    def read(self) -> Totals:
        """The totals as they were published last."""
        return Totals._of_flat(_LAYOUT.unpack_from(self._map, 8))


def opened(path: str | None) -> LiveTotals | None:
    """Those in the file of --live-totals, None without; raises UsageError where it cannot be written."""
    try:
        return None if path is None else LiveTotals(Path(path))
    except OSError as error:
        why = f"cannot write {path}: {error.strerror or error}"
        raise UsageError(f"--live-totals: {why}; choose another file") from None
