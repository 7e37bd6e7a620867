"""Session flags: how the turns of conversations follow one another."""

from __future__ import annotations

import argparse

from loadgen.base import bounds
from loadgen.base.bounds import real, whole


# fmt: off
def add_session_flags(group: argparse._ArgumentGroup) -> None:
    """Add the keys of SessionKeys as flags."""
    add = group.add_argument
    add("--num-sessions", type=whole(1, bounds.MOST_REQUESTS), metavar="N",
        help="conversations to send (default: all of the file); --max-concurrency is how many at once, "
        "--request-rate how many begin per second")
    add("--turns", type=whole(1, bounds.MOST_TURNS), metavar="N",
        help="make conversations of N turns: --random-input-len and --random-output-len are those of a turn")
    add("--think-time", metavar="S", help="seconds before each of their turns, or a distribution of them")
    add("--turn-delays", metavar="X", help="recorded (default), none, or a factor on the recorded ones")
    add("--assistant", choices=("recorded", "live"),
        help="whose answers are sent back: the recorded ones (the same prompts for every server), or its own")
    add("--session-header", metavar="NAME", help="a header with the session's name, as X-Session-ID")
    add("--turn-timeout", type=real(0.001, bounds.MOST_SECONDS), metavar="S",
        help="a turn that takes longer ends its session")
    add("--users", type=whole(1, bounds.MOST_STREAMS), metavar="N",
        help="users, each with a session at a time, whose turns are due at --user-rate")
    add("--user-rate", type=real(1e-9, 1e9), metavar="R", help="turns per second of each user")
# fmt: on
