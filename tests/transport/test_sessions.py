"""Sessions on every transport: turns and branches in order, each when it is due, and what a failure drops."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named
from fakes.scripted_server import Answer, Asked, Driven, Driver, End, drive, job_of, kinds, stream, whole
from fakes.virtual_network import LATENCY_NS, WRITE_NS, KeepAliveServer, VirtualServer
from loadgen.base.errors import UsageError
from loadgen.features.sessions.turn_sending import SessionJob, TurnOrder
from loadgen.plan.planned_requests import Cancellations, Turns, make_turns, make_waits
from loadgen.records.decode import Decoder
from loadgen.run.firing import _FEWEST_FILES, allow_files
from loadgen.settings.load_settings import CancelPoint
from loadgen.transport.capture import Capture
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Job
from loadgen.wire.openai import Completions

MS, SECOND = 1_000_000, 1_000_000_000
NEAR_NS = 3 * MS  # of the portable transport, whose own times are late

Tree = Sequence[tuple[Sequence[int], int]]  # of each request: what it waits for in its session, and its lane
# 0 begins 1 of the main line beside the sub-agents 2, 3 and 4; 5 of the main line waits for all three.
FORK: Tree = [((), 0), ((0,), 0), ((0,), 1), ((2,), 1), ((0,), 2), ((1, 3, 4), 0)]
# 2 goes on in the background after the main line 0, 1 has ended.
BACKGROUND: Tree = [((), 0), ((0,), 0), ((0,), 1)]
CHAIN: Tree = [((), 0), ((0,), 0), ((1,), 0)]
# 2 is a second root, of a lane of its own.
ROOTS: Tree = [((), 0), ((0,), 0), ((), 1), ((1, 2), 0)]


def turns_of(trees: Sequence[Tree], delays_s: float | Sequence[float] = 0.0) -> Turns:
    """The turns of sessions that are these trees."""
    counts = [len(tree) for tree in trees]
    begins = np.cumsum([0, *counts[:-1]]).tolist()
    before = [
        [begin + each for each in earlier]
        for begin, tree in zip(begins, trees, strict=True)
        for earlier, _ in tree
    ]
    lanes = [lane for tree in trees for _, lane in tree]
    waits = make_waits(before, lanes, [min(lane, 1) for lane in lanes], lanes, tuple("mabcdefgh"))
    delays_ns = np.broadcast_to(np.rint(np.asarray(delays_s) * SECOND).astype(np.int64), sum(counts))
    turns = Turns(make_turns(np.array(counts), delays_ns).begins, delays_ns, waits)
    waits.check(turns.begins)
    return turns


def judged(capture: Capture) -> dict[str, Any] | None:
    record = Decoder(Completions(), streamed=True).decode(capture)
    return None if record.failure else {"index": record.index}


def sending(server: VirtualServer, turns: Turns, most: int | None, **changes: Any) -> Job:
    """A job of sessions; a body is its plan index."""
    session_keys = {key: changes.pop(key) for key in list(changes) if key in SessionJob.__struct_fields__}
    return job_of(
        server.target(),
        0,
        most,
        body=lambda i: b'{"model":"m","turn":%d}' % i,
        order=TurnOrder(turns, range(len(turns))),
        sessions=replace(SessionJob(turns, judged), **session_keys),
        **changes,
    )


def trees_of(
    server: VirtualServer,
    trees: Sequence[Tree],
    most: int | None,
    delays_s: float | Sequence[float] = 0.0,
    **changes: Any,
) -> Job:
    """A job of sessions that are these trees."""
    return sending(server, turns_of(trees, delays_s), most, **changes)


def sessions_of(
    server: VirtualServer, counts: Sequence[int], delay_s: float, most: int | None, **changes: Any
) -> Job:
    """A job of sessions with so many turns each."""
    delays_ns = np.full(sum(counts), round(delay_s * SECOND), np.int64)
    return sending(server, make_turns(np.array(counts), delays_ns), most, **changes)


def asked_of(server: VirtualServer) -> list[int]:
    return [int(asked.body.rpartition(b":")[2][:-1]) for asked in server.asked]


def taking(seconds: Mapping[int, float], failed: Mapping[int, Answer] | None = None) -> VirtualServer:
    """A server that takes so long for each plan index, 10 ms for others; `failed` have other answers."""

    def script(asked: Asked) -> Answer:
        index = int(asked.body.rpartition(b":")[2][:-1])
        return (failed or {}).get(index) or stream(2, seconds.get(index, 0.01) / 4)

    return VirtualServer(script)


FAILED = Answer([whole(b'{"error":{"message":"no"}}', "400 Bad Request")])
IN_BAND = Answer([b"HTTP/1.1 200 OK\r\ncontent-length: 34\r\n\r\n", b'data: {"error":{"message":"no"}}\n\n'])


def by_index(driven: Driven) -> dict[int, Capture]:
    return {capture.index: capture for capture in driven.captures}


def check_order(driven: Driven, turns: Turns, transport: str) -> None:
    """Every request was due its delay after the last that it waits for, went out then or later, once.

    Those of a lane went over one slot, and none of a slot overlap.
    """
    found, waits = by_index(driven), turns.waits
    assert waits is not None
    assert len(found) == len(driven.captures)
    near_ns = NEAR_NS if transport == "httpx" else 0
    sessions, slots = turns.list_sessions(), dict[tuple[int, int], set[int]]()
    for index, capture in found.items():
        begin = found[int(turns.begins[sessions[index]])]
        ends = [found[each].end_ns for each in waits.list_before(index)]
        due_ns = max(ends, default=begin.intended_ns) + int(turns.delays_ns[index])
        if capture is not begin:
            assert 0 <= capture.intended_ns - due_ns <= near_ns
        if capture.sent_ns:
            assert capture.sent_ns >= capture.intended_ns
        slots.setdefault((int(sessions[index]), int(waits.lanes[index])), set()).add(capture.slot)
    assert all(len(each) == 1 for each in slots.values())
    for slot in {capture.slot for capture in driven.captures}:
        own = sorted((c.sent_ns or c.end_ns, c.end_ns) for c in driven.captures if c.slot == slot)
        assert all(before[1] <= after[0] for before, after in pairwise(own))


def most_in_flight(driven: Driven) -> int:
    """The most requests in flight at once."""
    changes = [(c.sent_ns, 1) for c in driven.captures] + [(c.end_ns, -1) for c in driven.captures]
    level = most = 0
    for _, change in sorted(changes):
        level += change
        most = max(most, level)
    return most


def test_sub_agents_overlap_and_the_main_line_waits_for_all(transport: str) -> None:
    server = taking({1: 0.4, 2: 0.3, 3: 0.8, 4: 0.5})
    job = trees_of(server, [FORK, FORK], 1, [0, 0.1, 0.2, 0.3, 0.0, 0.05] * 2)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None] * 12
    assert isinstance(job.sessions, SessionJob)
    check_order(driven, job.sessions.turns, transport)
    found = by_index(driven)
    assert max(found[each].sent_ns for each in (1, 2, 4)) < min(found[each].end_ns for each in (1, 2, 4))
    assert asked_of(server)[:6] == [0, 4, 1, 2, 3, 5]
    assert found[5].intended_ns - found[3].end_ns == pytest.approx(50 * MS, abs=NEAR_NS)
    assert found[6].sent_ns >= found[5].end_ns  # one session at a time
    assert driven.health.reconnects == driven.health.late_bodies == 0
    assert driven.counters.sent == driven.counters.ended == 12
    assert server.connections == 3  # that the second session goes over too


@loop_over(
    ("failed", "sent"),
    [
        (0, [0]),
        (1, [0, 1, 2, 3, 4]),
        (2, [0, 1, 2, 4]),
        (3, [0, 1, 2, 3, 4]),
        (4, [0, 1, 2, 3, 4]),
        (5, [0, 1, 2, 3, 4, 5]),
    ],
)
@pytest.mark.parametrize("answer", [FAILED, IN_BAND], ids=["a status", "in the stream"])
def test_a_failed_request_drops_what_waits_for_it_alone(
    transport: str, answer: Answer, failed: int, sent: Sequence[int]
) -> None:
    server = taking({1: 0.3, 2: 0.2, 3: 0.4, 4: 0.5}, {failed: answer})
    job = trees_of(server, [FORK, CHAIN], 1, 0.05)
    driven = drive(job, transport, server)
    assert [capture.index for capture in driven.captures] == [*sent, 6, 7, 8]
    assert Counter(kinds(driven))[None] == len(sent) + 2
    assert isinstance(job.sessions, SessionJob)
    check_order(driven, job.sessions.turns, transport)
    assert driven.counters.sent == driven.counters.ended == len(sent) + 3
    assert by_index(driven)[6].sent_ns >= max(by_index(driven)[each].end_ns for each in sent)


@loop_over("most", [1, 2, 3, None])
def test_requests_that_wait_at_the_end_of_the_time_are_not_sent(transport: str, most: int | None) -> None:
    """For a place among the most at once, or for their delay."""
    delay_s, duration_ns = (0.0, 100 * MS) if most else (0.3, SECOND)
    server, trees = taking({}), [FORK] * 40
    job = trees_of(server, trees, 4, delay_s, max_requests=most, duration_ns=duration_ns)
    began_s = time.monotonic()
    driven = drive(job, transport, server)
    assert time.monotonic() - began_s < 10  # and not until the time to drain is over
    assert 0 < len(driven.captures) < 240
    assert set(kinds(driven)) == {None}
    over_ns = driven.health.started_ns + duration_ns + (10 * MS if most else 0)
    assert max(capture.sent_ns for capture in driven.captures) < over_ns


def test_sessions_are_limited_and_their_requests_are_not(transport: str) -> None:
    server = taking(dict.fromkeys(range(60), 0.1))
    driven = drive(trees_of(server, [FORK] * 10, 2), transport, server)
    assert kinds(driven) == [None] * 60
    assert most_in_flight(driven) == 6
    spans = [driven.captures[6 * i : 6 * i + 6] for i in range(10)]
    starts = sorted(each[0].sent_ns for each in spans)
    ends = sorted(max(capture.end_ns for capture in each) for each in spans)
    assert all(end_ns <= start_ns for start_ns, end_ns in zip(starts[2:], ends, strict=False))


def test_trees_begin_at_their_rate(transport: str) -> None:
    server = taking(dict.fromkeys(range(24), 0.5))
    offsets_ns = np.arange(4) * 100 * MS
    job = trees_of(server, [FORK] * 4, None, 0.02, offsets_ns=offsets_ns, rate_per_s=10.0)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None] * 24
    begins = [capture.intended_ns - driven.health.started_ns for capture in driven.captures[::6]]
    assert begins == offsets_ns.tolist()
    assert isinstance(job.sessions, SessionJob)
    check_order(driven, job.sessions.turns, transport)


def test_a_stop_ends_every_lane(transport: str) -> None:
    holder: list[Callable[[], None]] = []

    def script(asked: Asked) -> Answer:
        if asked.number == 3:
            holder[0]()
        return stream(3, 0.01 if asked.number == 0 else 100.0)

    server = VirtualServer(script)
    driver = Driver(trees_of(server, [FORK, FORK], 1), transport, server)
    holder.append(driver.inbox.stop)
    driven = driver.run()
    assert kinds(driven) == [None, *[FailureKind.CANCELLED] * 3]
    assert driven.counters.sent == 4


def test_live_answers_are_the_history_of_their_lane(transport: str) -> None:
    server = taking({})

    def body_after(index: int, answers: Sequence[dict[str, Any]]) -> bytes:
        return b'{"after":"%b","turn":%d}' % (b"".join(b"%d" % each["index"] for each in answers), index)

    driven = drive(trees_of(server, [FORK], 1, 0.1, body_after=body_after), transport, server)
    assert kinds(driven) == [None] * 6
    after = {int(asked.body.rpartition(b":")[2][:-1]): asked.body for asked in server.asked}
    history = {index: body.partition(b'"after":"')[2].partition(b'"')[0] for index, body in after.items()}
    assert history == {0: b"", 1: b"0", 2: b"", 3: b"2", 4: b"", 5: b"01"}


def test_a_main_line_whose_connection_was_closed_meanwhile_goes_on(transport: str) -> None:
    server = KeepAliveServer(lambda asked: stream(2, 4.0 if asked.body.endswith(b":3}") else 0.01))
    driven = drive(trees_of(server, [FORK, FORK], 1, 0.4), transport, server)
    assert kinds(driven) == [None] * 12
    assert driven.health.reconnects == 1
    assert max(capture.sent_ns - capture.intended_ns for capture in driven.captures) < NEAR_NS


def test_a_refused_branch_ends_no_other(transport: str) -> None:
    def script(asked: Asked) -> Answer:
        server.refuses = True
        return stream(2, 0.01)

    server = VirtualServer(script)
    driven = drive(trees_of(server, [FORK], 1, 0.1), transport, server)
    found = {capture.index: kind for capture, kind in zip(driven.captures, kinds(driven), strict=True)}
    assert found == {0: None, 1: None, 2: FailureKind.CONNECT, 4: FailureKind.CONNECT}


@st.composite
def random_trees(draw: st.DrawFn) -> list[Tree]:
    """Sessions of up to seven requests on up to three lanes, of which each lane's wait for one another."""
    trees: list[Tree] = []
    for _ in range(draw(st.integers(1, 3))):
        tree: list[tuple[list[int], int]] = [([], 0)]
        last = {0: 0}
        for index in range(1, draw(st.integers(1, 7))):
            lane = draw(st.integers(0, 2))
            earlier = set(draw(st.lists(st.integers(0, index - 1), max_size=3)))
            if lane in last:
                earlier.add(last[lane])
            last[lane] = index
            tree.append((sorted(earlier), lane))
        trees.append(tree)
    return trees


