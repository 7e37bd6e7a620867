"""Load flags: how the load changes over time, and which classes of requests it is made of."""

from __future__ import annotations

import argparse

from loadgen.base.bounds import given, parsed_by, shown
from loadgen.base.spelling import nearest

_KEYS = ("name", "share", "input_len", "output_len", "range_ratio")
_NEEDED = _KEYS[:4]


def request_class(text: str) -> dict[str, str]:
    """One class as a table of the profile, from `name=long,share=30%,input_len=8000,output_len=200`.

    Raises ValueError that names the key which is wrong; the profile checks the values.
    """
    table: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        key = key.replace("-", "_")
        if not equals or key not in _KEYS:
            raise ValueError(f"{shown(part)}{nearest(key, _KEYS)}: write KEY=VALUE, of {', '.join(_KEYS)}")
        if key in table:
            raise ValueError(f"{shown(text)}: {key} is given twice")
        table[key] = value
    if missing := [key for key in _NEEDED if key not in table]:
        raise ValueError(f"{shown(text)}: {' and '.join(missing)} missing")
    return table


# fmt: off
def add_load_flags(group: argparse._ArgumentGroup) -> None:
    """Add the keys of LoadKeys as flags."""
    add = group.add_argument
    add("--schedule", type=given("`rate 2 for 60s, 8 for 120s`"), metavar="STAGES",
        help='"rate 2 for 60s, 8 for 120s", "rate 2 to 16 over 60s exponentially", "concurrency 1 to 64 over '
        '120s, 64 for 60s": the stages are the duration')
    add("--bursts", type=given("`50 every 10s`"), metavar="BURSTS",
        help='"50 every 10s": at once, on top of the rate, or alone')
    add("--ramp-up-strategy", choices=("linear", "exponential"),
        help="the rate from the first request to the last, as in vLLM")
    add("--ramp-up-start-rps", type=float, metavar="RPS", help="rate at the first request")
    add("--ramp-up-end-rps", type=float, metavar="RPS", help="rate at the last request")
    add("--class", dest="classes", action="append", type=parsed_by(request_class), metavar="CLASS",
        help='"name=long,share=30%%,input_len=8000,output_len=200", once for each class of random requests; '
        "the report has them apart and together")
# fmt: on
