"""Replicas: further servers of the same model that share a run's requests: --base-url several times.

What is done to one server before a run is done to each: it is asked what it serves, its cache is emptied, it
is warmed up, its counters are scraped. Fingerprint and configuration of the engine are of the first alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec

from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import hide_url_secrets
from loadgen.base.structs import replace
from loadgen.base.urls import ApiPlace, is_loopback
from loadgen.facts.run_facts import Facts
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.records.record import Records
from loadgen.run import reached_server
from loadgen.run.acceptance import Adapter
from loadgen.run.command.credentials import collect_credentials
from loadgen.run.command.progress import Display
from loadgen.run.extension import ServerGroup
from loadgen.run.firing import TransportOptions
from loadgen.run.observation import Local
from loadgen.run.session import Session
from loadgen.run.transport_choice import add_path
from loadgen.server import control
from loadgen.server.control import ServerInfo
from loadgen.server.exchange import ControlLoop, ServerAddress
from loadgen.server.scraper import JoinedScraper, MetricsScraper
from loadgen.transport.sending.job import Target


class Replica(msgspec.Struct, frozen=True):
    """A further server, found ready, that serves the same model as the first."""

    access: ServerAddress
    served: ServerInfo
    root: Target
    local: Local | None = None  # None: it is on another machine

    def change_headers(self, change: Callable[[ServerAddress], ServerAddress]) -> Replica:
        """Return the server with its headers changed, of control requests and of those of the run."""
        access = change(self.access)
        return replace(self, access=access, root=replace(self.root, headers=tuple(access.headers.items())))


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
    # What `localhost` means, not another address of 127.0.0.0/8.
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


class Replicas(ServerGroup):
    """Further servers of the first one's model, which share its requests."""

    def __init__(self, others: Sequence[Replica]) -> None:
        self.others = others

    def change_headers(self, change: Callable[[ServerAddress], ServerAddress]) -> Replicas:
        return Replicas([other.change_headers(change) for other in self.others])

    def list_roots(self, root: Target) -> tuple[Target, ...]:
        return (root, *(other.root for other in self.others))

    def warm_up(
        self, adapter: Adapter, made: Plan, options: TransportOptions, display: Display
    ) -> tuple[Plan, Records]:
        """Warm up every server at its share of the concurrency, in turn.

        Returns the plan without the fields that any refuses, and all records, numbered on. Raises
        MeasureError, with the address, if a server's whole warm-up failed.
        """
        options, parts = replace(options, targets=()), list[Records]()
        warming = replace(made, profile=_divide_concurrency(made.profile, 1 + len(self.others)))
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
        """Empty the caches of the further servers.

        Returns `outcome`, the first's, or that of each if they differ.
        """
        outcomes = {"the first": outcome}
        for other in self.others:
            error = control.reset_cache(other.access, other.served.engine)
            outcomes[other.access.shown_url] = error or control.EMPTIED
        if len(set(outcomes.values())) == 1:
            return outcome
        return "; ".join(f"{name}: {each}" for name, each in outcomes.items())

    def make_scraper(self, first: MetricsScraper) -> MetricsScraper:
        more = [MetricsScraper(other.access, first.model, first.path) for other in self.others]
        return JoinedScraper([first, *more])

    def describe(self, known: Facts, served: ServerInfo, access: ServerAddress) -> Facts:
        """Return the facts with all servers' addresses, and notes on differing versions or model files."""
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


def _divide_concurrency(profile: Profile, targets: int) -> Profile:
    """Return a profile with its concurrency, if any, divided by the number of targets, rounded up."""
    most = profile.max_concurrency
    return profile.model_copy(update={"max_concurrency": most and math.ceil(most / targets)})


def attach_others(session: Session, places: Sequence[ApiPlace], loop: ControlLoop) -> Session:
    """Wait for the further servers, at all places but the first, and return the session with them.

    Raises UsageError if an API's path differs from the first's, MeasureError if two servers are one or serve
    different models, and what `attach` raises.
    """
    options, access, place = session.options, session.access, places[0]
    first, others = Replica(access, session.served, session.root, session.local), list[Replica]()
    for url, other in zip(options.more_urls, places[1:], strict=True):
        if (other.prefix, other.endpoint, other.query) != (place.prefix, place.endpoint, place.query):
            raise UsageError(
                f"--base-url {hide_url_secrets(url)}: its API's path differs from {access.shown_url}'s"
            )
        theirs = replace(options, base_url=url)
        reached = reached_server.make_address(theirs, other, collect_credentials(theirs), loop)
        wait_s = options.ready_check_timeout_s
        found = reached_server.open_session(
            theirs, reached, reached_server.find_local(reached), wait_s, session.interrupts, session.served
        )
        others.append(Replica(found.access, found.served, found.root, found.local))
        for known in (first, *others[:-1]):
            check_alike(known, others[-1])
    return replace(
        session,
        served=join_served(session.served, others),
        local=join_locals(session.local, others),
        servers=Replicas(others),
    )
