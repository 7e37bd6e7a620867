"""Replicas: further servers of the same model that share a run's requests: --base-url several times.

What is done to one server before a run is done to each: it is asked what it serves, its cache is emptied, it
is warmed up, its counters are scraped. Fingerprint and configuration of the engine are of the first alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.structs import replace
from loadgen.base.urls import is_loopback, parse_base_url
from loadgen.figures.record import Records
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.run import transport_choice
from loadgen.run.acceptance import Adapter
from loadgen.run.measure import TransportOptions
from loadgen.run.observation import Local
from loadgen.run.options import Options
from loadgen.run.progress import Display
from loadgen.run.transport_choice import TransportChoice
from loadgen.server import control
from loadgen.server.discovery import ServerAddress, ServerInfo
from loadgen.server.prometheus import MetricLines, parse_metrics
from loadgen.server.scraper import MetricsScraper, Scrape
from loadgen.transport.sending.job import Target
from loadgen.verdict.run_facts import Facts

if TYPE_CHECKING:
    from loadgen.server.server_counters import ServerWindow

_LOG = logging.getLogger("loadgen")


class Replica(msgspec.Struct, frozen=True):
    """A server found ready that serves what the first one does."""

    access: ServerAddress
    served: ServerInfo
    root: Target
    local: Local | None = None  # None: it is on another machine


def check_urls(urls: Sequence[str], endpoint: str | None = None) -> None:
    """Raises UsageError for an address that no request can be sent to, or that is given twice."""
    for url in urls:
        if "${" not in url:  # of a campaign, with a variable that is not set
            ServerAddress(parse_base_url(url, endpoint).base_url)
    places: set[str] = set()
    for url in urls:
        place = url.strip().rstrip("/")
        if place in places:
            raise UsageError(f"--base-url {url} is given twice: it would get a double share of the requests")
        places.add(place)


def check_alike(first: Replica, other: Replica) -> None:
    """Raises MeasureError where two addresses are one server, or do not serve the same."""
    one, two = first.access.shown_url, other.access.shown_url
    if _place(first.root) == _place(other.root):
        raise MeasureError(f"{one} and {two} are the same server: give each --base-url once")
    for name, ours, theirs in (
        ("engine", first.served.engine.name, other.served.engine.name),
        ("model", first.served.model, other.served.model),
    ):
        if ours != theirs:
            raise MeasureError(
                f"several --base-url must serve the same {name}: {one} has {ours}, {two} has {theirs}"
                + ("; pass --model NAME if each has it" if name == "model" else "")
            )


def _place(root: Target) -> tuple[str, int, str]:
    """What tells servers apart: names of one address may be virtual hosts, but for this machine's own."""
    return ("this machine" if is_loopback(root.host) and _usual(root) else root.host), root.port, root.path


def _usual(root: Target) -> bool:
    """Whether an address is what `localhost` means, not another one of 127.0.0.0/8."""
    return str(root.address[1][0]) in ("127.0.0.1", "::1", "0.0.0.0", "::")  # nosec B104


def join_served(first: ServerInfo, others: Sequence[Replica]) -> ServerInfo:
    """What all of them serve: the shortest of their longest requests, and the slots of all together."""
    every = (first, *(other.served for other in others))
    limits, slots = [info.max_model_len for info in every], [info.slots for info in every]
    return replace(
        first, max_model_len=min(filter(None, limits), default=0), slots=sum(slots) if all(slots) else 0
    )


def join_locals(local: Local | None, others: Sequence[Replica]) -> Local | None:
    """The processes of all servers, where all are on this machine."""
    every = [local, *(other.local for other in others)]
    if not others or any(one is None for one in every):
        return None if others else local
    pids = [one.pids for one in every if one is not None]
    return Local(lambda: list(chain.from_iterable(own() for own in pids)))


def add_targets(facts: Facts, first: ServerInfo, access: ServerAddress, others: Sequence[Replica]) -> Facts:
    """The facts with the addresses of several servers, and how they differ."""
    if not others:
        return facts
    urls = (access.shown_url, *(other.access.shown_url for other in others))
    served = [first, *(other.served for other in others)]
    notes = list(facts.notes)
    for name, values in (
        ("versions", [info.version for info in served]),
        ("model files", [info.model_root for info in served]),
    ):
        if len(set(values)) > 1:
            each = ", ".join(f"{url} {value or 'unknown'}" for url, value in zip(urls, values, strict=True))
            notes.append(f"the servers have different {name}: {each}")
    return replace(facts, targets=urls, notes=tuple(notes))


