"""Target figures: what each of several servers did of a run whose requests were divided among them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadgen.features.targets.target_checks import number_targets
from loadgen.figures.metrics import measure_part
from loadgen.figures.per_request import PerRequest
from loadgen.report.run_directory import Result
from loadgen.report.section import PartColumn, ReportOptions, draw_parts

_MOST_TARGETS = 8  # in a table of a short report
COLUMNS = (
    PartColumn("requests", "requests", 0, 9),
    PartColumn("failed", "failed", 0, 7),
    PartColumn("mean_ttft_ms", "TTFT ms", 2, 9, "{:.2f}"),
    PartColumn("p99_ttft_ms", "P99", 2, 9, "{:.2f}"),
    PartColumn("mean_tpot_ms", "TPOT ms", 2, 8, "{:.2f}"),
    PartColumn("p99_tpot_ms", "P99", 2, 8, "{:.2f}"),
    PartColumn("output_throughput_per_s", "tok/s", 2, 8, "{:.1f}"),
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


def tabulate_targets(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the targets as a table, in one entry, with long URLs on lines of their own."""
    if lines := _draw_table(result):
        yield "\n".join(lines)


def tabulate_few_targets(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the table of targets for a short report, or a line on their number if there are over eight."""
    rows = result.derive(divide_by_target)
    if len(rows) > _MOST_TARGETS:
        yield f"{len(rows)} servers shared the requests: the table by target is in the whole report"
    else:
        yield from _draw_table(result)


def _draw_table(result: Result) -> list[str]:
    rows = ((row.url.partition("://")[2], row) for row in result.derive(divide_by_target))
    return draw_parts("Target", 22, COLUMNS, rows)
