"""`loadgen gate`: is a new build slower than its base? The exit code says.

Runs are given, or both arms of a campaign's file are measured in turn, pair by pair, until the gate knows.
The result is for a terminal, a pipeline's summary, JUnit's readers, or JSON.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import files
from loadgen.base.errors import ExitCode, MeasureError, UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.passages import Passage, print_passages, render_passages
from loadgen.base.printing import add_json_flag, print_text
from loadgen.base.tables import Table, make_table
from loadgen.base.text import clean_line, format_count, format_json, quote_value
from loadgen.figures.figure_table import parse_percentiles, percentile_name
from loadgen.report.load_identity import Load
from loadgen.settings import table
from loadgen.settings.server_settings import KeyOptions
from loadgen.settings.setting import list_rows
from loadgen.study.compare import comparison, model
from loadgen.study.compare_command import report_unread
from loadgen.study.gate import gate_record, gate_sides
from loadgen.study.gate.gate_record import MOST_PAIRS, GateRecord, find_gate, list_choices, read_gate_record
from loadgen.study.gate.gate_sides import ALLOWING
from loadgen.study.gate.gate_verdict import (
    ALPHA,
    FIRST_LOOK,
    MARGIN,
    MAX_PAIRS,
    GateMetric,
    GateOutcome,
    GatePlan,
    GateRow,
    GateVerdict,
    judge_gate,
)
from loadgen.study.history.history_command import UnwrittenHistory, append_entry, make_entry, read_history
from loadgen.study.importers import result_sources
from loadgen.study.importers.clients import loadgen_runs
from loadgen.study.run_summary import FailedCell, Reported
from loadgen.study.series.campaign import arms, campaign_command, campaign_store
from loadgen.study.series.campaign.arms import ONCE
from loadgen.study.series.campaign.campaign_command import CampaignRequest, make_request
from loadgen.study.series.campaign.campaign_file import list_shipped
from loadgen.study.series.campaign.campaign_store import CELLS, CampaignStore
from loadgen.study.series.campaign.execution import Execution
from loadgen.study.series.campaign.steps import Arm
from loadgen.study.series.series_store import list_names, print_progress, show_resume_command

_SUMMARY = "GITHUB_STEP_SUMMARY"
# GitHub, GitLab and Jenkins put the commit that they build here.
_COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")

INCOMPARABLE = "incomparable"
_CODES = {
    GateOutcome.NOT_SLOWER: ExitCode.FIGURES,
    GateOutcome.SLOWER: ExitCode.SLOWER,
    GateOutcome.UNDECIDED: ExitCode.UNDECIDED,
}
_SUITE = "loadgen gate"
_NUMBERS = ("ratio", "low", "high", "level", "p")  # of a row in JSON


class GateResult(msgspec.Struct, frozen=True):
    """What a gate found: a verdict on each series, or the reasons why there is none."""

    plan: GatePlan
    verdict: GateVerdict | None = None  # None: the two cannot be compared
    reasons: tuple[str, ...] = ()  # why they cannot
    remarks: tuple[str, ...] = ()
    directory: str = ""  # of the campaign that measured it; "": the runs were given

    @property
    def rows(self) -> tuple[GateRow, ...]:
        """The verdict's rows; () without one."""
        return () if self.verdict is None else self.verdict.rows

    @property
    def outcome(self) -> str:
        """The outcome in words: not slower, slower, undecided, or incomparable."""
        return INCOMPARABLE if self.verdict is None else self.verdict.outcome.value

    @property
    def code(self) -> ExitCode:
        """The exit code of the outcome."""
        return ExitCode.INCOMPARABLE if self.verdict is None else _CODES[self.verdict.outcome]

    @property
    def sentence(self) -> str:
        """The outcome in one sentence."""
        if self.verdict is None:
            return f"{INCOMPARABLE}: {self.reasons[0]}"
        rows = [row for row in self.rows if row.outcome is self.verdict.outcome]
        if self.verdict.outcome is GateOutcome.UNDECIDED:
            why = next((row.why for row in rows if row.why), "")
            why = why or "more than 1,000 more runs would be needed: give a wider --margin, or longer runs"
            if (more := self.verdict.more_pairs) is not None:
                what = "pair" if all(row.series.paired for row in rows) else "run a side"
                most = max(self.verdict.most_pairs or 0, more)
                why = f"about {f'{more} to ' if most > more else ''}{_count(most, what)} more would decide"
            return f"undecided: {why}"
        of = ", ".join(dict.fromkeys(row.series.metric.name for row in rows))
        margins = " or ".join(dict.fromkeys(f"{100 * row.series.metric.margin:g} %" for row in rows))
        units = _count(self.verdict.pairs, "pair" if rows[0].series.paired else "run a side")
        return f"{self.outcome} by more than {margins}: {of} ({units})"


