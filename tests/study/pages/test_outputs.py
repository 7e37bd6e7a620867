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


def test_a_name_cannot_command_a_terminal(terminal: Any) -> None:
    runs = [made_runs.reported(made_runs.run(seed=seed), f"m{seed}\x1b[2J\x07é") for seed in (0, 1)]
    drawn = terminal.render_plots(runs, 80, plain=True)
    assert "\x1b" not in drawn
    assert "\x07" not in drawn
    assert drawn.isascii()
