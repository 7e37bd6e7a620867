"""Outputs: the report as Markdown, as CSV and in a terminal."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from builders import made_runs
from builders.loops import loop_over
from loadgen.base.tables import format_number
from loadgen.study.compare.model import Decision
from loadgen.study.pages import comparison_section, document
from loadgen.study.pages.document import compose_document
from loadgen.study.run_summary import FailedCell

EVIL = "<script>alert(1)</script> | **b** `c` [x](http://y) \n # d"


def campaign() -> str:
    base, other = (made_runs.reported(made_runs.run(speed=1.0 + at, seed=at)) for at in (0, 1))
    remarks = {"marks": ("shorter answers",), "failures": ("2 cells: died",)}
    row = made_runs.line("other", (other,), Decision.UNDECIDED, **remarks)
    found = made_runs.comparison(made_runs.line("base", (base,)), row)
    failed = FailedCell(cell=made_runs.cell("other", 1), reason="out of memory\n  | CUDA:\n  |   no memory")
    return document.render_markdown(compose_document([base, other], [found], [failed], ["x.json: cut"]))


def test_markdown_has_verdicts_tables_blocks_and_what_is_missing() -> None:
    page = campaign()
    assert "* **undecided** other: 1.25× (1.20–1.30) by tok/s" in page
    assert "about 7 more runs per side would decide it" in page
    for said in (
        "* other: shorter answers",
        "* **failed** other: 2 cells: died",
        "a remark",
        "* x.json: cut",
    ):
        assert said in page
    log = "\n\n      CUDA:\n        no memory\n"  # an indented block, in which nothing is markup
    assert f"* **other on vllm, made, repeat 2** failed: out of memory{log}" in page
    assert page.count("============ Serving Benchmark Result ============") == 2
    assert "loadgen bench --profile made --max-concurrency 4" in page


def test_what_is_said_of_three_rows_is_said_once() -> None:
    run = made_runs.reported(made_runs.run())
    rows = [
        made_runs.line(f"m{number}", (run,), Decision.FASTER, marks=("shorter", *(["odd"] * (number == 2))))
        for number in range(4)
    ]
    found = made_runs.comparison(made_runs.line("base", (run,)), *rows)
    page = document.render_markdown(compose_document([run, run], [found]))
    assert page.count("shorter") == 1
    assert "* m0, m1, m2, m3: shorter" in page
    assert "* m2: odd" in page


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    for table in re.findall(r"(?:^\|.*\|\n)+", campaign(), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_a_name_is_no_markup_in_markdown() -> None:
    run = made_runs.reported(made_runs.run(model=EVIL), EVIL)
    found = made_runs.comparison(made_runs.line(EVIL, (run,)), made_runs.line("b", (run,), Decision.FASTER))
    page = document.render_markdown(compose_document([run, run], [found]))
    outside = re.sub(r"^```text\n.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    assert "[x](" not in re.sub(r"^<summary>.*$", "", outside, flags=re.MULTILINE)  # nothing is markup there
    assert "\n # d" not in outside


def test_a_fence_in_a_text_does_not_end_its_fence() -> None:
    run = made_runs.reported(made_runs.run(notes=("````",)))
    page = document.render_markdown(compose_document([run]))
    assert "`````text\n" in page


@pytest.mark.parametrize(
    ("value", "text"), [(1.4421, "1.442×"), (0.5, "0.500×"), (12.345, "12.3×"), (0.01234, "0.0123×")]
)
def test_a_ratio_is_written_with_three_digits_or_more(value: float, text: str) -> None:
    assert comparison_section.format_row_ratio(value) == text


@loop_over(
    ("value", "text"),
    [(None, "–"), (math.nan, "–"), ("inf", "inf"), (True, "True"), (1234567, "1,234,567"), (2.005, "2.00")],
)
def test_what_is_no_number_is_written_as_what_it_is(value: object, text: str) -> None:
    assert format_number("k", value) == text


@pytest.fixture
def terminal() -> Any:
    name = "loadgen.study.pages.pictures"
    return pytest.importorskip(name, reason="needs plotext", exc_type=ImportError)


def test_a_terminal_s_plot_is_plain_ascii_in_its_width(terminal: Any) -> None:
    runs = [made_runs.reported(made_runs.run(seed=seed), f"m{seed}") for seed in (0, 1)]
    for reported in (runs[:1], runs):
        drawn = terminal.render_plots(reported, 80, plain=True)
        assert drawn.isascii()
        assert max(map(len, drawn.splitlines())) <= 80
        assert drawn.count("*") > 60
        for title in ("Time to first token", "Inter-token latency", "Output tokens over time"):
            assert title in drawn
    assert "m1" in drawn


def test_a_name_cannot_command_a_terminal(terminal: Any) -> None:
    runs = [made_runs.reported(made_runs.run(seed=seed), f"m{seed}\x1b[2J\x07é") for seed in (0, 1)]
    drawn = terminal.render_plots(runs, 80, plain=True)
    assert "\x1b" not in drawn
    assert "\x07" not in drawn
    assert drawn.isascii()
