"""Target figures: what each of several servers did of a run whose requests were divided among them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.table import align_cells
from loadgen.figures.part_figures import part_latencies
from loadgen.figures.per_request import PerRequest
from loadgen.figures.record import Records
from loadgen.transport.failure import FailureKind

_NONE = -1
_TITLES = ("Target", "requests", "failed", "TTFT ms", "P99", "TPOT ms", "P99", "tok/s")
_WIDTHS = (-22, 9, 7, 9, 9, 8, 8, 8)


class TargetFigures(msgspec.Struct, frozen=True):
    """One server's share of a run; latencies are over successes, in milliseconds, NaN if there are none."""

    url: str
    requests: int  # that it was sent
    failed: int  # of these
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    output_throughput_per_s: float  # its output tokens / the duration of the whole run


def number_targets(targets: Sequence[str], records: Records) -> Int64:
    """Which target each request went to, int64[requests]; -1 where that died with the client."""
    lost = [failure is not None and failure.kind is FailureKind.LOST for failure in records.failures]
    return np.where(np.array(lost, np.bool_), _NONE, records.slot % max(len(targets), 1))


def name_targets(targets: Sequence[str], records: Records) -> list[str | None]:
    """The URL of the target of each request; None where that is not known."""
    urls = [*targets, None]
    return [urls[number] for number in number_targets(targets, records).tolist()]


def compute_targets(
    targets: Sequence[str], records: Records, each: PerRequest, duration_s: float
) -> list[TargetFigures]:
    """The figures of each target, in their order; empty where there are not several."""
    if len(targets) < 2:
        return []
    of = number_targets(targets, records)
    return [_figures(url, of == number, each, duration_s) for number, url in enumerate(targets)]


def _figures(url: str, ours: Bool, each: PerRequest, duration_s: float) -> TargetFigures:
    tokens = int(each.output_tokens[ours & each.ok].sum())
    return TargetFigures(
        url=url,
        requests=int(ours.sum()),
        failed=int((ours & each.failed).sum()),
        output_throughput_per_s=tokens / duration_s if duration_s > 0 else 0.0,
        **part_latencies(TargetFigures, each, ours),
    )


def format_targets(rows: Sequence[TargetFigures]) -> list[str]:
    """The rows as a table, each under its URL where that is long; empty if there are none."""
    lines = [align_cells(_TITLES, _WIDTHS)] if rows else []
    for row in rows:
        latencies = (row.mean_ttft_ms, row.p99_ttft_ms, row.mean_tpot_ms, row.p99_tpot_ms)
        shown = ["-" if value != value else f"{value:.2f}" for value in latencies]
        cells = (str(row.requests), str(row.failed), *shown, f"{row.output_throughput_per_s:.1f}")
        name = row.url.partition("://")[2]
        if len(name) > -_WIDTHS[0]:
            lines.append(name)
            name = ""
        lines.append(align_cells((name, *cells), _WIDTHS))
    return lines
