"""Stop flags: the part of the command line that says when a run is to end before its plan."""

from __future__ import annotations

import argparse
import re

from loadgen.session.stop_rules import DEAD, DRAIN_S, JUDGED_FROM, Tolerance, seconds


def add_stop_flags(group: argparse._ArgumentGroup) -> None:
    """The flags of stop_rules.StopRules."""
    add = group.add_argument
    add(
        "--max-failures",
        type=_tolerance,
        metavar="N|N%",
        help=f"end the run once more than N requests have failed; N%% of those ended, from {JUDGED_FROM} on",
    )
    add(
        "--max-consecutive-failures",
        type=_count,
        metavar="N",
        help=f"end it once N in a row have failed; 0: never (default: {DEAD}, while none has succeeded)",
    )
    add("--max-duration", dest="max_duration_s", type=_limit, metavar="S", help="send for S seconds at most")
    add(
        "--drain-timeout",
        dest="drain_timeout_s",
        type=_drain,
        metavar="S",
        help=f"how long what is under way then may take before it is cut (default {DRAIN_S:g})",
    )


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of requests")
    return int(text)


def _tolerance(text: str) -> Tolerance:
    try:
        return Tolerance.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _limit(text: str, least: float = 0.001) -> float:
    try:
        return seconds(text, least)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _drain(text: str) -> float:
    return _limit(text, 0.0)
