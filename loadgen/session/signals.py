"""Signals: what asks a run to end early: Ctrl-C, SIGTERM, and SIGHUP when the terminal is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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


@contextmanager
def deferred() -> Iterator[list[int]]:
    """Let what must be whole end first: the list holds the signal that came; a second one stops at once."""
    came: list[int] = []

    def react(number: int) -> None:
        if came:
            stop(number)
        came.append(number)

    with caught(react):
        yield came


def stop(number: int) -> None:
    """End what is under way by an exception, as Ctrl-C does."""
    raise Stopped(number)
