"""`loadgen audit`: what cannot be, or is not what it is called, in anyone's figures, as text and as JSON."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from loadgen.base import rule
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.parsing import Parser, parse_arguments, suggest_name
from loadgen.base.passages import Passage, print_passages, render_passages
from loadgen.base.printing import add_json_flag, print_json, print_text
from loadgen.base.rule import Severity
from loadgen.base.tables import cut_middle, make_table
from loadgen.base.text import clean_line, clean_text, format_count, list_first
from loadgen.facts.ceiling import Machine
from loadgen.features.roofline import models
from loadgen.features.roofline.models import split_name
from loadgen.figures.metrics import DECODING, PREFILL
from loadgen.report.run import Place, Run, Verdict
from loadgen.settings import setting
from loadgen.settings.server_settings import MachineOptions
from loadgen.settings.setting import list_rows
from loadgen.settings.table import add_groups
from loadgen.study import compare_command
from loadgen.study.audit.findings import CHECKS, RELATIONS, ROOFLINE, RunFindings, audit_runs
from loadgen.study.compare import run_groups
from loadgen.study.consistency.ceilings import Hardware
from loadgen.study.importers import result_sources
from loadgen.study.importers.result_sources import Sources
from loadgen.study.load_table import mark_simulated
from loadgen.study.run_summary import Reported, group_by
from loadgen.verdict.verdict import Level

STRICT = 3
FORMAT = 1
_LONGEST_NAME = 60
_ADVICE = "; a roofline would be, as by loadgen audit PLACE --hardware h20-96gb --model-config config.json"
_GRAVEST_FIRST = (Level.INVALID, Level.SUSPECT, Level.VALID, Level.UNCHECKED)
_PASS_HARDWARE = "pass --hardware KEY, as jetson-thor or 4xh100, or --bandwidth GB/s"
_PASS_SHAPE = "pass --model-config, its config.json, or --model NAME"
_UNTIMED = "no figure is of decoding alone, as TPOT, ITL or tok/s at concurrency 1"
_UNRELATED = "no two of its figures depend on one another, as a rate on its count and the duration"
_BY_REPORT = "its report's verdict"
_MOST_REASONS, _NAMED = 10, 3
_SPEEDS = ("output_throughput", "speed_tok_s", DECODING, PREFILL)


def audit_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen audit`."""
    parser = Parser(
        prog="loadgen audit",
        allow_abbrev=False,
        description="Find impossible figures in published results. A PLACE is a page with pasted "
        "Serving Benchmark Results, a result file of any client of docs/others.md, a speed table, "
        "a run directory, a campaign.",
        epilog="Runs that stand together are held against each other: give a page whole. "
        "docs/audit.md lists the doubts.",
    )
    parser.add_argument("places", nargs="*", metavar="PLACE", help="page, result file, run or campaign")
    add_groups(parser, [setting.ROOFLINE], list_rows(MachineOptions))
    add = parser.add_argument
    add("--model", metavar="NAME", help="model of every run, where the names on the page do not show it")
    add("--explain", action="store_true", help="print every doubt with its evidence, condition and remedy")
    add_json_flag(parser)
    add("--strict", action="store_true", help=f"exit {STRICT} where a run is INVALID")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the audit of the places in `argv`; return 3 with --strict if a run is INVALID, else 0.

    As text, what could not be read and failed cells go to the standard error. Raises UsageError of wrong
    options, and where nothing can be read.
    """
    parser = audit_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return 0
    given = parse_arguments(parser, argv, intermixed=True)
    if not given.places:
        raise UsageError("nothing to audit: name a page, a result file or a run directory")
    hardware = Hardware.from_flags(given)  # a wrong one is an error before anything is read
    is_known = (
        given.model is None or hardware.config is not None or models.find_model(given.model) is not None
    )
    if not is_known and not os.path.exists(os.path.expanduser(given.model)):
        near = suggest_name(split_name(given.model)[0], models.read_rows())
        hint = f"{near} Else" if near else ":"
        raise UsageError(
            f"--model {given.model}: its shape is unknown{hint} pass --model-config, its config.json"
        )
    result = audit_sources(result_sources.read_sources(given.places), hardware, given.model)
    if given.json:
        print_json(result.json())
    else:
        print_passages(list_audit_passages(result.findings, given.explain))
        for line in (*result.messages, *(f"failed: {cell}" for cell in result.failed_cells)):
            print_text(f"loadgen: {clean_text(line)}", sys.stderr)
    invalid = any(findings.level is Level.INVALID for findings in result.findings)
    return STRICT if given.strict and invalid else 0


class Audited(msgspec.Struct, frozen=True):
    """The findings on every run that was read, and a line on each thing that could not be."""

    findings: list[RunFindings]
    machine: Machine | None
    messages: list[str]
    failed_cells: list[str]

    def json(self) -> dict[str, Any]:
        """Return the audit as an object of plain values; a number that is not finite is null."""
        levels = Counter(audited.level for audited in self.findings)
        return {
            "format": FORMAT,
            "machine": None if self.machine is None else self.machine.model_dump(mode="json"),
            "runs": [_encode_run(audited) for audited in self.findings],
            "levels": {level.value: levels[level] for level in Level},
            "looked_for": [check.code for check in CHECKS],
            "troubles": self.messages,
            "failed_cells": self.failed_cells,
        }


def audit_sources(read: Sources, hardware: Hardware, model: str | None) -> Audited:
    """Audit everything that was read; raises MeasureError if there is no run, UsageError of a bad config."""
    cells = [(failure.cell, failure.reason) for failure in read.failures]
    failed = [f"{cell.arm}, {cell.profile}, repeat {cell.repeat + 1}: {reason}" for cell, reason in cells]
    if not read.reported:
        raise MeasureError("; ".join([*read.errors, *failed][:3]) or "no figures at the places named")
    findings = audit_runs(read.reported, hardware.machine, hardware.config, model or "")
    return Audited(findings, hardware.machine, list(read.errors), failed)


def list_audit_passages(findings: Sequence[RunFindings], explain: bool = False) -> list[Passage]:
    """List the passages of an audit: a table of all runs, each one's findings, and what was not checked."""
    rows = run_groups.name_rows([audited.reported for audited in findings])
    named = zip(findings, rows, strict=True)
    by_name = group_by(
        named, lambda pair: mark_simulated(pair[1] or "(no name)", bool(pair[0].reported.simulated))
    )
    ordered = [audited for own in by_name.values() for audited, _ in own]
    body = [(name, *_list_cells(audited)) for name, own in by_name.items() for audited, _ in own]
    columns = ("checkpoint", "load", "tok/s", "TTFT ms", "TPOT ms", "roof", "verdict")
    passages = [Passage("", table=make_table(columns, body, spanned=1))]
    passages += filter(None, (_make_run_passage(audited, explain) for audited in ordered))
    levels = Counter(audited.level for audited in ordered)
    by_level = ", ".join(f"{levels[level]} {level.value}" for level in _GRAVEST_FIRST if levels[level])
    title = (
        f"{format_count(len(ordered), 'run')}: {by_level}; {len(CHECKS)} doubts looked for (docs/audit.md)"
    )
    return [*passages, Passage(title, remarks=tuple(_list_remarks(ordered, explain)))]


