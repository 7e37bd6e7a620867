"""Scraper: the server's `/metrics` right before a run, about once a second in it, and once it is idle again.

At most a few times a second; nothing but the gauge of a live display is parsed before the run is over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence
from concurrent.futures import Future

import httpx
import msgspec
from asyncio_throttle.throttler import Throttler

from loadgen.base import clock
from loadgen.base.errors import LoadgenError
from loadgen.base.structs import replace
from loadgen.engines.engine import METRICS_PATH
from loadgen.server import exchange
from loadgen.server.exchange import AnswerTime, ServerAddress
from loadgen.server.prometheus import (
    SAMPLED,
    MetricLines,
    MetricsSnapshot,
    Series,
    combine_values,
    parse_metrics,
    select_lines,
)
from loadgen.server.sample_file import SampledSeries
from loadgen.server.server_counters import RoleWindow, ServerWindow, make_window

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
        """Scrape once the server is idle, or after 4 s, calling `meanwhile`; return the change or error."""
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
        """Add to `samples` until cancelled; beyond 3600 drop every other one, and double the interval."""
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
                server_s = _ANSWER_S if self.quickest is None else self.quickest.server_s
                await asyncio.sleep(max(self.every_s, server_s / SAMPLING_SHARE))

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

    async def _scrape(self, client: httpx.AsyncClient, wanted: Container[str] | None = None) -> MetricLines:
        """Scrape these quantities, or all (then asked again if it fails); a failure is the lines' `error`."""
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


class ScrapedRun(msgspec.Struct, frozen=True):
    """The scrapes of one server before and after a run, and during it with seconds since its begin."""

    before: MetricsSnapshot
    after: MetricsSnapshot
    samples: Sequence[tuple[float, MetricsSnapshot]] = ()
    settled: bool = True


class JoinedScraper(MetricsScraper):
    """Scrapes several servers; figures exist only if all servers have them."""

    def __init__(self, scrapers: Sequence[MetricsScraper]) -> None:
        first = scrapers[0]
        super().__init__(first.access, first.model)
        self.scrapers = scrapers

    def scrape_before(self, idle_s: float = 0.0, meanwhile: Callable[[], object] = lambda: None) -> str:
        """Scrape every server right before the run, calling `meanwhile` once where there is a wait.

        Returns the first error, with its server; "" without an error.
        """
        for scraper, (lines, _) in zip(self.scrapers, self.scrape_all(idle_s, meanwhile), strict=True):
            scraper.begin(lines)
        self.began = self.find_worst([scraper.began for scraper in self.scrapers])
        return self.began.error

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample each server in a thread of its own; do not fork inside the block."""
        with contextlib.ExitStack() as stack:
            for scraper in self.scrapers:
                stack.enter_context(scraper.sampling())
            yield
        self.began_ns = next((each.began_ns for each in self.scrapers if each.began_ns), 0)

    def scrape_after(self, meanwhile: Callable[[], object] = lambda: None) -> ServerWindow:
        """Scrape every server once it is idle, or after the longest wait; return the summed change.

        `meanwhile` is called once where there is a wait. The window has only an error if a scrape before or
        after the run failed.
        """
        if self.began.error:
            return ServerWindow(error=self.began.error)
        scrapes = self.scrape_all(self.longest_wait_s, meanwhile)
        if error := self.find_worst([lines for lines, _ in scrapes]).error:
            return ServerWindow(error=f"after the run {error}")
        parts = [
            ScrapedRun(parse_metrics(scraper.began), parse_metrics(lines), scraper.parsed_samples, settled)
            for scraper, (lines, settled) in zip(self.scrapers, scrapes, strict=True)
        ]
        return join_windows(parts, self.model).model_copy(update={"sampled_from_ns": self.began_ns or None})

    def count_waiting(self) -> int | None:
        """Sum the requests waiting in all servers; None if one does not report it."""
        return sum_waiting(self.scrapers)

    def scrape_all(self, idle_s: float, meanwhile: Callable[[], object]) -> list[Scrape]:
        """Scrape all servers at once, each when idle or after `idle_s`.

        `meanwhile` is called once, in a wait. Returns each server's lines, and whether it was idle.
        """

        async def scrape_each() -> list[Scrape]:
            first, *others = self.scrapers
            waits = [first.scrape_idle(idle_s, meanwhile), *(each.scrape_idle(idle_s) for each in others)]
            return await asyncio.gather(*waits)

        try:
            return self.access.loop.run(scrape_each())
        except OSError as error:  # not even an event loop can be opened
            failed = MetricLines(error=f"/metrics cannot be requested: {error.strerror}")
            return [(failed, False)] * len(self.scrapers)

    def find_worst(self, lines: Sequence[MetricLines]) -> MetricLines:
        """Return the first server's lines, or the error of a server that has one."""
        for scraper, each in zip(self.scrapers, lines, strict=True):
            if each.error:
                return MetricLines(error=f"{scraper.access.shown_url}: {each.error}")
        return lines[0]


def sum_waiting(scrapers: Sequence[MetricsScraper]) -> int | None:
    """Sum the requests waiting in servers at their last samples; None without any, or if one reports none."""
    gauges = [scraper.count_waiting() for scraper in scrapers]
    known = [gauge for gauge in gauges if gauge is not None]
    return sum(known) if known and len(known) == len(gauges) else None


def join_windows(parts: Sequence[ScrapedRun], model: str = "") -> ServerWindow:
    """Sum the windows of several servers that shared a run: counters, histograms, samples.

    Samples are summed in their order, as far as all have them. One server's error or reset is the whole's.
    """
    alone = [make_window(part.before, part.after, part.samples, model, part.settled) for part in parts]
    if failed := next((each for each in alone if each.error), None):
        return failed
    if any(each.reset for each in alone):
        return ServerWindow(names=alone[0].names, reset=True)
    sampled = zip(*(part.samples for part in parts), strict=False)
    samples = [(several[0][0], sum_snapshots([snapshot for _, snapshot in several])) for several in sampled]
    before, after = (sum_snapshots([getattr(part, end) for part in parts]) for end in ("before", "after"))
    return make_window(before, after, samples, model, all(each.settled for each in alone))


def sum_snapshots(snapshots: Sequence[MetricsSnapshot]) -> MetricsSnapshot:
    """Sum several servers' metrics, of KV cache use the greatest, without start times; or the first error."""
    if failed := next((snapshot for snapshot in snapshots if snapshot.error), None):
        return failed
    if len(names := sorted({snapshot.names for snapshot in snapshots})) > 1:
        return MetricsSnapshot(error=f"/metrics has the names of {' and '.join(names)} at different servers")
    counters: dict[Series, float] = {}
    gauges: dict[Series, list[float]] = {}
    for snapshot in snapshots:
        for series, value in snapshot.counters.items():
            counters[series] = counters.get(series, 0.0) + value
        for series, value in snapshot.gauges.items():
            gauges.setdefault(series, []).append(value)
    whole = {
        series: combine_values(series[1], each) for series, each in gauges.items() if series[1] != "started"
    }
    return MetricsSnapshot("".join(names), counters, whole)
