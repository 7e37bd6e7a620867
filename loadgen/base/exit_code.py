"""Exit codes: every code of the command, and the function by which each command decides on one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Every exit code of the command; of several runs, the greatest is the command's."""

    FIGURES = 0  # figures were produced
    NOTHING = 1  # nothing was measured, or the run was cut short
    USAGE = 2  # the command asked for something that cannot be
    INVALID = 3  # --strict, and the verdict is INVALID
    UNWRITTEN = 4  # figures were produced, and not everything could be written
    HUNG_UP = 129  # SIGHUP: the terminal was closed
    INTERRUPTED = 130  # SIGINT: Ctrl-C
    TERMINATED = 143  # SIGTERM


SIGNALLED = frozenset({ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED})
_SHELL = 128  # a shell's exit code of a command that a signal ended, less the signal's number


def decide_exit_code(
    *, signal: int = 0, measured: bool = True, whole: bool = True, valid: bool = True, written: bool = True
) -> ExitCode:
    """Decide the exit code of a run, or of a command of several; the first condition that applies decides.

    `signal` is the number of the signal that ended it. `measured`: it has figures, or there was nothing to
    send. `whole`: none of its load was cut short or lost. `valid`: its verdict is not INVALID, or --strict is
    not given. `written`: every file could be written.
    """
    if signal:
        return ExitCode(_SHELL + signal)
    if not (measured and whole):
        return ExitCode.NOTHING
    if not valid:
        return ExitCode.INVALID
    return ExitCode.FIGURES if written else ExitCode.UNWRITTEN
