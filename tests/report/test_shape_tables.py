"""Tables by stage and by class: every report of a load that changes, or has classes, shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadgen.base.printing import Screen
from loadgen.report import report
from loadgen.report.result_block import find_layout
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions
from loadgen.report.shape_figures import describe_cancelled, divide_by_class
from report.test_shape_figures import CLASSES, STAGES, cut_off, mixed, shaped

REPORTS: dict[str, Callable[[Result], str]] = {
    "the whole one": report.render_report,
    "the short one": lambda result: report.render_short(result, "runs/r"),
    "the short one, in a narrow terminal": lambda result: report.render_short(result, "r", screen=Screen(60)),
}
EVERY_REPORT = pytest.mark.parametrize("name", REPORTS)


@EVERY_REPORT
def test_a_load_that_changes_has_its_table_and_no_steady_state(name: str) -> None:
    lines = REPORTS[name](shaped(schedule=STAGES)).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("Stage "))
    assert [line[:8].strip() for line in lines[at + 1 : at + 4]] == ["rate 2", "rate 0", "rate 10"]
    assert max(map(len, lines)) <= 80
    assert f"steady state: none: the load changes ({STAGES})" in " ".join(" ".join(lines).split())


@EVERY_REPORT
def test_classes_have_their_table_with_cancelled_and_good_requests(name: str) -> None:
    result = mixed()
    long, short = result.derive(divide_by_class)
    lines = REPORTS[name](result).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("Class "))
    assert [line.split()[0] for line in lines[at : at + 3]] == ["Class", "long", "short"]
    assert lines[at + 3 : at + 5] == [
        f"cancelled by class: long 0 of {long.requests}, short 1 of {short.requests} requests",
        f"goodput by class: long 0 of {long.requests}, short {short.requests - 1} of {short.requests - 1} "
        "requests met the objectives",
    ]


def test_nothing_is_cancelled_by_class_where_the_plan_cancels_nothing() -> None:
    result = shaped(request_rate=10.0, num_prompts=9, classes=CLASSES)
    assert "by class" not in report.render_report(result)


@EVERY_REPORT
def test_a_stopped_run_names_the_stages_that_it_did_not_reach(name: str) -> None:
    assert "\nnot reached: rate 0, rate 10\n" in REPORTS[name](cut_off(0.6, schedule=STAGES))
    assert "not reached" not in REPORTS[name](shaped(schedule=STAGES))


def test_tables_leave_the_ten_lines_their_room() -> None:
    lines = report.render_short(shaped(schedule=STAGES), "runs/r").splitlines()
    starts = {line.partition(":")[0] for line in lines}
    assert {"concurrency", "client", "more"} <= starts


def test_a_table_of_many_stages_is_in_the_whole_report_alone() -> None:
    result = shaped(schedule="rate 1" + ",".join([" for 1s", *["2 for 1s"] * 40]))
    assert "\n41 stages: the table by stage is in the whole report\n" in report.render_short(result, "runs/r")
    assert sum(line.startswith("rate ") for line in report.render_report(result).splitlines()) == 41


def test_all_that_is_known_of_cancelled_requests_is_in_the_short_report() -> None:
    result = shaped(request_rate=10.0, num_prompts=50, cancel_rate="50%", cancel_after="60tok")
    text = report.render_short(result, "runs/r")
    options = ReportOptions(False, find_layout(None))
    for line in describe_cancelled(result, options):
        assert line in text
    assert "of these ended before, or failed" in text