def _list_cells(audited: RunFindings) -> list[str]:
    """List a run's cells behind its name: load, tok/s, mean or median TTFT and TPOT, roof, verdict."""
    run, share = audited.reported, audited.roofline
    speed = next((value for key in _SPEEDS if (value := run.figure(key)) is not None), None)
    figures = [
        _format_number(value) for value in (speed, _find_average(run, "ttft"), _find_average(run, "tpot"))
    ]
    worst = audited.findings[0].rule if audited.findings else None
    named = worst.code if worst and worst.severity is not Severity.NOTE else ""
    named = _BY_REPORT if audited.by_its_report else named
    limit = run.load.max_concurrency
    load = run.load.name or ("-" if limit is None else f"concurrency {limit}")
    return [
        load,
        *figures,
        "-" if share is None else _format_share(share),
        f"{audited.verdict} {named}".rstrip(),
    ]


def _format_share(share: float) -> str:
    if share < 9.995:
        return f"{100 * share:.0f} %"
    return f"{share:.0f}×" if share < 999.5 else ">999×"


def _find_average(run: Reported, key: str) -> float | None:
    mean = run.figure(f"mean_{key}_ms")
    return run.figure(f"median_{key}_ms") if mean is None else mean


def _format_number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    digits = 2 if abs(value) < 1e4 else 1
    return f"{value:.{digits}f}" if abs(value) < 1e5 else f"{value:.2g}"


