"""A fleet's driver: whatever a shard or a node does, it ends, and says what was lost and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from loadgen.base.errors import MeasureError
from loadgen.fleet import fleet as fleets
from loadgen.fleet.fleet import CLOCK, Answer, Fleet, RayCalls
from loadgen.fleet.ray_cluster import Node
from loadgen.fleet.shard_actor import ShardOrder, ShardStatus
from loadgen.plan.request_sources import Seed
from loadgen.run.command.progress import Totals
from loadgen.settings.shard_settings import WHOLE

S_NS = 1_000_000_000
READY = ShardStatus(ready=True)
DONE = ShardStatus(ready=True, measured=True, done=True, totals=Totals(sent=5))
ORDER = ShardOrder(WHOLE, "0" * 32, "http://127.0.0.1:1", {}, "loadgen-", {}, "", {}, Seed(1))


@dataclass
class FakeClock:
    """CLOCK_MONOTONIC, which moves while something sleeps."""

    ns: int = 1000 * S_NS

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


@dataclass
class ScriptedCalls(RayCalls):
    """Shards that answer from a list of states, the last one for ever; None: no answer."""

    clock: FakeClock
    states: list[list[ShardStatus | str | None]]  # a text: why the shard is lost
    asked: list[tuple[int, str]] = field(default_factory=list)
    arguments: list[tuple[int, str, tuple[Any, ...]]] = field(default_factory=list)
    ahead_ns: int = 0
    released: bool = False

    def __post_init__(self) -> None:
        self.nodes = [Node(chr(ord("a") + number), "", "") for number in range(len(self.states))]

    def ask(self, shard: int, method: str, *arguments: Any) -> None:
        self.asked.append((shard, method))
        self.arguments.append((shard, method, arguments))

    def take_answers(self, within_s: float) -> list[Answer]:
        asked, self.asked = self.asked, []
        found = [answer for one in asked if (answer := self._answer(*one)) is not None]
        if not found:
            self.clock.sleep(within_s)
        return found

    def release(self) -> None:
        self.released = True

    def _answer(self, shard: int, method: str) -> Answer | None:
        self.clock.ns += 1_000_000
        if method == "clock_ns":
            return Answer(shard, method, self.clock.ns + self.ahead_ns)
        if method != "status":
            return Answer(shard, method, "another boot")
        states = self.states[shard]
        state = states.pop(0) if len(states) > 1 else states[0]
        if state is None:
            return None
        return Answer(shard, method, lost=state) if isinstance(state, str) else Answer(shard, method, state)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr("loadgen.base.clock.now_ns", fake.now_ns)
    monkeypatch.setattr("loadgen.base.clock.SystemClock.now_ns", staticmethod(fake.now_ns))
    monkeypatch.setattr("time.sleep", fake.sleep)
    return fake


def watched(fleet: Fleet) -> int:
    """How many turns there were until nothing more comes of any shard."""
    return sum(1 for _ in fleet.watch())


def sending(beats: int) -> ShardStatus:
    return ShardStatus(ready=True, beats=beats, totals=Totals(sent=beats))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (ShardStatus(failed="the plan is another"), "shard 1/2 on node b: the plan is another"),
        (
            ShardStatus(ended="its process was killed by SIGKILL"),
            "shard 1/2 on node b: its process was killed",
        ),
        ("node b, or Ray's process on it, ended", "shard 1/2: node b, or Ray's process on it, ended, before"),
        (None, "shard 1/2: node b did not answer for 30 s, before the first request"),
        (ShardStatus(), "shard 1/2 on node b was not ready after 600 s"),
    ],
)
def test_a_shard_that_cannot_begin_ends_the_run_by_name(
    clock: FakeClock, state: ShardStatus | str | None, message: str
) -> None:
    with pytest.raises(MeasureError, match=message):
        Fleet(ScriptedCalls(clock, [[READY], [state]])).begin(ORDER)


def test_the_start_is_the_same_instant_on_every_clock(clock: FakeClock) -> None:
    calls = ScriptedCalls(clock, [[READY], [READY]], ahead_ns=70 * S_NS)
    fleet = Fleet(calls)
    fleet.begin(ORDER)
    fleet.start(5000 * S_NS)
    for shard in fleet.shards:
        assert shard.before is not None
        assert shard.before.reference == CLOCK
        assert abs(shard.before.offset_ns + 70 * S_NS) <= shard.before.error_ns <= 1_000_000
        (instant,) = next(
            given for number, method, given in calls.arguments if (number, method) == (shard.number, "start")
        )
        assert abs(instant - 5070 * S_NS) <= 1_000_000


def test_what_all_have_counted_is_one_figure(clock: FakeClock) -> None:
    fleet = Fleet(ScriptedCalls(clock, [[sending(1), DONE], [sending(1), sending(2), DONE]]))
    watched(fleet)
    assert fleet.totals.sent == 10
    assert [fleet.explain_loss(shard) for shard in fleet.shards] == ["", ""]


@pytest.mark.parametrize(
    ("states", "why"),
    [
        pytest.param([sending(1), "node b was lost"], "node b was lost", id="a node that is gone"),
        pytest.param([sending(1), None], "node b did not answer for 30 s", id="a node that is silent"),
        pytest.param(
            [sending(1)],
            "its process on node b did nothing for 30 s and was killed",
            id="a process that is stopped",
        ),
        pytest.param(
            [sending(1), ShardStatus(ready=True, ended="its process was killed by SIGKILL")],
            "its process was killed by SIGKILL",
            id="a process that is killed",
        ),
        pytest.param([ShardStatus(ready=True, failed="no port")], "no port", id="a shard that fails"),
    ],
)
def test_what_is_lost_in_mid_run_is_named_and_ends(
    clock: FakeClock, states: list[ShardStatus | str | None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ScriptedCalls(clock, [[sending(1), sending(2), DONE], states])
    killed = ShardStatus(ready=True, ended="its process was killed by SIGKILL")
    asked = calls.ask

    def ask(shard: int, method: str, *arguments: Any) -> None:
        if method == "stop":
            calls.states[shard] = [killed]
        asked(shard, method, *arguments)

    monkeypatch.setattr(calls, "ask", ask)
    fleet = Fleet(calls)
    began_ns = clock.ns
    watched(fleet)
    assert [fleet.explain_loss(shard) for shard in fleet.shards] == ["", why]
    assert clock.ns - began_ns < 2 * fleets._ANSWERS_S * 1e9


def test_a_rule_that_ended_one_shard_is_named_with_it(clock: FakeClock) -> None:
    ruled = ShardStatus(ready=True, done=True, rule="--max-consecutive-failures 3: 3 in a row")
    fleet = Fleet(ScriptedCalls(clock, [[DONE], [ruled]]))
    watched(fleet)
    assert fleet.rule == "shard 1/2: --max-consecutive-failures 3: 3 in a row"
