"""A fleet: its cluster is reached or refused in a line; its driver ends, and says what was lost and why."""

from __future__ import annotations

import io
import platform
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import asdict

from builders.loops import loop_over
from fakes.virtual_time import VirtualTime
from loadgen import __version__
from loadgen.base.errors import MeasureError, UsageError
from loadgen.fleet import fleet as fleets
from loadgen.fleet import ray_cluster
from loadgen.fleet.cluster_session import ClusterFiring
from loadgen.fleet.fleet import CLOCK, Answer, Fleet, RayCalls
from loadgen.fleet.ray_cluster import Node, check_node, check_room
from loadgen.fleet.shard_actor import ShardOrder, ShardStatus
from loadgen.fleet.shard_process import DriverLine
from loadgen.plan.request_sources import Seed, WordCounts
from loadgen.run.command.progress import Totals
from loadgen.run.stop_rules import StopRules
from loadgen.settings import shard_settings
from loadgen.settings.shard_settings import Share

S_NS = 1_000_000_000
READY = ShardStatus(ready=True)
KILLED = ShardStatus(ready=True, ended="its process was killed by SIGKILL")
ORDER = ShardOrder(
    Share(1, 4), "0" * 32, "http://127.0.0.1:1", {"Authorization": "Bearer k"}, "loadgen-",
    {"model": "m", "more_urls": ("http://127.0.0.1:2",), "metadata": ("a=b",), "workers": 2, "http2": True},
    "5%", {"input_len": 8, "output_len": 2, "request_rate": float("inf")}, Seed(1, chosen=True),
    word_counts={"chat": WordCounts(("a", "b"), 3.0, 1.5)},
)  # fmt: skip
DONE = ShardStatus(ready=True, measured=True, done=True, totals=Totals(sent=5))


@dataclass
class ScriptedCalls(RayCalls):
    """Shards that answer from a list of states, the last one for ever; None: no answer."""

    clock: VirtualTime
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
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    fake = VirtualTime(1000 * S_NS)
    monkeypatch.setattr("loadgen.base.clock.now_ns", fake.now_ns)
    monkeypatch.setattr("loadgen.base.clock.SystemClock.now_ns", staticmethod(fake.now_ns))
    monkeypatch.setattr("time.sleep", fake.sleep)
    return fake


def watched(fleet: Fleet) -> list[str]:
    """Why each shard was lost, when nothing more comes of any."""
    for _ in fleet.watch():
        pass
    return [fleet.explain_loss(shard) for shard in fleet.shards]


def sending(beats: int) -> ShardStatus:
    return ShardStatus(ready=True, beats=beats, totals=Totals(sent=beats))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (ShardStatus(failed="the plan is another"), "shard 1/2 on node b: the plan is another"),
        (ShardStatus(ended="it was killed by SIGKILL"), "shard 1/2 on node b: it was killed by SIGKILL"),
        ("node b, or Ray's process on it, ended", "shard 1/2: node b, or Ray's process on it, ended, before"),
        (None, "shard 1/2: node b did not answer for 30 s, before the first request"),
        (ShardStatus(), "shard 1/2 on node b was not ready after 600 s"),
    ],
)
def test_a_shard_that_cannot_begin_ends_the_run_by_name(
    clock: VirtualTime, state: ShardStatus | str | None, message: str
) -> None:
    with pytest.raises(MeasureError, match=message):
        Fleet(ScriptedCalls(clock, [[READY], [state]])).begin(ORDER)


def test_the_start_is_the_same_instant_on_every_clock(clock: VirtualTime) -> None:
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


def test_what_all_have_counted_is_one_figure(clock: VirtualTime) -> None:
    fleet = Fleet(ScriptedCalls(clock, [[sending(1), DONE], [sending(1), sending(2), DONE]]))
    assert watched(fleet) == ["", ""]
    assert fleet.totals.sent == 10


LOST: dict[str, tuple[list[ShardStatus | str | None], str]] = {
    "a node that is gone": ([sending(1), "node b was lost"], "node b was lost"),
    "a node that is silent": ([sending(1), None], "node b did not answer for 30 s"),
    "a process that is stopped": ([sending(1)], "its process on node b did nothing for 30 s and was killed"),
    "a process that is killed": ([sending(1), KILLED], "its process was killed by SIGKILL"),
    "a shard that fails": ([ShardStatus(ready=True, failed="no port")], "no port"),
}


