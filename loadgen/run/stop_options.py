"""Stop options: the flags of the rules to stop."""

from __future__ import annotations

import argparse

from loadgen.base import bounds
from loadgen.base.bounds import parsed_by, real, whole
from loadgen.run.stop_rules import DEAD, DRAIN_S, JUDGED_FROM, Tolerance


# fmt: off
def add_stop_flags(group: argparse._ActionsContainer) -> None:
    """The flags of what ends a run before its plan."""
    add = group.add_argument
    add("--max-failures", type=parsed_by(Tolerance.parse), metavar="N|N%",
        help=f"end the run after more than N failures; N%% of the ended, from {JUDGED_FROM} on")
    add("--max-consecutive-failures", type=whole(0, 999_999_999), metavar="N",
        help=f"end it after N failures in a row; 0: never (default {DEAD} until one succeeds)")
    add("--max-duration", dest="max_duration_s", type=real(0.001, bounds.YEAR_S), metavar="S",
        help="send for at most S seconds")
    add("--drain-timeout", dest="drain_timeout_s", type=real(0, bounds.YEAR_S), metavar="S",
        help=f"seconds for requests to end then, before they are cut (default {DRAIN_S:g})")
    add("--stop-when-saturated", action="store_true",
        help="end the run once the server falls further and further behind an open loop of one rate")
# fmt: on
