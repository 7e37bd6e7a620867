"""Export command: `loadgen export`, a run as a file that other programs read, or as a run of a tracker."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.features.export.export_formats import FORMATS, ExportFormat, Given
from loadgen.features.export.request_rows import FORMS, REQUESTS, write_named
from loadgen.features.export.trackers import TRACKERS
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.verdict.verdict import Level

_LOG = logging.getLogger("loadgen")


def export_parser() -> argparse.ArgumentParser:
    """Make the argument parser of `loadgen export`."""
    parser = Parser(
        prog="loadgen export",
        usage="loadgen export RUN_DIR (--jsonl | --csv | --parquet | --format NAME |\n"
        "                      --mlflow [URI] | --wandb [PROJECT])\n"
        "                      [--set KEY=VALUE] [--output FILE]",
        allow_abbrev=False,
        description="Write a run for other programs: its requests, a row each (ids, times in nanoseconds, "
        "tokens, failures), another project's report of it, or a tracker's run.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run directory")
    target = parser.add_mutually_exclusive_group(required=True)
    for name in FORMS:
        about = FORMATS[name].about
        target.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=about)
    listed = "; ".join(f"{name}: {row.about}" for name, row in FORMATS.items() if name not in FORMS)
    target.add_argument("--format", choices=tuple(FORMATS), metavar="NAME", help=f"one of these, or {listed}")
    for name, tracker in TRACKERS.items():
        about = f"{tracker.about} (the {name} extra)"
        target.add_argument(f"--{name}", nargs="?", const="", metavar=tracker.takes, help=about)
    parser.add_argument(
        "--set",
        dest="given",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what the run does not know of InferenceX's row, as hw=h100 (docs/results.md)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"default: the format's name in RUN_DIR, as {REQUESTS}.csv; - is standard output",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen export`, print where the run went, and return the exit code."""
    parser = export_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES
    asked = parse_arguments(parser, argv)
    form = FORMATS.get(asked.format or "")
    given = _read_given(asked.given, form)
    if form is None and asked.output is not None:
        raise UsageError("--output: a tracker gets the run's own files")
    run = run_directory.load(asked.run_dir)
    if form is not None and form.of_whole and (shard := run.facts.shard) is not None:
        raise UsageError(
            f"--format {asked.format}: the run is shard {shard.name}, a part of the load: join all by "
            "`loadgen merge`"
        )
    if form is None:
        name = next(name for name in TRACKERS if getattr(asked, name) is not None)
        place = TRACKERS[name].send(run, asked.run_dir.resolve(), getattr(asked, name))
        print_text(f"{name}: {place}", sys.stdout)
        return ExitCode.FIGURES
    if asked.output == "-":
        _write_to_standard_output(run, form, given)
    else:
        path = asked.run_dir / form.file_name if asked.output is None else Path(asked.output)
        write_named(path, lambda file: form.write(run, given, file))
        print_text(f"{form.what}: {path}", sys.stdout)
    if form.of_whole and (level := run.verdict.level) is not Level.VALID:
        why = ", ".join(run.verdict.reasons)
        _LOG.warning("the run is %s (%s), which --format %s has no place for", level.value, why, asked.format)
    return ExitCode.FIGURES


def _read_given(pairs: Sequence[str], form: ExportFormat | None) -> Given:
    """Read --set KEY=VALUE as a mapping; raises UsageError without a `=`, or if the format takes none."""
    if pairs and not (form is not None and form.takes):
        taking = ", ".join(name for name, row in FORMATS.items() if row.takes)
        raise UsageError(f"--set: of --format {taking} alone")
    parted = {pair: pair.partition("=") for pair in pairs}
    for pair, (key, equals, _) in parted.items():
        if not (key and equals):
            raise UsageError(f"--set {pair}: write KEY=VALUE")
    return {key.strip(): value.strip() for key, _, value in parted.values()}


def _write_to_standard_output(run: Result, form: ExportFormat, given: Given) -> None:
    """Write a run to standard output; a reader that is gone is no failure.

    Raises UsageError if it is closed or cannot be written.
    """
    if sys.stdout is None:
        raise UsageError("standard output is closed: use --output FILE")
    try:
        form.write(run, given, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        return  # who reads it has read what was wanted, as of any other verb
    except OSError as error:
        raise UsageError(f"cannot write to standard output: {error.strerror}; use --output FILE") from None
