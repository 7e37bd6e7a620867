"""Gate metrics: the figures that a gate judges, by the names people use, and the margin of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.parsing import parse_share
from loadgen.figures.figure_names import find_named_figure
from loadgen.study.gate.gate_verdict import MARGIN

_LEAST_MARGIN, _MOST_MARGIN = 1e-4, 0.99


class GateMetric(msgspec.Struct, frozen=True):
    """One figure that a gate judges."""

    name: str  # as it was asked for
    key: str  # of the figure in a result
    higher_is_faster: bool
    margin: float = MARGIN  # how much slower is not worth a failed build; 0.03 is 3 %


def parse_gate_metrics(texts: Sequence[str]) -> list[GateMetric]:
    """Parse `--metric tok/s,ttft_p99`; [] if nothing is named.

    A latency without a statistic is its mean. Raises UsageError of an unknown one, with the nearest, and of
    one that is named twice.
    """
    metrics: dict[str, GateMetric] = {}
    for name in (part.strip() for text in texts for part in text.split(",")):
        metric = _find_metric(name)
        if metric.key in metrics:
            raise UsageError(f"--metric {name}: {metrics[metric.key].name} is the same figure: name it once")
        metrics[metric.key] = metric
    return list(metrics.values())


def lay_margins(metrics: Sequence[GateMetric], texts: Sequence[str]) -> list[GateMetric]:
    """Return the metrics with the margins of `--margin 3% --margin ttft_p99=10%`.

    Raises UsageError of a margin that is no share, or of a metric that is not judged.
    """
    usual, own = MARGIN, dict[str, float]()
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, equals, share = text.rpartition("=")
        try:
            margin = parse_share(share, _LEAST_MARGIN, _MOST_MARGIN)
        except ValueError as error:
            raise UsageError(f"--margin {text}: {error}") from None
        if not equals:
            usual = margin
            continue
        key = _find_metric(name.strip(), "--margin").key
        if key not in {metric.key for metric in metrics}:
            judged = ", ".join(metric.name for metric in metrics)
            raise UsageError(f"--margin {text}: the gate judges {judged}: name it with --metric too")
        own[key] = margin
    return [msgspec.structs.replace(metric, margin=own.get(metric.key, usual)) for metric in metrics]


def _find_metric(name: str, flag: str = "--metric") -> GateMetric:
    """Find the figure that a name means; raises UsageError, with the nearest name."""
    try:
        figure, key = find_named_figure(name)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None
    return GateMetric(name, key, bool(figure.higher_is_better))
