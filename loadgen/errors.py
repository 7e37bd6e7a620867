"""The tool's own failures: each message says what is wrong and what to do."""

from __future__ import annotations


class LoadgenError(Exception):
    """A fault that ends the command with one line and this exit code."""

    exit_code = 1


class UsageError(LoadgenError):
    """The command asked for something that cannot be: a flag, a profile, a combination."""

    exit_code = 2


class MeasureError(LoadgenError):
    """Nothing could be measured: the server could not be reached, or answered nothing usable."""

    exit_code = 1
