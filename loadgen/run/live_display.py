"""Live display: a run's status on standard error: one line that stays in place, or a line now and then."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from loadgen.base import clock
from loadgen.base.printing import print_text
from loadgen.base.text import DUMB, wrap_text
from loadgen.run.command.progress import Display, Progress, Shown
from loadgen.run.status_lines import RunStatus, Wait

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
