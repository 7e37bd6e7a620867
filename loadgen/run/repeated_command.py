"""Repeated command: the command of a run, as it is given to measure again."""

from __future__ import annotations

from collections.abc import Sequence

_SERIES = ("sweep", "limit")  # whose --resume goes on with a directory, and would measure nothing of it again


def repeated(words: Sequence[str]) -> list[str]:
    """The command without `--resume` and its directory, where it measures a series of runs."""
    if not set(words[1:2]) & set(_SERIES):
        return list(words)
    kept, rest = [], iter(words)
    for word in rest:
        if word == "--resume":
            following = next(rest, "")  # its directory, where it was given one
            kept += [following] if following.startswith("--") else []
        elif not word.startswith("--resume="):
            kept.append(word)
    return kept