def _make_run_passage(audited: RunFindings, explain: bool) -> Passage | None:
    """Make the passage of a run's findings, notes by name alone unless `explain`; None if there are none."""
    shown = [finding for finding in audited.findings if explain or finding.rule.severity is not Severity.NOTE]
    notes = [finding.rule.code for finding in audited.findings if finding not in shown]
    remarks = audited.reported.remarks if explain else ()
    if not shown and not notes and not remarks and not audited.by_its_report:
        return None
    run = audited.reported
    name = mark_simulated(run.name or "(no name)", bool(run.simulated))
    facts = [("source", run.source)]
    if audited.by_its_report:
        facts.append((_BY_REPORT, "its figures alone do not show why"))
    for finding in shown:
        facts.append((finding.rule.code, finding.evidence))
        if explain:
            facts += [("  condition", finding.rule.condition), ("  remedy", finding.rule.remedy)]
    facts += [("notes", ", ".join(notes))] * bool(notes)
    facts += [("note", remark) for remark in remarks]
    names = (cut_middle(each, _LONGEST_NAME) for each in (name, run.load.name) if each)
    return Passage(f"{', '.join(names)}: {audited.verdict}", facts=tuple(facts))


def _list_remarks(findings: Sequence[RunFindings], explain: bool) -> Iterator[str]:
    """Yield the lines below the table: machines, checks not made; with `explain` weights, else remarks."""
    ceilings = [audited.ceiling for audited in findings if audited.ceiling is not None]
    machines = {ceiling.machine.name: ceiling.machine for ceiling in ceilings}
    for machine in machines.values():
        peaks = ", ".join(f"{kind} {peak / 1e12:.4g}" for kind, peak in machine.peak_flop_per_s.items())
        rate = f"{machine.bandwidth_bytes_per_s / 1e9:.4g} GB/s" + (f", TFLOP/s {peaks}" if peaks else "")
        yield f"roofline: {machine.name}, {rate} ({machine.source})"
    yield from _explain_unchecked(findings)
    if explain:
        yield from _tally_reasons("weights of", (f"{each.model}: {each.weights.how}" for each in ceilings))
        return
    remarks = (remark for audited in findings for remark in audited.reported.remarks)
    yield from _tally_reasons("note on", remarks)
    if any(audited.findings for audited in findings):
        yield "details: --explain (each doubt's condition and remedy, and the weights assumed)"


def _explain_unchecked(findings: Sequence[RunFindings]) -> Iterator[str]:
    """Yield each check that was not made, of how many runs, and once what to pass for it."""
    unknown = [audited.reported.machine for audited in findings if audited.no_machine]
    named = [clean_line(name) for name in dict.fromkeys(unknown) if name]
    machine = f"{list_first(named, _NAMED)} is no machine of the table" if named else "no machine is named"
    shapeless = [audited.reported.checkpoint for audited in findings if audited.no_shape]
    names = [cut_middle(clean_line(name), _LONGEST_NAME) for name in dict.fromkeys(shapeless)]
    shape = f"the shape of {list_first(names, _NAMED)} is unknown"
    others = (audited.no_ceiling for audited in findings if not (audited.no_machine or audited.no_shape))
    untimed = [audited for audited in findings if audited.ceiling and ROOFLINE in audited.unchecked]
    unrelated = [audited for audited in findings if RELATIONS in audited.unchecked]
    no_roofline, no_relations = "no roofline for", "no relations in"
    yield from _count_runs(no_roofline, unknown, f"{machine}: {_PASS_HARDWARE}")
    yield from _count_runs(no_roofline, shapeless, f"{shape}: {_PASS_SHAPE}")
    yield from _tally_reasons(no_roofline, others)
    yield from _count_runs(no_roofline, untimed, _UNTIMED)
    yield from _count_runs(no_relations, unrelated, _UNRELATED)
    if any(audited.level is Level.UNCHECKED for audited in findings):
        advice = _ADVICE if unknown or shapeless else ""
        yield f"UNCHECKED: there was nothing to compare the figures with{advice}"


