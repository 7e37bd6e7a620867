"""Live totals: the counts of a run while it goes on, for other processes to read."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import astuple

from loadgen.errors import UsageError

_BYTES = 4096
_BEATS = 0  # its place; the totals follow


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
    cancelled: int = 0  # as the workload asked; they neither failed nor succeeded

    @classmethod
    def joined(cls, several: Iterable[Totals]) -> Totals:
        """The totals of several processes."""
        return cls(*map(sum, zip(*map(astuple, (cls(), *several)), strict=True)))


_LAYOUT = struct.Struct(f"={len(Totals.__struct_fields__)}q")


class LiveTotals:
    """Totals that one process publishes a few times a second and others read; what they read may be torn.

    Without a `path` they are in memory, which what is forked from here shares. With one they are in that
    file, made where there is none. Raises OSError where that cannot be.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._map = mmap.mmap(-1, _BYTES)
            return
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, _BYTES)
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)

    def publish(self, totals: Totals) -> None:
        """Publish the totals as they are now."""
        _LAYOUT.pack_into(self._map, 8, *astuple(totals))
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
        return Totals(*_LAYOUT.unpack_from(self._map, 8))


def opened(path: str | None) -> LiveTotals | None:
    """Those in the file of --live-totals, None without; raises UsageError where it cannot be written."""
    try:
        return None if path is None else LiveTotals(Path(path))
    except OSError as error:
        why = f"cannot write {path}: {error.strerror or error}"
        raise UsageError(f"--live-totals: {why}; choose another file") from None
