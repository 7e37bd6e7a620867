"""Speed split by speculation: steps counted by hand, who is believed where counts disagree, the lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from builders import made_data, made_runs
from builders.loops import loop_over, read_tables
from builders.made_runs import MS
from builders.required import require
from features.speculation.scheduled_runs import NGRAM
from loadgen.features.speculation.speculation_figures import (
    describe_speculation,
    measure_speculation,
    measure_split,
    summarize_speculation,
)
from loadgen.features.speculation.step_counts import (
    RatioEstimate,
    StepCounts,
    estimate_over_time,
    estimate_ratio_of_sums,
    sum_over_time,
)
from loadgen.records.record import Record, Records
from loadgen.report.report import make_page_passage, render_report
from loadgen.report.request_rows import list_arrays, list_columns, list_rows
from loadgen.report.result_block import find_layout
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions
from loadgen.server.server_counters import ServerWindow

STEP_MS = 10


def answer(index: int, tokens: Sequence[int], **more: Any) -> Record:
    """One request after another, a message every STEP_MS with so many tokens."""
    sent_ns = (index + 1) * 1000 * MS
    arrival_ns = sent_ns + np.arange(1, len(tokens) + 1, dtype=np.int64) * STEP_MS * MS
    return Record(
        index, 0, sent_ns, sent_ns, int(arrival_ns[-1]), arrival_ns=arrival_ns,
        tokens=np.array(tokens, np.int64), input_tokens=8, output_tokens=sum(tokens), usage=True,
        planned_output=sum(tokens), visible_ns=int(arrival_ns[0]), **more,
    )  # fmt: skip


def run(
    answers: Sequence[Sequence[int]], exact: bool = True, reported: tuple[int, int] = (-1, -1), **facts: Any
) -> Result:
    """Answers with so many tokens in their messages; `reported` are each one's drafts and accepted tokens."""
    told = {"server_drafts": reported[0], "server_accepted_tokens": reported[1]}
    made = made_runs.run(requests=len(answers), **{"as_run": NGRAM, "window": None, **facts})
    each = (answer(i, tokens, exact_tokens=exact, **told) for i, tokens in enumerate(answers))
    return Result(made.facts, Records.from_records(each))


def counted(tokens: int, accepted: int, requests: int = 2, **more: Any) -> ServerWindow:
    return ServerWindow(
        names="vllm",
        generation_tokens=tokens,
        requests={"length": requests},
        accepted_tokens=accepted,
        **more,
    )


def test_a_ratio_of_sums_has_the_interval_of_its_units() -> None:
    y, x = np.array([3, 5, 9, 0]), np.array([1, 2, 3, 0])
    got = estimate_ratio_of_sums(y, x)
    residuals = np.array([3, 5, 9]) - 17 / 6 * np.array([1, 2, 3])
    half = 4.302653 * np.sqrt((residuals**2).sum() / 6) / 2
    assert got is not None
    assert (got.mean, got.low, got.high) == pytest.approx((17 / 6, 17 / 6 - half, 17 / 6 + half))


@pytest.mark.parametrize(
    ("inner", "alike", "quantile"),
    [
        pytest.param([2, 2, 1, 0, -1, -2, -2, -1, 0, 1], 0.8, 12.706205, id="1 degree of freedom"),
        pytest.param([1, 1, 0, -1, 0, 0, 0, 0, -1, 0], (10 * 1 / 4 + 1) / 6, 4.302653, id="2"),
        pytest.param([1, -1] * 5, -0.2, 2.262157, id="9"),
    ],
)
def test_parts_that_follow_their_neighbours_are_worth_fewer(
    inner: list[float], alike: float, quantile: float
) -> None:
    y, c = 20 + np.array([-6, *inner, 6]), (np.array(inner) ** 2).sum() / 9
    half = 2 * quantile * np.sqrt(12 * c * (1 + alike) / (1 - alike)) / 120
    got = require(estimate_over_time(y, np.full(12, 10.0), 2.0))  # ramp and drain are in the mean alone
    assert (got.mean, got.low, got.high) == pytest.approx((4.0, 4.0 - half, 4.0 + half))
    assert got.units == 12


