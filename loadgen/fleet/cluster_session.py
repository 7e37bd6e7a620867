"""Cluster session: a session whose requests are sent by shards on a Ray cluster; all else is done here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from loadgen.base import clock
from loadgen.base.structs import replace
from loadgen.features.shards import part
from loadgen.features.shards.start_at import lead_s
from loadgen.fleet import connection, node_check, placement, shard_actor
from loadgen.fleet.calls import Calls, RayCalls
from loadgen.fleet.cluster_firing import ClusterFiring, FleetStart
from loadgen.fleet.fleet import Fleet
from loadgen.fleet.node_check import Node
from loadgen.fleet.placement import Place
from loadgen.fleet.shard_order import ShardOrder, pick_options
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.run import attach as attaching
from loadgen.run import progress
from loadgen.run.measure import Outcome, PlanPart, TransportOptions, Watch, measure
from loadgen.run.options import Options
from loadgen.run.session import Session
from loadgen.run.signals import SIGNALS, Interrupts
from loadgen.settings.validation import ServerSettings
from loadgen.transport.sending.share import WHOLE, Share

if TYPE_CHECKING:
    from loadgen.run.followup import Step
    from loadgen.verdict.run_facts import Facts

_AHEAD_S = 0.5  # of the first connection, for the start to reach every node
_EACH_S = 0.01


class ShardPlaces(msgspec.Struct, frozen=True):
    """Where on a cluster the shards of a command run, with CPUs that no one else has."""

    ray: Any
    places: list[Place]
    nodes: list[Node]

    @contextmanager
    def open_calls(self, name: str) -> Iterator[Calls]:
        """An actor for each shard of a run; they end with the block, and what they started."""
        shards, kind, run = len(self.places), shard_actor.make_actor_class(self.ray), secrets.token_hex(2)
        actors = [
            kind.options(
                name=f"loadgen shard {number}/{shards} of {name} ({run})",
                num_cpus=0,
                scheduling_strategy=place.strategy,
            ).remote()
            for number, place in enumerate(self.places)
        ]
        calls = RayCalls(self.ray, actors, self.nodes)
        try:
            yield calls
        finally:
            calls.release()


class ClusterSession(Session, frozen=True):
    """A session with a server whose measured requests are sent from a cluster."""

    places: ShardPlaces | None = None
    joined: list[Facts] = msgspec.field(default_factory=list)  # of the runs so far, as they were merged

    def fired(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        """The outcome of a plan that every shard sends a part of."""
        assert self.places is not None
        assert watch.journal.path is not None
        part.check_plan(made, Share(0, len(self.places.places)))
        start, ended = FleetStart(), watch.journal.path.parent
        name = made.profile.name or "bench"
        with ExitStack() as stack:
            with watch.display.waiting(f"starting {len(self.places.places)} shards", forks=False):
                fleet = Fleet(stack.enter_context(self.places.open_calls(name)), watch.interrupts.poll)
                fleet.begin(self._order(made, options))
                fleet.read_clocks()
                ahead_s = lead_s(made.streams) + _AHEAD_S + _EACH_S * len(fleet.shards)
                start.instant_ns = clock.now_ns() + int(ahead_s * 1e9)
                fleet.start(start.instant_ns)
            firing = ClusterFiring(fleet, watch.rules, ended)
            options = replace(options, part=PlanPart(WHOLE, None, start), begin=lambda *_: firing)
            outcome = measure(made, options, watch)
        if firing.merged is None:
            return outcome
        self.joined[:] = [firing.merged.facts]
        return replace(outcome, records=firing.merged.records)

    def _steps(self, made: Plan, outcome: Outcome, display: Any) -> tuple[tuple[str, Step], ...]:
        return (("the shards", self._add_shards), *super()._steps(made, outcome, display))

    def _add_shards(self, so_far: Facts) -> Facts:
        """The facts with what of the run only the shards know."""
        facts = self.joined[0]
        return replace(
            so_far,
            client=facts.client,
            shards=facts.shards,
            lost=facts.lost,
            notes=(*so_far.notes, *(note for note in facts.notes if note not in so_far.notes)),
            unknown=(*so_far.unknown, *(line for line in facts.unknown if line not in so_far.unknown)),
        )

    def _order(self, made: Plan, options: TransportOptions) -> ShardOrder:
        asked = self.options
        running = asked.base_url is not None
        return ShardOrder(
            share=WHOLE,
            digest=made.digest(),
            base_url=asked.base_url or self.access.base_url,
            headers=dict(self.access.headers),
            request_id_prefix=options.request_id_prefix,
            given={
                name: value for name, value in pick_options(asked).items() if running or name not in _SERVER
            },
            max_failures=str(asked.max_failures or ""),
            profile=made.profile.model_dump(by_alias=True),
            seed=made.seed,
            adaptation=made.adaptation,
            word_counts=self.word_counts,
        )


_SERVER = ("endpoint", "more_urls")


def attach_cluster(
    options: Options,
    asked: ServerSettings,
    workload: Profile,
    stack: ExitStack,
    interrupts: Interrupts = SIGNALS,
    begun: Any = None,
) -> Session:
    """Attach to the server once the cluster is reached and its nodes are fit; raises LoadgenError."""
    assert options.cluster is not None
    with progress.display(options.quiet).waiting(f"joining the Ray cluster at {options.cluster}"):
        places = join_cluster(stack, options.cluster, options.shards or 1, options.workers, interrupts.poll)
    session = attaching.attach(options, asked, workload, stack, interrupts, begun)
    return ClusterSession(**asdict(session), places=places)


def join_cluster(
    stack: ExitStack, address: str, shards: int, workers: int, turn: Callable[[], None]
) -> ShardPlaces:
    """Places for shards on the cluster at an address, until the end of `stack`.

    Raises UsageError and MeasureError, each in bounded time: no Ray, no cluster, no room, another loadgen.
    """
    ray = stack.enter_context(connection.connect_ray(address))
    each = workers * placement.CPUS_PER_WORKER
    places = stack.enter_context(placement.place_shards(ray, shards, each, turn))
    return ShardPlaces(ray, places, node_check.nodes_of(ray, places, turn))
