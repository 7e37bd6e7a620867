"""A search for the highest load: its record of any format, its answer and its runs in words."""

from __future__ import annotations

from typing import Any

from builders.loops import loop_over, read_tables
from builders.made_limits import SPEED, TTFT, limit_record, limit_run, speed_run
from loadgen.study import limit_record as limits
from loadgen.study.limit_record import LimitEstimate

TABLES = read_tables("limit_record")

# What a search knows when it has found nothing.
NOTHING: dict[str, Any] = {
    "limit": None, "highest_passing": None, "lowest_failing": None, "runs": (), "bound_by": "",
    "bottleneck": None, "goodput_per_s": None, "headroom": None, "knee": None, "notes": (),
}  # fmt: skip


def test_a_rate_of_sessions_is_of_sessions() -> None:
    assert limits.describe_limit(limit_record(of_sessions=True)).startswith("limit: 10.4 sessions/s (95 %")
    assert limits.make_run_table(limit_record(of_sessions=True)).columns[1].title == "sessions/s"


def test_a_search_that_knows_nothing_yet_says_what_it_is_for() -> None:
    assert limits.list_statements(limit_record(ended=None, **NOTHING)) == [
        "limit: unknown",
        "for ttft p99 < 500 ms",
        "0 runs in 0.0 min",
    ]


@loop_over(("changes", "first"), TABLES["first_lines"])
def test_the_first_line_is_what_is_known(changes: dict[str, Any], first: str) -> None:
    if "limit" in changes:
        changes = {"limit": LimitEstimate(**changes["limit"])}
    assert limits.describe_limit(limit_record(axis="concurrency", **(NOTHING | changes))) == first


@loop_over(("took_s", "needs_s", "says"), TABLES["budgets"])
def test_a_budget_too_small_for_the_next_run_is_not_called_spent(
    took_s: float, needs_s: float | None, says: str
) -> None:
    run = limit_run(0, 4, 120, 130, took_s=took_s)
    record = limit_record(ended="budget", budget_s=60.0, runs=(run,), next_run_s=needs_s)
    assert f"ended: {says}" in limits.list_statements(record)


def test_a_run_that_measured_nothing_has_dashes_and_its_reason() -> None:
    died = limit_run(5, 20, 1, None, objectives=(), goodput_per_s=None, reason="the server ended")
    died = died.model_copy(update={"standing": "fails", "verdict": ""})
    table = limits.make_run_table(limit_record(runs=(limit_run(0, 4, 120, None), died)))
    assert table.body[0][2:4] == ("120", "-")
    assert table.body[1] == ("5", "20", "-", "-", "-", "-", "fails: the server ended")


def test_doubtful_runs_are_counted_and_their_doubts_named_with_their_runs() -> None:
    late = {"verdict": "SUSPECT", "doubts": ("sends-late", "reads-late")}
    runs = (
        limit_run(1, 4, 120, 130),
        limit_run(2, 16, 120, None, **late),
        limit_run(3, 16, 120, 130, verdict="SUSPECT", doubts=("reads-late",)),
        limit_run(4, 64, 900, 950, verdict="INVALID", doubts=("many-failures",)),
    )
    assert (
        "3 of 4 runs SUSPECT or INVALID: sends-late (run 2), reads-late (runs 2, 3), many-failures (run 4)"
        in limits.list_statements(limit_record(runs=runs))
    )
    assert [row[-2:] for row in limits.make_run_table(limit_record(runs=runs)).body] == [
        ("VALID", "meets"),
        ("SUSPECT", f"not shown: {TTFT} is not met"),
        ("SUSPECT", "meets"),
        ("INVALID", f"fails: {TTFT} is not met"),
    ]


def test_a_load_of_too_few_samples_neither_fails_nor_is_an_upper_end() -> None:
    few = limit_run(1, 1, 173.6, None)
    blank = {"limit": None, "highest_passing": None, "lowest_failing": None, "bound_by": ""}
    assert limits.list_statements(limit_record(runs=(few,), axis="concurrency", **blank))[:3] == [
        "limit: unknown",
        f"for {TTFT}",
        "not shown at 1, 1 run in 1.0 min",
    ]


def test_a_floor_is_kept_and_shown_in_tokens_per_second() -> None:
    record = limit_record(objectives=(SPEED,), runs=(speed_run(0, 4, 90.126, 88),))
    stored = record.model_dump(mode="json")["runs"][0]["objectives"][0]
    names = ("value_tok_s", "bound_tok_s", "limit_tok_s", "upper_tok_s")
    assert [stored[name] for name in names] == [90.126, 88, 30, 91.126]
    assert not {"unit", "value", "value_ms"} & stored.keys()
    assert limits.LimitRecord.model_validate_json(record.model_dump_json()) == record
    table = limits.make_run_table(record)
    assert [column.title for column in table.columns][2:4] == ["tps_user p10 tok/s", "≥ at 99 %"]
    assert table.body[0][2:4] == ("90.13", "88")


@loop_over(("changes", "line"), TABLES["per_kilowatt"])
def test_the_limit_per_kilowatt_is_there_where_power_is(changes: dict[str, Any], line: str) -> None:
    known = {
        "per_kw": LimitEstimate(value=26.7, low=24.1, high=29.3),
        "power_w": LimitEstimate(value=390, low=381, high=399),
    }
    assert any(each.startswith(line) for each in limits.list_statements(limit_record(**known, **changes)))
    assert not any("kW" in each for each in limits.list_statements(limit_record(**changes)))
    assert limits.Limit(limit_record(**known), ()).per_kw == known["per_kw"]