def reset_caches(first: str, others: Sequence[Replica]) -> str:
    """The outcome of emptying the prefix caches of all servers, that of the first being known."""
    outcomes = {"the first": first}
    for other in others:
        error = control.reset_cache(other.access, other.root.tls, other.served.engine)
        outcomes[other.access.shown_url] = error or "emptied before the run"
    if len(set(outcomes.values())) == 1:
        return first
    return "; ".join(f"{name}: {outcome}" for name, outcome in outcomes.items())


def warm_up_all(
    adapter: Adapter, others: Sequence[Replica], made: Plan, options: TransportOptions, display: Display
) -> tuple[Plan, Records]:
    """The plan as all servers take it, and what came of the warm-up, which each gets, at its concurrency.

    Raises MeasureError where every request of the warm-up of one failed.
    """
    options = replace(options, targets=())
    if not others:
        return adapter.warmed_up(made, options, display)
    warming, records = replace(made, profile=_share(made.profile, 1 + len(others))), Records.of([])
    first = (adapter.access, adapter.tls, options.target)
    rest = ((other.access, other.root.tls, add_path(other.root, made)) for other in others)
    for access, tls, target in (first, *rest):
        url = access.shown_url
        of_this = replace(adapter, access=access, tls=tls, title=f"{adapter.title} {url}")
        try:
            warming, more = of_this.warmed_up(warming, replace(options, target=target), display)
        except MeasureError as error:
            raise MeasureError(f"{url}: {error}") from None
        after = int(records.index.max(initial=-1)) + 1
        records = Records.joined([records, replace(more, index=more.index + after)])
    return made.adapted(warming.adaptation), records


def _share(profile: Profile, targets: int) -> Profile:
    """A profile with the concurrency that one of several servers has of it."""
    most = profile.max_concurrency
    return profile.model_copy(update={"max_concurrency": most and math.ceil(most / targets)})


def make_scraper(first: MetricsScraper, others: Sequence[Replica]) -> MetricsScraper:
    """What scrapes the counters of all servers."""
    if not others:
        return first
    more = [MetricsScraper(other.access, other.root.tls, first.model) for other in others]
    return ReplicaScrapers([first, *more])


def choose_targets(
    options: Options, root: Target, others: Sequence[Replica], made: Plan
) -> tuple[TransportChoice, tuple[Target, ...]]:
    """The transport for a plan, and where its requests go on each server; raises UsageError."""
    every = tuple(add_path(each, made) for each in (root, *(other.root for other in others)))
    return transport_choice.choose_for_plan(options, every, made, _LOG.warning)


def add_path(root: Target, made: Plan) -> Target:
    """Where the requests of a plan go on a server."""
    return replace(root, path=root.path.rstrip("/") + made.path)


class ReplicaScrapers(MetricsScraper):
    """Scrapes each of several servers as MetricsScraper does one; there are figures if all have some."""

    def __init__(self, scrapers: Sequence[MetricsScraper]) -> None:
        first = scrapers[0]
        super().__init__(first.access, first.tls, first.model)
        self.scrapers = scrapers

    def scrape_before(self, idle_s: float = 0.0, meanwhile: Callable[[], object] = lambda: None) -> str:
        """Scrape every server right before the run; the error names the server that it is of."""
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

        async def scrape_each() -> list[Scrape]:
            pairs = zip(self.scrapers, meanwhile, strict=True)
            return await asyncio.gather(*(scraper.scrape_idle(idle_s, call) for scraper, call in pairs))

        try:
            return self.access.loop.run(scrape_each())
        except OSError as error:  # not even an event loop can be opened
            failed = MetricLines(error=f"/metrics cannot be requested: {error.strerror}")
            return [(failed, False)] * len(self.scrapers)

    def _find_worst(self, lines: Sequence[MetricLines]) -> MetricLines:
        """The lines of the first server, or why there are none of one of them."""
        for scraper, each in zip(self.scrapers, lines, strict=True):
            if each.error:
                return MetricLines(error=f"{scraper.access.shown_url}: {each.error}")
        return lines[0]
