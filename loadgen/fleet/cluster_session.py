"""Cluster session: a plan sent by shards on a Ray cluster; all else of the run is done here."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts
from loadgen.features.shards import merge, shard_clocks
from loadgen.features.shards.shard_sender import check_divisible, compute_lead_s
from loadgen.fleet import ray_cluster
from loadgen.fleet.fleet import Fleet, RayCalls
from loadgen.fleet.ray_cluster import Node
from loadgen.fleet.shard_actor import ShardActor, ShardOrder, pick_options
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import WordCounts
from loadgen.report.run_directory import Result
from loadgen.run.command.options import Options, is_given
from loadgen.run.command.progress import Progress, Totals
from loadgen.run.firing import NO_HEALTH, DecodedTally, Outcome, PlanPart, TransportOptions, Watch
from loadgen.run.live_display import choose_display
from loadgen.run.measurement import PlanSender, measure
from loadgen.run.stop_rules import StopRules
from loadgen.server.exchange import ServerAddress
from loadgen.settings.run_settings import AUTO
from loadgen.settings.shard_settings import WHOLE, Share
from loadgen.settings.table import TABLE
from loadgen.transport.capture import Health
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.sending.job import At

_AHEAD_S = 0.5  # of the first connection, for the start to reach every node
_EACH_S = 0.01
_SERVER = ("endpoint", "more_urls")
_NOT_WITH = {
    "source_address": "each node has its own addresses",
    "live_totals": "the display has the totals of all shards",
    "stop_when_saturated": "the shards report no request's TTFT while they run",
    "shard": "the cluster's shards are numbered by this command",
    "start_at": "the shards begin together, once all are ready",
    "otel": "its nodes send the requests: give it to commands with --shard",
    "prometheus": "its nodes have the records: give it to commands with --shard",
    "receive_spans": "a server exports its spans to one place, and its nodes send the requests",
}
_FAILED = Failure(FailureKind.ABORTED, "see the failures of each shard")


class ShardPlaces(msgspec.Struct, frozen=True):
    """Where on a cluster the shards of a command run, with CPUs that no one else has."""

    ray: Any
    places: list[Any]  # Ray's strategy for each
    nodes: list[Node]

    def start_actors(self, name: str) -> RayCalls:
        """Start an actor for each shard of the run `name` and return the calls to them, to be released."""
        shards, run = len(self.places), secrets.token_hex(2)
        kind = self.ray.remote(max_restarts=0, max_task_retries=0)(ShardActor)
        actors = [
            kind.options(
                name=f"loadgen shard {number}/{shards} of {name} ({run})",
                num_cpus=0,
                scheduling_strategy=place,
            ).remote()
            for number, place in enumerate(self.places)
        ]
        return RayCalls(self.ray, actors, self.nodes)


def check_options(options: Options) -> None:
    """Raise UsageError if --cluster or --shards stands alone, or an option does not go with them."""
    if options.cluster is None:
        raise UsageError(
            "--shards is of a Ray cluster: pass --cluster auto too (without one: docs/shards.md)"
        )
    if options.shards is None:
        raise UsageError("--cluster needs --shards N: how many processes are to share the load")
    refused = {
        row.option: _NOT_WITH[row.name]
        for row in TABLE
        if row.name in _NOT_WITH and is_given(options, row.name)
    }
    if options.workers == AUTO:
        refused["--workers auto"] = "give --shards, or a number"
    for flag, why in refused.items():
        raise UsageError(f"{flag} does not go with --cluster: {why}")


class ClusterSender(PlanSender):
    """The shards of a cluster send a plan."""

    def __init__(
        self,
        places: ShardPlaces,
        options: Options,
        access: ServerAddress,
        word_counts: dict[str, WordCounts],
    ) -> None:
        self.places, self.options, self.access, self.word_counts = places, options, access, word_counts
        self.merged: Facts | None = None  # of the last run

    def send(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        """Send a plan, a part from every shard at one start, and return the outcome with the shards' records.

        `merged` is set to the shards' joined facts, if the run has them. Raises MeasureError.
        """
        assert watch.journal.path is not None
        check_divisible(made, Share(0, len(self.places.places)))
        name = made.profile.name or "bench"
        with ExitStack() as stack:
            with watch.display.waiting(f"starting {len(self.places.places)} shards", forks=False):
                fleet = Fleet(self.places.start_actors(name), watch.interrupts.poll)
                stack.callback(fleet.calls.release)
                fleet.begin(self._make_order(made, options))
                ahead_s = compute_lead_s(made.streams) + _AHEAD_S + _EACH_S * len(fleet.shards)
                start = At(clock.now_ns() + int(ahead_s * 1e9))
                fleet.start(start.instant_ns)
            firing = ClusterFiring(fleet, watch.rules, watch.journal.path.parent)
            outcome = measure(made, replace(options, part=PlanPart(WHOLE, None, start)), watch, firing)
        if firing.merged is None:
            return outcome
        self.merged = firing.merged.facts
        return replace(outcome, records=firing.merged.records)

    def list_steps(self) -> tuple[tuple[str, Callable[[Facts], Facts]], ...]:
        """Return the one step after the last request: the shards' facts are added to the run's."""
        return (("the shards", self._add_shards),)

    def _add_shards(self, known: Facts) -> Facts:
        facts = self.merged
        assert facts is not None
        return replace(
            known,
            client=facts.client,
            shards=facts.shards,
            lost=facts.lost,
            notes=(*known.notes, *(note for note in facts.notes if note not in known.notes)),
            unknown=(*known.unknown, *(line for line in facts.unknown if line not in known.unknown)),
        )

    def _make_order(self, made: Plan, options: TransportOptions) -> ShardOrder:
        """Make the order that all shards get; a server started here is given by its URL alone."""
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


def join_cluster(options: Options, stack: ExitStack, interrupts: Interrupts) -> ShardPlaces:
    """Connect to the cluster of --cluster and reserve places for its shards, both until the end of `stack`.

    Raises UsageError and MeasureError, each in bounded time: no Ray, no cluster, no room, another loadgen.
    """
    address, shards = options.cluster or "", options.shards or 1
    with choose_display(options.quiet).waiting(f"joining the Ray cluster at {address}"):
        ray = stack.enter_context(ray_cluster.connect_ray(address))
        each = options.workers * ray_cluster.CPUS_PER_WORKER
        places = stack.enter_context(ray_cluster.place_shards(ray, shards, each, interrupts.poll))
        return ShardPlaces(ray, places, ray_cluster.find_nodes(ray, places, interrupts.poll))


class ClusterFiring:
    """A plan that shards on other machines send and decode; `merged` is the run, once it is over."""

    workers = 1

    def __init__(self, fleet: Fleet, rules: StopRules, directory: Path) -> None:
        self.fleet, self.rules, self.directory = fleet, rules, directory
        self.merged: Result | None = None
        self._noted = Totals()

    @property
    def counters(self) -> Totals:
        """Counts of requests sent and ended by all shards."""
        return self.fleet.totals

    @property
    def died(self) -> str:
        """Always "": a lost shard does not end the others."""
        return ""

    @property
    def health(self) -> Health:
        """When all sent, by this machine's clock, and what; the rest of it is in the shards' facts."""
        if self.merged is None:
            return NO_HEALTH
        facts, records = self.merged.facts, self.merged.records
        began_ns = int(records.sent_ns[records.sent_ns > 0].min(initial=2**62)) if len(records) else 0
        ended_ns = began_ns + int(facts.client.wall_s * 1e9)
        digest = facts.bodies_digest
        return msgspec.structs.replace(
            NO_HEALTH, started_ns=began_ns, ended_ns=ended_ns, bodies_digest=digest
        )

    @property
    def tally(self) -> DecodedTally:
        """The counts that the shards made while decoding; 0 until `merged` is set."""
        if self.merged is None:
            return DecodedTally()
        facts = self.merged.facts
        return DecodedTally(0, facts.reasoned, facts.hidden_reasoning)

    @property
    def lost(self) -> tuple[str, ...]:
        """The shards that were lost, and why; empty until `merged` is set."""
        return () if self.merged is None else self.merged.facts.lost

    def turns(self, progress: Progress) -> Iterator[None]:
        """Poll the shards to their end, and yield after each poll; then read clocks again and set `merged`.

        Each poll passes the counts to `progress` and the stop rules.
        """
        for _ in self.fleet.watch():
            totals = self.fleet.totals
            progress.note_totals(totals)
            progress.counters = totals
            self._note(totals)
            yield
        self.fleet.read_clocks_again()
        self.merged = join_runs(self.fleet, self.directory)

    def stop(self) -> None:
        self.fleet.stop()

    def kill(self) -> None:
        self.fleet.calls.release()

    def _note(self, totals: Totals) -> None:
        """Report to the stop rules what ended since the last call; stop all once a shard's own rule fired."""
        failed = totals.failed - self._noted.failed
        cancelled = totals.cancelled - self._noted.cancelled
        succeeded = totals.decoded - self._noted.decoded - failed - cancelled
        self._noted = totals
        if failed > 0:
            self.rules.note(_FAILED, failed)
        if succeeded > 0:
            self.rules.note(None, succeeded)
        if self.fleet.rule and not self.rules.fired:
            self.rules.fired = self.fleet.rule
            self.fleet.stop()


