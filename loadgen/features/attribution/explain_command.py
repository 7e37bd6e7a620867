"""Explain command: `loadgen explain`, why a run's TTFT and ITL are what they are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadgen.base.errors import ExitCode
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.text import clean_text
from loadgen.features.attribution.explanation import explain_run
from loadgen.report import run_directory


def explain_parser() -> argparse.ArgumentParser:
    """Make the argument parser of `loadgen explain`."""
    parser = Parser(
        prog="loadgen explain",
        usage="loadgen explain RUN_DIR",
        allow_abbrev=False,
        description="Explain in a page why TTFT and ITL of a run are what they are: which part of typical "
        "and of slow tokens is the client's, the network's, the server's or the engine's, how that is known, "
        "what is unknown, and what to do.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run directory")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen explain`, print the page, and return the exit code."""
    parser = explain_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES
    asked = parse_arguments(parser, argv)
    run = run_directory.load(asked.run_dir)
    print_text(clean_text("\n".join(explain_run(run))), sys.stdout)
    return ExitCode.FIGURES
