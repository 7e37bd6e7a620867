"""Alongside: what is sampled while a run goes on, and what is imported while none does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from loadgen.endpoint.scraper import MetricsScraper
from loadgen.session.importing import importing
from loadgen.telemetry.sampler import Sampler


def import_results() -> None:
    """Import what results need where there is time for it."""
    with importing():
        import loadgen.results.report
        import loadgen.session.followup  # noqa: F401


def devices(sensing: Sampler) -> dict[str, str]:
    """What the sensors report of this machine."""
    from loadgen.telemetry import discovery

    return discovery.facts(sensing.sensors)


@contextmanager
def sampled(*sources: MetricsScraper | Sampler | None) -> Iterator[None]:
    """Sample the server's counters and this machine's sensors meanwhile."""
    with ExitStack() as stack:
        for source in sources:
            if source is not None:
                stack.enter_context(source.sampling())
        yield
