"""Errors: the tool's own failures and exit codes, and guards that keep any other exception to its part.

A run may have taken a night. Whatever is made of it afterwards (a doubt, a section of the report, a part of
the JSON) runs on what is measured and saved, and a fault in one of them must cost neither the others nor
the figures. Such faults cannot be listed beforehand, nor can those of a sensor's driver. So the guards are
the one place, other than the capturing process, that catches every Exception; the report names each that is
caught.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar


class ExitCode(IntEnum):
    """Every exit code of the command, with what it means; of several runs, the greatest is the command's."""

    meaning: str  # one line of the help and of the docs' table

    def __new__(cls, code: int, meaning: str = "") -> ExitCode:
        """Make the code of this number, which means `meaning`."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    FIGURES = 0, "figures were produced, and nothing that was asked about them failed"
    NOTHING = 1, "nothing was measured, or the run was cut short"
    USAGE = 2, "the command is wrong, or a file that it names"
    INVALID = 3, "the verdict is INVALID (with --strict or --fail-on invalid)"
    UNWRITTEN = 4, "figures were produced, and not everything could be written"
    SLOWER = 5, "gate: slower, by more than the margin"
    UNDECIDED = 6, "gate: undecided; it prints how many more runs would decide"
    INCOMPARABLE = 7, "gate: the two cannot be compared"
    OBJECTIVE_MISSED = 8, "an objective was missed (with --fail-on slo)"
    DOUBTED = 9, "the verdict is SUSPECT or INVALID (with --fail-on suspect)"
    FAILED_REQUESTS = 10, "requests failed (with --fail-on failures)"
    CHANGED = 11, "verify: a file was changed, or its arrivals give other figures"
    UNPROVEN = 12, "verify: nothing was changed, and not everything could be checked"
    HUNG_UP = 129, "ended by SIGHUP: the terminal was closed"
    INTERRUPTED = 130, "ended by SIGINT: Ctrl-C"
    TERMINATED = 143, "ended by SIGTERM"


SIGNALLED = frozenset({ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED})
# --fail-on takes these names, each with its exit code; the first that holds decides.
FAIL_CODES = {
    "invalid": ExitCode.INVALID,
    "failures": ExitCode.FAILED_REQUESTS,
    "suspect": ExitCode.DOUBTED,
    "slo": ExitCode.OBJECTIVE_MISSED,
}
_SHELL = 128  # a shell's exit code of a command that a signal ended, less the signal's number


def decide_exit_code(
    *,
    signal: int = 0,
    measured: bool = True,
    whole: bool = True,
    failed_on: Collection[str] = (),
    written: bool = True,
) -> ExitCode:
    """Decide the exit code of a run, or of a command of several; the first condition that applies decides.

    `signal` is the number of the signal that ended it. `measured`: it has figures, or there was nothing to
    send. `whole`: none of its load was cut short or lost. `failed_on`: the names in FAIL_CODES that hold
    and were asked about. `written`: every file could be written.
    """
    if signal:
        return ExitCode(_SHELL + signal)
    if not (measured and whole):
        return ExitCode.NOTHING
    if (failed := next((code for name, code in FAIL_CODES.items() if name in failed_on), None)) is not None:
        return failed
    return ExitCode.FIGURES if written else ExitCode.UNWRITTEN


NO_MEMORY = "no memory is left: lower --max-concurrency, or raise the limit (ulimit -v)"


class LoadgenError(Exception):
    """Why something could not be measured, read or written: what is wrong, and what to do.

    The base of every error that loadgen raises on purpose. Made of a message and, where there are any, of the
    details that follow it, as the end of a server's log. `exit_code` is the command's.
    """

    exit_code = ExitCode.NOTHING

    def __str__(self) -> str:
        return "".join(map(str, self.args))

    @property
    def summary(self) -> str:
        """The message in one line, without the details."""
        return str(self.args[0]) if self.args else ""


class UsageError(LoadgenError):
    """The command asked for something that cannot be: a flag, a profile, a combination."""

    exit_code = ExitCode.USAGE


class MeasureError(LoadgenError):
    """Nothing could be measured: the server could not be reached, or answered nothing usable."""


class NotReady(MeasureError):
    """No server answers at an address, or it reports that it is not ready; what to do is in the details."""


LOG_LINE = "\n  | "  # before each line of a server's log, in what reports that it died


class ServerDied(MeasureError):
    """A server that loadgen started ended by itself, or never became ready; its log is in the details."""


_LONGEST = 200
T = TypeVar("T")


class Broken(NamedTuple):
    """The name of a part of a report or result that could not be made, and the exception as text."""

    name: str
    why: str  # as "ZeroDivisionError: division by zero"


def make_guarded(name: str, make: Callable[[], T], otherwise: T, broken: list[Broken]) -> T:
    """Return make(); if it raises, return `otherwise` and append `name` and the error as text to `broken`."""
    return make_each({name: make}, broken).get(name, otherwise)


def make_each(parts: Mapping[str, Callable[[], T]], broken: list[Broken]) -> dict[str, T]:
    """Return what each part makes, by its name; one that raises is left out, and appended to `broken`."""
    made = {}
    for name, make in parts.items():
        try:
            made[name] = make()
        except Exception as error:
            broken.append(Broken(name, describe_exception(error)))
    return made


def describe_exception(error: BaseException) -> str:
    """Describe an exception in one printable line: its type and the first 200 characters of its message."""
    text = " ".join(str(error).split())[:_LONGEST]
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{type(error).__name__}: {plain}" if plain else type(error).__name__


def call_guarded(what: str, ask: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """Return ask(), or otherwise(reason) if it raises; the reason begins with `what`.

    Sensors are called through it: drivers and libraries raise exceptions of their own, and none of them is
    worth a run.
    """
    try:
        return ask()
    except Exception as error:
        return otherwise(f"{what} failed: {describe_exception(error)}")
