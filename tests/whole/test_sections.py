"""Sections: each doubt, report section and part of the JSON, made to raise, costs itself alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import asdict

from builders.loops import loop_over
from builders.made_cases import failed, run
from loadgen.base.errors import Broken, describe_exception, make_guarded
from loadgen.base.rule import Rule
from loadgen.base.structs import replace
from loadgen.base.text import wrap_text
from loadgen.features.fingerprint.answer_check import make_empty_fingerprint
from loadgen.figures import steady_state
from loadgen.report import report, result_block
from loadgen.report.report import SECTIONS
from loadgen.report.result_file import make_result
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions, Section, make_sections
from loadgen.server.engine_config import EngineConfig
from loadgen.verdict import verdict
from loadgen.verdict.evidence import RunEvidence
from loadgen.verdict.verdict import DOUBTS, Level

WHY = "ZeroDivisionError: division by zero"


def broken_one(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("division by zero")


def broken_midway(*_: object) -> Iterator[str]:
    yield "half of it"
    broken_one()


@loop_over(("error", "said"), [
    (ZeroDivisionError("division by zero"), WHY),
    (KeyError("x"), "KeyError: 'x'"),
    (ValueError(), "ValueError"),
    (ValueError("two\nlines\tand \x1b[2J\u202e"), "ValueError: two lines and ?[2J?"),
    (OSError("x" * 999), f"OSError: {'x' * 200}"),
    (RecursionError("maximum recursion depth exceeded"), "RecursionError: maximum recursion depth exceeded"),
    (MemoryError(), "MemoryError"),
])  # fmt: skip
def test_a_part_that_raises_is_named_with_its_exception_in_one_line(error: Exception, said: str) -> None:
    def raises() -> str:
        raise error

    broken = [Broken("before", "y")]
    assert make_guarded("part", raises, "otherwise", broken) == "otherwise"
    assert broken == [Broken("before", "y"), Broken("part", said)]
    assert describe_exception(error) == said


def test_a_part_that_does_not_raise_is_what_it_is_and_ctrl_c_goes_through() -> None:
    broken: list[Broken] = []
    assert make_guarded("part", lambda: "made", "otherwise", broken) == "made"
    assert broken == []

    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_guarded("part", interrupted, "", broken)


# Doubts.

CLEAN = run()
DOUBTFUL = run(failed(5), throttled=("hot",), journal_error="full", cut_short="died")


@loop_over("doubt", DOUBTS)
def test_a_doubt_that_raises_costs_no_other_and_the_run_is_not_valid(
    doubt: Rule[RunEvidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verdict.judge(DOUBTFUL)
    assert (len(whole.findings) > 3, verdict.judge(CLEAN).level) == (True, Level.VALID)
    others = tuple(replace(one, find=broken_one) if one is doubt else one for one in DOUBTS)
    monkeypatch.setattr(verdict, "DOUBTS", others)
    judged = verdict.judge(DOUBTFUL)
    assert judged.failed == (Broken(doubt.code, WHY),)
    assert [(one.rule.code, one.evidence) for one in judged.findings] == [
        (one.rule.code, one.evidence) for one in whole.findings if one.rule is not doubt
    ]
    assert judged.unchecked == whole.unchecked
    assert f"not judged: {doubt.code} raised {WHY}; please report it" in verdict.summarize_doubts(judged)
    assert verdict.encode_verdict(judged)["not_judged"] == [{"name": doubt.code, "why": WHY}]
    judged = verdict.judge(CLEAN)
    assert (judged.level, judged.reasons) == (Level.SUSPECT, ("not judged in full",))


def test_sources_that_raise_cost_what_was_not_looked_at_and_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verdict.judge(DOUBTFUL)
    monkeypatch.setattr(RunEvidence, "sources", property(broken_one))
    judged = verdict.judge(DOUBTFUL)
    assert (judged.findings, judged.failed) == (whole.findings, (Broken("sources", WHY),))


# The report.

FULL = Result(
    replace(DOUBTFUL.facts, notes=("a note",), as_run=EngineConfig(version="1"),
            cache_reset="emptied before the run", fingerprint=make_empty_fingerprint("nobody asked")),
    DOUBTFUL.records,
)  # fmt: skip


def parts(of: Result) -> dict[str, str]:
    """The lines of each section of a report."""
    wanted = ReportOptions(explain=False, layout=result_block.find_layout(None))
    return {name: "\n".join(shown.lines) for name, shown in make_sections(SECTIONS, of, wanted).items()}


def text(lines: dict[str, str]) -> str:
    return "\n".join(said for said in lines.values() if said)


def told(name: str) -> str:
    return "\n".join(wrap_text(f"section {name} failed: {WHY}; please report it"))


@loop_over("section", SECTIONS)
@loop_over("how", [broken_one, broken_midway])
def test_a_section_that_raises_costs_its_own_lines_alone(
    section: Section, how: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = parts(FULL)
    assert report.render_report(FULL) == text(whole)
    broken = replace(section, lines=how, is_there=lambda facts: True)
    bad = tuple(broken if one is section else one for one in SECTIONS)
    monkeypatch.setattr(report, "SECTIONS", bad)
    assert report.render_report(FULL) == text(whole | {section.name: told(section.name)})


def test_figures_that_cannot_be_computed_leave_what_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parts(FULL)
    monkeypatch.setattr("loadgen.report.run_directory.compute_metrics", broken_one)
    left = parts(Result(FULL.facts, FULL.records))
    need = {name for name, said in left.items() if said == told(name)}
    assert need >= {"block", "verdict", "failures", "client"}
    assert {name: said for name, said in left.items() if name not in need} == {
        name: said for name, said in whole.items() if name not in need
    }
    assert {"heading", "server", "launched", "workload", "notes", "fingerprint"} <= set(left) - need


# The JSON.

DERIVED: dict[str, Callable[[], Any]] = {
    "verdict": lambda: verdict.encode_verdict(FULL.verdict),
    "steady_state": lambda: steady_state.encode_steady_state(FULL.steady),
    "reconciliation": lambda: [asdict(row) for row in FULL.reconciled],
}


def stored(derived: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    facts = replace(FULL.facts, request_id_prefix="p-")
    made = make_result(FULL.metrics, FULL.records, facts, derived, detailed=True)
    strict: dict[str, Any] = json.loads(json.dumps(made, allow_nan=False))
    return strict


@loop_over("part", DERIVED)
@loop_over(("make", "why"), [
    (broken_one, WHY),
    (lambda: {1, 2}, "TypeError: Object of type set is not JSON serializable"),
    (lambda: {"a": {(1, 2): 3}}, "TypeError: "),
])  # fmt: skip
def test_a_part_of_the_json_that_cannot_be_made_is_null_and_named(
    part: str, make: Callable[[], Any], why: str
) -> None:
    whole = stored(DERIVED)
    left = stored(DERIVED | {part: make})
    assert left["loadgen"].pop("failed_parts")[part].startswith(why)
    assert left["loadgen"].pop(part) is None
    assert whole["loadgen"].pop(part) is not None
    assert left == whole


def test_a_figure_that_is_no_number_costs_itself_alone() -> None:
    left = stored(DERIVED | {"reconciliation": lambda: [{"a": float("nan"), "b": (1, float("-inf"))}]})
    assert left["loadgen"]["reconciliation"] == [{"a": None, "b": [1, "-inf"]}]
    assert "failed_parts" not in left["loadgen"]


def test_vllms_keys_come_out_where_nothing_of_ours_does(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stored(DERIVED)
    monkeypatch.setattr("loadgen.report.result_file.list_request_ids", broken_one)
    left = stored(dict.fromkeys(DERIVED, broken_one))
    assert set(left["loadgen"].pop("failed_parts")) == {*DERIVED, "per_request"}
    assert {key: value for key, value in left.items() if key != "loadgen"} == {
        key: value for key, value in whole.items() if key != "loadgen"
    }
