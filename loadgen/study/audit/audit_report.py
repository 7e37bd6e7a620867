"""Render: an audit as text in 80 columns, and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from loadgen.base import rule
from loadgen.base.rule import Finding, Severity
from loadgen.base.table import align_cells
from loadgen.base.text import WIDTH, clean_line, cut_end, cut_middle, format_count, list_first, wrap_text
from loadgen.report.load_table import marked_name
from loadgen.roofline.bound import DECODING, PREFILL
from loadgen.roofline.machines import Machine
from loadgen.study.audit.findings import CHECKS, RELATIONS, ROOFLINE, RunFindings
from loadgen.study.compare import run_groups
from loadgen.study.run_summary import Reported, grouped
from loadgen.verdict.verdict import Level

FORMAT = 1
_LOAD = 16
_WIDTHS = (-_LOAD - 2, 8, 8, 8, 6, -1)
_LONGEST_NAME = 60
_ADVICE = "; a roofline would be, as by loadgen audit PLACE --hardware h20-96gb --model-config config.json"
_GRAVEST_FIRST = (Level.INVALID, Level.SUSPECT, Level.VALID, Level.UNCHECKED)
_BY_REPORT = "its report's verdict"
_MOST_REASONS, _NAMED = 10, 3
_SPEEDS = ("output_throughput", "speed_tok_s", DECODING, PREFILL)


def render_text(findings: Sequence[RunFindings], *, explain: bool = False) -> str:
    """Write a table of all runs by checkpoint, each run's findings, and the checks that were not made."""
    rows = run_groups.name_rows([audited.reported for audited in findings])
    names = {id(audited): row for audited, row in zip(findings, rows, strict=True)}
    by_name = grouped(findings, lambda audited: _mark_name(audited, names[id(audited)]))
    ordered = [audited for own in by_name.values() for audited in own]
    lines = [*_table(by_name), ""]
    for audited in ordered:
        lines += _explain_run(audited, explain)
    return "\n".join([*lines, *_end(ordered, explain), ""])


def render_json(
    findings: Sequence[RunFindings], machine: Machine | None, problems: Sequence[str], failures: Sequence[str]
) -> dict[str, Any]:
    """Write the audit as an object of plain values; a number that is not finite is null."""
    return {
        "format": FORMAT,
        "machine": None if machine is None else machine.model_dump(mode="json"),
        "runs": [_run(audited) for audited in findings],
        "levels": {level.value: sum(audited.level is level for audited in findings) for level in Level},
        "looked_for": [check.code for check in CHECKS],
        "troubles": list(problems),
        "failed_cells": list(failures),
    }


def _table(findings: Mapping[str, Sequence[RunFindings]]) -> Iterator[str]:
    """Figures, share of the roofline and the worst doubt, a line a run under its checkpoint's name."""
    yield align_cells(("", "tok/s", "TTFT ms", "TPOT ms", "roof", "  level, worst doubt"), _WIDTHS)
    for name, own in findings.items():
        yield cut_end(clean_line(name), WIDTH)
        yield from map(_row, own)


def _row(audited: RunFindings) -> str:
    run, share = audited.reported, audited.roofline
    speed = next((value for key in _SPEEDS if (value := run.figure(key)) is not None), None)
    cells = [_number(value) for value in (speed, _latency(run, "ttft"), _latency(run, "tpot"))]
    roof = "-" if share is None else f"{100 * share:.0f} %"
    worst = audited.findings[0].rule if audited.findings else None
    named = worst.code if worst and worst.severity is not Severity.NOTE else ""
    named = _BY_REPORT if audited.by_its_report else named
    load = f"  {cut_end(clean_line(_load(run)), _LOAD)}"
    return align_cells((load, *cells, roof, f"  {audited.verdict} {named}".rstrip()), _WIDTHS)


def _latency(run: Reported, key: str) -> float | None:
    """The mean of a latency; of a source without it the median."""
    mean = run.figure(f"mean_{key}_ms")
    return run.figure(f"median_{key}_ms") if mean is None else mean


def _mark_name(audited: RunFindings, name: str) -> str:
    return marked_name(name or "(no name)", bool(audited.reported.simulated))


def _load(run: Reported) -> str:
    """The load by its name, else by its concurrency."""
    limit = run.load.max_concurrency
    return run.load.name or ("-" if limit is None else f"concurrency {limit}")


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    digits = 2 if abs(value) < 1e4 else 1
    return f"{value:.{digits}f}" if abs(value) < 1e5 else f"{value:.2g}"


def _explain_run(audited: RunFindings, explain: bool) -> Iterator[str]:
    """Yield the lines on a run's findings; none without findings."""
    shown = [finding for finding in audited.findings if explain or finding.rule.severity is not Severity.NOTE]
    notes = [finding.rule.code for finding in audited.findings if finding not in shown]
    remarks = audited.reported.remarks if explain else ()
    if not shown and not notes and not remarks and not audited.by_its_report:
        return
    run = audited.reported
    names = filter(None, (_mark_name(audited, run.name), run.load.name))
    title = ", ".join(cut_middle(clean_line(name), _LONGEST_NAME) for name in names)
    yield from wrap_text(f"{title}: {audited.verdict}", "  ")
    yield from wrap_text(f"  {clean_line(run.source)}", "    ")
    if audited.by_its_report:
        yield f"  {_BY_REPORT}: its figures alone do not show why"
    for finding in shown:
        yield from _evidence(finding, explain)
    if notes:
        yield from wrap_text(f"  notes: {', '.join(notes)}", "    ")
    for remark in remarks:
        yield from wrap_text(f"  remark: {clean_line(remark)}", "    ")
    yield ""


