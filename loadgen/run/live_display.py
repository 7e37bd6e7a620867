"""Live display: a run under way, or a wait, on standard error: one line in place, or a line now and then."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

import msgspec

from loadgen.base import clock
from loadgen.base.printing import print_text
from loadgen.base.text import DUMB, WIDTH, wrap_text
from loadgen.run.command.progress import Display, Progress, Shown, estimate_ttft_ms

_WINDOW_NS = 3_000_000_000
_MOMENT_S = 0.1  # no time has passed
_WIDE = 100  # columns from which there is room for more figures
_TELLING = 0.05  # the share of all tokens before which a run is mostly prefill, and slower than it will be
_ENOUGH = 10  # answers whose length shows that of the others


class RunStatus(msgspec.Struct):
    """A run under way as a display shows it, from its progress."""

    run: Progress
    _recent: list[tuple[int, int]] = []  # (ns, reads) of the last seconds

    @property
    def elapsed_s(self) -> float:
        return (clock.now_ns() - self.run.begin_ns) / 1e9

    @property
    def tokens_so_far(self) -> float:
        """Tokens of decoded answers, plus the mean of a decoded read (or 1) for each read not decoded yet."""
        a_read = self.run.tokens / self.run.reads if self.run.reads and self.run.tokens else 1.0
        return self.run.tokens + max(self.run.counters.reads - self.run.reads, 0) * a_read

    @property
    def _token_share(self) -> float | None:
        """The share of all expected tokens that has arrived, 0 to 1; None while it is unknown.

        Of each request the planned tokens are expected, or, from ten on, the mean of those answered. Requests
        end in waves where many are sent at once; tokens come evenly.
        """
        answered = self.run.ended - self.run.failed - self.run.cancelled
        if self.run.total is None or not self.run.total or not self.tokens_so_far:
            return None
        if answered >= _ENOUGH or (answered and not self.run.planned_tokens):
            a_request = self.run.tokens / answered
        else:
            a_request = self.run.planned_tokens / self.run.total
        expected = self.run.tokens + max(self.run.total - self.run.ended, 0) * a_request
        most = self.run.tokens + max(self.run.counters.sent - self.run.ended, 0) * a_request
        return min(self.tokens_so_far, most) / expected if expected else None

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left, the least of --duration's and the pace's so far; None while unknown.

        The pace is of tokens, once 5 % of them or a request are there, else of ended requests; until the last
        request of a trace is due, the time to that counts instead.
        """
        ended = max(self.run.counters.ended, self.run.ended)
        left = [] if self.run.duration_s is None else [max(self.run.duration_s - self.elapsed_s, 0.0)]
        if self.run.schedule_s is not None and self.elapsed_s < self.run.schedule_s:
            left.append(self.run.schedule_s - self.elapsed_s)
        elif (share := self._token_share) and (self.run.ended or share > _TELLING):
            left.append(self.elapsed_s * (1 / share - 1))
        elif self.run.total is not None and ended:
            left.append(self.elapsed_s / ended * (self.run.total - ended))
        return min(left, default=None)

    @property
    def share(self) -> float:
        """The share of the run that is done, 0 to 1: of its tokens, else requests, else time, else 0."""
        if (share := self._token_share) is not None:
            return share
        if self.run.total is not None:
            return self.run.ended / max(self.run.total, 1)
        return min(self.elapsed_s / self.run.duration_s, 1.0) if self.run.duration_s else 0.0

    def measure_token_rate_per_s(self) -> float | None:
        """Note the reads so far; return tokens/s over 3 s (reads × tokens per read), None at first."""
        now_ns, reads = clock.now_ns(), self.run.counters.reads
        self._recent = [(at, n) for at, n in self._recent if now_ns - at < _WINDOW_NS] + [(now_ns, reads)]
        first_ns, first = self._recent[0]
        if not self.run.reads or now_ns == first_ns:
            return None
        return (reads - first) * 1e9 / (now_ns - first_ns) * self.run.tokens / self.run.reads

    def line(self, columns: int = WIDTH) -> str:
        """Return the progress as one line, not cut to `columns`; from 100 columns on it has more figures."""
        of = "" if self.run.total is None else f"/{self.run.total}"
        # Sent requests are counted at once, ended ones ten times a second.
        running = max(self.run.counters.sent - max(self.run.counters.ended, self.run.ended), 0)
        if self.run.max_concurrency is not None:
            running = min(running, self.run.max_concurrency)
        parts = [f"{self.run.title}: {self.run.ended}{of} done", f"{running} running"]
        if self.run.failed:
            parts.append(f"{self.run.failed} failed")
        parts += self._describe_rest(running)  # before what a narrow terminal cuts off
        if (rate := self.measure_token_rate_per_s()) is not None:
            parts.append(f"{rate:,.0f} tok/s")
        elif self.run.tokens and self.elapsed_s > 0:  # a log has a line too seldom for what came lately
            parts.append(f"{self.tokens_so_far / self.elapsed_s:,.0f} tok/s")
        elif self.run.counters.reads:
            parts.append(f"about {self.tokens_so_far:,.0f} tokens")
        if self.run.ttft_count:
            parts.append(f"TTFT {self.run.ttft_sum_ns / self.run.ttft_count / 1e6:.1f} ms")
        wide = columns >= _WIDE
        if wide and (p99_ms := estimate_ttft_ms(self.run.ttft_counts, 99)) is not None:
            parts.append(f"P99 {p99_ms:,.{0 if p99_ms >= 10 else 1}f} ms")
        if wide and (waiting := self.run.waiting()) is not None:
            parts.append(f"{waiting} queued")
        return " · ".join(parts)

    def _describe_rest(self, running: int) -> Iterator[str]:
        """Yield the first that holds: why the run ends, the wait for the last, the time left, or elapsed."""
        if self.run.ending:
            yield f"ending: {self.run.ending}"
        elif self.run.duration_s is not None and running and self.elapsed_s > self.run.duration_s:
            cut_s = None if self.run.cut_after_s is None else max(self.run.cut_after_s - self.elapsed_s, 0.0)
            limit = "" if cut_s is None else f", {_duration(cut_s)} at most"
            yield f"no more are sent: waiting for the last{limit}"
        elif (left_s := self.left_s) is not None:
            yield f"{_duration(left_s)} left"
        elif self.elapsed_s >= 1:
            yield _duration(self.elapsed_s)


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


