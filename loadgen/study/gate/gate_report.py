"""Gate report: the result of a gate for a terminal, a pipeline's summary, JUnit's readers, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import msgspec

from loadgen.base.errors import ExitCode
from loadgen.base.passages import Passage, render_passages
from loadgen.base.tables import Table, make_table
from loadgen.base.text import clean_line, format_count
from loadgen.study.gate.gate_verdict import GateOutcome, GatePlan, GateVerdict

INCOMPARABLE = "incomparable"
_CODES = {
    GateOutcome.NOT_SLOWER: ExitCode.FIGURES,
    GateOutcome.SLOWER: ExitCode.SLOWER,
    GateOutcome.UNDECIDED: ExitCode.UNDECIDED,
}
_SUITE = "loadgen gate"


class GateResult(msgspec.Struct, frozen=True):
    """What a gate found: a verdict on each series, or the reasons why there is none."""

    plan: GatePlan
    verdict: GateVerdict | None = None  # None: the two cannot be compared
    reasons: tuple[str, ...] = ()  # why they cannot
    remarks: tuple[str, ...] = ()
    directory: str = ""  # of the campaign that measured it; "": the runs were given

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
        rows = [row for row in self.verdict.rows if row.outcome is self.verdict.outcome]
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


def make_gate_passage(result: GateResult) -> Passage:
    """Make the passage of a result: the outcome, the table of what was judged, and notes on it."""
    table = None if result.verdict is None else _make_table(result.verdict)
    return Passage(f"gate: {result.sentence}", table=table, remarks=tuple(_list_notes(result)))


def render_markdown(result: GateResult) -> str:
    """Write a result as Markdown, for the summary of a pipeline's job."""
    return render_passages([make_gate_passage(result)], markdown=True)


def _list_notes(result: GateResult) -> Iterator[str]:
    """Yield the further reasons, why rows could not be decided, and the remarks."""
    yield from result.reasons[1:]
    if result.verdict is not None:
        for row in result.verdict.rows:
            if row.why:
                yield f"{row.series.metric.name}, {row.series.load}: {row.why}"
    yield from result.remarks


def _make_table(verdict: GateVerdict) -> Table:
    """Make a row for each series: means of both sides, slowdown and margin; "-" where not tested."""
    columns = ("load", "metric", "new", "base", "new is", "slowdown", "margin", "verdict")
    body = []
    for row in verdict.rows:
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
    verdict = result.verdict
    rows = []
    for row in () if verdict is None else verdict.rows:
        numbers = {name: getattr(row, name) for name in ("ratio", "low", "high", "level", "p")}
        rows.append(
            {
                "metric": row.series.metric.name,
                "figure": row.series.metric.key,
                "load": row.series.load,
                "outcome": row.outcome.value,
                **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
                "margin": row.series.metric.margin,
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
    rows = () if result.verdict is None else result.verdict.rows
    counts = {
        "tests": len(rows) or 1,
        "failures": sum(row.outcome is GateOutcome.SLOWER for row in rows),
        "errors": int(result.verdict is None),
    }
    skipped = sum(row.outcome is GateOutcome.UNDECIDED for row in rows)
    attributes = {"name": _SUITE, **{name: str(count) for name, count in counts.items()}}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", {**attributes, "skipped": str(skipped)})
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
