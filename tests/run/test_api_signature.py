"""What help() and a notebook show: every keyword by name, and a run as its report."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import loadgen
from builders import made_runs
from builders.loops import loop_over
from loadgen.report.run import Run
from loadgen.settings.keyword_types import BenchOptions
from loadgen.study.series.series_api import LimitOptions, SweepOptions


@loop_over(
    ("function", "options"),
    [
        (loadgen.bench, BenchOptions),
        (loadgen.bench_async, BenchOptions),
        (loadgen.sweep, SweepOptions),
        (loadgen.limit, LimitOptions),
    ],
)
def test_a_signature_names_every_keyword(function: Callable[..., Any], options: Any) -> None:
    shown = inspect.signature(function)
    assert list(shown.parameters) == ["base_url", "profile", *options.__annotations__]
    assert "max_concurrency: int | None = ..." in str(shown)
    assert "ForwardRef" not in str(shown)


def test_a_run_is_shown_as_its_report_in_a_notebook() -> None:
    page = Run(made_runs.run(model="a<b>&c"))._repr_html_()
    assert page.startswith("<pre>")
    assert "Serving Benchmark Result" in page
    assert "a&lt;b&gt;&amp;c" in page
    assert "loadgen report" not in page  # it lies nowhere