def _duration(seconds: float) -> str:
    """Format seconds as 12 s, or from a minute on as 1:05."""
    whole = int(seconds + 0.5)
    return f"{whole // 60}:{whole % 60:02d}" if whole >= 60 else f"{whole} s"


if TYPE_CHECKING:
    from rich.live import Live

_LINE_EVERY_NS = 10_000_000_000
_JOIN_S = 1.0  # at most, for a terminal that takes no more (Ctrl-S)
_BAR_WIDTH = 60


def choose_display(quiet: bool) -> Display:
    """Choose the display: a bar on a terminal, lines elsewhere, none if quiet or stderr is closed."""
    if quiet or sys.stderr is None or sys.stderr.closed:
        return Display()
    # A dumb terminal cannot take back what it has shown.
    in_place = sys.stderr.isatty() and os.environ.get("TERM") not in DUMB
    return ProgressBar() if in_place else LineDisplay(sys.stderr)


class LiveDisplay(Display):
    """Shows each progress, and each wait that takes longer than a moment; subclasses draw the status."""

    first_s: float  # seconds of a wait before it is shown
    every_s: float  # between showing it again
    status: RunStatus | None = None

    def show(self, progress: Progress) -> None:
        """Draw the status of a run; one RunStatus lasts as long as its progress."""
        if self.status is None or self.status.run is not progress:
            self.status = RunStatus(progress)
        self.draw(self.status)

    def show_wait(self, wait: Wait) -> None:
        """Show a wait now; called in a thread of its own."""

    def show_still(self, wait: Wait) -> None:
        """Show a wait once, without counting time."""

    @contextmanager
    def waiting(
        self,
        what: str,
        at_most_s: float | None = None,
        detail: Callable[[], str] = str,
        forks: bool = False,
    ) -> Iterator[None]:
        """Show a wait during the block, again and again, from the moment on that it has lasted `first_s`.

        A thread does it, which is waited for a second at most at the end; what is shown is then removed. If
        something `forks` inside, no thread runs, and the wait is shown once. Without more threads it is not.
        """
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


class LineDisplay(LiveDisplay):
    """Prints a plain line now and then, for logs: at most 80 columns, no escapes."""

    first_s, every_s = 2.0, 30.0

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.last_ns = clock.now_ns()

    def draw(self, shown: Shown) -> None:
        """Print the status if the last line is ten seconds old."""
        if clock.now_ns() - self.last_ns >= _LINE_EVERY_NS:
            self.last_ns = clock.now_ns()
            self._print(shown)

    def show_wait(self, wait: Wait) -> None:
        """Print the wait each time."""
        self._print(wait)

    def _print(self, shown: Shown) -> None:
        print_text("\n".join(wrap_text(shown.line())), self.stream)


class ProgressBar(LiveDisplay):
    """Draws one line that stays in place on a terminal; silent once the terminal is gone."""

    first_s, every_s = 0.2, 0.25

    def __init__(self) -> None:
        # Both imports are here: nothing is imported while anything is measured.
        import rich.console
        import rich.live
        import rich.progress_bar

        self.console = rich.console.Console(stderr=True)
        self.live: Live | None = None  # from the first time that there is something to show
        self.gone = False

    def draw(self, shown: Shown) -> None:
        """Draw the line, cut to the terminal, with a bar if the share that is done is known.

        Once the terminal takes nothing more, it does nothing.
        """
        if self.gone:
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        parts: list[Text | ProgressBar] = [
            Text(shown.line(self.console.width), overflow="ellipsis", no_wrap=True)
        ]
        if (share := shown.share) is not None:  # colour is for what is wrong
            bar = ProgressBar(
                1.0, share, _BAR_WIDTH, style="dim", complete_style="none", finished_style="none"
            )
            parts.append(bar)
        try:
            if self.live is None:
                from rich.live import Live

                # Another program may read standard output: it is not ours to redirect.
                self.live = Live(
                    console=self.console, auto_refresh=False, transient=True, redirect_stdout=False
                )
                self.live.start()
            self.live.update(Group(*parts), refresh=True)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.gone = True

    def show_wait(self, wait: Wait) -> None:
        """Draw a wait in place of the progress."""
        self.draw(wait)

    show_still = show_wait

    def close(self) -> None:
        """Erase the line: the report takes its place."""
        live, self.live = self.live, None
        with suppress(OSError, ValueError):
            if live is not None:
                live.stop()
