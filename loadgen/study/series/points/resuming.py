"""Resuming: the command that goes on with a series of runs, as people are shown it."""

from __future__ import annotations

import shlex
from pathlib import Path

from loadgen.base.secrecy import command_line
from loadgen.run.repeated_command import repeated


def command(directory: Path) -> str:
    """This command with `--resume DIRECTORY` in place of its own, secrets hidden."""
    return shlex.join(["loadgen", *repeated(command_line())[1:], "--resume", str(directory)])
