"""Replica scrapers: the `/metrics` of several servers that share a run, as those of one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from loadgen.server.prometheus import MetricLines, parse_metrics
from loadgen.server.scraper import MetricsScraper, Scrape

if TYPE_CHECKING:
    from loadgen.server.server_counters import ServerWindow


class ReplicaScrapers(MetricsScraper):
    """Scrapes each of several servers as MetricsScraper does one; there are figures if all have some."""

    def __init__(self, scrapers: Sequence[MetricsScraper]) -> None:
        first = scrapers[0]
        super().__init__(first.access, first.tls, first.model)
        self.scrapers = scrapers

    def scrape_before(self, idle_s: float = 0.0, meanwhile: Callable[[], object] = lambda: None) -> str:
        """As of one server; the error names which one it is of."""
        calls = [meanwhile, *([lambda: None] * (len(self.scrapers) - 1))]
        for scraper, (lines, _) in zip(self.scrapers, self._scrape_all(idle_s, calls), strict=True):
            scraper.begin(lines)
        self.began = self._find_worst([scraper.began for scraper in self.scrapers])
        return self.began.error

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample each in a thread of its own; do not fork inside the block."""
        with contextlib.ExitStack() as stack:
            for scraper in self.scrapers:
                stack.enter_context(scraper.sampling())
            yield
        self.began_ns = self.scrapers[0].began_ns

    def scrape_after(self) -> ServerWindow:
        """The run's window over all servers, each after it is idle or a few seconds."""
        from loadgen.server.server_counters import ScrapedRun, ServerWindow, join_windows  # built after a run

        if self.began.error:
            return ServerWindow(error=self.began.error)
        scrapes = self._scrape_all(self.longest_wait_s, [lambda: None] * len(self.scrapers))
        if error := self._find_worst([lines for lines, _ in scrapes]).error:
            return ServerWindow(error=f"after the run {error}")
        parts = [
            ScrapedRun(parse_metrics(scraper.began), parse_metrics(lines), scraper.parsed_samples, settled)
            for scraper, (lines, settled) in zip(self.scrapers, scrapes, strict=True)
        ]
        return join_windows(parts, self.model)

    def count_waiting(self) -> int | None:
        """Count the requests that waited in all servers; None where one reports none."""
        gauges = [scraper.count_waiting() for scraper in self.scrapers]
        known = [gauge for gauge in gauges if gauge is not None]
        return sum(known) if len(known) == len(gauges) else None

    def _scrape_all(self, idle_s: float, meanwhile: Sequence[Callable[[], object]]) -> list[Scrape]:
        """The last scrape of each, all at once."""

        async def scraped() -> list[Scrape]:
            pairs = zip(self.scrapers, meanwhile, strict=True)
            return await asyncio.gather(*(scraper.scrape_idle(idle_s, call) for scraper, call in pairs))

        try:
            return self.access.loop.run(scraped())
        except OSError as error:  # not even an event loop can be opened
            failed = MetricLines(error=f"/metrics cannot be requested: {error.strerror}")
            return [(failed, False)] * len(self.scrapers)

    def _find_worst(self, lines: Sequence[MetricLines]) -> MetricLines:
        """The lines of the first server, or why there are none of one of them."""
        for scraper, each in zip(self.scrapers, lines, strict=True):
            if each.error:
                return MetricLines(error=f"{scraper.access.shown_url}: {each.error}")
        return lines[0]