def _count(number: int, noun: str) -> str:
    """Format a count of a noun whose first word takes the plural: 3 runs a side."""
    first, _, rest = noun.partition(" ")
    return " ".join(filter(None, (format_count(number, first), rest)))


Measured = tuple[GateResult, tuple[Reported, ...], int]


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
        result, runs, signal = measure_gate(given, metrics, argv)
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
        if (loads := len({row.series.load for row in result.rows})) > 1:
            raise UsageError(f"--history: a history is of one load, and this gate has {loads}")
        entry = make_entry(runs, label=given.label, verdict=result.outcome)
        commit = entry.commit or next(filter(None, map(os.environ.get, _COMMITS)), "")
        try:
            append_entry(given.history, entry.model_copy(update={"commit": commit}))
        except UnwrittenHistory as error:
            print_text(f"loadgen: {error}", sys.stderr)
            code = code or ExitCode.UNWRITTEN
    outputs = [(given.junit, render_junit, False)]
    outputs.append((os.environ.get(_SUMMARY), render_markdown, True))
    for path, render, append in outputs:
        if path:
            try:
                data = render(result).encode("utf-8", "backslashreplace")
                files.write_output(expand_path(path), methodcaller("write", data), append, mode=files.ANYONES)
            except OSError as error:
                print_text(f"loadgen: cannot write {path}: {error.strerror or error}", sys.stderr)
                code = code or ExitCode.UNWRITTEN
    if given.json:
        print_text(format_json(encode_result(result)), sys.stdout)
    else:
        print_passages([make_gate_passage(result)])
    return code


def measure_gate(given: argparse.Namespace, asked: Sequence[GateMetric], argv: Sequence[str]) -> Measured:
    """Measure the campaign's arms in turn until the gate knows, or --max-pairs are measured.

    `argv` is the command line that was given, printed with --resume where it is interrupted. Returns the
    result, the new arms' runs, and the exit code of a signal that ended it, else 0. Raises LoadgenError.
    """
    kept = (
        None if given.resume is None else campaign_store.find_store(given.resume, None, Path(given.run_dir))
    )
    max_pairs = given.max_pairs
    if max_pairs is None:
        max_pairs = MAX_PAIRS if kept is None else kept.record.repeats
    if max_pairs > MOST_PAIRS:
        raise UsageError(f"--max-pairs {max_pairs}: give at most {MOST_PAIRS}")
    plan = GatePlan(given.alpha, max_pairs, sequential=True)
    as_campaign = {"file": given.places[0], "repeats": max_pairs}
    as_campaign |= {"require_equal_state": False, "retry_failed": True}
    given = argparse.Namespace(**{**vars(given), **as_campaign, "quiet": given.quiet or given.json})
    wanted = make_request(given, kept)
    base, new = choose_sides(wanted, given.baseline)
    metrics = choose_metrics(wanted.arms, asked, given.margin)
    if given.history is not None and (loads := len(new) * len(base.profiles)) > 1:
        raise UsageError(f"--history: a history is of one load, and this gate has {loads}")
    shown = [workload.name for workload in base.profiles]
    for arm in new:
        if sorted(own := [workload.name for workload in arm.profiles]) != sorted(shown):
            reason = f"another load: {arm.name} has {', '.join(own)}, {base.name} {', '.join(shown)}"
            return GateResult(plan, reasons=(reason,)), (), 0
    kept = campaign_command.open_store(wanted, kept, Path(given.run_dir), f"{wanted.file.name}-gate")
    wanted = interleave(wanted, kept.directory.name)
    names = (base.name, *(arm.name for arm in new))
    record = GateRecord(metrics=tuple(metrics), alpha=plan.alpha, max_pairs=max_pairs, arms=names)
    judge = PairJudge(kept.directory, record, given.allow_other_state)
    resume = show_resume_command("gate", argv, kept.directory)
    return _measure_pairs(wanted, kept, judge, given, resume)