@given(
    trees=random_trees(),
    most=st.sampled_from([1, 2, 8]),
    requests=st.sampled_from([None, 1, 2]),
    failing=st.sets(st.integers(0, 20), max_size=3),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("sender", ["wire", "httpx"])
def test_any_tree_is_sent_in_order_and_once(
    sender: str, trees: list[Tree], most: int, requests: int | None, failing: set[int], seed: int
) -> None:
    rng, count = np.random.default_rng(seed), sum(map(len, trees))
    seconds = dict(enumerate(rng.choice([0.004, 0.02, 0.1], count).tolist()))
    delays_s = rng.choice([0.0, 0.0, 0.03], count).tolist()
    server = taking(seconds, {index: (FAILED, IN_BAND)[index % 2] for index in failing})
    job = trees_of(server, trees, most, delays_s, max_requests=requests)
    assert isinstance(job.sessions, SessionJob)
    turns = job.sessions.turns
    driven = drive(job, sender, server)
    assert turns.waits is not None
    marked = np.isin(np.arange(count), list(failing))
    sent = np.flatnonzero(~turns.waits.mark_dependents(marked)).tolist()
    assert [capture.index for capture in driven.captures] == sent
    assert sorted(asked_of(server)) == sent
    check_order(driven, turns, sender)
    assert driven.counters.sent == driven.counters.ended == len(sent)
    assert most_in_flight(driven) <= (requests or count)


def test_a_session_under_way_goes_before_a_new_one(transport: str) -> None:
    server = taking({})
    drive(trees_of(server, [CHAIN] * 4, 4, 0.005, max_requests=1), transport, server)
    assert asked_of(server) == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


@loop_over(
    ("trees", "most", "slots"),
    [
        ([CHAIN] * 3, 2, 2),
        ([FORK], 1, 3),
        ([CHAIN, FORK, BACKGROUND], 1, 3),
        ([CHAIN, FORK, BACKGROUND], 2, 5),
        ([CHAIN, FORK, BACKGROUND], None, 6),
        ([ROOTS, ROOTS], 1, 2),
        ([[((), 0), ((0,), 1), ((1,), 2), ((2,), 3), ((2,), 4), ((2, 3, 4), 5)]], 1, 3),
        ([[((), 0), *(((0,), lane) for lane in range(1, 9)), (range(9), 0)]] * 2, 2, 18),
    ],
)
def test_open_files_are_enough_for_what_one_answer_begins(
    monkeypatch: pytest.MonkeyPatch, trees: list[Tree], most: int | None, slots: int
) -> None:
    job = trees_of(taking({}), trees, most)
    assert job.first_slots <= job.least_slots == slots <= job.most_slots
    need = len(os.listdir("/proc/self/fd")) + _FEWEST_FILES + slots
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: None)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1, need))
    allow_files(job, "wire")
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1, need - 1))
    aside = (
        f", {slots - job.first_slots} of them of sub-agents"
        if slots > job.first_slots
        else f" need {need} open files"
    )
    with pytest.raises(UsageError, match=f"^{slots} connections{aside}"):
        allow_files(job, "wire")


