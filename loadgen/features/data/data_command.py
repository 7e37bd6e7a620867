"""`loadgen data`: what a file, or a workload without one, would have sent; no server is asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loadgen.base.errors import ExitCode
from loadgen.base.parsing import Parser
from loadgen.base.printing import print_text
from loadgen.base.text import format_json
from loadgen.features.data import export_plan
from loadgen.features.data.data_plan import (
    add_workload_flags,
    count_lens,
    find_file_key,
    make_data_plan,
    split_options,
)
from loadgen.features.data.data_preview import PlanPreview
from loadgen.run.command import progress
from loadgen.run.command.options import parse_words
from loadgen.run.verbs import Verb, find_verbs

_OPTIONS = ("file", "json", "export_requests")


def find_words() -> dict[str, Verb]:
    """Return what `loadgen data` does by a word of its own, in place of a file: the folders' DATA_VERBS."""
    return find_verbs("DATA_VERBS")


def data_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen data`; flags that are not given are absent from its result."""
    words = find_words()
    parser = Parser(
        prog="loadgen data",
        usage="%(prog)s [FILE] [FLAG ...]" + "".join(f"\n       %(prog)s {name} …" for name in words),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="Show what a file holds as a run would send it: kind, rows, lengths, shared prefixes, "
        "arrivals, what is left out, and one request. Nothing is sent. Without FILE: random prompts.",
        epilog="The flags are those of `loadgen bench` for a workload, images aside. "
        + " ".join(f"`loadgen data {name}`: {verb.summary}." for name, verb in words.items()),
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="as --dataset-path FILE or --trace FILE, by what it holds")
    add("--json", action="store_true", help="print JSON")
    add("--export-requests", metavar="FILE", help="write the requests as rows of JSON")
    add_workload_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen data`: print the preview of the plan, and write --export-requests; return the exit code 0.

    A word of DATA_VERBS runs that instead (a file of this name is `./NAME`). Raises UsageError. Nothing is
    sent.
    """
    if argv and (word := find_words().get(argv[0])) is not None:
        return word.run(argv[1:])
    values = parse_words(data_parser(), argv, intermixed=True)
    asked = {name: values.pop(name) for name in _OPTIONS if name in values}
    options = split_options(values)
    if (file := asked.get("file")) is not None:
        values[find_file_key(file, values)] = file
    tokenizer = options.get("tokenizer")
    with progress.display(quiet=False).waiting("reading"):
        made = make_data_plan(values, options)
        counted = count_lens(made, tokenizer)
    preview = PlanPreview(made, counted)
    if asked.get("json"):
        print_text(format_json(preview.json(), indent=2), sys.stdout)
    else:
        print_text("\n".join(preview.lines()), sys.stdout)
    export_plan.export_and_print(made, asked.get("export_requests"), tokenizer, to_errors="json" in asked)
    return ExitCode.FIGURES
