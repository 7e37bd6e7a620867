"""Observation: a server on this machine, and what is sampled of it and of its counters around a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from loadgen.facts.run_facts import Launched
from loadgen.host.cpu_use import CpuWatch
from loadgen.run.command.progress import Display
from loadgen.server.scraper import MetricsScraper

if TYPE_CHECKING:
    from loadgen.features.sensors.sampler import Sampler
    from loadgen.server.server_counters import ServerWindow


class Local(msgspec.Struct, frozen=True):
    """A server on this machine: its processes and, if started for the run, its log and whether it ended."""

    pids: Callable[[], Sequence[int]]
    log: Path | None = None
    launched: Launched | None = None
    # Raises ServerDied where it has ended; one that just failed may take that many seconds to end. Of a
    # server that was not started here it is unknown.
    check_alive: Callable[[float], None] = lambda wait_s: None
    gone: Callable[[], bool] = lambda: False  # whether it has ended
    device_before_bytes: int | None = None  # GPU memory in use before it was started


def scrape_before_run(
    observer: MetricsScraper, most_s: float, display: Display, meanwhile: Callable[[], None]
) -> str:
    """Scrape the server's counters once it is idle, or after `most_s` seconds; return the error, "" if none.

    `meanwhile` is called during the wait.
    """
    with display.waiting("settling: until the server is idle", most_s):
        return observer.scrape_before(most_s, meanwhile)


def scrape_after_run(
    observer: MetricsScraper, display: Display, meanwhile: Callable[[], None]
) -> ServerWindow:
    """Scrape the server after a run, once idle or after its longest wait, and return its counters' change.

    `meanwhile` is called during the wait.
    """
    with display.waiting("reading the server's counters, once it is idle", observer.longest_wait_s):
        return observer.scrape_after(meanwhile)


def make_cpu_watch(local: Local | None, embedded: bool) -> CpuWatch | None:
    """Make the reader of CPU use around a run, also of an unobserved one; None if the server is elsewhere."""
    return CpuWatch(local.pids, server_known=embedded) if local is not None else None


@contextmanager
def sample_meanwhile(*sources: MetricsScraper | Sampler | CpuWatch | None) -> Iterator[None]:
    """Run the given samplers (counters, sensors, CPU use) inside the block."""
    with ExitStack() as stack:
        for source in sources:
            if source is not None:
                stack.enter_context(source.sampling())
        yield
