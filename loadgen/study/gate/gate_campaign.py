"""Gate campaign: both arms of a campaign's file measured in turn, pair by pair, until the gate knows."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import format_count
from loadgen.figures.figure_table import parse_percentiles, percentile_name
from loadgen.report.load_identity import Load
from loadgen.study.compare import comparison
from loadgen.study.gate import gate_record, gate_sides, gate_verdict
from loadgen.study.gate.gate_record import MOST_PAIRS, GateRecord
from loadgen.study.gate.gate_report import GateResult
from loadgen.study.gate.gate_verdict import FIRST_LOOK, MAX_PAIRS, GateMetric, GateOutcome, GatePlan
from loadgen.study.importers.clients import loadgen_runs
from loadgen.study.run_summary import FailedCell, Reported
from loadgen.study.series.campaign import arms, campaign_command, campaign_store
from loadgen.study.series.campaign.arms import ONCE
from loadgen.study.series.campaign.campaign_command import CampaignRequest, make_request
from loadgen.study.series.campaign.campaign_store import CELLS, CampaignStore
from loadgen.study.series.campaign.execution import Execution
from loadgen.study.series.campaign.steps import Arm
from loadgen.study.series.series_store import list_names, print_progress, show_resume_command

Measured = tuple[GateResult, tuple[Reported, ...], int]


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
        # Before the first look there is no verdict that a passing state could have made.
        allows_state = self.allows_state or len(sides[0].new) < FIRST_LOOK
        if reasons := gate_sides.list_reasons(sides, metrics, allows_state):
            return replace(result, reasons=tuple(reasons))
        series = [one for each in sides for one in gate_sides.make_series(each, metrics, measured_here=True)]
        verdict = gate_verdict.judge_gate(series, self.record.plan)
        return replace(result, verdict=verdict, remarks=tuple(gate_sides.list_remarks(sides)))

    def is_over(self, say: Callable[[str], None]) -> bool:
        """Whether the gate knows, or its sides cannot be compared; `say` gets each new pair's outcome."""
        result = self.judge()
        if result is None or result.verdict is None:
            return result is not None
        pairs = max(len(row.series.new) for row in result.verdict.rows)
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
