"""JSON output: the flag --json and what it prints, alike for every verb: one object on standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from loadgen.base.errors import UsageError
from loadgen.base.printing import print_text
from loadgen.base.text import format_json

ABOUT = "print the result as one JSON object, everything else on standard error"


def add_json_flag(parser: argparse._ActionsContainer, about: str = ABOUT) -> None:
    """Add the flag --json to a parser or a group of one."""
    parser.add_argument("--json", action="store_true", help=about)


def print_json(value: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print an object as strict JSON, on standard output without a stream.

    Raises ValueError for NaN and infinities in it.
    """
    print_text(format_json(value, indent=1), sys.stdout if stream is None else stream)


@contextmanager
def print_one_object(wanted: bool) -> Iterator[list[Mapping[str, Any]]]:
    """Yield a list for results, and print them as one object at the end, if it is `wanted`.

    Meanwhile what is for standard output goes to standard error. One result is printed as it is, several as
    `runs`; nothing is printed without one, and where an exception ends the block.
    """
    results: list[Mapping[str, Any]] = []
    if not wanted:
        yield results
        return
    stream = sys.stdout
    with redirect_stdout(sys.stderr):
        yield results
    if results:
        print_json(results[0] if len(results) == 1 else {"runs": results}, stream)


def refuse_without_result(wanted: bool, flags: Mapping[str, bool]) -> None:
    """Raise UsageError for --json, if it is `wanted`, with the first of these flags that is given."""
    if given := [flag for flag, is_given in flags.items() if wanted and is_given]:
        raise UsageError(f"--json prints a result, and {given[0]} makes none: leave out one of them")
