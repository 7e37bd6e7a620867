"""Run section: what is seen first of a run, whoever measured it."""

from __future__ import annotations

from typing import Any

import pytest

from builders import made_runs, made_sessions
from builders.loops import loop_over
from loadgen.base.structs import replace
from loadgen.report.load_identity import Load
from loadgen.report.run_directory import Result
from loadgen.study.pages import run_section
from loadgen.study.pages.run_section import Card
from loadgen.study.run_summary import Reported


def texts(card: Card) -> list[str]:
    return [" ".join(filter(None, figure)) for figure in card.figures]


def of(run: Result) -> dict[str, Card]:
    return {card.label: card for card in run_section.make_cards(made_runs.reported(run), run.metrics)}


def with_profile(run: Result, **changes: Any) -> Result:
    profile = run.facts.profile.model_copy(update=changes)
    return replace(run, facts=replace(run.facts, profile=profile))


@pytest.mark.parametrize(("reasons_ms", "labels"), [(0, ["TTFT"]), (50, ["TTFT", "TTFVT"])])
def test_the_first_visible_token_has_a_card_where_answers_reason(reasons_ms: int, labels: list[str]) -> None:
    run = made_runs.run()
    run.records.visible_ns[:] += reasons_ms * 1_000_000
    assert [label for label in of(run) if label.startswith("TTF")] == labels


@pytest.mark.parametrize(("requests", "says"), [(100, "ms, from 100"), (458, "ms, from 458"), (459, "ms")])
def test_a_p99_of_few_requests_says_how_many(requests: int, says: str) -> None:
    assert of(made_runs.run(requests=requests, tokens=2))["TTFT"].figures[1][2] == says


@loop_over(("run", "rate"), [
    (made_runs.run(), ["0 %", "0 of 24"]), (made_runs.run(failed=1), ["4.17 %", "1 of 24"]),
    (made_runs.run(failed=24), ["100 %", "24 of 24"]),
    (made_runs.saturated(cut_off=8), ["0 %", "0 of 24", "8 cut off by the run's end"]),
])  # fmt: skip
def test_the_failure_rate_is_there_without_failures_too(run: Result, rate: list[str]) -> None:
    assert texts(of(run)["Failure rate"]) == rate
    if run.facts.saturated:  # every token that arrived
        assert of(run)["Output"].figures[0][1].value == 24 * 16 / run.metrics.duration_s


def test_rates_count_turns_in_flight_when_the_first_slot_ran_dry() -> None:
    run = made_sessions.made((4, 3, 5), made_sessions.rows_of((4, 3, 5), rest_ms=130))
    account = run_section.make_account(made_runs.reported(run), "run-1", draw=False)
    values = [card.figures[0][1].value for card in account.cards[:2]]
    assert values == [run.metrics.output_throughput_per_s, run.metrics.request_throughput_per_s]
    assert run.metrics.completed < run.whole.completed


def test_goodput_is_there_where_objectives_were_requested() -> None:
    run = with_profile(made_runs.run(requests=40), goodput=("ttft:80", "tps_user:9"))
    card = of(run)["Goodput"]
    assert card.figures[0][1].value == run.metrics.goodput_per_s
    assert texts(card)[1] == f"{100 * (run.metrics.slo_attainment or 0):.3g} % of requests"
    assert card.about.endswith("every objective: TTFT ≤ 80 ms, TPS_USER ≥ 9 tok/s.")
    assert "Goodput" not in of(made_runs.run())


def test_a_floors_card_has_its_speed_and_how_many_were_below() -> None:
    card = of(with_profile(made_runs.run(requests=40), slo="tps_user p10 > 1e6"))["TPS_USER P10, objective"]
    assert texts(card)[0].endswith("tok/s: fails")
    assert ": fails, " in card.about
    assert card.about.endswith("40 of 40 below")


def test_whole_answers_have_no_latency_of_tokens() -> None:
    assert list(of(with_profile(made_runs.run(), stream=False))) == [
        "Output", "Requests", "E2EL", "Failure rate",
    ]  # fmt: skip


@loop_over(("figures", "expected"), [
    ({}, {}),
    ({"speed_tok_s": 41.234}, {"Speed": ["41.23 tokens/s"]}),
    ({"mean_ttft_ms": 120.25}, {"TTFT": ["mean 120.2 ms"]}),
    ({"mean_ttft_ms": 120.25, "median_ttft_ms": 100.0, "p99_ttft_ms": 400.0, "output_throughput": 3.5},
     {"Output": ["3.50 tokens/s"], "TTFT": ["P50 100.0 ms", "P99 400.0 ms"]}),
    ({"failed": 3, "completed": 9}, {"Failure rate": ["25 %", "3 of 12"]}),
    ({"failed": 3, "median_itl_ms": None, "p99_itl_ms": float("nan")}, {"Failed": ["3 requests"]}),
])  # fmt: skip
def test_others_runs_have_the_cards_that_their_figures_make(
    figures: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    reported = Reported("m", figures, Load(), "page.md#1")
    assert {card.label: texts(card) for card in run_section.make_cards(reported)} == expected


def test_the_notes_say_what_was_cancelled_and_sent_again() -> None:
    run = with_profile(made_runs.run(), cancel_rate="50%", cancel_after="2tok")
    run.records.resends[:2] = 1
    account = run_section.make_account(made_runs.reported(run), "run-1", draw=False)
    (notes,) = (section for section in account.sections if section.title == "Notes")
    assert "sent again: 2 requests, after the server closed their idle connection" in notes.lines
    assert any(line.startswith("cancelled as planned: 0 of ") for line in notes.lines)
