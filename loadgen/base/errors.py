"""Errors: the tool's own failures, each with what is wrong and what to do, and the exit codes."""

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
