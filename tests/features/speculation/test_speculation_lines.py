"""The report's lines on speculation: what is known, and why the rest is not."""

from __future__ import annotations

import pytest

from features.speculation.test_speculation_figures import counted, run
from loadgen.features.speculation.speculation_lines import describe_speculation, summarize_speculation
from loadgen.report.report import list_page_lines, render_report
from loadgen.report.result_block import find_layout
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions

OPTIONS = ReportOptions(False, find_layout(None))
MESSAGES = run([[1, 2, 1, 3, 1, 1, 1]] * 8, window=counted(80, 28, 8, drafts=14, draft_tokens=42))
HIDDEN = run([[1] * 40] * 2, window=counted(80, 50, drafts=20, draft_tokens=60))


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        pytest.param(
            MESSAGES,
            [
                "speculation: 1.5 ± 0 (95 %, 8 requests) tokens a step, 10 ± 0 (95 %, 8 parts of the run) "
                "ms a step: 6.667 ms a token",
                "draft tokens accepted, by position: 50 %, 25 %",
                "steps of 1, 2, … tokens: 50 %, 25 %, 25 %",
                "accepted draft tokens by messages: 24 of 72 tokens; by the server's counters: 28 of 42 in "
                "14 drafts (3 tokens a draft)",
            ],
            id="messages",
        ),
        pytest.param(
            HIDDEN,
            [
                "speculation: 2.79 tokens a step, the mean of the server's counters; step time not known",
                "not known: step_ms, tpot_ms, histogram: 50 draft tokens were accepted, and each token has a "
                "message of its own",
                "accepted draft tokens by messages: 0 of 78 tokens; by the server's counters: 50 of 60 in 20 "
                "drafts (3.5 tokens a draft)",
            ],
            id="counters",
        ),
        pytest.param(run([[1] * 3], as_run=None), [], id="no drafts"),
    ],
)  # fmt: skip
def test_the_lines_are_those_of_the_split(result: Result, lines: list[str]) -> None:
    assert list(describe_speculation(result, OPTIONS)) == lines
    assert list(summarize_speculation(result, OPTIONS)) == lines[:1]
    assert list(list_page_lines("Speculation", result)) == lines
    text = render_report(result)
    assert ("tokens a step" in text) == bool(lines)
    assert max(map(len, text.splitlines())) <= 80
