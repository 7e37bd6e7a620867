"""`loadgen bundle`: runs and campaigns as one file that can be sent to others and verified."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_output import add_json_flag, print_json
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.text import clean_text, format_count
from loadgen.study.bundle import packing, signature
from loadgen.study.bundle.manifest import Manifest

_VERIFY = "loadgen.study.verify.verify_command"  # which imports what reads bundles


def bundle_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen bundle`."""
    parser = Parser(
        prog="loadgen bundle",
        allow_abbrev=False,
        description="Write runs as one file that proves itself: arrivals, results, reports, and the SHA-256 "
        "of each. A RUN is a run directory, or that of a campaign, a sweep, a search or a ladder.",
        epilog="Engines' logs, prompts and answers are left out. `loadgen verify` checks a bundle; report, "
        "compare, gate and audit read it.",
    )
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN")
    add("-o", "--output", metavar="FILE", help="the bundle, as results.bundle")
    add("--with-text", action="store_true", help="with what holds prompts or answers, but no log")
    add("--sign", metavar="KEY", help="sign with this SSH key (ssh-keygen -Y sign): FILE.sig")
    add_json_flag(parser, "print the manifest as one JSON object")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write a bundle and print what is in it; returns 0, or 2 without arguments; raises UsageError."""
    if not argv or {"-h", "--help"} & set(argv):
        bundle_parser().print_help()
        return ExitCode.FIGURES if argv else ExitCode.USAGE
    given = parse_arguments(bundle_parser(), argv, intermixed=True)
    if not given.runs or not given.output:
        raise UsageError("loadgen bundle RUN... -o FILE: name the runs, and the file to write")
    output, key = expand_path(given.output), given.sign and expand_path(given.sign)
    if key and not key.is_file():
        raise UsageError(
            f"--sign {key}: no such file: pass a private SSH key, or the public one of an agent's"
        )
    made = packing.write_bundle([expand_path(run) for run in given.runs], output, given.with_text)
    signed = signature.sign(output, key) if key else None
    for line in importlib.import_module(_VERIFY).list_unproven(output):
        print_text(clean_text(f"loadgen: verify will say: {line}"), sys.stderr)
    if given.json:
        print_json(made.json())
        return ExitCode.FIGURES
    print_text(clean_text(_describe(made, str(output))), sys.stdout)
    if signed:
        print_text(clean_text(f"signed: {signed}"), sys.stdout)
    return ExitCode.FIGURES


def _describe(made: Manifest, output: str) -> str:
    """Describe what a bundle holds, and what was left out of it."""
    runs, parts = format_count(len(made.runs), "run"), format_count(len(made.parts), "part")
    packed = sum(part.packed_bytes for part in made.parts)
    lines = [f"{output}: {runs} in {parts}, {max(packed >> 10, 1)} KiB"]
    lines += [
        f"left out: {'other files' if each.name == '*' else each.name}: {each.why}" for each in made.left_out
    ]
    return "\n".join(lines)
