"""Cluster firing: a plan sent by the shards of a cluster, as a run sees it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadgen.base.errors import MeasureError
from loadgen.base.structs import replace
from loadgen.fleet.fleet import Fleet
from loadgen.report.run_directory import Result
from loadgen.run.firing import NO_HEALTH, DecodedTally
from loadgen.run.live_totals import Totals
from loadgen.run.progress import Progress
from loadgen.run.stop_rules import StopRules
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.sending.job import Health

_FAILED = Failure(FailureKind.ABORTED, "see the failures of each shard")


class FleetStart:
    """The instant from which the plan's times count, once it is set."""

    instant_ns = 0

    def begin_ns(self, now_ns: int) -> int:
        return self.instant_ns


class ClusterFiring:
    """A plan that shards on other machines send and decode; `merged` is the run, once it is over."""

    workers = 1

    def __init__(self, fleet: Fleet, rules: StopRules, directory: Path) -> None:
        self.fleet, self.rules, self.directory = fleet, rules, directory
        self.merged: Result | None = None
        self._noted = Totals()

    @property
    def counters(self) -> Totals:
        """How many requests were sent and have ended."""
        return self.fleet.totals

    @property
    def died(self) -> str:
        """Nothing that is lost ends the rest."""
        return ""

    @property
    def health(self) -> Health:
        """The health of all capturing processes together; the times are of this machine's clock."""
        if self.merged is None:
            return NO_HEALTH
        client, records = self.merged.facts.client, self.merged.records
        began_ns = int(records.sent_ns[records.sent_ns > 0].min(initial=2**62)) if len(records) else 0
        return Health(
            started_ns=began_ns,
            ended_ns=began_ns + int(client.wall_s * 1e9),
            cpu_ns=int(client.cpu_s * 1e9),
            backlog_bytes=client.backlog_bytes,
            stopped_ns=int(client.stopped_s * 1e9),
            clock_step_ns=int(client.clock_step_ms * 1e6),
            late_bodies=client.late_bodies,
            segments=client.segments,
            dropped_segments=client.dropped_segments,
            fallen_back=client.fallen_back,
            held_segments=client.held_segments,
            reconnects=client.reconnects,
            bodies_digest=self.merged.facts.bodies_digest,
        )

    @property
    def tally(self) -> DecodedTally:
        """The tally of decoding: the shards have counted what could be counted."""
        if self.merged is None:
            return DecodedTally()
        facts = self.merged.facts
        return DecodedTally(0, facts.reasoned, facts.hidden_reasoning)

    @property
    def lost(self) -> tuple[str, ...]:
        """The shards that were lost, and why."""
        return () if self.merged is None else self.merged.facts.lost

    def turns(self, progress: Progress) -> Iterator[None]:
        """Watch the shards to their end, and join what they left."""
        for _ in self.fleet.watch():
            totals = self.fleet.totals
            progress.decoded(totals)
            self._note(totals)
            yield
        self.fleet.read_clocks_again()
        self.merged = join_runs(self.fleet, self.directory)

    def stop(self) -> None:
        self.fleet.stop()

    def kill(self) -> None:
        self.fleet.calls.release()

    def _note(self, totals: Totals) -> None:
        """Have the rules to stop see how requests ended since the last time; a shard's own ends all.

        Cancelled requests are not evidence about the server.
        """
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
    """The run that the shards' runs are together, by this clock; raises MeasureError where none left any."""
    from loadgen.features.shards import merge_clocks, merge_records  # only a run that has ended needs them
    from loadgen.features.shards.merge import merge_results

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
            offsets[facts.number] = merge_clocks.middle_ns(shard.before, shard.after)
            clocks = replace(facts, before=shard.before, after=shard.after)
            by_driver = replace(result.facts, shard=clocks)
            timed.append((name, Result(by_driver, result.records, result.samples)))
        causes = {shard.number: why for shard in fleet.shards if (why := fleet.explain_loss(shard))}
        merged = merge_results(timed, causes=causes)
        first = next((row.number for row in merged.facts.shards if row.began_ns), min(offsets))
        if offset_ns := offsets[first]:  # from the clock of that one to this machine's
            records = merge_records.joined([merge_records.Shifted(merged.records, offset_ns)], [])
            merged = Result(merged.facts, records, merged.samples)
        return merged
