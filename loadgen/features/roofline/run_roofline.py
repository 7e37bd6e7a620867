"""Run roofline: a run's figures next to its roofline, in the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loadgen.features.roofline import bound
from loadgen.features.roofline.bound import list_bound_figures
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions


def describe_roofline(result: Result, options: ReportOptions) -> Iterable[str]:
    """Return lines, not wrapped, on the roofline, or why it is missing; [] if there is no reason either."""
    facts = result.facts
    if facts.ceiling is None:
        return [f"roofline: unknown: {facts.no_ceiling}"] if facts.no_ceiling else []
    return bound.render_lines(facts.ceiling, *list_bound_figures(facts, result.metrics))


def summarize_roofline(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the share of the machine's best decoding speed that was reached, if known."""
    if (ceiling := result.facts.ceiling) is None:
        return
    step = bound.compare_decode(ceiling, *list_bound_figures(result.facts, result.metrics))
    if step is not None:
        share = f"{100 * step.share:.0f} % of the best decoding of {ceiling.machine.name}"
        yield f"roofline: {share} ({step.reached_tps:,.0f} of {step.best_tps:,.0f} tok/s)"
