"""Live: what a person sees while a run is under way; it only reads counters."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from loadgen import clock
from loadgen.metrics.record import Record
from loadgen.results.printing import printed
from loadgen.transport.job import Counters

_LINE_EVERY_NS = 10_000_000_000
_WINDOW_NS = 3_000_000_000


@dataclass
class Progress:
    """A run so far: requests from the counters, tokens and TTFT from what has been decoded."""

    title: str
    total: int | None  # None: only the sending time is limited
    counters: Counters
    duration_s: float | None = None  # for which requests are sent
    begin_ns: int = field(default_factory=clock.now_ns)
    ended: int = 0
    failed: int = 0
    tokens: int = 0
    reads: int = 0
    ttft_sum_ns: int = 0
    ttft_count: int = 0
    _recent: list[tuple[int, int]] = field(default_factory=list)

    def note(self, record: Record) -> None:
        """Count a decoded request."""
        self.ended += 1
        self.failed += record.failure is not None
        self.tokens += max(record.output_tokens, 0)
        self.reads += record.reads
        if len(record.arrival_ns):
            self.ttft_sum_ns += int(record.arrival_ns[0]) - record.sent_ns
            self.ttft_count += 1

    @property
    def elapsed_s(self) -> float:
        return (clock.now_ns() - self.begin_ns) / 1e9

    @property
    def left_s(self) -> float | None:
        """Time left at the pace so far, or for sending, whichever is less; None while neither is known."""
        ended = max(self.counters.ended, self.ended)
        left = [] if self.duration_s is None else [max(self.duration_s - self.elapsed_s, 0.0)]
        if self.total is not None and ended:
            left.append(self.elapsed_s / ended * (self.total - ended))
        return min(left, default=None)

    @property
    def share(self) -> float:
        """How much of the run is behind it, 0 to 1."""
        if self.total is not None:
            return self.ended / max(self.total, 1)
        return min(self.elapsed_s / self.duration_s, 1.0) if self.duration_s else 0.0

    def token_rate_per_s(self) -> float | None:
        """Tokens a second lately: reads lately, at the tokens per read of what has been decoded."""
        now_ns, reads = clock.now_ns(), self.counters.reads
        self._recent = [(at, n) for at, n in self._recent if now_ns - at < _WINDOW_NS] + [(now_ns, reads)]
        first_ns, first = self._recent[0]
        if not self.reads or now_ns == first_ns:
            return None
        return (reads - first) * 1e9 / (now_ns - first_ns) * self.tokens / self.reads

    def line(self) -> str:
        """All of it in one line."""
        of = "" if self.total is None else f"/{self.total}"
        running = max(self.counters.sent - self.counters.ended, 0)
        parts = [f"{self.title}: {self.ended}{of} done", f"{running} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if (rate := self.token_rate_per_s()) is not None:
            parts.append(f"{rate:,.0f} tok/s")
        if self.ttft_count:
            parts.append(f"TTFT {self.ttft_sum_ns / self.ttft_count / 1e6:.1f} ms")
        if (left_s := self.left_s) is not None:
            parts.append(f"{_duration(left_s)} left")
        return " · ".join(parts)


def _duration(seconds: float) -> str:
    whole = int(seconds + 0.5)
    return f"{whole // 60}:{whole % 60:02d}" if whole >= 60 else f"{whole} s"


class Shown(Protocol):
    """What a display shows: one line, and how much of the whole is behind it, 0 to 1."""

    @property
    def share(self) -> float: ...

    def line(self) -> str: ...


class Display:
    """Shows progress a few times a second: this one nothing."""

    def show(self, progress: Shown) -> None:
        """Show how far a run is."""

    def close(self) -> None:
        """Take away what must not stay."""


class Lines(Display):
    """A plain line now and then, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.last_ns = clock.now_ns()

    def show(self, progress: Shown) -> None:
        """A line every ten seconds."""
        if clock.now_ns() - self.last_ns >= _LINE_EVERY_NS:
            self.last_ns = clock.now_ns()
            printed(progress.line(), self.stream)


class ProgressBar(Display):
    """One line that stays in place on a terminal; where that is gone, nothing more is shown."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self.live.start()
        self.gone = False

    def show(self, progress: Shown) -> None:
        """A bar and the figures."""
        if self.gone:
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        bar = ProgressBar(total=1.0, completed=progress.share, width=60)
        figures = Text(progress.line(), overflow="ellipsis", no_wrap=True)
        try:
            self.live.update(Group(figures, bar), refresh=True)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.gone = True

    def close(self) -> None:
        """Take the bar away: the report takes its place."""
        with suppress(OSError, ValueError):
            self.live.stop()


def display(quiet: bool) -> Display:
    """The display that fits standard error: a bar on a terminal, lines elsewhere, none when quiet."""
    if quiet or sys.stderr is None or sys.stderr.closed:
        return Display()
    return ProgressBar() if sys.stderr.isatty() else Lines(sys.stderr)


def warn(text: str) -> None:
    """A line on standard error, if that takes one."""
    printed(f"loadgen: {text}", sys.stderr)
