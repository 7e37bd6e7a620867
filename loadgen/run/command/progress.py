"""Progress: the counts of a run under way, and what a person or another process sees of them."""

from __future__ import annotations

import errno
import math
import mmap
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import astuple

from loadgen.base import clock
from loadgen.base.errors import UsageError
from loadgen.base.files import open_refusing_link
from loadgen.base.printing import print_text
from loadgen.base.text import WIDTH
from loadgen.records.record import Record
from loadgen.transport.failure import NO_EVIDENCE

_BYTES = 4096
_BEATS = 0  # its place; the totals follow
# TTFT is counted in bins of equal ratio, from 0.1 ms to an hour: a percentile is within 4 % at any time.
_BINS, _LEAST_NS = 256, 1e5
_BINS_PER_E = _BINS / math.log(3.6e12 / _LEAST_NS)
NO_TTFTS = (0,) * _BINS


class SentCounters(Protocol):
    """Counts of requests sent and ended and of reads, of one capturing process or several."""

    @property
    def sent(self) -> int: ...

    @property
    def ended(self) -> int: ...

    @property
    def reads(self) -> int: ...


class Progress(msgspec.Struct):
    """The state of a run under way: requests by the counters, tokens and TTFT by what has been decoded."""

    title: str
    total: int | None  # None: only the sending time is limited
    counters: SentCounters
    duration_s: float | None = None  # for which requests are sent
    cut_after_s: float | None = None  # when those still under way are cut; None: never
    ending: str = ""  # why it is about to end before its plan
    max_concurrency: int | None = None
    schedule_s: float | None = None  # when the last request of a trace is due
    planned_tokens: int = 0  # of all answers; 0: unknown
    waiting: Callable[[], int | None] = lambda: None  # requests in the server's queue, where it reports it
    begin_ns: int = msgspec.field(default_factory=clock.now_ns)
    ended: int = 0
    failed: int = 0
    tokens: int = 0
    reads: int = 0
    ttft_sum_ns: int = 0
    ttft_count: int = 0
    cancelled: int = 0  # as planned, or cut off
    ttft_counts: list[int] = msgspec.field(default_factory=lambda: list(NO_TTFTS))

    def note(self, record: Record) -> None:
        """Count a decoded record, its tokens, reads and TTFT; one cancelled or cut off is no failure."""
        self.ended += 1
        cancelled = record.failure is not None and record.failure.kind in NO_EVIDENCE
        self.cancelled += cancelled
        self.failed += record.failure is not None and not cancelled
        self.tokens += max(record.output_tokens, 0)
        self.reads += record.reads
        if len(record.arrival_ns):
            ttft_ns = int(record.arrival_ns[0]) - record.sent_ns
            self.ttft_sum_ns += ttft_ns
            self.ttft_count += 1
            place = int(math.log(max(ttft_ns, 1) / _LEAST_NS) * _BINS_PER_E)
            self.ttft_counts[min(max(place, 0), _BINS - 1)] += 1  # below 0.1 ms and over an hour: at the ends

    @property
    def totals(self) -> Totals:
        """All counts as one value."""
        counters = self.counters
        return Totals(
            sent=counters.sent,
            ended=counters.ended,
            reads=counters.reads,
            decoded=self.ended,
            failed=self.failed,
            tokens=self.tokens,
            decoded_reads=self.reads,
            ttft_sum_ns=self.ttft_sum_ns,
            ttft_count=self.ttft_count,
            cancelled=self.cancelled,
            ttft_counts=tuple(self.ttft_counts),
        )

    def note_totals(self, totals: Totals) -> None:
        """Replace the counts of decoded records by those of other processes."""
        self.ended, self.failed, self.tokens = totals.decoded, totals.failed, totals.tokens
        self.reads, self.cancelled = totals.decoded_reads, totals.cancelled
        self.ttft_sum_ns, self.ttft_count = totals.ttft_sum_ns, totals.ttft_count
        self.ttft_counts = list(totals.ttft_counts)


