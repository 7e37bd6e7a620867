"""Joined scraper: the metrics of several servers, scraped at once and summed as those of one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from loadgen.server.prometheus import MetricLines, MetricsSnapshot, Series, combine_values, parse_metrics
from loadgen.server.scraper import MetricsScraper, Scrape

if TYPE_CHECKING:
    from loadgen.server.server_counters import ServerWindow


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
        from loadgen.server.server_counters import ServerWindow  # built after a run

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

    Samples are summed in their order, as far as every server has them; KV cache use is the greatest.
    """
    from loadgen.server.server_counters import ServerWindow, make_window  # built after a run

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
