"""Requested metrics: what a profile and --metadata ask a report to show, checked before a run."""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.base.errors import UsageError
from loadgen.figures import objectives
from loadgen.figures.figure_table import parse_metrics, parse_percentiles
from loadgen.figures.metrics import BlockFacts
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.steady_state import Trim
from loadgen.plan import request_sources
from loadgen.plan.profile import Profile, check_body


def make_metric_options(profile: Profile) -> MetricOptions:
    """Make the options of which figures a profile needs; raises UsageError if they cannot be computed.

    Without --goodput the limits of --slo say which requests are good, each by that of its highest percentile.
    """
    slo = objectives.parse_objectives(profile.slo)
    if blind := [objective for objective in slo if not objectives.is_judgeable(objective, profile.stream)]:
        raise UsageError(
            f"--slo {blind[0]} needs a stream to judge it: leave out --disable-stream, or use e2el"
        )
    return MetricOptions(
        metric_percentiles=parse_percentiles(profile.metric_percentiles),
        goodput_slo_ms=objectives.parse_goodput(profile.goodput) or objectives.find_goodput_limits(slo),
        streamed=profile.stream,
    )


def make_block_facts(profile: Profile) -> BlockFacts:
    """Make the settings that the result block shows; raises UsageError for an unknown metric."""
    return BlockFacts(
        request_rate_per_s=profile.request_rate,
        max_concurrency=profile.max_concurrency,
        selected=parse_metrics(profile.percentile_metrics),
    )


def check_workload(profile: Profile) -> None:
    """Raise UsageError before a run if a file of its profile is missing, or as `check_profile` does."""
    check_profile(profile)
    request_sources.check_files(profile)


def check_profile(profile: Profile) -> None:
    """Raise UsageError before a run if its profile's figures could not be reported, or would be untrue."""
    check_reportable(profile)
    check_body(profile)


def check_reportable(profile: Profile) -> None:
    """Raise UsageError if a run of this profile, new or stored, cannot be reported."""
    make_metric_options(profile)
    make_block_facts(profile)
    Trim.parse(profile.warmup, profile.cooldown)


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """Parse the pairs of `--metadata KEY=VALUE`, the last of a key; raises UsageError without a `=`."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--metadata {pair}: write KEY=VALUE")
        metadata[key.strip()] = value.strip()
    return metadata