def _count_runs(what: str, runs: Sequence[object], why: str) -> list[str]:
    return [f"{what} {format_count(len(runs), 'run')}: {why}"] if runs else []


def _tally_reasons(what: str, reasons: Iterable[str]) -> Iterator[str]:
    """Yield the first ten reasons with how many runs have each, then how many reasons are left."""
    every = Counter(filter(None, reasons))
    for why, count in [*every.items()][:_MOST_REASONS]:
        yield f"{what} {format_count(count, 'run')}: {clean_line(why)}"
    if len(every) > _MOST_REASONS:
        yield f"{what} others: {len(every) - _MOST_REASONS} more reasons (--json has all)"


def _encode_run(audited: RunFindings) -> dict[str, Any]:
    """Make a run's object of plain values; a number that is not finite is None."""
    run, ceiling = audited.reported, audited.ceiling
    return {
        "name": run.name,
        "load": {key: _encode_value(value) for key, value in run.load.json().items()},
        "checkpoint": run.checkpoint,
        **{key: getattr(run, key) for key in ("source", "told_by", "engine", "machine")},
        "figures": {key: _encode_value(run.figures[key]) for key in run.figures},
        "level": audited.level.value,
        "not_checked": list(audited.unchecked),
        "simulated": bool(run.simulated),
        "roofline": audited.roofline if audited.roofline is None or math.isfinite(audited.roofline) else None,
        "ceiling": None if ceiling is None else ceiling.model_dump(mode="json"),
        "no_roofline": audited.no_ceiling or None,
        "doubts": [rule.encode_finding(finding) for finding in audited.findings],
        "remarks": list(run.remarks),
    }


def _encode_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)


class RunAudit(msgspec.Struct, frozen=True):
    """One run of an audit: its name, the file or place it was read from, and what was found.

    `not_checked` has "roofline" where machine or model are unknown, "relations" where no figures depend on
    one another.
    """

    name: str
    source: str
    verdict: Verdict
    not_checked: tuple[str, ...] = ()


class Audit:
    """The verdict on each run that was read, in their order: which of its figures cannot be.

    `messages` are lines on what could not be read.
    """

    def __init__(self, audited: Audited) -> None:
        self._audited = audited
        self.runs = tuple(
            RunAudit(
                run.reported.name,
                run.reported.source,
                Verdict.from_findings(run.level, run.findings),
                run.unchecked,
            )
            for run in audited.findings
        )
        self.messages = tuple(audited.messages)

    def text(self, *, explain: bool = False) -> str:
        """Write the audit as `loadgen audit` prints it; `explain` adds every doubt's evidence and remedy."""
        return render_passages(list_audit_passages(self._audited.findings, explain))

    def json(self) -> dict[str, Any]:
        """Return everything as `loadgen audit --json` prints it."""
        return self._audited.json()


def audit(
    runs: Sequence[Run | Place],
    *,
    model: str | None = None,
    hardware: str | None = None,
    bandwidth: float | None = None,
) -> Audit:
    """Find impossible figures in runs, result files of any client, and pages with pasted results.

    `model` is what every run is of, where their names do not show it; `hardware` (as "4xh100") or
    `bandwidth` in GB/s is the machine. Raises LoadgenError where there are no figures.
    """
    machine = Hardware.find(hardware, bandwidth)
    return Audit(audit_sources(compare_command.collect_sources(runs)[0], machine, model))
