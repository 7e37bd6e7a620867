"""Fleet: the shards of a run on a cluster: begun, started at one instant, asked, stopped, read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.files import write_whole
from loadgen.facts.run_facts import ClockReading
from loadgen.features.shards.shard_clocks import find_boot_id, measure_offset
from loadgen.fleet import ray_cluster
from loadgen.fleet.ray_cluster import Node
from loadgen.fleet.shard_actor import ShardOrder, ShardStatus
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.command.progress import Totals
from loadgen.settings.shard_settings import Share

CLOCK = "the driver's clock"
_ANSWERS_S = 30.0  # for any question: a node that is silent for longer is lost
_BEGINS_S = 120.0
_READY_S = 600.0  # to make the plan, with a data set of any size
_SILENT_S = 30.0  # that a process publishes nothing while it sends
_WRITES_S = 600.0  # from its last request to its run directory
_FETCHED_S = 600.0
_EVERY_S = 0.2
_KILL, _INTERRUPT = 9, 2
_CLOSES_S = 5.0


@dataclass
class FleetShard:
    """One shard as its driver sees it."""

    number: int
    node: Node
    boot: str = ""
    before: ClockReading | None = None
    after: ClockReading | None = None
    status: ShardStatus = field(default_factory=ShardStatus)
    beat_ns: int = 0  # when its process was last seen to publish something
    asked_ns: int = 0  # when it was last asked, without an answer yet; 0: it has answered
    lost: str = ""  # why
    killed: str = ""  # why its process was ended from here

    @property
    def over(self) -> bool:
        """Whether the shard has ended, failed, is done or lost, so that it sends nothing more."""
        return bool(self.lost or self.status.ended or self.status.failed or self.status.done)


class Fleet:
    """The shards of one run; every method ends in bounded time, whatever nodes do."""

    def __init__(self, calls: RayCalls, turn: Callable[[], None] = lambda: None) -> None:
        self.calls, self.turn = calls, turn
        shards = len(calls.nodes)
        self.shards = [FleetShard(number, node) for number, node in enumerate(calls.nodes)]
        self.name = {shard.number: f"shard {shard.number}/{shards}" for shard in self.shards}

    def begin(self, order: ShardOrder) -> None:
        """Start every shard's process with its share of the order, and read its clock once all are ready.

        Raises MeasureError if one is lost, fails, or takes longer than 600 s.
        """
        count = len(self.shards)
        orders = {
            shard.number: replace(order, share=Share(shard.number, count)).pack() for shard in self.shards
        }
        for answer in self._ask_all(lambda shard: ("begin", orders[shard]), _BEGINS_S):
            self.shards[answer.shard].boot = answer.value or ""
            self._refuse_lost(answer)
        until_ns = clock.now_ns() + int(_READY_S * 1e9)
        while not all(shard.status.ready for shard in self.shards):
            if clock.now_ns() > until_ns:
                late = next(shard for shard in self.shards if not shard.status.ready)
                raise MeasureError(f"{self._name_shard(late)} was not ready after {_READY_S:.0f} s")
            for answer in self._ask_all(lambda _: ("status",), _ANSWERS_S):
                self._refuse_lost(answer)
                status: ShardStatus = answer.value
                self.shards[answer.shard].status = status
                if why := status.failed or status.ended:
                    raise MeasureError(f"{self._name_shard(self.shards[answer.shard])}: {why}")
            time.sleep(_EVERY_S)
        for shard in self.shards:
            shard.before = self._read_clock(shard)

    def read_clocks_again(self) -> None:
        """Measure the clocks of shards that are not lost again, and set `after`; a silent shard is lost."""
        for shard in self.shards:
            if not shard.lost:
                try:
                    shard.after = self._read_clock(shard)
                except MeasureError as error:
                    shard.lost = str(error)

    def start(self, instant_ns: int) -> None:
        """Send all shards the instant at which they begin, by this machine's clock; raises MeasureError."""

        def question(number: int) -> tuple[Any, ...]:
            before = self.shards[number].before
            assert before is not None
            return ("start", instant_ns - before.offset_ns)

        for answer in self._ask_all(question, _ANSWERS_S):
            self._refuse_lost(answer)

    def watch(self) -> Iterator[None]:
        """Poll all shards and yield, a few times a second, until each has ended or is lost.

        Silent nodes are marked as lost, and idle processes killed.
        """
        while not all(shard.over for shard in self.shards):
            now_ns = clock.now_ns()
            for shard in self.shards:
                if not shard.over and not shard.asked_ns:
                    shard.asked_ns = now_ns
                    self.calls.ask(shard.number, "status")
            for answer in self.calls.take_answers(_EVERY_S):
                shard = self.shards[answer.shard]
                if answer.lost:
                    shard.lost = shard.lost or answer.lost
                elif isinstance(answer.value, ShardStatus):
                    status, before = answer.value, shard.status
                    moved = (status.beats, status.measured) != (before.beats, before.measured)
                    if moved or not shard.beat_ns:
                        shard.beat_ns = clock.now_ns()
                    shard.status, shard.asked_ns = status, 0
            self._give_up_silent(clock.now_ns())
            yield
            time.sleep(_EVERY_S / 2)

    def stop(self, number: int = _INTERRUPT) -> None:
        """Have the shards that are not over send signal `number` to their processes, without waiting."""
        for shard in self.shards:
            if not shard.over:
                self.calls.ask(shard.number, "stop", number)

    @property
    def totals(self) -> Totals:
        """The sum of all shards' counts, as they last reported them."""
        return Totals.join(shard.status.totals for shard in self.shards)

    @property
    def rule(self) -> str:
        """The name of the first shard that a stop rule ended, and the rule; "" if none did."""
        fired = next((shard for shard in self.shards if shard.status.rule), None)
        return "" if fired is None else f"{self.name[fired.number]}: {fired.status.rule}"

    def fetch_results(self, directory: Path) -> list[tuple[str, Result]]:
        """Fetch the runs of shards that are not lost into `directory`, and return them with their names.

        A shard whose run cannot be fetched or read is marked as lost and left out.
        """
        found = list[tuple[str, Result]]()
        for shard in [shard for shard in self.shards if not shard.lost]:
            (answer,) = self._ask_all(lambda _: ("fetch",), _FETCHED_S, shard)
            if answer.lost:
                shard.lost = answer.lost
                continue
            place = directory / f"shard-{shard.number}"
            place.mkdir()
            for name, content in answer.value.items():
                write_whole(place / Path(name).name, content.tofile)
            try:
                found.append((self._name_shard(shard), run_directory.load(place)))
            except UsageError as error:
                shard.lost = self.explain_loss(shard) or str(error)
        return found

    def explain_loss(self, shard: FleetShard) -> str:
        """Return why a shard left no whole run: lost, killed, failed or ended; "" if it is done."""
        return shard.lost or shard.killed or (
            "" if shard.status.done else shard.status.failed or shard.status.ended
        )  # fmt: skip

    def _read_clock(self, shard: FleetShard) -> ClockReading:
        """Measure a shard's clock against this one's; on one boot they are one. Raises MeasureError."""
        if shard.boot and shard.boot == find_boot_id():
            return ClockReading(boot=shard.boot, offset_ns=0, error_ns=0, reference=CLOCK)

        def ask() -> int:
            (answer,) = self._ask_all(lambda _: ("clock_ns",), _ANSWERS_S, shard)
            if answer.lost:
                raise MeasureError(f"{self._name_shard(shard)}: its clock cannot be measured: {answer.lost}")
            return int(answer.value)

        return measure_offset(ask, shard.boot, CLOCK)

    def _give_up_silent(self, now_ns: int) -> None:
        """Mark shards as lost whose node has not answered for 30 s, and kill idle processes if all are idle.

        Idle is 30 s without progress while sending, 600 s while writing the run.
        """
        going = [shard for shard in self.shards if not shard.over]
        moving = [shard for shard in going if now_ns - shard.beat_ns < _SILENT_S * 1e9]
        for shard in going:
            if shard.asked_ns and now_ns - shard.asked_ns > _ANSWERS_S * 1e9:
                shard.lost = f"{shard.node} did not answer for {_ANSWERS_S:.0f} s"
            limit_s = _WRITES_S if shard.status.measured else _SILENT_S
            if not moving and not shard.killed and shard.beat_ns and now_ns - shard.beat_ns > limit_s * 1e9:
                shard.killed = f"its process on {shard.node} did nothing for {limit_s:.0f} s and was killed"
                self.calls.ask(shard.number, "stop", _KILL)

    def _ask_all(
        self, question: Callable[[int], tuple[Any, ...]], within_s: float, only: FleetShard | None = None
    ) -> list[Answer]:
        """Ask each shard that is not lost, or `only` one, its question: a method and its arguments.

        Returns one answer for each, by number; a shard that does not answer within `within_s` gets one that
        is `lost`. Answers to other questions are dropped. `turn` is called five times a second or more, and
        may raise.
        """
        methods: dict[int, str] = {}
        for shard in [each for each in self.shards if not each.lost] if only is None else [only]:
            method, *arguments = question(shard.number)
            methods[shard.number] = method
            self.calls.ask(shard.number, method, *arguments)
        answers: dict[int, Answer] = {}
        until_ns = clock.now_ns() + int(within_s * 1e9)
        while methods and (left_s := (until_ns - clock.now_ns()) / 1e9) > 0:
            for answer in self.calls.take_answers(min(left_s, 0.2)):
                if methods.get(answer.shard) == answer.method or (answer.lost and answer.shard in methods):
                    answers[answer.shard] = answer
                    del methods[answer.shard]
            self.turn()
        for number, method in methods.items():
            silent = f"{self.calls.nodes[number]} did not answer for {within_s:.0f} s"
            answers[number] = Answer(number, method, lost=silent)
        return [answers[number] for number in sorted(answers)]

    def _refuse_lost(self, answer: Answer) -> None:
        """Raise MeasureError if the answer is that its shard is lost."""
        if answer.lost:
            raise MeasureError(f"{self.name[answer.shard]}: {answer.lost}, before the first request")

    def _name_shard(self, shard: FleetShard) -> str:
        return f"{self.name[shard.number]} on {shard.node}"


