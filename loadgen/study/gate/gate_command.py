"""`loadgen gate`: is a new build slower than its base? The exit code says."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from operator import methodcaller

from msgspec.structs import replace

from loadgen.base import files
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.passages import print_passages
from loadgen.base.printing import add_json_flag, print_text
from loadgen.base.text import format_json, quote_value
from loadgen.settings import table
from loadgen.settings.server_settings import KeyOptions
from loadgen.settings.setting import list_rows
from loadgen.study.compare import model
from loadgen.study.compare_command import report_unread
from loadgen.study.gate import gate_campaign, gate_record, gate_report, gate_sides
from loadgen.study.gate.gate_campaign import PairJudge
from loadgen.study.gate.gate_record import find_gate, list_choices, read_gate_record
from loadgen.study.gate.gate_report import GateResult
from loadgen.study.gate.gate_sides import ALLOWING
from loadgen.study.gate.gate_verdict import ALPHA, MARGIN, MAX_PAIRS, GateMetric, GatePlan, judge_gate
from loadgen.study.history.history_file import UnwrittenHistory, append_entry, make_entry, read_history
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.study.series.campaign.campaign_file import list_shipped

_SUMMARY = "GITHUB_STEP_SUMMARY"
# Where pipelines put the commit that they build: GitHub, GitLab, Jenkins.
_COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")


def gate_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen gate`."""
    parser = Parser(
        prog="loadgen gate",
        usage="%(prog)s NEW BASE | DIR [--baseline NAME] | FILE.toml [FLAG ...]",
        allow_abbrev=False,
        description=f"Is a new build slower than its base? Exit {ExitCode.FIGURES}: not by more than the "
        f"margin; {ExitCode.SLOWER}: slower; {ExitCode.UNDECIDED}: undecided; {ExitCode.INCOMPARABLE}: they "
        "cannot be compared.",
        epilog="docs/ci.md has pipelines, and how it decides.",
    )
    parser.add_argument("places", nargs="+", metavar="PLACE",
        help="runs, campaigns or results of NEW and of BASE; one campaign that has both; or a campaign's "
        "file, which is measured in turn until it is known")  # fmt: skip
    # fmt: off
    add = parser.add_argument_group("what decides").add_argument
    add("--metric", action="append", default=[], metavar="NAME[,…]",
        help="figures that decide: tok/s, req/s, ttft, ttft_p99, tpot, itl_p99, … (default: tok/s, with a "
        "request rate e2el)")
    add("--margin", action="append", default=[], metavar="[NAME=]P%",
        help=f"slowdown that is not worth a failed build (default {100 * MARGIN:g}%%)")
    add("--alpha", type=float, default=ALPHA, metavar="P",
        help=f"chance of a false verdict (default {ALPHA:g})")
    add("--baseline", default="", metavar="NAME", help="base of a PLACE that has both sides (default: the "
        "campaign's)")
    add(ALLOWING, action="store_true",
        help="compare though the machine was in another state, which is remarked")
    outputs = parser.add_argument_group("output")
    add_json_flag(outputs, "print one line of JSON instead of the table")
    add = outputs.add_argument
    add("--junit", metavar="FILE", help="write JUnit's XML")
    add("--history", metavar="FILE", help="append the new side's means to a history (`loadgen history`)")
    add("--label", metavar="TEXT", help="label of the new side in the history (default: its checkpoint)")
    measuring = parser.add_argument_group("a campaign's file")
    add = measuring.add_argument
    add("--max-pairs", type=int, metavar="N", help=f"measure at most N pairs (default {MAX_PAIRS})")
    add("--run-dir", metavar="DIR", default="runs", help="parent of the campaign's directory (default: runs)")
    add("--resume", metavar="DIR", help="go on with an interrupted gate")
    add("--only", metavar="CHECKPOINT[,…]", help="measure only these checkpoints")
    add("--allow-launch", action="store_true",
        help="allow the file to start servers: it runs programs as you")
    add("--allow-env", action="append", default=[], metavar="NAME",
        help="allow the file to read this environment variable (repeatable)")
    table.add_flags(measuring, list_rows(KeyOptions))
    add("--quiet", action="store_true", help="print no progress")
    # fmt: on
    return parser


def main(argv: Sequence[str]) -> int:
    """Judge the places in `argv`, print the result, write what was asked for, and return the exit code.

    What could not be written makes 4 of 0. Raises LoadgenError.
    """
    given = parse_arguments(gate_parser(), argv)
    metrics = gate_record.parse_gate_metrics(given.metric)
    if metrics:
        gate_record.lay_margins(metrics, given.margin)  # a wrong one is an error before anything is read
    check_outputs(given)
    if len(given.places) > 2:
        raise UsageError("give two places, NEW and BASE; or one campaign")
    if len(given.places) == 1 and is_campaign_file(given.places[0]):
        result, runs, signal = gate_campaign.measure_gate(given, metrics, argv)
        if signal:
            return signal
    else:
        if files_named := [place for place in given.places if is_campaign_file(place)]:
            raise UsageError(f"{files_named[0]} is a campaign's file, which is measured: give it alone")
        flags = {
            "--max-pairs": given.max_pairs is not None, "--resume": given.resume is not None,
            "--only": given.only is not None, "--allow-launch": given.allow_launch,
            "--allow-env": given.allow_env,
        }  # fmt: skip
        if wrong := [flag for flag, is_given in flags.items() if is_given]:
            raise UsageError(f"{wrong[0]} is for a campaign's file, which is measured: these runs are given")
        result, runs = judge_places(given, metrics)
    return deliver_result(result, runs, given)