@loop_over("most", [1, 3])
def test_a_tree_with_one_branch_is_sent_as_a_conversation(transport: str, most: int) -> None:
    def send(waits: bool) -> tuple[Any, ...]:
        server = taking({1: 0.2, 4: 0.1}, {7: IN_BAND, 10: FAILED})
        job = trees_of(server, [CHAIN] * 6, most, 0.05)
        if not waits:
            assert isinstance(job.sessions, SessionJob)
            plain = replace(job.sessions.turns, waits=None)
            job = replace(job, sessions=SessionJob(plain, judged), order=TurnOrder(plain, range(6)))
        driven = drive(job, transport, server)
        times = [(c.index, c.slot, c.intended_ns, c.sent_ns, c.end_ns, c.connect_ns) for c in driven.captures]
        asked = [(each.connection, each.head, each.body) for each in server.asked]
        return times, asked, kinds(driven), driven.health, driven.counters.sent

    assert send(True) == send(False)


def test_turns_follow_one_another_over_one_connection(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    driven = drive(sessions_of(server, [3, 2], 0.5, 1), transport, server)
    assert kinds(driven) == [None] * 5
    assert asked_of(server) == [0, 1, 2, 3, 4]
    assert server.connections == 1
    assert {capture.slot for capture in driven.captures} == {0}
    assert driven.health.reconnects == driven.health.late_bodies == 0


@loop_over("gap_s", [4.9, 5.1, 6.0, 20.0])
def test_a_gap_beyond_keep_alive_costs_no_failure_and_no_ttft(transport: str, gap_s: float) -> None:
    server = KeepAliveServer(lambda _: stream(3, 0.01))
    driven = drive(sessions_of(server, [2], gap_s, 1), transport, server)
    assert kinds(driven) == [None, None]
    first, second = driven.captures
    assert second.resends == 0
    ttft_ns = [int(capture.user_ns()[0]) - capture.sent_ns for capture in (first, second)]
    assert ttft_ns[1] == pytest.approx(ttft_ns[0], abs=MS // 2)
    assert max(capture.sent_ns - capture.intended_ns for capture in driven.captures) < NEAR_NS
    assert server.connections == 1 + (gap_s > 5)
    assert driven.health.reconnects == (gap_s > 5)


@loop_over_named(
    ("failed", "kind"),
    {
        "a status": (FAILED, FailureKind.HTTP_STATUS),
        "an error in the stream": (IN_BAND, FailureKind.IN_BAND),
        "an answer cut short": (Answer(list(stream(3, 0.01).pieces)[:3], End.CLOSE), FailureKind.TRUNCATED),
        "a connection reset": (Answer([], End.RESET), FailureKind.TRUNCATED),
    },
)
def test_a_failed_turn_ends_its_session_and_not_the_run(
    transport: str, failed: Answer, kind: FailureKind
) -> None:
    def script(asked: Asked) -> Answer:
        return failed if asked.body.endswith(b":1}") else stream(3, 0.01)

    server = VirtualServer(script)
    driven = drive(sessions_of(server, [4, 2], 0.3, 1), transport, server)
    assert [capture.index for capture in driven.captures] == [0, 1, 4, 5]
    assert kinds(driven) == [None, kind, None, None]
    assert driven.counters.sent == driven.counters.ended == 4


UNFRAMED = list(stream(3, 0.01).pieces)[:-1]  # all of a response, but for the last chunk of its framing
CANCELLED = Cancellations(np.array([True, False, False]), CancelPoint(after_tokens=1))


@loop_over(
    ("answer", "changes"),
    [
        (Answer(UNFRAMED, End.CLOSE), {}),
        (Answer([*UNFRAMED, 0.01], End.RESET), {}),
        (
            Answer([b"".join(each for each in UNFRAMED if isinstance(each, bytes)), 5.0]),
            {"cancellations": CANCELLED},
        ),
    ],
)
def test_a_turn_follows_each_answer_that_counts_as_a_success(
    transport: str, answer: Answer, changes: dict[str, Any]
) -> None:
    server = VirtualServer(lambda asked: stream(3, 0.01) if asked.number else answer)
    driven = drive(sessions_of(server, [2], 0.1, 1, **changes), transport, server)
    assert kinds(driven) == [None, None]
    assert asked_of(server) == [0, 1]


def test_a_cancelled_turn_ends_its_session_at_once(transport: str) -> None:
    server = VirtualServer(lambda asked: stream(3, 0.01 if asked.number else 1.0))
    driven = drive(sessions_of(server, [2, 1], 30.0, 1, cancellations=CANCELLED), transport, server)
    assert kinds(driven) == [FailureKind.USER_CANCELLED, None]
    assert driven.captures[1].sent_ns - driven.captures[0].end_ns < SECOND


def test_a_session_has_one_name_in_all_its_turns(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    drive(sessions_of(server, [2, 2], 0.1, 1, header="X-Session-ID"), transport, server)
    heads = [dict(line.split(": ", 1) for line in asked.head.split("\r\n")[1:]) for asked in server.asked]
    names = [{name.lower(): value for name, value in head.items()}["x-session-id"] for head in heads]
    assert names == ["loadgen-session-0"] * 2 + ["loadgen-session-1"] * 2


def test_users_have_their_turns_at_their_own_rate(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    job = sessions_of(server, [2] * 4, 0.0, 2, users=2, user_rate_per_s=2.0)
    driven = drive(job, transport, server)
    due_ms = [(capture.intended_ns - driven.health.started_ns) // MS for capture in driven.captures]
    assert due_ms == [0, 500, 250, 750, 1000, 1500, 1250, 1750]
    assert [capture.slot for capture in driven.captures] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_users_turn_waits_for_the_answer_before_it(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.5))
    driven = drive(sessions_of(server, [3], 0.0, 1, users=1, user_rate_per_s=2.0), transport, server)
    near_ns = NEAR_NS if transport == "httpx" else WRITE_NS + LATENCY_NS
    for before, after in pairwise(driven.captures):
        assert after.intended_ns - before.end_ns == pytest.approx(0, abs=near_ns)


def test_equal_bodies_have_one_digest_in_whatever_order(transport: str) -> None:
    digests = []
    for most, model in ((1, b'"m"'), (3, b'"another"')):
        server = VirtualServer(lambda _: stream(3, 0.01))
        job = sessions_of(server, [2, 3, 1], 0.1, most)
        own = replace(job, body=lambda i, model=model: b'{"model":%b,"turn":%d}' % (model, i))
        digests.append(drive(own, transport, server).health.bodies_digest)
    assert digests[0] == digests[1] != ""
    assert len(digests[0]) == 32


def digest(*bodies: bytes) -> str:
    """The digest of a run that sent these bodies, each in a session of its own."""
    turns = make_turns(np.ones(len(bodies), np.int64), np.zeros(len(bodies), np.int64))
    server = VirtualServer(lambda _: stream(1, 0.01))
    sessions = {"sessions": SessionJob(turns, lambda _: {}), "order": TurnOrder(turns, range(len(turns)))}
    job = job_of(server.target(), 0, 1, body=bodies.__getitem__, **sessions)
    return drive(job, "wire", server).health.bodies_digest


def test_a_models_name_a_salt_of_ours_and_the_order_change_no_digest() -> None:
    salts = [b'"cache_salt":"loadgen-%032x",' % number for number in (1, 2)]
    bodies = [b'{%b"model":"%b","messages":[1]}' % (salt, name) for salt in salts for name in (b"a", b"b")]
    assert {digest(body) for body in bodies} == {digest(b'{"model":"c","messages":[1]}')}
    assert digest(b'{"model":"a","n":1}', bodies[0]) == digest(bodies[3], b'{"model":"b","n":1}')
    assert digest(b'{"cache_salt":"mine","model":"a"}') != digest(b'{"cache_salt":"other","model":"a"}')
