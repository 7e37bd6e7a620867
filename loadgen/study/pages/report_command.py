"""`loadgen report`: runs printed again from their files: as text, HTML, pictures, Markdown, CSV or a plot."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import Screen, add_json_flag, print_json, print_text
from loadgen.features.roofline.estimate import add_ceiling
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.report import report, result_block, run_directory, run_writer
from loadgen.settings import setting
from loadgen.settings.server_settings import MachineOptions
from loadgen.settings.setting import list_rows
from loadgen.settings.table import add_groups
from loadgen.study.answer.answer_settings import ANSWER, AnswerSettings
from loadgen.study.bundle import reading

_TEXT, _FORMS = "text", ("html", "markdown", "csv", "png", "svg", "plot", "json")
_PAGE = "report.html"
_PAGES = (".html", ".htm")


def report_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen report`."""
    parser = Parser(
        prog="loadgen report",
        allow_abbrev=False,
        usage="loadgen report RUN_DIR [--explain] [--layout NAME]\n       loadgen report PLACE... [FORM...]",
        description="Report runs from their files alone. A PLACE is a run directory, a directory of "
        "runs, a campaign, or a result file of any client.",
        epilog="Without a form: the report of one run as text, or the comparison of several.",
    )
    add = parser.add_argument
    add("places", nargs="*", metavar="PLACE", help="run, directory of runs, campaign or result file")
    add("--explain", action="store_true", help="print every doubt with its evidence, condition and remedy")
    layout = "layout of the result block (default vllm-0.32); of several runs, only blocks are printed"
    add("--layout", metavar="NAME", help=layout)
    page = f"write one self-contained page (FILE ends in .html; default {_PAGE})"
    add("--html", nargs="?", const=_PAGE, metavar="FILE", help=page)
    add("--markdown", metavar="FILE", help="write Markdown, as for a pull request; - for standard output")
    add("--csv", metavar="FILE", help="write one row per run, every figure; - for standard output")
    add("--png", metavar="DIR", help="write every plot as a picture")
    add("--svg", metavar="DIR", help="write every plot as SVG")
    add("--plot", action="store_true", help="draw distributions and tokens over time in the terminal")
    add_json_flag(parser, "print the run, or of several every figure and the comparisons, as one JSON object")
    add("--baseline", metavar="NAME", help="the checkpoint that the others are compared with")
    add_groups(parser, [setting.ROOFLINE], list_rows(MachineOptions))
    add_groups(parser, [ANSWER], list_rows(AnswerSettings))
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen report` and return its exit code: 0, or 2 without arguments, when it prints the help.

    A single run without a form or a baseline is printed as its own report, else all forms are made. Raises
    UsageError or MeasureError.
    """
    if not argv or {"-h", "--help"} & set(argv):
        report_parser().print_help()
        return ExitCode.FIGURES if argv else ExitCode.USAGE
    asked = _parse_arguments(argv)
    forms = [form for form in _FORMS if getattr(asked, form)]
    first = expand_path(asked.places[0])
    alone = len(asked.places) == 1 and forms in ([], ["json"]) and asked.baseline is None
    first = reading.find_only_run(first) if alone else first
    if alone and (not first.exists() or run_directory.is_run(first)):
        run, flags = run_directory.load(first), Flags.read(asked)
        if flags != Flags():
            run = replace(run, facts=add_ceiling(run.facts, flags))
        if asked.json:
            print_json(run_writer.encode_run(run))
            return 0
        print_text(
            report.render_report(run, asked.explain, asked.layout, Screen.from_stream(sys.stdout)), sys.stdout
        )
        return 0
    if asked.explain and not forms:
        raise UsageError("--explain is of one run: name its directory alone")
    from loadgen.study.pages.outputs import make_outputs

    for text in make_outputs(asked, forms or [_TEXT]):
        print_text(text, sys.stdout, end="")
    return 0


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line, places anywhere in it; raises UsageError.

    A FILE of --html that does not end in .html or .htm becomes the first place, and the default file is used.
    """
    asked = parse_arguments(report_parser(), argv, intermixed=True)
    if asked.html and not asked.html.lower().endswith(_PAGES):
        asked.places, asked.html = [asked.html, *asked.places], _PAGE
    if not asked.places:
        raise UsageError("nothing to report: name a run directory; loadgen report --help lists the flags")
    shown = {"--plot": asked.plot, "--markdown -": asked.markdown == "-", "--csv -": asked.csv == "-"}
    if both := [flag for flag, is_given in shown.items() if asked.json and is_given]:
        raise UsageError(f"--json and {both[0]} both write to standard output: leave out one of them")
    result_block.find_layout(asked.layout)
    Flags.read(asked).check()
    return asked