def is_campaign_file(place: str) -> bool:
    """Whether a place is a campaign's file, or the name of a shipped one."""
    return place.endswith(".toml") or (not os.path.exists(place) and place in list_shipped())


def judge_places(
    given: argparse.Namespace, metrics: Sequence[GateMetric]
) -> tuple[GateResult, tuple[Reported, ...]]:
    """Judge given runs; return the result and the new side's runs. Raises UsageError.

    A measured gate's directory, bundled or not, is judged as it was when it was measured, unless flags decide
    otherwise; of a bundle's, margins and alpha that are not the defaults are remarked.
    """
    plan = GatePlan(alpha=given.alpha)
    if len(given.places) == 1 and not (metrics or given.margin or given.baseline or given.alpha != ALPHA):
        place = expand_path(given.places[0])
        directory = find_gate(place)
        if (record := read_gate_record(directory)) is not None:
            judge = PairJudge(directory, record, given.allow_other_state, str(place))
            if (result := judge.judge()) is None:
                raise UsageError(f"{place} has no whole pair: resume it with --resume")
            chosen = list_choices(record) if directory != place else ()
            return replace(result, remarks=(*result.remarks, *chosen)), judge.list_new_runs()
    read = result_sources.read_sources(given.places)
    if len(given.places) == 2:
        if given.baseline:
            raise UsageError("--baseline names the base in one place: of two, the second is the base")
        new, base = (str(expand_path(place)) for place in given.places)
        sides, reasons = gate_sides.match_places(read, new, base)
    else:
        named = given.baseline or model.read_campaign_settings(given.places).baseline
        sides, reasons = gate_sides.match_rows(read, named)
    report_unread(read.errors)  # after the one that says why a place has no run
    whole = [each for each in sides if each.new and each.base]
    every = list(metrics) or ([gate_sides.choose_metric(sides)] if sides else [])
    if sides:
        every = gate_record.lay_margins(every, given.margin)
        gate_sides.check_metrics(every, [run for each in sides for run in each.runs])
    reasons += gate_sides.list_reasons(sides, every, given.allow_other_state)
    runs = tuple(run for each in whole for run in each.new)
    if reasons:
        return GateResult(plan, reasons=tuple(reasons)), runs
    series = [one for each in whole for one in gate_sides.make_series(each, every)]
    remarks = gate_sides.list_remarks(whole)
    return GateResult(plan, judge_gate(series, plan), remarks=tuple(remarks)), runs


def check_outputs(given: argparse.Namespace) -> None:
    """Raise UsageError, before anything is measured, for an output that cannot be written."""
    for flag, path in (("--junit", given.junit), ("--history", given.history)):
        if path is None:
            continue
        place = expand_path(path)
        if not path or place.is_dir():
            raise UsageError(f"{flag} {quote_value(path)}: name a file")
        if not place.parent.is_dir():
            raise UsageError(f"{flag} {path}: {place.parent} is no directory: make it first")
        is_empty = place.is_file() and place.stat().st_size == 0  # it gets its first line
        if flag == "--history" and place.exists() and not is_empty:
            read_history(path)


def deliver_result(result: GateResult, runs: Sequence[Reported], given: argparse.Namespace) -> int:
    """Append to the history, write JUnit's file and the job's summary, print the result; return the code.

    A commit that the runs do not name is the pipeline's. Raises UsageError where the history does not take
    it, before anything else is written. What cannot be written costs no verdict: it is a line, and 4 in place
    of 0.
    """
    code = result.code
    if given.history is not None and result.verdict is not None:
        if (loads := len({row.series.load for row in result.verdict.rows})) > 1:
            raise UsageError(f"--history: a history is of one load, and this gate has {loads}")
        entry = make_entry(runs, label=given.label, verdict=result.outcome)
        commit = entry.commit or next(filter(None, map(os.environ.get, _COMMITS)), "")
        try:
            append_entry(given.history, entry.model_copy(update={"commit": commit}))
        except UnwrittenHistory as error:
            print_text(f"loadgen: {error}", sys.stderr)
            code = code or ExitCode.UNWRITTEN
    outputs = [(given.junit, gate_report.render_junit, False)]
    outputs.append((os.environ.get(_SUMMARY), gate_report.render_markdown, True))
    for path, render, append in outputs:
        if path:
            try:
                data = render(result).encode("utf-8", "backslashreplace")
                files.write_output(expand_path(path), methodcaller("write", data), append, mode=files.ANYONES)
            except OSError as error:
                print_text(f"loadgen: cannot write {path}: {error.strerror or error}", sys.stderr)
                code = code or ExitCode.UNWRITTEN
    if given.json:
        print_text(format_json(gate_report.encode_result(result)), sys.stdout)
    else:
        print_passages([gate_report.make_gate_passage(result)])
    return code
