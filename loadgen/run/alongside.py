"""Alongside: what is sampled while a run goes on, and what is imported while none does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from loadgen.engines.engine import Engine
from loadgen.host.cpu_use import CpuWatch
from loadgen.host.sampler import Sampler
from loadgen.run.importing import importing
from loadgen.run.local_server import Local
from loadgen.run.progress import Display
from loadgen.server.scraper import MetricsScraper

if TYPE_CHECKING:
    from loadgen.server.server_counters import ServerWindow

_IDLE_S = 1.0  # of idle power, where there is a sensor


def settled(observer: MetricsScraper, most_s: float, display: Display) -> str:
    """Scrape the server's counters once it is idle, or that long has passed; returns the error.

    What results need is imported meanwhile, as there is time for it.
    """
    with display.waiting("settling: until the server is idle", most_s):
        return observer.scrape_before(most_s, meanwhile=_import_results)


def counters_after(observer: MetricsScraper, display: Display) -> ServerWindow:
    """The server's counters over a run that has ended, once it is idle again."""
    with display.waiting("reading the server's counters, once it is idle", observer.longest_wait_s):
        return observer.scrape_after()


def _import_results() -> None:
    with importing():
        import loadgen.report.report
        import loadgen.run.followup  # noqa: F401


def sensors(local: Local | None, engine: Engine, observe: bool, display: Display) -> Sampler | None:
    """The sensors of this machine, where the server is on it, and its idle power."""
    if local is None or not observe or engine.simulated:
        return None
    from loadgen.host import sensor_discovery

    sensing = Sampler(sensor_discovery.find_sensors(), local.pids, before_bytes=local.device_before_bytes)
    with display.waiting("measuring idle power", _IDLE_S):
        sensing.sample_idle(_IDLE_S)
    return sensing


def cpu_watch(local: Local | None, observe: bool, embedded: bool) -> CpuWatch | None:
    """What reads the CPU use of a run, where the server is on this machine."""
    return CpuWatch(local.pids, server_known=embedded) if local is not None and observe else None


def devices(sensing: Sampler) -> dict[str, str]:
    """What the sensors report of this machine."""
    from loadgen.host import sensor_discovery

    return sensor_discovery.collect_facts(sensing.sensors)


@contextmanager
def sampled(*sources: MetricsScraper | Sampler | CpuWatch | None) -> Iterator[None]:
    """Sample the server's counters, this machine's sensors and its CPUs meanwhile."""
    with ExitStack() as stack:
        for source in sources:
            if source is not None:
                stack.enter_context(source.sampling())
        yield