def interleave(wanted: CampaignRequest, gate: str) -> CampaignRequest:
    """Return the request with its starts in turn, also where each server is started once.

    The order of each pair after the first is drawn, the same whenever a gate of that name goes on: in a fixed
    order, what neighbouring runs have in common would add to the error (docs/gate-calibration.md).
    """
    draws, count = np.random.default_rng(list(gate.encode())), len(wanted.arms)
    in_turn = wanted.file.model_copy(update={"starts": "every-repeat"})
    planned = arms.plan_starts(in_turn, wanted.arms)
    pairs = (planned[at : at + count] for at in range(count, len(planned), count))
    starts = (*planned[:count], *(pair[at] for pair in pairs for at in draws.permutation(count)))
    if wanted.file.starts == ONCE:
        starts = tuple(replace(start, name=ONCE) for start in starts)
    return replace(wanted, starts=starts)


def choose_sides(wanted: CampaignRequest, baseline: str) -> tuple[Arm, tuple[Arm, ...]]:
    """Choose the base and the arms that are compared with it; raises UsageError where a gate cannot be.

    The base is --baseline, else the file's, else the first arm.
    """
    if wanted.file.limit is not None:
        raise UsageError(f"{wanted.path}: a gate measures runs: leave [limit] out")
    if any(workload.ladder is not None for arm in wanted.arms for workload in arm.profiles):
        raise UsageError(f"{wanted.path}: a gate measures runs of one load each: leave ladders out")
    names = {arm.name: arm for arm in wanted.arms}
    if len(names) < 2:
        raise UsageError(f"{wanted.path} has one arm: add the base as another of [[checkpoints]]")
    named = baseline or wanted.file.baseline
    matches = [arm for arm in wanted.arms if named in (arm.name, arm.checkpoint)]
    if baseline and not matches:
        raise UsageError(f"--baseline {baseline}: no such arm; there are {', '.join(names)}")
    base = (matches or list(wanted.arms))[0]
    return base, tuple(arm for arm in wanted.arms if arm is not base)


def choose_metrics(
    every: Sequence[Arm], asked: Sequence[GateMetric], margins: Sequence[str]
) -> list[GateMetric]:
    """Choose the figures that a gate judges, before anything is measured, with their margins.

    Without `asked` it is tok/s, or the mean E2EL where a workload has a request rate. Raises UsageError of a
    percentile that a workload's runs would not have.
    """
    workloads = [workload for arm in every for workload in arm.profiles]
    if not asked:
        rate = next((each.request_rate for each in workloads), None)
        key = comparison.choose_usual(Load(request_rate_per_s=rate))
        column = comparison.find_column(key)
        asked = [gate_record.make_gate_metric(column.label, key, column.higher_is_faster)]
    for metric, workload in itertools.product(asked, workloads):
        word = metric.key.partition("_")[0]
        known = [f"p{percentile_name(rank)}" for rank in parse_percentiles(workload.metric_percentiles)]
        if word[:1] == "p" and word[1:2].isdigit() and word not in known:
            raise UsageError(
                f"--metric {metric.name}: runs of {workload.name or 'the workload'} have {', '.join(known)}: "
                "add it to metric_percentiles of the profile"
            )
    return gate_record.lay_margins(asked, margins)