def test_few_parts_have_no_interval() -> None:
    assert estimate_over_time(np.arange(7.0), np.ones(7), 2.0) == RatioEstimate(6.0, units=7)
    assert estimate_over_time(np.zeros(9), np.zeros(9), 1.0) is None


@pytest.mark.parametrize("exact", [True, False])
def test_parts_hold_as_many_messages_one_after_another(exact: bool) -> None:
    each = Records.from_records(answer(i, [1, *[3, 1] * 6], exact_tokens=exact) for i in range(4))
    counts = StepCounts.from_records(each, each.ok)
    tokens, steps, span_ns = sum_over_time(counts, each)
    assert (steps.tolist(), tokens.tolist()) == ([12] * 4, [24] * 4)
    assert (span_ns / MS).tolist() == [12 * STEP_MS] * 4


def test_what_an_end_cuts_off_is_as_the_steps_before_it() -> None:
    answers = [[1, 3, 1, 2, 1, 3, 1], [1, 2, 3, 3, 1, 2], [1, 3], [1], [1, 1, 1, 1]]
    each = Records.from_records(answer(i, tokens) for i, tokens in enumerate(answers))
    counts = StepCounts.from_records(each, each.ok).complete_ends(each)
    # With room for 3 tokens, and less than for 6, begin steps of 1, 3, 1, 3, 1: those of 1 or more have 9 / 5
    # tokens, those of 2 or more have 3.
    assert counts.past.tolist() == pytest.approx([9 / 5 - 1, 3 - 2, 0, 0, 9 / 5 - 1])
    assert counts.tokens.tolist() == [11, 11, 3, 0, 3]
    assert counts.steps.tolist() == [6, 5, 1, 0, 3]
    assert counts.histogram[:5].tolist() == [0, 4, 2, 5, 0]


@pytest.mark.parametrize("exact", [True, False])
def test_steps_of_one_token_or_of_unknown_ones_are_not_cut(exact: bool) -> None:
    tokens = [1, 1, 1] if exact else [1, 3, 2]
    each = Records.from_records([answer(0, tokens, exact_tokens=exact)])
    counts = StepCounts.from_records(each, each.ok)
    assert counts.complete_ends(each) is counts


def draw_answers(seed: int, tokens: int, falls: float, made: list[int]) -> Records:
    """Answers of about so many tokens, whose drafts of 4 are accepted the less the later; counts all made."""
    draw, records = np.random.default_rng(seed), []
    for index in range(40):
        length = int(tokens * draw.uniform(0.5, 1.5))
        sizes, left = [1], length - 1
        while left > 0:
            chance, size = 0.85 - falls * (1 - left / length), 1
            while size <= 4 and draw.random() < chance:
                size += 1
            made[0], made[1] = made[0] + size, made[1] + 1
            sizes.append(min(size, left))
            left -= sizes[-1]
        records.append(answer(index, sizes))
    return Records.from_records(records)


def measure_cover(runs: int, tokens: int, falls: float) -> float:
    """The share of runs whose interval of the acceptance length has that of all steps, uncut."""
    made, found = [0, 0], list[tuple[float, float]]()
    for seed in range(runs):
        each = draw_answers(seed, tokens, falls, made)
        counts = StepCounts.from_records(each, each.ok).complete_ends(each)
        got = require(estimate_ratio_of_sums(counts.tokens + counts.past, counts.steps))
        found.append((require(got.low), require(got.high)))
    truth = made[0] / made[1]
    return float(np.mean([low <= truth <= high for low, high in found]))