@pytest.mark.parametrize(("states", "why"), LOST.values(), ids=LOST)
def test_what_is_lost_in_mid_run_is_named_and_ends(
    clock: VirtualTime, states: list[ShardStatus | str | None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ScriptedCalls(clock, [[sending(1), sending(2), DONE], [*states]])
    asked = calls.ask

    def ask(shard: int, method: str, *arguments: Any) -> None:
        if method == "stop":
            calls.states[shard] = [KILLED]
        asked(shard, method, *arguments)

    monkeypatch.setattr(calls, "ask", ask)
    began_ns = clock.ns
    assert watched(Fleet(calls)) == ["", why]
    assert clock.ns - began_ns < 2 * fleets._ANSWERS_S * 1e9


def test_a_rule_that_ended_one_shard_is_named_with_it(clock: VirtualTime) -> None:
    ruled = ShardStatus(ready=True, done=True, rule="--max-consecutive-failures 3: 3 in a row")
    fleet = Fleet(ScriptedCalls(clock, [[DONE], [ruled]]))
    watched(fleet)
    assert fleet.rule == "shard 1/2: --max-consecutive-failures 3: 3 in a row"


# A shard's process: its order and its start are its driver's, and its counts reach the rules.


def test_an_order_arrives_as_it_was_given(tmp_path: Path) -> None:
    packed = ORDER.pack()
    arrived = DriverLine(tmp_path, io.BytesIO(len(packed).to_bytes(8, "little") + packed)).order()
    given = {**ORDER.given, "more_urls": ["http://127.0.0.1:2"], "metadata": ["a=b"]}
    assert {**asdict(arrived), "given": given} == {**asdict(ORDER), "given": given}
    options = arrived.options("runs", "totals")
    assert (options.shard, options.workers, options.more_urls) == (Share(1, 4), 2, ("http://127.0.0.1:2",))


def test_an_order_that_ends_is_of_a_driver_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="the driver is gone"):
        DriverLine(tmp_path, io.BytesIO((5).to_bytes(8, "little") + b"abc")).order()


def test_a_start_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="the driver's start is more than 3600 s from now"):
        DriverLine(tmp_path, io.BytesIO(b"\xff" * 8)).start()


@loop_over(
    ("seen", "expected"),
    [
        ([Totals(decoded=3, failed=3), Totals(decoded=5, failed=3, cancelled=2)], (3, 3, 3)),
        ([Totals(decoded=3, failed=3), Totals(decoded=5, failed=3)], (5, 3, 0)),
        ([Totals(decoded=4, failed=1, cancelled=2), Totals(decoded=6, failed=3, cancelled=2)], (4, 3, 2)),
    ],
)
def test_cancelled_requests_end_no_row_of_failures(
    seen: list[Totals], expected: tuple[int, int, int], tmp_path: Path
) -> None:
    fleet: Any = SimpleNamespace(rule="")
    firing = ClusterFiring(fleet, StopRules(), tmp_path)
    for totals in seen:
        firing._note(totals)
    assert (firing.rules.ended, firing.rules.failed, firing.rules.in_a_row) == expected


@loop_over("text", ["auto", "local", "head:6379", "127.0.0.1:6379", "ray://head:10001", "[::1]:6379"])
def test_an_address_of_a_cluster_is_taken_as_it_is(text: str) -> None:
    assert shard_settings.check_address(text) == text


@loop_over("text", ["", "head", "http://head:8265", "head:0", "head:99999", "ray://head", "a b:1"])
def test_what_is_no_address_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not an address: give auto, local, HOST:PORT or ray://HOST:PORT$"
    ):
        shard_settings.check_address(text)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"^--cluster needs the ray extra: .* install '\.\[ray\]'"):
        ray_cluster._import_ray()


def test_an_address_where_nothing_listens_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(MeasureError) as error:
        ray_cluster._check_answers(f"127.0.0.1:{port}")
    assert str(error.value) == (
        f"no Ray cluster at 127.0.0.1:{port}: Connection refused: is it the head's address (the head's port "
        "is 6379, that of ray:// 10001)?"
    )


@pytest.mark.whole
def test_another_program_at_the_address_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_ANSWERS_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MeasureError, match=f"what listens at 127.0.0.1:{port} is no Ray cluster"):
            ray_cluster._check_answers(f"127.0.0.1:{port}")


@loop_over(
    ("error", "where", "message"),
    [
        (ConnectionError("Could not find any"), "auto", "no Ray cluster runs on this machine: start one"),
        (RuntimeError("Version mismatch: Ray: 2"), "head:1", "head:1 runs another Ray or Python: Version"),
        (ValueError("line\n  and  line"), "head:1", "at head:1 refuses: line and line"),
    ],
)
def test_why_ray_was_not_joined_is_one_line(error: Exception, where: str, message: str) -> None:
    refusal = str(ray_cluster._make_refusal_error(where, error))
    assert message in refusal
    assert "\n" not in refusal


@loop_over(
    ("python", "version", "message"),
    [
        ("", "", "node a has no loadgen: install "),
        ("3.11.1", "0.0.1", "node a has loadgen 0.0.1, here runs "),
        ("2.7.18", None, "node a has Python 2.7.18, here runs "),
    ],
)
def test_a_node_that_differs_is_named(python: str, version: str | None, message: str) -> None:
    node = Node("a", python, __version__ if version is None else version)
    with pytest.raises(MeasureError, match=f"^{message}"):
        check_node(node)
    check_node(Node("a", platform.python_version(), __version__))


@loop_over(
    ("cpus", "message"),
    [([4, 3], "2 nodes have 7, room for 3: --shards 3"), ([1], "1 nodes have 1, room for 0: add nodes")],
)
def test_what_has_no_room_is_refused_with_what_there_is(cpus: list[float], message: str) -> None:
    with pytest.raises(UsageError) as error:
        check_room(cpus, 5, 2)
    need = "--shards 5 need 10 CPUs, 2 each (to capture, and to decode): the cluster's "
    assert str(error.value) == need + message
