from __future__ import annotations

import numpy as np
import pytest

from loadgen.base.arrays import Int64
from loadgen.figures.distribution import Distribution, RateDistribution
from loadgen.figures.figure_table import FIGURES, LATENCY, SELECTABLE, SPEED, Figure, find_figure
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.records.record import Record, Records


def test_every_distribution_of_the_metrics_is_a_row_of_the_table() -> None:
    named = {figure.field: figure.kind for figure in FIGURES if figure.kind in (LATENCY, SPEED)}
    kinds = {"Distribution": LATENCY, "RateDistribution": SPEED}
    types = Metrics.__annotations__.items()
    assert named == {field: kinds[kind] for field, kind in types if kind in kinds}
    assert {figure.field for figure in FIGURES} <= set(Metrics.__struct_fields__)


def test_each_row_is_of_its_own_key_and_names_rows_that_there_are() -> None:
    keys = [figure.key for figure in FIGURES]
    assert len(set(keys)) == len(keys)
    for figure in FIGURES:
        assert {figure.same_as, figure.compared} <= {"", *keys}, figure.key
        assert not figure.compared or SELECTABLE[figure.compared].compared == figure.compared
    assert [figure.key for figure in SELECTABLE.values() if not figure.title] == []


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("p99.9_itl_ms", "itl"),
        ("mean_e2el_per_token_ms", "e2el_per_token"),
        ("p1_tps_user", "tps_user"),
        ("output_throughput", "output_throughput"),
        ("median_ttft", None),
        ("mean_session_ms", None),
        ("ttft_ms", None),
    ],
)
def test_a_key_of_a_result_leads_to_its_figure(key: str, expected: str | None) -> None:
    found = find_figure(key)
    assert (found.key if found else None) == expected


def _records() -> Records:
    """Two requests: of three tokens, and of one."""
    rows = [
        Record(0, 0, 90, 100, 700, arrival_ns=_ns(300, 500, 700), tokens=_ns(1, 1, 1), input_tokens=8),
        Record(1, 0, 800, 900, 950, arrival_ns=_ns(950), tokens=_ns(1), visible_ns=950),
    ]
    for row in rows:
        row.output_tokens = len(row.tokens)
    return Records.from_records(rows)


def _ns(*values: int) -> Int64:
    return np.array(values, np.int64)


@pytest.mark.parametrize("figure", SELECTABLE.values(), ids=SELECTABLE)
def test_samples_are_those_that_the_metrics_have(figure: Figure) -> None:
    records, ask = _records(), MetricOptions()
    values, has = figure.samples(PerRequest.from_records(records, ask))
    found: Distribution | RateDistribution = getattr(compute_metrics(records, ask), figure.field)
    assert values.shape == has.shape == (len(records),)
    if figure.of == "requests":
        assert found.n == has.sum()
        mean = figure.words_of({name: getattr(found, name) for name in found.__struct_fields__})["mean"]
        scale = 1e6 if figure.kind == LATENCY else 1
        assert mean == pytest.approx(values[has].mean() / scale)
    else:
        assert not has.any()