@pytest.mark.parametrize(("tokens", "falls"), [(128, 0.6), (32, 0.6)])
def test_an_acceptance_that_falls_within_an_answer_is_covered(tokens: int, falls: float) -> None:
    assert measure_cover(40, tokens, falls) >= 0.85


@pytest.mark.long
@pytest.mark.parametrize("tokens", [32, 128, 256])
@pytest.mark.parametrize("falls", [-0.4, 0.0, 0.3, 0.6])
def test_of_400_runs_the_intervals_of_acceptance_cover_93_to_98(tokens: int, falls: float) -> None:
    assert 0.92 <= measure_cover(400, tokens, falls) <= 0.985


def test_steps_are_the_messages_after_the_first() -> None:
    each = [answer(0, [1, 2, 1, 3]), answer(1, [1]), answer(2, [2, 4]), answer(3, [1, 1, 1])]
    counts = StepCounts.from_records(Records.from_records(each), np.array([True, True, True, False]))
    assert counts.tokens.tolist() == [6, 0, 4, 0]
    assert counts.steps.tolist() == [3, 0, 1, 0]
    assert (counts.span_ns / MS).tolist() == [30, 0, 10, 0]
    assert counts.histogram[:6].tolist() == [0, 1, 1, 1, 1, 0]
    assert counts.least == 1


def test_a_server_not_known_to_speculate_has_no_part_and_a_length_of_1() -> None:
    plain = run([[1] * 5] * 3, as_run=None)
    assert measure_speculation(plain) is None
    got = measure_split(plain)
    assert got.acceptance_length == RatioEstimate(1.0, 1.0, 1.0, 3)
    assert require(got.step_ms).mean == pytest.approx(STEP_MS)


@pytest.mark.parametrize(
    ("answers", "facts", "source", "length", "why"),
    [
        pytest.param([[1, 4, 4, 4]] * 2, {"window": counted(26, 12)}, "counters", 2.0, "holds several steps",
         id="interval"),
        pytest.param([[1] * 40] * 2, {"window": counted(80, 50)}, "counters", 78 / 28,
         "a chunk of its own", id="one a token"),
        pytest.param([[9]] * 2, {"window": counted(18, 4, drafts=4)}, "counters", 16 / 12,
         "", id="answers in one chunk"),
        pytest.param([[5]] * 2, {"window": ServerWindow(names="sglang", accept_length=2.25), "as_run": None},
         "gauge", 2.25, "", id="a gauge of the server"),
        pytest.param([[1] + [4] * 9] * 2, {}, "", None, "carries 4 tokens or more", id="without counters"),
    ],
)  # fmt: skip
def test_where_messages_are_not_steps_the_servers_mean_stands(
    answers: list[list[int]], facts: dict[str, Any], source: str, length: float | None, why: str
) -> None:
    got = require(measure_speculation(run(answers, **facts)))
    assert (got.source, got.step_ms) == (source, None)
    assert got.acceptance_length == (None if length is None else RatioEstimate(length))
    assert why in got.why["step_ms"] != ""
    assert (got.why.get("acceptance_length", "") != "") == (length is None)


def test_a_server_that_counts_no_answers_has_its_mean_of_the_clients() -> None:
    window = ServerWindow(
        names="llamacpp", generation_tokens=80, drafts=30, accepted_tokens=50, accepted_by_position=(26, 24)
    )
    got = require(measure_speculation(run([[1] * 40] * 2, window=window)))
    assert got.acceptance_length == RatioEstimate(78 / 30)
    assert got.by_position == (26 / 30, 24 / 30)


def test_counts_that_agree_but_for_the_ends_leave_the_messages() -> None:
    # 3 tokens were accepted past the ends of two answers.
    got = require(measure_speculation(run([[1, 3, 2], [1, 1, 2]], window=counted(10, 7, drafts=4))))
    assert got.source == "messages"
    assert got.sources["counters"].acceptance_length == 8 / 4


