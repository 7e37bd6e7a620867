"""Gate report: each outcome as text, JSON, Markdown and JUnit's XML, which Jenkins' schema takes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from loadgen.base.errors import ExitCode
from loadgen.study.gate.gate_command import (
    GateResult,
    render_junit,
    render_markdown,
)
from loadgen.study.gate.gate_record import make_gate_metric
from loadgen.study.gate.gate_verdict import GatePlan, GateSeries, judge_gate

etree = pytest.importorskip("lxml.etree", reason="lxml is not installed")
LOAD = "high-load: 2048 in / 128 out, 100 requests, 8 at a time"
SPEED = make_gate_metric("tok/s", "output_throughput", True)
LATENCY = make_gate_metric("ttft", "mean_ttft_ms", False)
BASE = (100.0, 101.0, 99.0, 100.5, 99.5)
PLAN = GatePlan()
XSD = Path(__file__).parents[2] / "data" / "schemas" / "jenkins_junit_10.xsd"


def judged(*factors: float, base: tuple[float, ...] = BASE) -> GateResult:
    """The result of figures that are so many times the base's, the first a throughput, then a latency."""
    metrics = (SPEED, LATENCY)[: len(factors)]
    pairs = list(zip(base, (1.001, 0.999, 1.0, 1.0005, 0.9995), strict=False))
    series = [
        GateSeries(metric, LOAD, tuple(value * factor * one for value, one in pairs), base, True)
        for metric, factor in zip(metrics, factors, strict=True)
    ]
    return GateResult(PLAN, judge_gate(series, PLAN), remarks=("new: 1 of 5 runs SUSPECT: x",))


SLOWER, SAME = judged(0.9, 1.0), judged(1.0)
UNDECIDED, FEW = judged(0.97), judged(1.0, base=BASE[:1])
REFUSED = GateResult(PLAN, reasons=("machine: on H20, baseline Thor", "concurrency: 8\x07, baseline 4"))


def test_undecided_has_the_number_of_pairs_that_would_decide() -> None:
    assert UNDECIDED.verdict is not None
    many = "more than 1,000 more runs would be needed: give a wider --margin, or longer runs"
    for more, most, sentence in (
        (7, 17, "about 7 to 17 pairs more would decide"),
        (1, 1, "about 1 pair more would decide"),
        (None, None, many),
    ):
        verdict = replace(UNDECIDED.verdict, more_pairs=more, most_pairs=most)
        assert replace(UNDECIDED, verdict=verdict).sentence == f"undecided: {sentence}"
    assert UNDECIDED.code == ExitCode.UNDECIDED
    assert FEW.sentence == "undecided: one run a side has no spread: a verdict needs repeats"


def test_the_summary_is_a_heading_a_table_and_its_notes() -> None:
    lines = render_markdown(SLOWER).splitlines()
    assert lines[0] == "### gate: slower by more than 3 %: tok/s (5 pairs)"
    assert [line.split(" | ")[1] for line in lines if line.startswith("| high")] == ["tok/s", "ttft"]
    assert lines[-1] == "* new: 1 of 5 runs SUSPECT: x"
    assert render_markdown(REFUSED).splitlines()[2:] == ["* concurrency: 8\ufffd, baseline 4"]


@pytest.mark.parametrize(
    ("result", "cases"),
    [
        (SAME, [("tok/s", None)]),
        (SLOWER, [("tok/s", "failure"), ("ttft", None)]),
        (FEW, [("tok/s", "skipped")]),
        (REFUSED, [("comparable", "error")]),
    ],
    ids=["same", "slower", "few", "refused"],
)
def test_junit_has_a_case_a_row_and_is_as_the_schema_of_jenkins(
    result: GateResult, cases: list[tuple[str, str | None]]
) -> None:
    text = render_junit(result)
    etree.XMLSchema(etree.parse(str(XSD))).assertValid(etree.fromstring(text.encode()))
    suite = ElementTree.fromstring(text)[0]
    found = [(case.get("name"), case[0].tag if len(case) else None) for case in suite.iter("testcase")]
    assert found == cases
    tags = [tag for _, tag in cases]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {
        "tests": str(len(cases)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
    }
