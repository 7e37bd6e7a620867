"""Session rows: which turn a request is, how its session ended, and when a slot has none left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.made_cases import START_NS
from builders.made_sessions import rows_of, turn_of
from loadgen.figures.session_rows import SessionRows, find_dry_ns, find_sessions
from loadgen.figures.steady_state import find_held_ns
from loadgen.plan.planned_requests import make_waits
from loadgen.records.record import Record, Records
from loadgen.transport.failure import CANCELLED, USER_CANCELLED, Failure, FailureKind

MS = 1_000_000
CUT = Failure(FailureKind.TRUNCATED, "cut")
TURNS = [3, 1, 2, 4]


def rows(turns: Sequence[int], records: Sequence[Record]) -> tuple[SessionRows, Records]:
    made = Records.from_records(records)
    return find_sessions(made, turns), made


def test_a_request_beyond_the_planned_sessions_is_refused() -> None:
    with pytest.raises(ValueError, match="request 2 is beyond the 1 planned sessions"):
        find_sessions(Records.from_records(rows_of([3])), (2,))


@pytest.mark.parametrize(
    ("failures", "states", "dropped"),
    [
        ({(0, 2): CUT}, "efff", [2]),
        ({(0, 3): CUT, (3, 1): USER_CANCELLED}, "effe", [7, 8, 9]),
        ({(2, 2): CANCELLED, (3, 2): Failure(FailureKind.LOST, "died")}, "ffuu", []),
    ],
    ids=["a failed turn", "the last one, and one cancelled as planned", "a run that was stopped"],
)
def test_a_session_is_finished_ended_early_or_unfinished(
    failures: Mapping[tuple[int, int], Failure], states: str, dropped: list[int]
) -> None:
    found, records = rows(TURNS, rows_of(TURNS, failures=failures))
    of = {"f": found.finished, "e": found.early, "u": found.unfinished}
    assert [next(name for name, each in of.items() if each[at]) for at in range(4)] == list(states)
    assert found.dropped_indices(records).tolist() == dropped
    assert found.dropped == len(dropped)


# Sessions of one turn (80 ms) in two slots: the fourth fails at once in slot 1 (160), which waits for a new
# connection; slot 0 takes the fifth to eighth meanwhile, the last of them 400 ms after the start, until 480.
WAITING = [*[(slot, begin, begin + 80) for begin in (0, 80) for slot in (0, 1)], *[
    (0, begin, begin + 80) for begin in (160, 240, 320, 400)
]]  # fmt: skip


def _waited(failure: Failure | None, of: int, slots: Sequence[int] = (0, 1)) -> tuple[SessionRows, Records]:
    made = [
        replace(turn_of(i, slots[slot], START_NS + begin * MS, 0), end_ns=START_NS + end * MS)
        for i, (slot, begin, end) in enumerate(WAITING)
    ]
    made[3] = replace(made[3], failure=failure)
    return rows([1] * of, made)


@loop_over(
    ("failure", "of", "duration_ms", "slots", "queues", "dry_ms"),
    [
        (CUT, 8, 0, (0, 1), 1, 400),
        (None, 8, 0, (0, 1), 1, 160),
        (CUT, 8, 0, (0, 1), 2, 160),
        (CUT, 8, 0, (0, 2), 2, 400),
        (CUT, 8, 1000, (0, 1), 1, 400),
        (CUT, 50, 450, (0, 1), 1, 450),
        (CUT, 8, 0, (0, 1), 2**31 - 1, 160),
    ],
)  # fmt: skip
def test_a_slot_that_connects_again_is_not_dry_while_sessions_begin(
    failure: Failure | None, of: int, duration_ms: int, slots: tuple[int, int], queues: int, dry_ms: int
) -> None:
    found, records = _waited(failure, of, slots)
    assert find_dry_ns(found, records, duration_ms * MS, of, queues) == START_NS + dry_ms * MS


def test_one_slot_has_no_tail() -> None:
    found, records = rows(TURNS, rows_of(TURNS, slots=1))
    assert find_dry_ns(found, records, 0) is None


def test_a_session_has_the_mean_of_its_requests() -> None:
    found, _ = rows(TURNS, rows_of(TURNS))
    values = np.arange(10, dtype=np.float64)
    which, means = found.means(np.array([1, 2, 4, 6, 9]), values)
    assert (which.tolist(), means[which].tolist()) == ([1, 4, 6], [1.5, 4.0, 7.5])


# Of each tree 0 begins 1 beside the branch 2, 3, and 4 waits for 1 and 3.
TREES = make_waits(
    [(), (0,), (0,), (2,), (1, 3), (), (5,), (5,), (7,), (6, 8)],
    [0, 0, 1, 1, 0] * 2,
    [0, 0, 1, 1, 0] * 2,
    [0, 0, 1, 1, 0] * 2,
    ("main", "explore"),
)


def tree_of(failures: Mapping[int, Failure], sent: Sequence[int]) -> tuple[SessionRows, Records]:
    """Two trees, of which these were sent over the places 0 and 1 and their branches' slots 2 and 3."""
    slots = [0, 0, 2, 2, 0, 1, 1, 3, 3, 1]
    made = [
        replace(turn_of(i, slots[i], START_NS + i % 5 * 100 * MS, 0), failure=failures.get(i)) for i in sent
    ]
    records = Records.from_records(made)
    return find_sessions(records, [5, 5], TREES), records


@loop_over(
    ("failures", "sent", "states", "dropped", "ending"),
    [
        ({}, range(10), "ff", [], [4, 9]),
        ({2: CUT}, [0, 1, 2, 5, 6, 7, 8, 9], "ef", [3, 4], [2, 9]),
        ({1: CUT, 3: CUT}, [0, 1, 2, 3, 5, 6, 7, 8, 9], "ef", [4], [1, 9]),
        ({0: CUT, 9: USER_CANCELLED}, [0, 5, 6, 7, 8, 9], "ee", [1, 2, 3, 4], [0, 9]),
        ({2: CUT}, [0, 2, 5, 6], "uu", [], [2, 6]),  # 1 was still to be sent
        ({2: CUT, 1: CANCELLED}, [0, 1, 2, 5], "uu", [], [2, 5]),
    ],
)
def test_a_tree_ends_early_if_all_that_is_missing_waited_for_a_failure(
    failures: Mapping[int, Failure], sent: Sequence[int], states: str, dropped: list[int], ending: list[int]
) -> None:
    found, records = tree_of(failures, sent)
    of = {"f": found.finished, "e": found.early, "u": found.unfinished}
    assert [next(name for name, each in of.items() if each[at]) for at in range(2)] == list(states)
    assert found.dropped_indices(records).tolist() == dropped
    assert found.dropped == len(dropped)
    assert records.index[found.ending].tolist() == ending


def test_a_tree_takes_up_the_slot_that_it_began_in() -> None:
    found, records = tree_of({}, range(10))
    ends_ns = [START_NS + 480 * MS] * 2
    assert find_dry_ns(found, records, 0) == ends_ns[0]
    lasting = replace(records, end_ns=np.where(records.index == 8, START_NS + 900 * MS, records.end_ns))
    assert find_dry_ns(found, lasting, 0) == ends_ns[0]
    lasting = replace(records, end_ns=np.where(records.index % 5 == 3, START_NS + 900 * MS, records.end_ns))
    assert find_dry_ns(found, lasting, 0) == START_NS + 900 * MS
    held = find_held_ns(lasting, 2, found.begins)
    assert held == (int(records.sent_ns.min()), START_NS + 900 * MS)
