"""Target figures: what each of several servers did of a run whose requests were divided among them."""

from __future__ import annotations

import msgspec

from loadgen.base.tables import Table
from loadgen.features.targets.target_checks import number_targets
from loadgen.figures.metrics import measure_part
from loadgen.figures.per_request import PerRequest
from loadgen.report.run_directory import Result
from loadgen.report.section import PartColumn, make_part_table

_COLUMNS = (
    PartColumn("requests", "requests"),
    PartColumn("failed", "failed"),
    PartColumn("mean_ttft_ms", "TTFT ms", 2),
    PartColumn("p99_ttft_ms", "P99", 2),
    PartColumn("mean_tpot_ms", "TPOT ms", 2),
    PartColumn("p99_tpot_ms", "P99", 2),
    PartColumn("output_throughput_per_s", "tok/s", 1),
)


class TargetFigures(msgspec.Struct, frozen=True):
    """The figures of one server; latencies in ms over its successes, NaN without any."""

    url: str
    requests: int  # that it was sent
    failed: int  # of these
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    output_throughput_per_s: float  # its output tokens / the duration of the whole run


def name_targets(run: Result) -> list[str | None]:
    """Return the URL of each request's target; None for a request that was lost with the client."""
    urls = [*run.facts.targets, None]
    return [urls[number] for number in number_targets(run.facts.targets, run.records).tolist()]


def divide_by_target(run: Result) -> list[TargetFigures]:
    """Compute the figures of each target, in order; [] if there are fewer than two."""
    targets, duration_s = run.facts.targets, run.whole.duration_s
    if len(targets) < 2:
        return []
    each, numbers, rows = (
        PerRequest.from_records(run.records, run.ask),
        number_targets(targets, run.records),
        [],
    )
    for number, url in enumerate(targets):
        part = numbers == number
        tokens = int(each.output_tokens[part & each.ok].sum())
        rows.append(
            TargetFigures(
                url=url,
                requests=int(part.sum()),
                failed=int((part & each.failed).sum()),
                output_throughput_per_s=tokens / duration_s if duration_s > 0 else 0.0,
                **measure_part(TargetFigures, each, part),
            )
        )
    return rows


def make_target_table(result: Result) -> Table:
    """Make the table of the targets; without rows if there are fewer than two."""
    rows = ((row.url.partition("://")[2], row) for row in result.derive(divide_by_target))
    return make_part_table("Target", "by_target", _COLUMNS, rows)
