"""Observation: a server on this machine, and what is sampled of it and of its counters around a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from loadgen.engines.engine import Engine
from loadgen.facts.run_facts import Launched
from loadgen.features import import_rows
from loadgen.host.cpu_use import CpuWatch
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.server.scraper import MetricsScraper

if TYPE_CHECKING:
    from loadgen.facts.machine_state import MachineState
    from loadgen.facts.sensor_facts import SensorSummary
    from loadgen.server.sample_file import SampledSeries
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


class HostSampler(Protocol):
    """Samples a machine's sensors during a run; its errors never affect the run."""

    def describe(self) -> dict[str, str]:
        """Return the sensors' unchanging facts, for the report's environment."""

    def read_state(self, probe: bool = False) -> MachineState:
        """Read the machine's state now; with `probe` measure its memory bandwidth too, for 2 s at most."""

    def sampling(self) -> AbstractContextManager[None]:
        """Sample in a thread inside the block; do not fork inside it."""

    def summarize(self, begin_ns: int, end_ns: int) -> SensorSummary:
        """Summarize the samples between two times of CLOCK_MONOTONIC (ns)."""

    def list_series(self) -> list[SampledSeries]:
        """List the series of every sampled quantity."""


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


def start_sensors(
    local: Local | None, engine: Engine, options: Options, observe: bool, display: Display
) -> HostSampler | None:
    """Find this machine's sensors and those of --power-url, and sample idle power.

    None for a simulated or unobserved server, and for a remote one without the flag.
    """
    if not observe or engine.simulated or (local is None and not options.power_url):
        return None
    (feature,) = import_rows("sensors")
    started: HostSampler = feature.start_sensors(local, options, display)
    return started


def make_cpu_watch(local: Local | None, embedded: bool) -> CpuWatch | None:
    """Make the reader of CPU use around a run, also of an unobserved one; None if the server is elsewhere."""
    return CpuWatch(local.pids, server_known=embedded) if local is not None else None


@contextmanager
def sample_meanwhile(*sources: MetricsScraper | HostSampler | CpuWatch | None) -> Iterator[None]:
    """Run the given samplers (counters, sensors, CPU use) inside the block."""
    with ExitStack() as stack:
        for source in sources:
            if source is not None:
                stack.enter_context(source.sampling())
        yield
