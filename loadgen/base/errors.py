"""Errors: the tool's own failures, each with what is wrong and what to do."""

from __future__ import annotations

from loadgen.base.exit_code import ExitCode

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
