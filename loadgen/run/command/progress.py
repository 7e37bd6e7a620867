"""Progress: the counts of a run under way, and what a person or another process sees of them."""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import msgspec
from msgspec.structs import astuple

from loadgen.base import clock
from loadgen.base.errors import UsageError
from loadgen.base.files import open_unlinked
from loadgen.base.printing import print_text
from loadgen.base.text import DUMB, WIDTH, wrap_text
from loadgen.records.record import Record
from loadgen.transport.failure import NO_EVIDENCE

if TYPE_CHECKING:
    from rich.live import Live

_LINE_EVERY_NS = 10_000_000_000
_WINDOW_NS = 3_000_000_000
_JOIN_S = 1.0  # at most, for a terminal that takes no more (Ctrl-S)
_MOMENT_S = 0.1  # no time has passed
_BAR_WIDTH = 60
_WIDE = 100  # columns from which there is room for more figures
_TELLING = 0.05  # the share of all tokens before which a run is mostly prefill, and slower than it will be
_ENOUGH = 10  # answers whose length shows that of the others
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
    _recent: list[tuple[int, int]] = []

    def note(self, record: Record) -> None:
        """Count a decoded record."""
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
            self.ttft_counts[ttft_bin(ttft_ns)] += 1

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
        """Take the counts that other processes decoded, instead of noting each record."""
        self.ended, self.failed, self.tokens = totals.decoded, totals.failed, totals.tokens
        self.reads, self.cancelled = totals.decoded_reads, totals.cancelled
        self.ttft_sum_ns, self.ttft_count = totals.ttft_sum_ns, totals.ttft_count
        self.ttft_counts = list(totals.ttft_counts)

    @property
    def elapsed_s(self) -> float:
        return (clock.now_ns() - self.begin_ns) / 1e9

    @property
    def tokens_so_far(self) -> float:
        """Tokens of decoded answers, plus an estimate for those in flight from their reads."""
        a_read = self.tokens / self.reads if self.reads and self.tokens else 1.0
        return self.tokens + max(self.counters.reads - self.reads, 0) * a_read

    @property
    def _token_share(self) -> float | None:
        """The share of all planned tokens that has arrived, 0 to 1; None while the total is unknown.

        Requests end in waves where many are sent at once; tokens come evenly.
        """
        answered = self.ended - self.failed - self.cancelled
        if self.total is None or not self.total or not self.tokens_so_far:
            return None
        if answered >= _ENOUGH or (answered and not self.planned_tokens):
            a_request = self.tokens / answered
        else:
            a_request = self.planned_tokens / self.total
        expected = self.tokens + max(self.total - self.ended, 0) * a_request
        most = self.tokens + max(self.counters.sent - self.ended, 0) * a_request
        return min(self.tokens_so_far, most) / expected if expected else None

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left, at the pace so far or of --duration, the lesser; None while unknown.

        A trace, which has no one pace, goes on until its last request is due.
        """
        ended = max(self.counters.ended, self.ended)
        left = [] if self.duration_s is None else [max(self.duration_s - self.elapsed_s, 0.0)]
        if self.schedule_s is not None and self.elapsed_s < self.schedule_s:
            left.append(self.schedule_s - self.elapsed_s)
        elif (share := self._token_share) and (self.ended or share > _TELLING):
            left.append(self.elapsed_s * (1 / share - 1))
        elif self.total is not None and ended:
            left.append(self.elapsed_s / ended * (self.total - ended))
        return min(left, default=None)

    @property
    def share(self) -> float:
        """The share of the run that is done, 0 to 1."""
        if (share := self._token_share) is not None:
            return share
        if self.total is not None:
            return self.ended / max(self.total, 1)
        return min(self.elapsed_s / self.duration_s, 1.0) if self.duration_s else 0.0

    def token_rate_per_s(self) -> float | None:
        """Note the reads so far; return tokens/s over 3 s (reads × tokens per read), None at first."""
        now_ns, reads = clock.now_ns(), self.counters.reads
        self._recent = [(at, n) for at, n in self._recent if now_ns - at < _WINDOW_NS] + [(now_ns, reads)]
        first_ns, first = self._recent[0]
        if not self.reads or now_ns == first_ns:
            return None
        return (reads - first) * 1e9 / (now_ns - first_ns) * self.tokens / self.reads

    def line(self, columns: int = WIDTH) -> str:
        """Return the progress as one line, not cut to `columns`; from 100 columns on it has more figures."""
        of = "" if self.total is None else f"/{self.total}"
        # What is sent is counted at once, what has ended ten times a second.
        running = max(self.counters.sent - max(self.counters.ended, self.ended), 0)
        if self.max_concurrency is not None:
            running = min(running, self.max_concurrency)
        parts = [f"{self.title}: {self.ended}{of} done", f"{running} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts += self._rest(running)  # before what a narrow terminal cuts off
        if (rate := self.token_rate_per_s()) is not None:
            parts.append(f"{rate:,.0f} tok/s")
        elif self.tokens and self.elapsed_s > 0:  # a log has a line too seldom for what came lately
            parts.append(f"{self.tokens_so_far / self.elapsed_s:,.0f} tok/s")
        elif self.counters.reads:
            parts.append(f"about {self.tokens_so_far:,.0f} tokens")
        if self.ttft_count:
            parts.append(f"TTFT {self.ttft_sum_ns / self.ttft_count / 1e6:.1f} ms")
        if columns >= _WIDE:
            parts += self._list_more()
        return " · ".join(parts)

    def _list_more(self) -> Iterator[str]:
        """Yield the figures for which only a wide terminal has space."""
        if (p99_ms := ttft_percentile_ms(self.ttft_counts, 99)) is not None:
            yield f"P99 {p99_ms:,.{0 if p99_ms >= 10 else 1}f} ms"
        if (waiting := self.waiting()) is not None:
            yield f"{waiting} queued"

    def _rest(self, running: int) -> Iterator[str]:
        """Yield what is still waited for, and for how long."""
        if self.ending:
            yield f"ending: {self.ending}"
        elif self.duration_s is not None and running and self.elapsed_s > self.duration_s:
            cut_s = None if self.cut_after_s is None else max(self.cut_after_s - self.elapsed_s, 0.0)
            limit = "" if cut_s is None else f", {_duration(cut_s)} at most"
            yield f"no more are sent: waiting for the last{limit}"
        elif (left_s := self.left_s) is not None:
            yield f"{_duration(left_s)} left"
        elif self.elapsed_s >= 1:
            yield _duration(self.elapsed_s)


def _duration(seconds: float) -> str:
    whole = int(seconds + 0.5)
    return f"{whole // 60}:{whole % 60:02d}" if whole >= 60 else f"{whole} s"


class Shown(Protocol):
    """The content of a display: a line, and the share that is done, 0 to 1; None: unknown."""

    @property
    def share(self) -> float | None: ...

    def line(self, columns: int = WIDTH) -> str: ...


class Wait(msgspec.Struct, frozen=True):
    """A wait to show: for what, since when, for how long at most, and its state."""

    what: str
    at_most_s: float | None
    begin_ns: int
    detail: Callable[[], str] = str

    @property
    def share(self) -> None:
        """None: the time it may take does not show how much is done."""

    def line(self, columns: int = WIDTH) -> str:
        """Return what is waited for, for how long so far and at most, and its state, as one line."""
        elapsed_s = (clock.now_ns() - self.begin_ns) / 1e9
        parts = [_duration(elapsed_s)] * (elapsed_s >= _MOMENT_S)
        parts += [f"at most {_duration(self.at_most_s)}"] if self.at_most_s else []
        return " · ".join(filter(None, (self.what, " of ".join(parts), self.detail())))


class Display:
    """Shows a run's progress and waits; this one shows nothing."""

    first_s: float | None = None  # that a wait takes before it is shown; None: it never is
    every_s: float = 0.0  # from then on

    def show(self, progress: Shown) -> None:
        """Show the progress of a run; called a few times a second."""

    def show_wait(self, wait: Wait) -> None:
        """Show a wait now; called in a thread of its own."""

    def show_still(self, wait: Wait) -> None:
        """Show a wait once, without counting time."""

    def close(self) -> None:
        """Remove what must not stay on the terminal; showing may go on later."""

    @contextmanager
    def waiting(
        self,
        what: str,
        at_most_s: float | None = None,
        detail: Callable[[], str] = str,
        forks: bool = False,
    ) -> Iterator[None]:
        """Show a wait during the block if it takes longer than a moment.

        A thread does it, which has ended when the block has; where something `forks` inside there is none,
        and what is shown stands still.
        """
        if self.first_s is None:
            yield
            return
        wait = Wait(what, at_most_s, clock.now_ns(), detail)
        over = threading.Event()
        repeated = (wait, over, self.first_s)
        thread = threading.Thread(target=self._repeat, args=repeated, name="waiting", daemon=True)
        if forks:
            self.show_still(wait)
        else:
            with suppress(RuntimeError):  # no more threads: it is waited for unseen
                thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.ident is not None:
                thread.join(_JOIN_S)
            self.close()

    def _repeat(self, wait: Wait, over: threading.Event, after_s: float) -> None:
        while not over.wait(after_s):
            self.show_wait(wait)
            after_s = self.every_s


