"""Typed values: what a word of a command line stands for."""

from __future__ import annotations

SWITCHES = {"true": True, "false": False}


def typed(word: str) -> bool | int | float | str:
    """A word as what it reads like: true or false, a whole number, a number, else itself."""
    if word in SWITCHES:
        return SWITCHES[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