class Shown(Protocol):
    """What a display can draw: a line, and the share that is done, 0 to 1; None: unknown."""

    @property
    def share(self) -> float | None: ...

    def line(self, columns: int = WIDTH) -> str: ...


class Display:
    """Shows a run's progress and waits; this one shows nothing."""

    def show(self, progress: Progress) -> None:
        """Show the progress of a run; called a few times a second."""

    def draw(self, shown: Shown) -> None:
        """Show how far something else than a run is."""

    def waiting(
        self, what: str, at_most_s: float | None = None, detail: Callable[[], str] = str, forks: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context that shows what is waited for, its limit and state, if that takes a moment.

        Where something `forks` inside, no thread runs: what is shown stands still.
        """
        return nullcontext()

    def close(self) -> None:
        """Remove what must not stay on the terminal; showing may go on later."""


def warn(text: str) -> None:
    """Print a line with `loadgen: ` before it on standard error; nothing if that takes none."""
    print_text(f"loadgen: {text}", sys.stderr)


def estimate_ttft_ms(counts: Iterable[int], percent: float) -> float | None:
    """Estimate a percentile of TTFT (ms) from histogram counts, as its bin's middle; None if all are 0."""
    bins = list(counts)
    wanted = sum(bins) * percent / 100
    for number, below in enumerate(accumulate(bins)):
        if below >= wanted > 0:
            return _LEAST_NS / 1e6 * math.exp((number + 0.5) / _BINS_PER_E)
    return None


class Totals(msgspec.Struct, frozen=True):
    """The counts of a run that live displays show, and that processes publish."""

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
    def join(cls, several: Iterable[Totals]) -> Totals:
        """Add up the totals of several processes."""
        flat = zip(*((*counts, *bins) for *counts, bins in map(astuple, (cls(), *several))), strict=True)
        return cls._of_flat(tuple(map(sum, flat)))

    @classmethod
    def _of_flat(cls, counts: tuple[int, ...]) -> Totals:
        fields: dict[str, Any] = dict(zip(cls.__struct_fields__, counts[:-_BINS], strict=False))
        return cls(**fields, ttft_counts=counts[-_BINS:])


_LAYOUT = struct.Struct(f"={len(Totals.__struct_fields__) - 1 + _BINS}q")


class LiveTotals:
    """Totals that one process publishes a few times a second for others, whose reads may be torn.

    Without a `path` they are in memory, which what is forked from here shares. With one they are in that
    file, made where there is none. Raises OSError where that cannot be.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._map = mmap.mmap(-1, _BYTES)
            return
        file = open_refusing_link(path, os.O_RDWR | os.O_CREAT)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size not in (0, _BYTES):
                raise OSError(errno.EINVAL, "it is not a file of totals")
            os.ftruncate(file, _BYTES)
            if os.fstat(file).st_size != _BYTES:
                raise OSError(errno.EINVAL, "it is not a file that can have a length")
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)

    def publish(self, totals: Totals) -> None:
        """Publish the totals, which also counts as a beat."""
        *counts, bins = astuple(totals)
        _LAYOUT.pack_into(self._map, 8, *counts, *bins)
        self.beat()

    def beat(self) -> None:
        """Add 1 to the published beats, which shows that the process is alive, without new totals."""
        self._map[_BEATS : _BEATS + 8] = (self.beats + 1).to_bytes(8, "little")

    @property
    def beats(self) -> int:
        """How often the process has published or shown itself alive."""
        return int.from_bytes(self._map[_BEATS : _BEATS + 8], "little")

    def read(self) -> Totals:
        """Return the totals last published."""
        return Totals._of_flat(_LAYOUT.unpack_from(self._map, 8))


def open_live_totals(path: str | None) -> LiveTotals | None:
    """Open the file of --live-totals, or create it; None without one. Raises UsageError if that fails."""
    try:
        return None if path is None else LiveTotals(Path(path))
    except OSError as error:
        why = f"cannot write {path}: {error.strerror or error}"
        raise UsageError(f"--live-totals: {why}; choose another file") from None
