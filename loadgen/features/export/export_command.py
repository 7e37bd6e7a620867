"""Export command: `loadgen export`, a run as a file that other programs read."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.features.export.export_formats import FORMATS
from loadgen.report import run_directory
from loadgen.report.request_rows import FORMS, REQUESTS, write_named
from loadgen.verdict.verdict import Level

_LOG = logging.getLogger("loadgen")


def export_parser() -> argparse.ArgumentParser:
    """Make the argument parser of `loadgen export`."""
    parser = Parser(
        prog="loadgen export",
        usage="loadgen export RUN_DIR (--jsonl | --csv | --parquet | --format NAME)\n"
        "                      [--set KEY=VALUE] [--output FILE]",
        allow_abbrev=False,
        description="Write a run for other programs: its requests, a row each (ids, times in nanoseconds, "
        "tokens, failures), or another project's report of it.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run directory")
    target = parser.add_mutually_exclusive_group(required=True)
    for name in FORMS:
        about = FORMATS[name].about
        target.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=about)
    others = "; ".join(f"{name}: {row.about}" for name, row in FORMATS.items() if name not in FORMS)
    listed = f"format of a row per request, or {others}"
    target.add_argument("--format", choices=tuple(FORMATS), metavar="NAME", help=listed)
    parser.add_argument(
        "--set",
        dest="given",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="value that the run does not know of InferenceX's row, as hw=h100 (docs/results.md)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"file, - for standard output (default: the format's name in RUN_DIR, as {REQUESTS}.csv)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen export`, print where the run went, and return the exit code."""
    parser = export_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES
    asked = parse_arguments(parser, argv)
    form = FORMATS[asked.format]
    if asked.given and not form.takes:
        taking = ", ".join(name for name, row in FORMATS.items() if row.takes)
        raise UsageError(f"--set: of --format {taking} alone")
    parted = {pair: pair.partition("=") for pair in asked.given}
    for pair, (key, equals, _) in parted.items():
        if not (key and equals):
            raise UsageError(f"--set {pair}: write KEY=VALUE")
    given = {key.strip(): value.strip() for key, _, value in parted.values()}
    run = run_directory.load(asked.run_dir)
    if form.of_whole and (shard := run.facts.shard) is not None:
        raise UsageError(
            f"--format {asked.format}: the run is shard {shard.name}, a part of the load: join all by "
            "`loadgen merge`"
        )
    if asked.output == "-":
        if sys.stdout is None:
            raise UsageError("standard output is closed: use --output FILE")
        try:
            form.write(run, given, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            pass  # who reads it has read what was wanted, as of any other verb
        except OSError as error:
            raise UsageError(
                f"cannot write to standard output: {error.strerror}; use --output FILE"
            ) from None
    else:
        path = asked.run_dir / form.file_name if asked.output is None else Path(asked.output)
        write_named(path, lambda file: form.write(run, given, file))
        print_text(f"{form.what}: {path}", sys.stdout)
    if form.of_whole and (level := run.verdict.level) is not Level.VALID:
        why = ", ".join(run.verdict.reasons)
        _LOG.warning("the run is %s (%s), which --format %s has no place for", level.value, why, asked.format)
    return ExitCode.FIGURES
