"""The tool's own failures, each with a message that says what is wrong and what to do, and exit codes."""

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


class LoadgenError(Exception):
    """A fault that ends the command with one line and this exit code."""

    exit_code = ExitCode.NOTHING


class UsageError(LoadgenError):
    """The command asked for something that cannot be: a flag, a profile, a combination."""

    exit_code = ExitCode.USAGE


class MeasureError(LoadgenError):
    """Nothing could be measured: the server could not be reached, or answered nothing usable."""

    exit_code = ExitCode.NOTHING
