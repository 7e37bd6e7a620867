"""The lines of a report on its data: each is of facts alone, and random prompts have what they always had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builders import made_data
from builders.loops import loop_over_named, read_tables
from builders.made_cases import changed, closed, observed, open_loop, run
from loadgen.plan.planned_requests import DataFacts
from loadgen.report import report, run_lines
from loadgen.report.run_directory import Result
from loadgen.verdict.evidence import RunEvidence

TABLES = read_tables("data_lines")


TRACE = {"trace": "trace.jsonl", "max_concurrency": None}


def result(case: RunEvidence) -> Result:
    return Result(case.facts, case.records)


def made(row: dict[str, Any]) -> RunEvidence:
    """The run of a row: fields of its records, its workload, what is known of its data, and other facts."""
    known: dict[str, Any] = {"records": {}, "workload": {}, **row}
    records, workload = known.pop("records"), known.pop("workload")
    if "data" in known:
        fields: dict[str, Any] = {
            key: made_data.lengths(*value["lengths"]) if key in ("input", "output") and value else value
            for key, value in known["data"].items()
        }
        makers: dict[str, Callable[..., DataFacts]] = {"file": made_data.data, "trace": made_data.trace}
        known["data"] = makers.get(fields.pop("of", ""), DataFacts)(**fields)
    if known.get("window"):
        known["window"] = observed(**known["window"])
    return run(changed(closed(), **records), workload, **known)


def of_trace(rate_per_s: float = 100.0, **schedule: Any) -> RunEvidence:
    data = made_data.trace(rate_per_s, **schedule)
    return run(open_loop(), TRACE, data=data)


@loop_over_named(("row", "prompts"), TABLES["prompts"])
def test_the_prompts_are_named_by_kind_and_file(row: dict[str, Any], prompts: str) -> None:
    assert run_lines.describe_prompts(made(row).facts) == prompts


@loop_over_named(("row", "lines"), TABLES["lengths"])
def test_lengths_are_those_that_were_sent(row: dict[str, Any], lines: list[str]) -> None:
    found = run_lines.describe_data(result(made(row)))
    assert [line for line in found if line.startswith("lengths")] == lines


@loop_over_named(("row", "lines"), TABLES["reuse"])
def test_expected_reuse_stands_next_to_the_cached(row: dict[str, Any], lines: list[str]) -> None:
    found = run_lines.describe_data(result(made(row)))
    assert [line for line in found if line.startswith("reuse")] == lines


@loop_over_named(("schedule", "line"), TABLES["schedules"])
def test_a_traces_times_are_one_line(schedule: dict[str, Any], line: str) -> None:
    found = list(run_lines.describe_data(result(of_trace(**schedule))))
    assert found[-1] == f"schedule: {line}"


def test_the_short_report_has_a_line_of_a_file_and_none_of_random() -> None:
    skipped = {"fewer than 2 turns": 1200, "longer than 2,048 tokens": 3}
    case = made({"prompt_format": "text", "data": {"of": "file", "skipped": skipped}})
    line = "prompts: sharegpt, 320 of 640 rows of rows.jsonl (0123456789ab); left out 1,203\n"
    assert line in report.render_short(result(case), "runs/r")
    assert "prompts: " not in report.render_short(result(run()), "runs/r")
