"""Resuming: the command that goes on with a series of runs, as people are shown it."""

from __future__ import annotations

import shlex
from pathlib import Path

from loadgen.endpoint.secrecy import command_line


def command(directory: Path) -> str:
    """This command with `--resume DIRECTORY` in place of its own, secrets hidden."""
    words, rest = [], iter(command_line()[1:])
    for word in rest:
        if word == "--resume":
            following = next(rest, "")  # its directory, where it was given one
            words += [following] if following.startswith("--") else []
        elif not word.startswith("--resume="):
            words.append(word)
    return shlex.join(["loadgen", *words, "--resume", str(directory)])