class PairJudge:
    """Judges the pairs that a gate's directory has so far; a pair is one repeat of each arm and profile.

    `place` is where the directory is for its reader; of one from a bundle, figures are computed again.
    """

    def __init__(
        self, directory: Path, record: GateRecord, allows_state: bool = False, place: str = ""
    ) -> None:
        self.directory, self.record, self.allows_state = directory, record, allows_state
        self.place = place or str(directory)
        self._read: dict[str, Reported] = {}  # finished runs by their cells' ids
        self._looked = 0  # pairs that were judged

    def judge(self) -> GateResult | None:
        """Judge the whole pairs; None before the first. A failed cell makes the arms incomparable."""
        for cell_id in sorted(list_names(self.directory / CELLS) - set(self._read)):
            run = self.directory / CELLS / cell_id
            self._read[cell_id] = loadgen_runs.read_run(run, again=self.place != str(self.directory))
        metrics, (base, *new) = self.record.metrics, self.record.arms
        result = GateResult(self.record.plan, directory=self.place)
        failed = [each for each in loadgen_runs.read_failures(self.directory) if isinstance(each, FailedCell)]
        if reasons := [gate_sides.describe_failure(each) for each in failed if each.cell.arm in (base, *new)]:
            return replace(result, reasons=tuple(reasons))
        sides = gate_sides.pair_repeats(self._read.values(), base, new)
        if not sides:
            return None
        gate_sides.check_metrics(metrics, [run for each in sides for run in each.runs])
        # A passing state of the machine cannot have made a verdict before the first look.
        allows_state = self.allows_state or len(sides[0].new) < FIRST_LOOK
        if reasons := gate_sides.list_reasons(sides, metrics, allows_state):
            return replace(result, reasons=tuple(reasons))
        series = [one for each in sides for one in gate_sides.make_series(each, metrics, measured_here=True)]
        verdict = judge_gate(series, self.record.plan)
        return replace(result, verdict=verdict, remarks=tuple(gate_sides.list_remarks(sides)))

    def is_over(self, say: Callable[[str], None]) -> bool:
        """Whether the gate knows, or its sides cannot be compared; `say` gets each new pair's outcome."""
        result = self.judge()
        if result is None or result.verdict is None:
            return result is not None
        pairs = max(len(row.series.new) for row in result.rows)
        if pairs > self._looked:
            self._looked = pairs
            say(f"after {format_count(pairs, 'pair')}: {result.verdict.outcome.value}")
        return result.verdict.outcome is not GateOutcome.UNDECIDED

    def list_new_runs(self) -> tuple[Reported, ...]:
        """List the runs of the new arms that were read."""
        new = self.record.arms[1:]
        return tuple(run for run in self._read.values() if run.cell is not None and run.cell.arm in new)


def _measure_pairs(
    wanted: CampaignRequest, kept: CampaignStore, judge: PairJudge, given: argparse.Namespace, resume: str
) -> Measured:
    """Measure pairs until the judge needs no more; returns as `measure_gate`, or raises MeasureError."""

    def prepare(execution: Execution) -> None:
        for cell_id in kept.list_failed() if given.resume is not None else ():
            kept.forget_failure(cell_id)
        gate_record.write_gate_record(kept.directory, judge.record)
        execution.is_over = partial(judge.is_over, execution.say)
        execution.keeps_servers = wanted.file.starts == ONCE

    if signal := campaign_command.measure_cells(wanted, kept, given, resume, prepare):
        return GateResult(judge.record.plan), (), signal
    result = judge.judge()
    if result is None or not kept.list_finished():
        raise MeasureError(
            f"no pair was measured: {result.reasons[0] if result else 'nothing finished'}; {resume}"
        )
    print_progress(given.quiet, f"campaign: {kept.directory}")
    return result, judge.list_new_runs(), 0


def make_gate_passage(result: GateResult) -> Passage:
    """Make the passage of a result: the outcome, the table of what was judged, and notes on it."""
    table = None if result.verdict is None else _make_table(result.rows)
    return Passage(f"gate: {result.sentence}", table=table, remarks=tuple(_list_notes(result)))


def render_markdown(result: GateResult) -> str:
    """Write a result as Markdown, for the summary of a pipeline's job."""
    return render_passages([make_gate_passage(result)], markdown=True)


def _list_notes(result: GateResult) -> Iterator[str]:
    """Yield the further reasons, why rows could not be decided, and the remarks."""
    yield from result.reasons[1:]
    yield from (f"{row.series.metric.name}, {row.series.load}: {row.why}" for row in result.rows if row.why)
    yield from result.remarks