class LineDisplay(Display):
    """Prints a plain line now and then, for logs: at most 80 columns, no escapes."""

    first_s, every_s = 2.0, 30.0

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.last_ns = clock.now_ns()

    def show(self, progress: Shown) -> None:
        """Print the progress if the last line is ten seconds old."""
        if clock.now_ns() - self.last_ns >= _LINE_EVERY_NS:
            self.last_ns = clock.now_ns()
            self._print(progress)

    def show_wait(self, wait: Wait) -> None:
        """Print the wait each time."""
        self._print(wait)

    def _print(self, shown: Shown) -> None:
        print_text("\n".join(wrap_text(shown.line())), self.stream)


class ProgressBar(Display):
    """Draws one line that stays in place on a terminal; silent once the terminal is gone."""

    first_s, every_s = 0.2, 0.25

    def __init__(self) -> None:
        # Both here: nothing is imported while anything is measured.
        import rich.console
        import rich.live
        import rich.progress_bar

        self.console = rich.console.Console(stderr=True)
        self.live: Live | None = None  # from the first time that there is something to show
        self.gone = False

    def show(self, progress: Shown) -> None:
        """Draw the figures, with a bar if the share that is done is known."""
        if self.gone:
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        parts: list[Text | ProgressBar] = [
            Text(progress.line(self.console.width), overflow="ellipsis", no_wrap=True)
        ]
        if (share := progress.share) is not None:  # colour is for what is wrong
            bar = ProgressBar(
                1.0, share, _BAR_WIDTH, style="dim", complete_style="none", finished_style="none"
            )
            parts.append(bar)
        try:
            self._on_screen().update(Group(*parts), refresh=True)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.gone = True

    def show_wait(self, wait: Wait) -> None:
        """Draw a wait in place of the progress."""
        self.show(wait)

    def show_still(self, wait: Wait) -> None:
        """Draw a wait in place of the progress, without a time."""
        self.show(wait)

    def close(self) -> None:
        """Erase the line: the report takes its place."""
        live, self.live = self.live, None
        with suppress(OSError, ValueError):
            if live is not None:
                live.stop()

    def _on_screen(self) -> Live:
        if self.live is None:
            from rich.live import Live

            # What goes to standard output may be read by another program: it is none of ours.
            self.live = Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False)
            self.live.start()
        return self.live


