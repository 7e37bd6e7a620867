"""Limit section: a search's runs over the load, with the limit, the bounds and where the answer lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from builders.made_limits import SPEED, TTFT, limit_record, limit_run, speed_run
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitRecord
from loadgen.study.pages.comparison_section import make_limit_sections
from loadgen.study.pages.page_parts import CurveStyle, PageSection


def section(record: LimitRecord) -> PageSection:
    (made,) = make_limit_sections([StoredLimit(Path("search"), record)])
    return made


def test_the_title_is_the_answer_and_the_rest_stands_below() -> None:
    made = section(limit_record())
    assert made.title == "bf16, limit: 10.4 requests/s (95 %: 9.9 to 10.9)"
    assert made.lines[0] == f"for {TTFT}"
    assert made.table is not None
    assert len(made.table.body) == 5


def test_an_objective_is_drawn_over_the_load_with_bound_limit_and_band() -> None:
    objective, goodput = section(limit_record()).panels
    value, bound, limit, saturated = objective.curves
    assert value.x.tolist() == [4, 8, 9.51, 11.3]
    assert value.y.tolist() == [120, 240, 330, 460]
    assert value.hollow == (False, False, False, True)
    assert value.labels == ("", "", "", "")
    assert (saturated.x.tolist(), saturated.y.tolist()) == ([16], [2200])
    assert (saturated.form, saturated.hollow, saturated.of) == (CurveStyle.MARKS, (True,), 0)
    assert saturated.labels == ("saturated",)
    assert bound.y.tolist() == [130, 271, 360, 520.3, 2900]
    assert (limit.x.tolist(), limit.y.tolist()) == ([4, 16], [500, 500])
    assert objective.band == (9.9, 10.9)
    assert objective.y_top == 1250
    assert objective.caption.endswith("Points at the upper edge are above it.")
    assert goodput.title == "Goodput over load"
    assert [curve.x.tolist() for curve in goodput.curves] == [[4, 8, 9.51, 11.3], [16]]


def test_a_floor_is_drawn_with_its_lower_bound_and_whole() -> None:
    runs = (speed_run(0, 4, 90, 88), speed_run(1, 8, 29, 28.5))
    panel = section(limit_record(runs=runs, objectives=(SPEED,))).panels[0]
    assert [curve.name for curve in panel.curves] == [
        "tps_user p10", "its lower bound at 99 %", "limit, 30 tok/s"
    ]  # fmt: skip
    assert (panel.title, panel.y_top) == ("tps_user p10 over load", None)
    assert panel.numbers is not None
    assert [column.title for column in panel.numbers.columns] == [
        "load",
        "tps_user p10",
        "at least, 99 %",
        "",
    ]


def test_a_bound_that_is_unknown_is_not_drawn() -> None:
    runs = (limit_run(0, 4, 120, None), limit_run(1, 8, 240, 271))
    value, bound, _ = section(limit_record(runs=runs, limit=None)).panels[0].curves
    assert value.x.tolist() == [4, 8]
    assert bound.x.tolist() == [8]
    assert np.isfinite(bound.y).all()


def test_a_search_without_runs_has_no_pictures() -> None:
    assert section(limit_record(runs=(), limit=None)).panels == ()


def test_runs_that_say_nothing_of_the_server_are_labelled() -> None:
    runs = (limit_run(0, 4, 120, 130, disturbed=True), limit_run(1, 8, 240, 271, verdict="INVALID"))
    assert section(limit_record(runs=runs)).panels[0].curves[0].labels == ("disturbed", "INVALID")
