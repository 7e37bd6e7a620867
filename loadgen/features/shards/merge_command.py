"""`loadgen merge`: the runs of the shards of one plan, as one run in a directory of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.base import files
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import Broken, ExitCode, UsageError, decide_exit_code, make_guarded
from loadgen.base.files import expand_path
from loadgen.base.json_output import add_json_flag, print_one_object
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.features.shards import merge
from loadgen.report import report, result_block, run_directory
from loadgen.report.fail_conditions import find_failing
from loadgen.report.run_directory import Result

_RUNS = "runs"


def merge_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen merge`."""
    parser = Parser(
        prog="loadgen merge",
        allow_abbrev=False,
        description="Join the runs of the shards of one plan (loadgen bench --shard I/N): every figure, the "
        "verdict and the report are computed from all their requests, as if one process had sent them.",
        epilog="Shards that are missing or were killed: their requests count as lost (docs/shards.md).",
    )
    add = parser.add_argument
    add("places", nargs="*", metavar="DIR", help="the run directory of each shard, in any order")
    name = f"the directory of the merged run (default {_RUNS}/TIME-PROFILE-merged)"
    add("--output", metavar="DIR", help=name)
    add("--layout", metavar="NAME", help="of the block (default vllm-0.32)")
    add("--explain", action="store_true", help="print the whole report, with every doubt")
    add("--strict", action="store_true", help="exit with 3 if the verdict is INVALID")
    add_json_flag(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen merge`: write the merged run, print its report, and return the exit code of a run.

    Raises UsageError if the directories are not the shards of one run.
    """
    parser = merge_parser()
    if not argv or {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES if argv else ExitCode.USAGE
    asked = parse_arguments(parser, argv, intermixed=True)
    result_block.find_layout(asked.layout)
    shards = merge.read_shards([expand_path(name) for name in asked.places])
    merge.check_shards(shards)
    with print_one_object(asked.json) as results:
        return _merge(shards, asked, results)


def _merge(
    shards: Sequence[tuple[str, Result]], asked: argparse.Namespace, results: list[Mapping[str, Any]]
) -> int:
    """Merge the shards, write and print the run, add its object to `results`, and return the exit code."""
    directory = _create_directory(asked.output, shards)
    run = merge.merge_results(shards, directory)
    errors = _write_run(run, directory, asked.explain, asked.layout)
    print_text(report.render_for_stdout(run, directory, asked.explain, asked.layout), sys.stdout)
    print_text(f"run directory: {directory}", sys.stdout)
    results.append(run.json())
    for error in errors:
        print_text(f"loadgen: {error}", sys.stderr)
    measured = bool(run.records.ok.any())
    if not measured:
        print_text(f"loadgen: {report.explain_unmeasured(run)}", sys.stderr)
    return decide_exit_code(
        measured=measured,
        whole=not run.facts.partial,
        failed_on=find_failing(run, ["invalid"] if asked.strict else ()),
        written=not errors,
    )


def _create_directory(output: str | None, shards: Sequence[tuple[str, Result]]) -> Path:
    """Create the merged run's directory, `output` or one below `runs`, and return it.

    Raises UsageError if that fails, or a run is there.
    """
    if output is None:
        name = next((run.facts.profile.name for _, run in shards), "") or "bench"
        return files.create_directory(Path(_RUNS), f"{name}-merged", read_wall_clock(), "--output")
    directory = expand_path(output)
    files.create_place(directory, "--output")
    if run_directory.is_run(directory):
        raise UsageError(f"{directory} holds a run already: choose another --output")
    return directory


def _write_run(run: Result, directory: Path, explain: bool, layout: str | None) -> list[str]:
    """Write the merged run with its report to a directory; return what could not be made or written."""
    broken: list[Broken] = []
    text = make_guarded("the report", lambda: report.render_report(run, explain, layout), "", broken)
    errors = run_directory.save(run, directory, {run_directory.REPORT: text + "\n"}, broken)
    return errors + [f"{part.name}: {part.why}" for part in broken]
