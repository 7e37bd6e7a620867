"""`loadgen audit`: what cannot be, or is not what it is called, in anyone's published figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loadgen.analysis.audit import render
from loadgen.analysis.audit.findings import audit
from loadgen.analysis.importers import sources
from loadgen.errors import MeasureError, UsageError
from loadgen.protocol.printable import json_text, plain
from loadgen.results.printing import printed
from loadgen.roofline import architecture, machines
from loadgen.session.options import add_roofline_flags
from loadgen.spelling import Parser, refuse_unknown
from loadgen.validity.verdict import Level
from loadgen.workload.paths import place

STRICT = 3


def audit_parser() -> argparse.ArgumentParser:
    """The flags of `loadgen audit`."""
    parser = Parser(
        prog="loadgen audit",
        allow_abbrev=False,
        description="Look for what cannot be in published figures. A PLACE is a page with pasted "
        "Serving Benchmark Results, a result file of vLLM, SGLang, aiperf or guidellm, a speed table, "
        "a run directory, a campaign.",
        epilog="Runs that stand together are held against each other: give a page whole. "
        "docs/audit.md lists the doubts.",
    )
    parser.add_argument("places", nargs="*", metavar="PLACE")
    add_roofline_flags(parser.add_argument_group("roofline"))
    add = parser.add_argument
    add("--model", metavar="NAME", help="what every run is of, where the names on the page do not tell")
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
    given, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        refuse_unknown(unknown[0], parser)
    if not given.places:
        raise UsageError("nothing to audit: name a page, a result file or a run directory")
    machine, unknown_machine = machines.named(given.hardware, given.bandwidth)
    config = None if given.model_config is None else place(given.model_config)
    if config is not None:
        architecture.read(config)  # found broken before anything is read
    read = sources.read(given.places)
    failures = [
        f"{one.cell.arm}, {one.cell.profile}, repeat {one.cell.repeat}: {one.reason}" for one in read.failures
    ]
    if not read.reported:
        raise MeasureError(
            "; ".join([*read.troubles, *failures][:3]) or "no figures in " + ", ".join(given.places)
        )
    findings = audit(read.reported, machine, config, given.model or "")
    if given.json:
        told = render.json(findings, machine, [*filter(None, [unknown_machine]), *read.troubles], failures)
        printed(json_text(told, indent=1), sys.stdout)
    else:
        printed(plain(render.text(findings, explain=given.explain)), sys.stdout, end="")
        for line in filter(None, [unknown_machine, *read.troubles, *(f"failed: {one}" for one in failures)]):
            printed(f"loadgen: {plain(line)}", sys.stderr)
    invalid = any(one.level is Level.INVALID for one in findings)
    return STRICT if given.strict and invalid else 0