def join_runs(fleet: Fleet, directory: Path) -> Result:
    """Fetch the shards' runs into a temporary folder of `directory`, and join them by this machine's clock.

    Raises MeasureError if none left a run.
    """
    with tempfile.TemporaryDirectory(prefix="shards-", dir=directory) as place:
        named = fleet.fetch_results(Path(place))
        if not named:
            why = "; ".join(
                f"{fleet.name[shard.number]}: {fleet.explain_loss(shard)}" for shard in fleet.shards
            )
            raise MeasureError(f"every shard was lost: {why}")
        offsets: dict[int, int] = {}
        timed = []
        for name, result in named:
            facts = result.facts.shard
            assert facts is not None
            shard = fleet.shards[facts.number]
            assert shard.before is not None
            offsets[facts.number] = shard_clocks.compute_middle_ns(shard.before, shard.after)
            clocks = replace(facts, before=shard.before, after=shard.after)
            by_driver = replace(result.facts, shard=clocks)
            timed.append((name, Result(by_driver, result.records, result.samples)))
        causes = {shard.number: why for shard in fleet.shards if (why := fleet.explain_loss(shard))}
        merged = merge.merge_results(timed, causes=causes)
        first = next((row.number for row in merged.facts.shards if row.began_ns), min(offsets))
        if offset_ns := offsets[first]:  # from the clock of that one to this machine's
            records = merge.join_records([(merged.records, offset_ns)], [])
            merged = Result(merged.facts, records, merged.samples)
        return merged
