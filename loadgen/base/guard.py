"""Sections: parts of what is made of a run, each under a guard: one that fails costs only itself.

A run may have taken a night. Whatever is made of it afterwards (a doubt, a section of the report, a part of
the JSON) runs on what is measured and saved, and a fault in one of them must cost neither the others nor
the figures. Such faults cannot be listed beforehand, nor can those of a sensor's driver. So this is the one
place, other than the capturing process, that catches every Exception; the report names each that is caught.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from loadgen.base import untrusted

_LONGEST = 200
T = TypeVar("T")


class Broken(msgspec.Struct, frozen=True):
    """The name of a part of a report or result that could not be made, and the exception it raised."""

    name: str
    why: str  # as "ZeroDivisionError: division by zero"


def make_guarded(name: str, make: Callable[[], T], otherwise: T, broken: list[Broken]) -> T:
    """Return make(); if it raises, return `otherwise` and append (name, exception) to `broken`."""
    try:
        return make()
    except Exception as error:
        broken.append(Broken(name, describe_exception(error)))
        return otherwise


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
        why = untrusted.read_line(str(error), 200)
        return otherwise(f"{what} failed: {type(error).__name__}" + (f": {why}" if why else ""))
