"""Signals: what asks a run to end early: Ctrl-C, SIGTERM, a closed terminal, or another thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Protocol

NAMES: dict[int, str] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP (the terminal was closed)",
}
_FAILED = 128  # a shell's exit code of a command that a signal ended, less the signal's number
EXIT_CODES = frozenset(_FAILED + number for number in NAMES)


class Stopped(KeyboardInterrupt):
    """One of these signals came while nothing was measured."""

    def __init__(self, number: int) -> None:
        super().__init__(NAMES[number])
        self.number = number


def number_of(stop: KeyboardInterrupt) -> int:
    """Which signal it was."""
    return stop.number if isinstance(stop, Stopped) else int(signal.SIGINT)


def exit_code(number: int) -> int:
    """The command's exit code where a signal ended it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return _FAILED + number


@contextmanager
def caught(react: Callable[[int], None]) -> Iterator[None]:
    """Call `react` with the number of each of these signals that comes meanwhile.

    Under nohup, which ignores SIGHUP, a closed terminal ends nothing.
    """

    def reacting(number: int, frame: FrameType | None) -> None:
        react(number)

    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    wanted = [number for number in NAMES if not (ignored and number == signal.SIGHUP)]
    previous = {number: signal.signal(number, reacting) for number in wanted}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def stop(number: int) -> None:
    """End what is under way by an exception, as Ctrl-C does."""
    raise Stopped(number)


class Interrupts(Protocol):
    """Where requests to end a run early come from."""

    @property
    def pending(self) -> bool:
        """Whether `poll` has something to deliver."""

    def poll(self) -> None:
        """React now to a request that does not deliver itself."""

    def caught(self, react: Callable[[int], None]) -> AbstractContextManager[None]:
        """Call `react` with the signal's number for each request that comes meanwhile."""


class Signals:
    """Requests by the signals of the process; for its main thread alone."""

    pending = False

    def caught(self, react: Callable[[int], None]) -> AbstractContextManager[None]:
        """Call `react` with the number of each signal that comes meanwhile."""
        return caught(react)

    def poll(self) -> None:
        """Nothing: a signal delivers itself."""


SIGNALS = Signals()


class StopRequest:
    """A request that another thread of the program makes, and `poll` delivers as a Ctrl-C."""

    def __init__(self) -> None:
        self.pending = False
        self._react: Callable[[int], None] = stop

    def make(self) -> None:
        """Ask for the end, from any thread."""
        self.pending = True

    @contextmanager
    def caught(self, react: Callable[[int], None]) -> Iterator[None]:
        """Call `react` for each request, once `poll` finds it."""
        previous, self._react = self._react, react
        try:
            yield
        finally:
            self._react = previous

    def poll(self) -> None:
        """React to a request that was made since the last time."""
        if self.pending:
            self.pending = False
            self._react(signal.SIGINT)


@contextmanager
def deferred(interrupts: Interrupts) -> Iterator[list[int]]:
    """Let what must be whole end first: the list holds the signal that came; a second one stops at once."""
    came: list[int] = []

    def react(number: int) -> None:
        if came:
            stop(number)
        came.append(number)

    with interrupts.caught(react):
        yield came
