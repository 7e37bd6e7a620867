"""Alongside: what is sampled while a run goes on, and what is imported while none does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from loadgen.endpoint import server_log
from loadgen.endpoint.scraper import MetricsScraper
from loadgen.session.importing import importing
from loadgen.session.local_server import Local
from loadgen.session.progress import Display
from loadgen.telemetry.sampler import Sampler
from loadgen.validity.run_metadata import LateFacts

_IDLE_S = 1.0  # of idle power, where there is a sensor


def settled(observer: MetricsScraper, most_s: float, display: Display) -> str:
    """Scrape the server's counters once it is idle, or that long has passed; returns the error.

    What results need is imported meanwhile, as there is time for it.
    """
    with display.waiting("settling: until the server is idle", most_s):
        return observer.before(most_s, meanwhile=_import_results)


def counted(observer: MetricsScraper, display: Display) -> LateFacts:
    """The server's counters over a run that has ended, once it is idle again."""
    with display.waiting("reading the server's counters, once it is idle", observer.longest_wait_s):
        return {"window": observer.after()}


def _import_results() -> None:
    with importing():
        import loadgen.results.report
        import loadgen.session.followup  # noqa: F401


def idle_sensed(local: Local, display: Display) -> Sampler:
    """The sensors of the machine that the server is on too, with its idle power."""
    from loadgen.telemetry import discovery

    sensing = Sampler(discovery.sensors(), local.pids, before_bytes=local.device_before_bytes)
    with display.waiting("measuring idle power", _IDLE_S):
        sensing.sample_idle(_IDLE_S)
    return sensing


def as_run(server_info: Callable[[], dict[str, Any]], local: Local | None) -> LateFacts:
    """The engine's own account of its configuration: what it answers, and what its log begins with."""
    from loadgen.endpoint import engine_config

    info = server_info()
    parts = [engine_config.from_server_info(info)] if info else []
    if local is not None and local.log is not None:
        parts.append(engine_config.parse(server_log.beginning(local.log)))
    return {"as_run": engine_config.merged(*parts)} if parts else {}


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
