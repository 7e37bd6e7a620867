"""Requested metrics: what a profile and --metadata ask a report to show, checked before a run."""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.base.errors import UsageError
from loadgen.figures import objectives
from loadgen.figures.figure_table import parse_metrics, parse_percentiles
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.steady_state import Trim
from loadgen.figures.vllm_keys import BlockFacts
from loadgen.plan.profile import Profile, check_body


def make_metric_options(profile: Profile) -> MetricOptions:
    """Make what a profile asks of the figures; raises UsageError if they cannot be computed.

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
    """The block's account of the load of a profile; raises UsageError if it names an unknown metric."""
    return BlockFacts(
        request_rate_per_s=profile.request_rate,
        max_concurrency=profile.max_concurrency,
        selected=parse_metrics(profile.percentile_metrics),
    )


def check_profile(profile: Profile) -> None:
    """Find before a run what could not be reported after it, or would be untrue; raises UsageError."""
    check_reportable(profile)
    check_body(profile)


def check_reportable(profile: Profile) -> None:
    """Raises UsageError if a run of this profile, new or stored, cannot be reported."""
    make_metric_options(profile)
    make_block_facts(profile)
    Trim.parse(profile.warmup, profile.cooldown)


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """The pairs of `--metadata KEY=VALUE`; raises UsageError."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--metadata {pair}: write KEY=VALUE")
        metadata[key.strip()] = value.strip()
    return metadata