class Answer(msgspec.Struct, frozen=True):
    """A shard's answer, or why it is lost."""

    shard: int
    method: str
    value: Any = None
    lost: str = ""


class RayCalls:
    """The shards, numbered from 0, each a Ray actor on its node, and asked one thing at a time."""

    def __init__(self, ray: Any, actors: Sequence[Any], nodes: Sequence[Node]) -> None:
        self.ray, self.actors, self.nodes = ray, list(actors), nodes
        self._asked: dict[Any, tuple[int, str]] = {}  # the shard and the method, by Ray's reference

    def ask(self, shard: int, method: str, *arguments: Any) -> None:
        """Call a method of one shard, without waiting for its answer."""
        self._asked[getattr(self.actors[shard], method).remote(*arguments)] = shard, method

    def take_answers(self, within_s: float) -> list[Answer]:
        """Wait up to `within_s` for an answer of Ray and return those that are there; [] if none is due.

        One is `lost`, with the reason, if its call failed.
        """
        if not self._asked:
            return []
        errors, answers = self.ray.exceptions, list[Answer]()
        refs = list(self._asked)
        for ref in ray_cluster.wait_for_answers(self.ray, refs, within_s, lambda: None, every=False):
            (shard, method), lost, value = self._asked.pop(ref), "", None
            try:
                value = self.ray.get(ref, timeout=_CLOSES_S)
            except (errors.ActorDiedError, errors.ActorUnavailableError):
                lost = f"{self.nodes[shard]}, or Ray's process on it, ended"
            except (errors.RayError, ConnectionError, TimeoutError) as error:
                lost = f"{self.nodes[shard]}: {ray_cluster.read_last_line(error)}"
            answers.append(Answer(shard, method, value, lost))
        return answers

    def release(self) -> None:
        """Ask all actors to close, wait for them 5 s at most, and kill them; a second call does nothing."""
        if not self.actors:
            return
        actors, self.actors = self.actors, []
        self._asked.clear()
        closing = [actor.close.remote() for actor in actors]
        ray_cluster.wait_for_answers(self.ray, closing, _CLOSES_S, lambda: None, every=True)
        for actor in actors:
            self.ray.kill(actor)
