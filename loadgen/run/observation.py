"""Observation: a server on this machine, and what is sampled of it and of its counters around a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts, Launched
from loadgen.features.sensors.sampler import Sampler
from loadgen.host import environment
from loadgen.host.cpu_use import CpuWatch
from loadgen.host.environment import ThrottlingState
from loadgen.host.machine_state import MachineState
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome
from loadgen.server.control import Trace
from loadgen.server.scraper import MetricsScraper


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


def make_cpu_watch(local: Local | None, embedded: bool) -> CpuWatch | None:
    """Make the reader of CPU use around a run, also of an unobserved one; None if the server is elsewhere."""
    return CpuWatch(local.pids, server_known=embedded) if local is not None else None


class Observation(msgspec.Struct):
    """What is sampled of a server and its machine around a run; None: that is not."""

    sensors: Sampler | None = None
    before: MachineState | None = None  # of the machine's GPUs, before the warm-up
    throttling: ThrottlingState | None = None  # before the run
    counters: MetricsScraper | None = None
    cpus: CpuWatch | None = None
    trace: Trace | None = None

    @contextmanager
    def sample(self) -> Iterator[None]:
        """Run the samplers of counters, sensors and CPU use inside the block."""
        with ExitStack() as stack:
            for source in (self.counters, self.sensors, self.cpus):
                if source is not None:
                    stack.enter_context(source.sampling())
            yield

    def list_steps(
        self, outcome: Outcome, display: Display, meanwhile: Callable[[], None]
    ) -> Iterator[tuple[str, Callable[[Facts], Facts]]]:
        """Yield (name, step) that add to the facts what was sampled during a run; no counters after a signal.

        `meanwhile` is called during the wait for the counters.
        """
        sensors, throttling, counters, cpus = self.sensors, self.throttling, self.counters, self.cpus
        health = outcome.health
        if sensors is not None:
            yield "the machine's state", lambda known: replace(known, state_after=sensors.read_state())
        if throttling is not None:
            explain, read_now = environment.explain_throttling, environment.read_throttling_state
            yield "throttling", lambda known: replace(known, throttled=explain(throttling, read_now()))
        if self.trace is not None:
            yield "the server's trace", lambda known: replace(known, traced=str(self.trace))
        if counters is not None and not outcome.interrupted:  # a signal does not wait until they settle

            def add_counters(known: Facts) -> Facts:
                waits_s = counters.longest_wait_s
                with display.waiting("reading the server's counters, once it is idle", waits_s):
                    window = counters.scrape_after(meanwhile)
                return replace(known, window=window, role_windows=counters.list_role_windows())

            yield "the server's counters", add_counters
        if sensors is not None:
            yield (
                "the sensors",
                lambda known: replace(known, sensed=sensors.summarize(health.started_ns, health.ended_ns)),
            )
        if cpus is not None:
            yield "the CPUs", lambda known: replace(known, cpu_use=cpus.use)