def display(quiet: bool) -> Display:
    """Choose the display for standard error: a bar on a terminal, lines elsewhere, none if quiet."""
    if quiet or sys.stderr is None or sys.stderr.closed:
        return Display()
    # A dumb terminal cannot take back what it has shown.
    in_place = sys.stderr.isatty() and os.environ.get("TERM") not in DUMB
    return ProgressBar() if in_place else LineDisplay(sys.stderr)


def warn(text: str) -> None:
    """Print a line on standard error, if that takes one."""
    print_text(f"loadgen: {text}", sys.stderr)


def ttft_bin(ttft_ns: int) -> int:
    """Return the histogram bin of a TTFT (ns)."""
    return min(max(int(math.log(max(ttft_ns, 1) / _LEAST_NS) * _BINS_PER_E), 0), _BINS - 1)


def ttft_percentile_ms(counts: Iterable[int], percent: float) -> float | None:
    """Estimate a percentile of TTFT (ms) from histogram counts, as its bin's middle; None if empty."""
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
        file = open_unlinked(path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(file, _BYTES)
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)

    def publish(self, totals: Totals) -> None:
        """Publish the totals, which also counts as a beat."""
        *counts, bins = astuple(totals)
        _LAYOUT.pack_into(self._map, 8, *counts, *bins)
        self.beat()

    def beat(self) -> None:
        """Show that the publishing process is alive, without new totals."""
        self._map[_BEATS : _BEATS + 8] = (self.beats + 1).to_bytes(8, "little")

    @property
    def beats(self) -> int:
        """How often the process has published or shown itself alive."""
        return int.from_bytes(self._map[_BEATS : _BEATS + 8], "little")

    def read(self) -> Totals:
        """Return the totals last published."""
        return Totals._of_flat(_LAYOUT.unpack_from(self._map, 8))


def open_live_totals(path: str | None) -> LiveTotals | None:
    """Open the file of --live-totals; None without one. Raises UsageError if it cannot be written."""
    try:
        return None if path is None else LiveTotals(Path(path))
    except OSError as error:
        why = f"cannot write {path}: {error.strerror or error}"
        raise UsageError(f"--live-totals: {why}; choose another file") from None