def test_steps_are_counted_where_the_tokens_of_each_are_not_known() -> None:
    got = require(measure_speculation(run([[2, 3, 2], [3, 3]], exact=False)))
    assert require(got.acceptance_length).mean == (6 + 5) / 3
    assert (got.histogram, got.by_position) == ((), ())
    assert "--continuous-usage" in got.why["histogram"]


@pytest.mark.parametrize(
    ("reported", "steps"), [((-1, 6), 6), ((9, 6), 9), ((4, 6), 6)], ids=["llama.cpp", "vLLM", "few drafts"]
)
def test_a_servers_count_of_each_request_splits_hidden_steps(reported: tuple[int, int], steps: int) -> None:
    got = require(measure_speculation(run([[1, 4, 4, 4]] * 2, reported=reported, window=counted(26, 12))))
    assert (got.source, got.sources["messages"].steps, got.sources["requests"].steps) == (
        "requests", 6, 2 * steps,
    )  # fmt: skip
    assert require(got.acceptance_length).mean == 24 / (2 * steps)
    assert require(got.step_ms).mean == pytest.approx(3 * STEP_MS / steps)
    assert got.why.keys() == {"histogram", "by_position"}


def test_sglangs_counter_of_steps_stands_before_its_gauge() -> None:
    # Messages of 4 tokens hold two steps each: 12 verifying steps gave 24 tokens after the first.
    window = ServerWindow(
        names="sglang", generation_tokens=26, requests={"": 2}, drafts=12, accept_length=2.25
    )
    got = require(measure_speculation(run([[1, 4, 4, 4]] * 2, window=window, as_run=None)))
    assert (got.source, got.acceptance_length) == ("counters", RatioEstimate(24 / 12))
    assert got.sources["counters"].accepted == 12
    assert "holds several steps" in got.why["step_ms"]


def test_each_category_has_the_acceptance_length_of_its_requests() -> None:
    data = made_data.data("questions", categories=("math", "qa"), category_of_row=(0, 1, 1))
    got = require(measure_speculation(run([[1, 2, 2], [1, 1, 1, 4], [1, 3, 2], [1, 4, 4]], data=data)))
    # Near the ends a step of 2 or more has 13 / 4 tokens: that of 2 at an end may have had 5 / 4 more.
    means = {name: length.mean for name, length in got.by_category.items()}
    assert means == {"math": (12 + 5 / 4) / 4, "qa": (11 + 5 / 4) / 5}


def test_the_exported_requests_have_their_steps() -> None:
    answers = [[1, 2, 1], [3], [1, 4]]
    assert list_columns(run(answers))["steps"] == "int64"
    assert [row["steps"] for batch in list_rows(run(answers)) for row in batch] == [2, None, 1]
    assert list_arrays(run(answers))["steps"].tolist() == [2, -1, 1]
    assert "steps" not in list_columns(run(answers, as_run=None))


OPTIONS = ReportOptions(False, find_layout(None))
SPLIT = {
    "messages": run([[1, 2, 1, 3, 1, 1, 1]] * 8, window=counted(80, 28, 8, drafts=14, draft_tokens=42)),
    "counters": run([[1] * 40] * 2, window=counted(80, 50, drafts=20, draft_tokens=60)),
    "no drafts": run([[1] * 3], as_run=None),
}


@loop_over(("name", "lines"), read_tables("speculation_lines")["lines"].items())
def test_the_lines_are_those_of_the_split(name: str, lines: list[str]) -> None:
    result = SPLIT[name]
    assert list(describe_speculation(result, OPTIONS)) == lines
    assert list(summarize_speculation(result, OPTIONS)) == lines[:1]
    shown = make_page_passage("Speculation", result).lines
    assert [*shown] == [line.removeprefix("speculation: ") for line in lines]
    text = render_report(result)
    assert ("tokens a step" in text) == bool(lines)
    assert max(map(len, text.splitlines())) <= 80
