"""Cancel flags: requests that are held back in front of prefill, or given up on purpose."""

from __future__ import annotations

import argparse

from loadgen.base import bounds
from loadgen.base.bounds import given, whole


# fmt: off
def add_cancel_flags(group: argparse._ArgumentGroup) -> None:
    """Add the keys of CancelKeys as flags."""
    add = group.add_argument
    add("--prefill-concurrency", type=whole(1, bounds.MOST_STREAMS), metavar="N",
        help="at most N requests waiting for their first token")
    add("--cancel-rate", type=given("10% or 0.1"), metavar="N%",
        help="of the requests that are cancelled on purpose, as 10%% or 0.1")
    add("--cancel-after", type=given("2s or 50tok"), metavar="TIME|Ntok",
        help="when: 2s after sending, or after 50tok")
# fmt: on
