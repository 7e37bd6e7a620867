"""Spelling: the known name that is nearest to a misspelt one, and command lines that suggest it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Sequence
from typing import NoReturn

from loadgen.errors import UsageError

_LONGEST_MESSAGE = 300  # of argparse, which quotes a value whole


def nearest(word: str, names: Collection[str]) -> str:
    """`, did you mean 'x'?` where some known word is close, else nothing."""
    close = difflib.get_close_matches(word, list(names), 1, 0.5)
    return f", did you mean {close[0]!r}?" if close else ""


class Parser(argparse.ArgumentParser):
    """Argparse whose errors are this tool's."""

    def error(self, message: str) -> NoReturn:
        shown = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
        raise UsageError(f"{shown}; {self.prog} --help lists the flags")


def arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str], intermixed: bool = False
) -> argparse.Namespace:
    """The values of a command line, its places anywhere in it if `intermixed`.

    Raises UsageError for what the parser does not know, with the nearest flag.
    """
    parse = parser.parse_known_intermixed_args if intermixed else parser.parse_known_args
    given, unknown = parse(list(argv))
    if not unknown:
        return given
    flag = unknown[0].split("=", 1)[0]
    if not flag.startswith("-"):
        raise UsageError(f"unexpected argument {unknown[0]!r}; {parser.prog} --help lists the flags")
    flags = [option for action in parser._actions for option in action.option_strings]
    raise UsageError(f"unknown flag {flag}{nearest(flag, flags)}; {parser.prog} --help lists the flags")
