"""Signals: what asks a run to end early: Ctrl-C, SIGTERM, a closed terminal, or another thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NAMES: dict[int, str] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP (the terminal was closed)",
}
_SOON_S = 0.01
CANCELLED = 65  # no signal's number: the program cancelled the task that awaits the run


class Stopped(KeyboardInterrupt):
    """One of these signals came while no run was being measured; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(explain_stop(number))
        self.number = number


def explain_stop(number: int) -> str:
    """Explain in a phrase that signal `number` ended a run."""
    return "cancelled" if number == CANCELLED else f"stopped by {NAMES[number]}"


def read_number(stop: KeyboardInterrupt) -> int:
    """Return the number of the signal behind a KeyboardInterrupt; SIGINT if it has none."""
    return stop.number if isinstance(stop, Stopped) else int(signal.SIGINT)


def stop(number: int) -> None:
    """Raise Stopped with a signal's number, as Ctrl-C raises KeyboardInterrupt."""
    raise Stopped(number)


def send_dropped_again(dropped: Any) -> None:
    """Send a signal again, soon, that came where Python drops what is raised; a `sys.unraisablehook`.

    That is in what a collected object calls: a callback of a weak reference, or `__del__`.
    """
    stopped = dropped.exc_value
    if isinstance(stopped, Stopped) and stopped.number in NAMES:
        threading.Timer(_SOON_S, os.kill, (os.getpid(), stopped.number)).start()
    else:
        sys.__unraisablehook__(dropped)


class Interrupts:
    """The source of requests to end a run early: this process's signals, in its main thread only."""

    @property
    def pending(self) -> bool:
        """Whether a stop request waits for `poll` to deliver it: never here."""
        return False

    def poll(self) -> None:
        """Deliver a waiting stop request; a no-op here, since a signal interrupts by itself."""

    @contextmanager
    def catch(self, react: Callable[[int], None]) -> Iterator[None]:
        """Within the block, call `react` with the number of each stop signal, then restore the old handlers.

        SIGHUP is left alone where it is ignored: under nohup, a closed terminal ends nothing.
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
    """A stop request by another thread of the program, which `poll` delivers as a signal would be."""

    def __init__(self) -> None:
        self._pending = 0  # the signal's number, or CANCELLED; 0: none
        self._react: Callable[[int], None] = stop

    @property
    def pending(self) -> bool:
        """Whether a stop request waits for `poll` to deliver it."""
        return self._pending > 0

    def request_stop(self, number: int) -> None:
        """Request the end of the run, from any thread; `number` is the signal it counts as."""
        self._pending = number

    @contextmanager
    def catch(self, react: Callable[[int], None]) -> Iterator[None]:
        """Within the block, have `poll` call `react` with the number of each request."""
        previous, self._react = self._react, react
        try:
            yield
        finally:
            self._react = previous

    def poll(self) -> None:
        """Deliver the request that was made since the last call, if any."""
        number = self._pending
        if number:  # where it is 0, a request that another thread makes now must not be written over
            self._pending = 0
            self._react(number)


@contextmanager
def defer_stop(interrupts: Interrupts, note: Callable[[int], object] = lambda _: None) -> Iterator[list[int]]:
    """Within the block, put off a stop signal: list its number, call `note`; a second raises Stopped."""
    came: list[int] = []

    def react(number: int) -> None:
        if came:
            stop(number)
        came.append(number)
        note(number)

    with interrupts.catch(react):
        yield came
