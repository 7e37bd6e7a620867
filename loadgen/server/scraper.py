"""Scraper: the server's `/metrics` right before a run, about once a second in it, and once it is idle again.

At most a few times a second; nothing but the gauge of a live display is parsed before the run is over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Container, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from asyncio_throttle.throttler import Throttler

from loadgen.base import clock
from loadgen.base.errors import LoadgenError
from loadgen.base.structs import replace
from loadgen.engines.engine import METRICS_PATH
from loadgen.server import exchange
from loadgen.server.answer_time import AnswerTime
from loadgen.server.exchange import ControlClient, ServerAddress
from loadgen.server.prometheus import SAMPLED, MetricLines, MetricsSnapshot, parse_metrics, select_lines

if TYPE_CHECKING:
    from loadgen.server.role_window import RoleWindow
    from loadgen.server.sample_file import SampledSeries
    from loadgen.server.server_counters import ServerWindow

# A sample may cost the server time: vLLM's API process writes its metrics or its tokens, and a
# process that maps memory waits for a walk through it. Such samples take this share of a run at most, and so
# lengthen no greater share of a stream's gaps: a fifth of what P99 leaves out.
SAMPLING_SHARE = 0.002
_SCRAPES_PER_S = 5
_ANSWER_S = 3.0
_IDLE_S = 4.0  # at most, for the counters to settle
_BETWEEN_S = 0.2  # two scrapes that must agree
_FIRST_S, _EVERY_S = 0.5, 1.0
_BEGIN_S, _LEAVE_S = 0.5, 0.15
LARGEST_BYTES = 1 << 24
_MOST_SAMPLES = 3600  # beyond it every other one is dropped, and they are taken half as often

Scrape = tuple[MetricLines, bool]  # the lines, and whether nothing ran and the counters stood still


class MetricsScraper:
    """Scrapes one server's metrics for one run; scrape errors never affect the run."""

    def __init__(self, access: ServerAddress, model: str = "", path: str = METRICS_PATH) -> None:
        self.access, self.model, self.path = access, model, path
        self.throttle = Throttler(rate_limit=_SCRAPES_PER_S, period=1.0, retry_interval=0.05)
        self.began = MetricLines(error="/metrics was not read before the run")
        self.samples: list[tuple[float, MetricLines]] = []
        self.began_ns = 0  # when sampling began, which their seconds are after
        self.every_s = _EVERY_S
        # The least of all answers: others were slower for other reasons than their size.
        self.quickest: AnswerTime | None = None
        self._last: AnswerTime | None = None  # None: it failed

    def scrape_before(self, idle_s: float = 0.0, meanwhile: Callable[[], object] = lambda: None) -> str:
        """Scrape right before the run, after waiting up to `idle_s` for an idle server; returns the error.

        `meanwhile` is called where there is such a wait, while nothing is under way.
        """
        self.begin(self._run(self.scrape_idle(idle_s, meanwhile))[0])
        return self.began.error

    def begin(self, lines: MetricLines) -> None:
        """Start a run: drop earlier samples, and keep `lines` as the scrape right before it."""
        self.samples, self.every_s, self.began = [], _EVERY_S, lines

    @property
    def interval_s(self) -> float:
        """The seconds from one sample to the next, by what the server spends on one."""
        server_s = _ANSWER_S if self.quickest is None else self.quickest.server_s
        return max(self.every_s, server_s / SAMPLING_SHARE)

    @property
    def longest_wait_s(self) -> float:
        """The most seconds that `scrape_after` waits for an idle server."""
        return _IDLE_S

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample the gauges in a thread inside the block, in which nothing may fork: about once a second.

        Nothing is sampled if the scrape before the run failed or no thread can be started.
        """
        running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        thread = threading.Thread(target=self._sample, args=(running,), name="observe", daemon=True)
        if not self.began.error:
            # No more threads: the run goes on without samples.
            with contextlib.suppress(RuntimeError, concurrent.futures.TimeoutError):
                thread.start()
                running.result(_BEGIN_S)  # that it sleeps until its first sample, not amid the first requests
        try:
            yield
        finally:
            if thread.ident is not None:
                # The task may never have begun, or have ended and closed its loop.
                with contextlib.suppress(RuntimeError, concurrent.futures.TimeoutError):
                    loop, task = running.result(_LEAVE_S)
                    loop.call_soon_threadsafe(task.cancel)
                thread.join(_LEAVE_S)

    def scrape_after(self, meanwhile: Callable[[], object] = lambda: None) -> ServerWindow:
        """Scrape after the run, once the server is idle or seconds have passed; return the change.

        `meanwhile` is called while the server is waited for.
        """
        from loadgen.server.server_counters import ServerWindow, make_window  # models, built after a run

        if self.began.error:
            return ServerWindow(error=self.began.error)
        ended, settled = self._run(self.scrape_idle(_IDLE_S, meanwhile))
        if ended.error:
            return ServerWindow(error=f"after the run {ended.error}")
        before, after = parse_metrics(self.began), parse_metrics(ended)
        window = make_window(before, after, self.parsed_samples, self.model, settled)
        return window.model_copy(update={"sampled_from_ns": self.began_ns or None})

    def count_waiting(self) -> int | None:
        """Return the requests waiting in the server at the last sample; None if not reported."""
        gauge = parse_metrics(self.samples[-1][1]).gauge("waiting", self.model) if self.samples else None
        return None if gauge is None else int(gauge)

    @property
    def parsed_samples(self) -> list[tuple[float, MetricsSnapshot]]:
        """The scrapes during the run, each with the seconds since its begin, failed ones left out."""
        every = ((at_s, parse_metrics(lines)) for at_s, lines in self.samples)
        return [(at_s, snapshot) for at_s, snapshot in every if not snapshot.error]

    def list_role_windows(self) -> tuple[RoleWindow, ...]:
        """List the windows of the servers behind a router, once scraped after the run; () of others."""
        return ()

    def list_series(self) -> list[SampledSeries]:
        """List the gauges of each of several servers over the run, once scraped after it; [] of one."""
        return []

    def _sample(self, running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]) -> None:
        """Sample until the task, put into `running` with its loop, is cancelled or fails silently."""

        async def sample() -> None:
            task = asyncio.current_task()
            assert task is not None
            running.set_result((asyncio.get_running_loop(), task))
            await self.sample_gauges()

        # If no socket can be opened, the run goes on without samples.
        with contextlib.suppress(asyncio.CancelledError, OSError, LoadgenError):
            asyncio.run(sample())

    async def sample_gauges(self) -> None:
        """Add to `samples` until cancelled.

        Beyond 3600 samples every other one is dropped and the interval doubles.
        """
        self.began_ns = began_ns = clock.now_ns()
        async with self.access.client(_ANSWER_S) as client:
            await asyncio.sleep(_FIRST_S)
            while True:
                lines = await self._scrape(client, SAMPLED)
                # The gauges are of when the server wrote them, which may be round trips ago.
                on_way_s = 0.0 if self._last is None else self._last.on_way_s
                self.samples.append(((clock.now_ns() - began_ns) / 1e9 - on_way_s, lines))
                if len(self.samples) > _MOST_SAMPLES:
                    del self.samples[1::2]
                    self.every_s *= 2
                await asyncio.sleep(self.interval_s)

    async def scrape_idle(self, limit_s: float, meanwhile: Callable[[], object] = lambda: None) -> Scrape:
        """Scrape until the server is idle with steady counters, or `limit_s`; return the last scrape.

        The second value says whether it was idle and steady; 0 s: one scrape, and True. `meanwhile` is called
        once, during the wait.
        """
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + limit_s
        previous = MetricsSnapshot()
        async with self.access.client(_ANSWER_S) as client:
            while True:
                lines = await self._scrape(client)
                if not limit_s:
                    return lines, True  # whatever runs; the parser would only cost time
                due_s = now_s() + _BETWEEN_S
                snapshot = parse_metrics(lines)
                if snapshot.error:
                    return MetricLines(error=snapshot.error), False
                if not snapshot.gauge("running") and snapshot.counters == previous.counters:
                    return lines, True
                if now_s() >= deadline_s:
                    return lines, False
                if not previous.counters:
                    meanwhile()
                previous = snapshot
                await asyncio.sleep(max(0.0, due_s - now_s()))

    async def _scrape(self, client: ControlClient, wanted: Container[str] | None = None) -> MetricLines:
        """Scrape the wanted quantities once, five times a second at most, and note the answer's time."""
        async with self.throttle:
            # A sample is soon followed by the next; the scrapes before and after the run are the only ones.
            ask = exchange.ask_again if wanted is None else exchange.ask_server
            answer = await ask(client, "GET", self.path, _ANSWER_S, LARGEST_BYTES)
        self._last = answer.time
        if answer.error:
            return MetricLines(error=answer.why)
        if answer.time is not None:
            self.quickest = answer.time if self.quickest is None else self.quickest.merge(answer.time)
        return self._read_answer(answer.status, answer.body, wanted)

    def _read_answer(self, status: int, body: bytes, wanted: Container[str] | None) -> MetricLines:
        """Select an answer's lines; `wanted` are the quantities of a sample, None is all of them."""
        lines = select_lines(status, body, wanted)
        return replace(lines, error=lines.error.replace(METRICS_PATH, self.path, 1)) if lines.error else lines

    def _run(self, scrape: Coroutine[object, object, Scrape]) -> Scrape:
        try:
            return self.access.loop.run(scrape)
        except OSError as error:  # not even an event loop can be opened
            return MetricLines(error=f"/metrics cannot be requested: {error.strerror}"), False