def _evidence(finding: Finding, explain: bool) -> Iterator[str]:
    short = [f"{finding.rule.code}: {finding.evidence}"]
    for line in rule.explained(finding) if explain else short:
        margin = " " * (len(line) - len(line.lstrip()) + 4)
        yield from wrap_text(f"  {clean_line(line)}", margin)


def _end(findings: Sequence[RunFindings], explain: bool) -> Iterator[str]:
    levels = Counter(audited.level for audited in findings)
    by_level = ", ".join(f"{levels[level]} {level.value}" for level in _GRAVEST_FIRST if levels[level])
    runs = format_count(len(findings), "run")
    yield from wrap_text(f"{runs}: {by_level}; {len(CHECKS)} doubts (docs/audit.md)")
    ceilings = [audited.ceiling for audited in findings if audited.ceiling is not None]
    machines = {ceiling.machine.name: ceiling.machine for ceiling in ceilings}
    for machine in machines.values():
        peaks = ", ".join(f"{kind} {peak / 1e12:.4g}" for kind, peak in machine.peak_flop_per_s.items())
        rate = f"{machine.bandwidth_bytes_per_s / 1e9:.4g} GB/s" + (f", TFLOP/s {peaks}" if peaks else "")
        yield from wrap_text(f"roofline: {machine.name}, {rate} ({machine.source})")
    yield from _explain_unchecked(findings)
    if explain:
        yield from _tally_reasons("weights of", (f"{each.model}: {each.weights.how}" for each in ceilings))
        return
    yield from _tally_reasons(
        "remark on", (remark for audited in findings for remark in audited.reported.remarks)
    )
    if any(audited.findings for audited in findings):
        yield "details: --explain (each doubt's condition and remedy, and the weights assumed)"


def _explain_unchecked(findings: Sequence[RunFindings]) -> Iterator[str]:
    """Yield each check that was not made, of how many runs, and once what to pass for it."""
    unknown = [audited.reported.machine for audited in findings if audited.no_machine]
    named = [clean_line(name) for name in dict.fromkeys(unknown) if name]
    why = f"{list_first(named, _NAMED)} is no machine of the table" if named else "no machine is named"
    yield from _count_runs(
        unknown,
        "no roofline for",
        f"{why}: pass --hardware KEY, as jetson-thor or 4xh100, or --bandwidth GB/s",
    )
    shapeless = [audited.reported.checkpoint for audited in findings if audited.no_shape]
    models = [cut_middle(clean_line(name), _LONGEST_NAME) for name in dict.fromkeys(shapeless)]
    shape = f"the shape of {list_first(models, _NAMED)} is unknown"
    yield from _count_runs(
        shapeless, "no roofline for", f"{shape}: pass --model-config, its config.json, or --model NAME"
    )
    others = (audited.no_ceiling for audited in findings if not (audited.no_machine or audited.no_shape))
    yield from _tally_reasons("no roofline for", others)
    untimed = [audited for audited in findings if audited.ceiling and ROOFLINE in audited.unchecked]
    why = "no figure is of decoding alone, as TPOT, ITL or tok/s at concurrency 1"
    yield from _count_runs(untimed, "no roofline for", why)
    unrelated = [audited for audited in findings if RELATIONS in audited.unchecked]
    why = "no two of its figures depend on one another, as a rate on its count and the duration"
    yield from _count_runs(unrelated, "no relations in", why)
    if any(audited.level is Level.UNCHECKED for audited in findings):
        advice = _ADVICE if unknown or shapeless else ""
        yield from wrap_text(f"UNCHECKED: there was nothing to compare the figures with{advice}")


def _count_runs(runs: Sequence[object], what: str, why: str) -> list[str]:
    return wrap_text(f"{what} {format_count(len(runs), 'run')}: {why}") if runs else []


def _tally_reasons(what: str, reasons: Iterable[str]) -> Iterator[str]:
    """Each reason with how many runs have it, the first few of them."""
    every = Counter(filter(None, reasons))
    for why, count in [*every.items()][:_MOST_REASONS]:
        yield from wrap_text(f"{what} {format_count(count, 'run')}: {clean_line(why)}")
    if len(every) > _MOST_REASONS:
        yield f"{what} others: {len(every) - _MOST_REASONS} more reasons (--json has all)"


def _run(audited: RunFindings) -> dict[str, Any]:
    run, ceiling = audited.reported, audited.ceiling
    return {
        "name": run.name,
        "load": {key: _keep_finite(value) for key, value in run.load.json().items()},
        "checkpoint": run.checkpoint,
        **{key: getattr(run, key) for key in ("source", "told_by", "engine", "machine")},
        "figures": {key: _keep_finite(run.figures[key]) for key in run.figures},
        "level": audited.level.value,
        "not_checked": list(audited.unchecked),
        "simulated": bool(run.simulated),
        "roofline": audited.roofline if audited.roofline is None or math.isfinite(audited.roofline) else None,
        "ceiling": None if ceiling is None else ceiling.model_dump(mode="json"),
        "no_roofline": audited.no_ceiling or None,
        "doubts": [rule.as_json(finding) for finding in audited.findings],
        "remarks": list(run.remarks),
    }


def _keep_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)
