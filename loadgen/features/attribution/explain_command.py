"""Explain command: `loadgen explain`, why a run's TTFT and ITL are what they are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.text import clean_text
from loadgen.features.attribution.explanation import explain_run, summarize_run
from loadgen.report import run_directory, saved_run
from loadgen.report.run_directory import Result


def explain_parser() -> argparse.ArgumentParser:
    """Make the argument parser of `loadgen explain`."""
    parser = Parser(
        prog="loadgen explain",
        usage="loadgen explain DIR",
        allow_abbrev=False,
        description="Explain in a page why TTFT and ITL of a run are what they are: which part of typical "
        "and of slow tokens is the client's, the network's, the server's or the engine's, how that is known, "
        "what is unknown, and what to do. Of a directory that holds several runs, say in a few lines of each "
        "what its tails mostly are.",
    )
    parser.add_argument("place", metavar="DIR", type=Path, help="a run directory, or one with runs below it")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen explain`, print the page, and return the exit code."""
    parser = explain_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES
    place: Path = parse_arguments(parser, argv).place
    runs = run_directory.find_runs(place)
    first, second = next(runs, place), next(runs, None)
    if second is None:
        _print(explain_run(_load(first)))
        return ExitCode.FIGURES
    explained = [_summarize(path) for path in chain((first, second), runs)]
    if not any(explained):
        raise UsageError(f"{place}: none of its {len(explained)} runs can be read")
    _print(["loadgen explain RUN_DIR explains one of them in a page"])
    return ExitCode.FIGURES


def _load(path: Path) -> Result:
    run = run_directory.load(path)
    saved_run.check_pair(path, run)
    return run


def _summarize(path: Path) -> bool:
    """Print a few lines on a run, or on the standard error why it cannot be read; return whether it can."""
    try:
        run = _load(path)
    except UsageError as error:
        print_text(f"loadgen: {clean_text(str(error))}", sys.stderr)
        return False
    _print([f"{path}:", *summarize_run(run)])
    return True


def _print(lines: Iterable[str]) -> None:
    print_text(clean_text("\n".join(lines)), sys.stdout)
