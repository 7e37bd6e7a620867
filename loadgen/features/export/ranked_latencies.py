"""Ranked latencies: the common latencies of a run at the percentiles that another tool's format has."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.base.structs import replace
from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import LATENCIES
from loadgen.figures.metrics import measure_latencies
from loadgen.figures.per_request import PerRequest
from loadgen.report.run_directory import Result


def rank_latencies(run: Result, ranks: Sequence[float]) -> dict[str, Distribution]:
    """Compute a run's latencies with these percentiles, by the figure's key; none without samples.

    They are over the records that the run's own figures are computed from.
    """
    ask = replace(run.ask, metric_percentiles=tuple(ranks))
    measured = measure_latencies(run.counted, PerRequest.from_records(run.counted, ask), ask)
    return {
        figure.key: measured[figure.field_name]
        for figure in LATENCIES
        if measured[figure.field_name].n and (ask.times_tokens or not figure.needs_tokens)
    }
