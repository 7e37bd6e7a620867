"""Sampler: memory, energy, heat and clocks of the server, sampled during a run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from loadgen.base import clock
from loadgen.base.errors import call_guarded
from loadgen.base.structs import replace
from loadgen.host.sensor import (
    Quantity,
    Reading,
    Sample,
    Sensor,
    collect_facts,
    read_machine_state,
    read_safely,
)

if TYPE_CHECKING:
    from loadgen.facts.run_facts import SensorSummary
    from loadgen.host.machine_state import MachineState
    from loadgen.server.sample_file import SampledSeries

_LEAST_PERIOD_S = 0.1
_POWER: frozenset[Quantity] = frozenset(("energy_j", "power_w", "board_w", "package_j"))
_MOST_SAMPLES = 1 << 15  # with more, every other one is dropped, and they are taken half as often
_PIDS_S = 5.0  # finding the server's processes costs a walk through all of the machine's
_BEGIN_S, _STOP_S = 0.5, 2.0  # to wait at the begin, and at the end, for a sensor that does not answer
_ARRAY_BYTES, _LEAST_BYTES = 128 << 20, 16 << 20  # more than most caches have
_SHARE = 100  # the copy takes two hundredths of the available memory: the server may need the rest
_PASSES = 7
_MOST_S = 2.0


class Sampler(msgspec.Struct, eq=False):
    """Samples the sensors of this machine, idle and during a run; their errors never affect the run.

    `before_bytes` is the GPU memory in use before the server was started: where no GPU reports memory by
    process, the server's is what was added to it.
    """

    sensors: Sequence[Sensor]
    pids: Callable[[], Sequence[int]]
    period_s: float = 0.5
    before_bytes: int | None = None
    idle: list[Sample] = []
    samples: list[Sample] = []
    errors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.period_s = max(self.period_s, _LEAST_PERIOD_S)

    def read_state(self, probe: bool = False) -> MachineState:
        """Read the machine's state now; with `probe` measure the memory bandwidth too, for 2 s at most."""
        state = read_machine_state(self.sensors, self._find_server_pids(()))
        if not probe:
            return state
        return replace(state, copy_gb_per_s=measure_copy_gb_per_s(state.available_bytes))

    def sample_idle(self, seconds: float) -> None:
        """Sample for `seconds` while the server is idle; only once if no sensor reports power."""
        self.idle = [self._sample(())]
        if {quantity for quantity, _ in self.idle[0].reading.values} & _POWER:
            with self._sampling(self.idle):
                time.sleep(seconds)

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample at once and every `period_s` in a thread; do not fork inside the block."""
        self.samples = []
        with self._sampling(self.samples):
            yield

    def summarize(self, begin_ns: int, end_ns: int) -> SensorSummary:
        """Summarize the samples between two times of CLOCK_MONOTONIC (ns), with all errors as missing."""
        # Its models are built once a run is over.
        from loadgen.features.sensors.sensor_summary import Window, summarize_window

        window = Window(tuple(self.samples), begin_ns, end_ns, self.period_s)
        sensed = summarize_window(window, tuple(self.idle), self.before_bytes)
        return sensed.model_copy(update={"missing": (*self.errors, *sensed.missing)})

    def describe(self) -> dict[str, str]:
        """Return the sensors' unchanging facts (model, driver, limits), for the report's environment."""
        return collect_facts(self.sensors)

    def list_series(self) -> list[SampledSeries]:
        """List the series of every sampled quantity; energy counters become power between readings."""
        from loadgen.features.sensors import sensor_summary

        return sensor_summary.list_series(self.samples)

    @contextlib.contextmanager
    def _sampling(self, into: list[Sample]) -> Iterator[None]:
        """Sample into a list in a thread while the block runs, and wait for the thread 2 s at most.

        A thread that cannot start, or does not end, is added to `errors`.
        """
        over, sampled = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=self._collect, args=(into, over, sampled), name="sensing", daemon=True
        )
        try:
            thread.start()
            # The first search and reading are the dearest: not during the first requests.
            sampled.wait(_BEGIN_S)
        except RuntimeError as error:
            self.errors = (f"the sensors were not read: {error}",)
        try:
            yield
        finally:
            over.set()
            if thread.ident is not None:
                thread.join(_STOP_S)
            if thread.is_alive():
                self.errors = (*self.errors, f"a sensor did not answer within {_STOP_S:g} s of the end")

    def _collect(self, into: list[Sample], over: threading.Event, sampled: threading.Event) -> None:
        """Sample every `period_s` until `over`, and once more then; a period that a sensor missed is skipped.

        Once it has a sample it sets `sampled`. Beyond the most samples that are kept, it drops every second
        one and doubles the period.
        """
        began_ns = clock.now_ns()
        pids, pids_due_ns = self._find_server_pids(()), began_ns + int(_PIDS_S * 1e9)
        while True:
            into.append(self._sample(pids))
            sampled.set()
            if len(into) > _MOST_SAMPLES:
                del into[1::2]
                self.period_s *= 2
            period_ns = int(self.period_s * 1e9)
            if over.is_set():
                return
            now_ns = clock.now_ns()
            if now_ns >= pids_due_ns:
                pids, pids_due_ns = self._find_server_pids(pids), now_ns + int(_PIDS_S * 1e9)
            over.wait((period_ns - (clock.now_ns() - began_ns) % period_ns) / 1e9)

    def _find_server_pids(self, earlier: tuple[int, ...]) -> tuple[int, ...]:
        """Find the server's process ids now; if that fails the earlier ones, with a line in `errors`."""

        def explain_failure(why: str) -> tuple[int, ...]:
            if why not in self.errors:
                self.errors = (*self.errors, why)
            return earlier

        return call_guarded("finding the server's processes", lambda: tuple(self.pids()), explain_failure)

    def _sample(self, pids: tuple[int, ...]) -> Sample:
        """Read all sensors once, and return their merged reading with its time and this thread's CPU time."""
        # Timed before: the sensors of power come first, and one of memory may take long after them.
        at_ns, cpu_ns = clock.now_ns(), time.thread_time_ns()
        reading = Reading.merge(read_safely(sensor, pids) for sensor in self.sensors)
        return Sample(at_ns, time.thread_time_ns() - cpu_ns, reading)


def measure_copy_gb_per_s(
    available_bytes: int | None, most_s: float = _MOST_S, now_ns: Callable[[], int] = clock.now_ns
) -> float | None:
    """Measure GB/s read and written by one thread that copies 128 MiB: the best of 7 passes, or of `most_s`.

    With little available memory it copies less, and returns None below 16 MiB, or if that is unknown.
    """
    size = min(_ARRAY_BYTES, (available_bytes or 0) // _SHARE)
    if size < _LEAST_BYTES:
        return None
    # Every page is there before the first pass.
    source, target = (np.ones(size // 8, np.float64) for _ in range(2))
    end_ns, fastest_ns = now_ns() + int(most_s * 1e9), 0
    for _ in range(_PASSES):
        began_ns = now_ns()
        np.copyto(target, source)
        took_ns = max(now_ns() - began_ns, 1)
        fastest_ns = min(fastest_ns or took_ns, took_ns)
        if now_ns() + took_ns > end_ns:
            break
    return 2 * source.nbytes / fastest_ns
