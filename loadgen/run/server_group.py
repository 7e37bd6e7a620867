"""Server group: the servers of a run: one, or with --base-url several times further ones of the same model.

What is done to one server before a run is done to each: it is asked what it serves, its cache is emptied, it
is warmed up, its counters are scraped. Fingerprint and configuration of the engine are of the first alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec

from loadgen.base.errors import MeasureError
from loadgen.base.structs import replace
from loadgen.base.urls import is_loopback
from loadgen.facts.run_facts import Facts
from loadgen.plan.plan import Plan
from loadgen.records.record import Records
from loadgen.run.acceptance import Adapter
from loadgen.run.command.progress import Display
from loadgen.run.firing import TransportOptions
from loadgen.run.observation import Local
from loadgen.run.transport_choice import add_path
from loadgen.server import control
from loadgen.server.control import ServerInfo
from loadgen.server.exchange import ServerAddress
from loadgen.server.scraper import JoinedScraper, MetricsScraper
from loadgen.transport.sending.job import Target


class Replica(msgspec.Struct, frozen=True):
    """A further server, found ready, that serves the same model as the first."""

    access: ServerAddress
    served: ServerInfo
    root: Target
    local: Local | None = None  # None: it is on another machine


def check_alike(first: Replica, other: Replica) -> None:
    """Raise MeasureError if two addresses are one server, or serve different models."""
    one, two = first.access.shown_url, other.access.shown_url
    if _make_place_key(first.root) == _make_place_key(other.root):
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


def _make_place_key(root: Target) -> tuple[str, int, str]:
    """Return a key of a server: host name (for virtual hosts) or "this machine", port, path."""
    # These are what `localhost` means, not another address of 127.0.0.0/8.
    is_local = str(root.address[1][0]) in ("127.0.0.1", "::1", "0.0.0.0", "::")  # nosec B104
    return "this machine" if is_loopback(root.host) and is_local else root.host, root.port, root.path


def join_served(first: ServerInfo, others: Sequence[Replica]) -> ServerInfo:
    """Return the first server's facts with the shortest known context and the sum of slots of all servers.

    The context is 0 if none is known, the slots are 0 if one server's are unknown.
    """
    every = (first, *(other.served for other in others))
    limits, slots = [info.max_model_len for info in every], [info.slots for info in every]
    return replace(
        first, max_model_len=min(filter(None, limits), default=0), slots=sum(slots) if all(slots) else 0
    )


def join_locals(local: Local | None, others: Sequence[Replica]) -> Local | None:
    """Return one `Local` with the process ids of all servers; None unless all are on this machine."""
    every = [local, *(other.local for other in others)]
    pids = [one.pids for one in every if one is not None]
    return Local(lambda: list(chain.from_iterable(own() for own in pids))) if None not in every else None


class ServerGroup(msgspec.Struct, frozen=True):
    """A run's first server, by what is done to each, and others of its model, which share its requests."""

    others: tuple[Replica, ...] = ()
    # Makes the scraper of the run from that of the first server's own; None: each is scraped where it is.
    scrape_elsewhere: Callable[[MetricsScraper], MetricsScraper] | None = None

    def change_headers(self, change: Callable[[ServerAddress], ServerAddress]) -> ServerGroup:
        """Return the group with its further servers' headers changed, for control requests and the run."""
        others = []
        for other in self.others:
            access = change(other.access)
            root = replace(other.root, headers=tuple(access.headers.items()))
            others.append(replace(other, access=access, root=root))
        return replace(self, others=tuple(others))

    def list_roots(self, root: Target) -> tuple[Target, ...]:
        """List each server's target, without a path; `root` is the first's."""
        return (root, *(other.root for other in self.others))

    def warm_up(
        self, adapter: Adapter, made: Plan, options: TransportOptions, display: Display
    ) -> tuple[Plan, Records]:
        """Warm up every server at its share of the concurrency, in turn.

        Returns the plan without the fields that any refuses, and all records, numbered on. Raises
        MeasureError, of several with the address, if a server's whole warm-up failed.
        """
        options, parts = replace(options, targets=()), list[Records]()
        if not self.others:
            return adapter.warm_up(made, options, display)
        most = made.profile.max_concurrency
        each = most and math.ceil(most / (1 + len(self.others)))
        warming = replace(made, profile=made.profile.model_copy(update={"max_concurrency": each}))
        first = (adapter.access, options.target)
        rest = ((other.access, add_path(other.root, made)) for other in self.others)
        for access, target in (first, *rest):
            url = access.shown_url
            of_this = replace(adapter, access=access, title=f"{adapter.title} {url}")
            try:
                warming, more = of_this.warm_up(warming, replace(options, target=target), display)
            except MeasureError as error:
                raise MeasureError(f"{url}: {error}") from None
            parts.append(more)
        return made.apply_adaptation(warming.adaptation), Records.join_in_turn(parts)

    def reset_caches(self, outcome: str) -> str:
        """Empty the other caches; return `outcome`, the first server's, or that of each if they differ."""
        outcomes = {"the first": outcome}
        for other in self.others:
            error = control.reset_cache(other.access, other.served.engine)
            outcomes[other.access.shown_url] = error or control.EMPTIED
        if len(set(outcomes.values())) == 1:
            return outcome
        return "; ".join(f"{name}: {each}" for name, each in outcomes.items())

    def make_scraper(self, first: MetricsScraper) -> MetricsScraper:
        """Make a scraper of all servers' counters from that of the first."""
        if self.scrape_elsewhere is not None:
            return self.scrape_elsewhere(first)
        if not self.others:
            return first
        more = [MetricsScraper(other.access, first.model, first.path) for other in self.others]
        return JoinedScraper([first, *more])

    def describe(self, known: Facts, served: ServerInfo, access: ServerAddress) -> Facts:
        """Return the facts with the addresses of several servers, and notes on what differs between them."""
        if not self.others:
            return known
        urls = (access.shown_url, *(other.access.shown_url for other in self.others))
        every = [served, *(other.served for other in self.others)]
        notes = list(known.notes)
        for name, values in (
            ("versions", [info.version for info in every]),
            ("model files", [info.model_root for info in every]),
        ):
            if len(set(values)) > 1:
                pairs = zip(urls, values, strict=True)
                each = ", ".join(f"{url} {value or 'unknown'}" for url, value in pairs)
                notes.append(f"the servers have different {name}: {each}")
        return replace(known, targets=urls, notes=tuple(notes))
