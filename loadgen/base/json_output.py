"""JSON output: the flag --json and what it prints, alike for every verb: one object on standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from loadgen.base.printing import print_text
from loadgen.base.text import format_json


def add_json_flag(parser: argparse._ActionsContainer, about: str = "print one JSON object instead") -> None:
    """Add the flag --json to a parser or a group of one."""
    parser.add_argument("--json", action="store_true", help=about)


def print_json(value: Mapping[str, Any]) -> None:
    """Print an object as strict JSON on standard output; raises ValueError for NaN and infinities in it."""
    print_text(format_json(value, indent=1), sys.stdout)
