"""`loadgen audit`: what cannot be, or is not what it is called, in anyone's published figures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.parsing import Parser, parse_arguments, suggest_name
from loadgen.base.text import clean_text, format_json
from loadgen.report.printing import print_text
from loadgen.roofline import models
from loadgen.roofline.machines import Machine
from loadgen.roofline.models import split_name
from loadgen.settings import setting
from loadgen.settings.table import add_groups
from loadgen.study.audit import audit_report
from loadgen.study.audit.findings import RunFindings, audit_runs
from loadgen.study.compare.ceilings import Hardware
from loadgen.study.importers import result_sources
from loadgen.study.importers.result_sources import Sources
from loadgen.verdict.verdict import Level

STRICT = 3


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
    parser.add_argument("places", nargs="*", metavar="PLACE")
    add_groups(parser, [setting.ROOFLINE])
    add = parser.add_argument
    add("--model", metavar="NAME", help="what every run is of, where the names on the page do not show it")
    add("--explain", action="store_true", help="every doubt with its evidence, condition and remedy")
    add("--json", action="store_true", help="print the audit as JSON")
    add("--strict", action="store_true", help=f"exit {STRICT} where a run is INVALID")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 where anything was read, 3 with --strict where a run is INVALID."""
    parser = audit_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return 0
    given = parse_arguments(parser, argv, intermixed=True)
    if not given.places:
        raise UsageError("nothing to audit: name a page, a result file or a run directory")
    hardware = Hardware.given(given)  # a wrong one is an error before anything is read
    _check_model(given.model, hardware.config)
    result = audit_sources(result_sources.read_sources(given.places), hardware, given.model)
    if given.json:
        print_text(format_json(result.json(), indent=1), sys.stdout)
    else:
        print_text(
            clean_text(audit_report.render_text(result.findings, explain=given.explain)), sys.stdout, end=""
        )
        for line in (*result.messages, *(f"failed: {cell}" for cell in result.failed_cells)):
            print_text(f"loadgen: {clean_text(line)}", sys.stderr)
    invalid = any(findings.level is Level.INVALID for findings in result.findings)
    return STRICT if given.strict and invalid else 0


def _check_model(model: str | None, config: Path | None) -> None:
    """Raise UsageError for a model of which neither name, files nor config are known."""
    if model is None or config is not None or models.find_model(model) is not None:
        return
    if not os.path.exists(os.path.expanduser(model)):
        near = suggest_name(split_name(model)[0], models.read_rows())
        hint = f"{near} Else" if near else ":"
        raise UsageError(f"--model {model}: its shape is unknown{hint} pass --model-config, its config.json")


class Audited(msgspec.Struct, frozen=True):
    """The findings on every run that was read, and a line on each thing that could not be."""

    findings: list[RunFindings]
    machine: Machine | None
    messages: list[str]
    failed_cells: list[str]

    def json(self) -> dict[str, Any]:
        """The audit as an object of plain values."""
        return audit_report.render_json(self.findings, self.machine, self.messages, self.failed_cells)


def audit_sources(read: Sources, hardware: Hardware, model: str | None) -> Audited:
    """Audit everything that was read; raises UsageError, MeasureError where there are no figures."""
    cells = [(failure.cell, failure.reason) for failure in read.failures]
    failed = [f"{cell.arm}, {cell.profile}, repeat {cell.repeat + 1}: {reason}" for cell, reason in cells]
    if not read.reported:
        raise MeasureError("; ".join([*read.errors, *failed][:3]) or "no figures at the places named")
    findings = audit_runs(read.reported, hardware.machine, hardware.config, model or "")
    return Audited(findings, hardware.machine, list(read.errors), failed)
