"""Signals: what asks a run to end early: Ctrl-C, SIGTERM, a closed terminal, or another thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NAMES: dict[int, str] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP (the terminal was closed)",
}
CANCELLED = 65  # no signal's number: the program cancelled the task that awaits the run
_FAILED = 128  # a shell's exit code of a command that a signal ended, less the signal's number
EXIT_CODES = frozenset(_FAILED + number for number in NAMES)


class Stopped(KeyboardInterrupt):
    """One of these signals came while nothing was measured."""

    def __init__(self, number: int) -> None:
        super().__init__(explain_stop(number))
        self.number = number


def explain_stop(number: int) -> str:
    """Why a run ended that was asked to, in words."""
    return "cancelled" if number == CANCELLED else f"stopped by {NAMES[number]}"


def read_number(stop: KeyboardInterrupt) -> int:
    """Which signal it was."""
    return stop.number if isinstance(stop, Stopped) else int(signal.SIGINT)


def exit_code(number: int) -> int:
    """The command's exit code where a signal ended it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return _FAILED + number


def stop(number: int) -> None:
    """End what is under way by an exception, as Ctrl-C does."""
    raise Stopped(number)


class Interrupts:
    """Where requests to end a run early come from: the signals of the process, for its main thread alone."""

    @property
    def pending(self) -> bool:
        """Whether `poll` has something to deliver."""
        return False

    def poll(self) -> None:
        """React now to a request that does not deliver itself: a signal does."""

    @contextmanager
    def catch(self, react: Callable[[int], None]) -> Iterator[None]:
        """Call `react` with the number of each signal that comes meanwhile.

        Under nohup, which ignores SIGHUP, a closed terminal ends nothing.
        """
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        wanted = [number for number in NAMES if not (ignored and number == signal.SIGHUP)]
        previous = {number: signal.signal(number, lambda number, _: react(number)) for number in wanted}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


SIGNALS = Interrupts()


class StopRequest(Interrupts):
    """A request that another thread of the program makes, and `poll` delivers as a signal."""

    def __init__(self) -> None:
        self._pending = 0  # the signal's number, or CANCELLED; 0: none
        self._react: Callable[[int], None] = stop

    @property
    def pending(self) -> bool:
        """Whether `poll` has something to deliver."""
        return self._pending > 0

    def make(self, number: int) -> None:
        """Ask for the end, from any thread."""
        self._pending = number

    @contextmanager
    def catch(self, react: Callable[[int], None]) -> Iterator[None]:
        """Call `react` for each request, once `poll` finds it."""
        previous, self._react = self._react, react
        try:
            yield
        finally:
            self._react = previous

    def poll(self) -> None:
        """React to a request that was made since the last time."""
        number = self._pending
        if number:  # where it is 0, a request that another thread makes now must not be written over
            self._pending = 0
            self._react(number)


@contextmanager
def defer_stop(interrupts: Interrupts) -> Iterator[list[int]]:
    """Let what must be whole end first: the list holds the signal that came; a second one stops at once."""
    came: list[int] = []

    def react(number: int) -> None:
        if came:
            stop(number)
        came.append(number)

    with interrupts.catch(react):
        yield came


@contextmanager
def stop_afterwards(interrupts: Interrupts) -> Iterator[None]:
    """Stop after what must be whole, where a signal came meanwhile."""
    with defer_stop(interrupts) as came:
        yield
    if came:
        stop(came[0])