def _make_table(rows: Sequence[GateRow]) -> Table:
    """Make a row for each series: means of both sides, slowdown and margin; "-" where not tested."""
    columns = ("load", "metric", "new", "base", "new is", "slowdown", "margin", "verdict")
    body = []
    for row in rows:
        tested = math.isfinite(row.ratio)
        change = _describe_change(row.ratio) if tested else "-"
        interval = f"{100 * (row.low - 1):+.1f} to {100 * (row.high - 1):+.1f} %" if tested else "-"
        sides = (row.series.new, row.series.base)
        means = (f"{math.fsum(side) / len(side):.4g}" if side else "-" for side in sides)
        margin = f"{100 * row.series.metric.margin:g} %"
        named = row.series.load, row.series.metric.name
        body.append((*named, *means, change, interval, margin, row.outcome.value))
    return make_table(columns, body, spanned=1)


def encode_result(result: GateResult) -> dict[str, Any]:
    """Encode a result as plain values; a number that is not known is null."""
    verdict, rows = result.verdict, []
    for row in result.rows:
        metric, numbers = row.series.metric, {name: getattr(row, name) for name in _NUMBERS}
        rows.append(
            {
                "metric": metric.name,
                "figure": metric.key,
                "load": row.series.load,
                "outcome": row.outcome.value,
                **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
                "margin": metric.margin,
                "more_pairs": row.more_pairs,
                "most_pairs": row.most_pairs,
                "why": row.why,
                "paired": row.series.paired,
                "new": list(row.series.new),
                "base": list(row.series.base),
            }
        )
    return {
        "outcome": result.outcome,
        "exit_code": int(result.code),
        "sentence": result.sentence,
        "pairs": 0 if verdict is None else verdict.pairs,
        "more_pairs": None if verdict is None else verdict.more_pairs,
        "most_pairs": None if verdict is None else verdict.most_pairs,
        "alpha": result.plan.alpha,
        "sequential": result.plan.sequential,
        "rows": rows,
        "reasons": list(result.reasons),
        "remarks": list(result.remarks),
        "directory": result.directory or None,
    }


def render_junit(result: GateResult) -> str:
    """Write JUnit's XML: a case a row, slower a failure, undecided skipped; one error if not comparable."""
    rows = result.rows
    outcomes = [row.outcome for row in rows]
    attributes = {
        "name": _SUITE,
        "tests": str(len(rows) or 1),
        "failures": str(outcomes.count(GateOutcome.SLOWER)),
        "errors": str(int(result.verdict is None)),
    }
    skipped = str(outcomes.count(GateOutcome.UNDECIDED))
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", {**attributes, "skipped": skipped})
    for row in rows:
        names = {"classname": clean_line(row.series.load), "name": clean_line(row.series.metric.name)}
        case = ElementTree.SubElement(suite, "testcase", names)
        if row.outcome is not GateOutcome.NOT_SLOWER:
            tag = "failure" if row.outcome is GateOutcome.SLOWER else "skipped"
            low, high = (100 * (ratio - 1) for ratio in (row.low, row.high))
            shown = f"{_describe_change(row.ratio)} (slowdown {low:+.1f} to {high:+.1f} %)"
            message = row.why or f"{shown}, margin {100 * row.series.metric.margin:g} %"
            ElementTree.SubElement(case, tag, _describe_case(row.outcome.value, message))
    if result.verdict is None:
        case = ElementTree.SubElement(suite, "testcase", {"classname": _SUITE, "name": "comparable"})
        error = ElementTree.SubElement(case, "error", _describe_case(INCOMPARABLE, result.reasons[0]))
        error.text = "\n".join(map(clean_line, result.reasons))
    ElementTree.SubElement(suite, "system-out").text = render_passages([make_gate_passage(result)])
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _describe_case(kind: str, message: str) -> dict[str, str]:
    return {"type": kind, "message": clean_line(message)}


def _describe_change(slowdown: float) -> str:
    """Write a ratio of times as 3.0 % slower, or faster."""
    by = 100 * (slowdown - 1)
    return f"{abs(by):.1f} % {'faster' if by < 0 else 'slower'}"
