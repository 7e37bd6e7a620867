"""Planned requests: which are cancelled and how people write it, and which wait for which."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from builders.required import require
from loadgen.plan.plan import draw_cancellations
from loadgen.plan.planned_requests import Turns, WaitFacts, make_waits
from loadgen.plan.request_sources import RandomStream
from loadgen.settings.load_settings import CancelPoint, parse_cancel_point, parse_cancel_rate

TABLES = read_tables("planned_requests")

POINT = CancelPoint(after_ns=2_000_000_000)
STREAM = RandomStream(7, "p")


@loop_over(("text", "share"), [("10%", 0.1), ("0.1", 0.1), (".5", 0.5), (" 2.5 % ", 0.025), ("1", 1.0)])
def test_a_rate_is_a_share_or_a_percentage(text: str, share: float) -> None:
    assert parse_cancel_rate(text) == pytest.approx(share)


@loop_over(
    ("text", "point"),
    [
        ("2s", CancelPoint(after_ns=2_000_000_000)),
        ("0.5 s", CancelPoint(after_ns=500_000_000)),
        ("250ms", CancelPoint(after_ns=250_000_000)),
        ("2m", CancelPoint(after_ns=120_000_000_000)),
        ("0.5h", CancelPoint(after_ns=1_800_000_000_000)),
        ("50tok", CancelPoint(after_tokens=50)),
    ],
)
def test_a_point_is_a_time_or_a_number_of_tokens(text: str, point: CancelPoint) -> None:
    assert parse_cancel_point(text) == point


@loop_over(
    ("text", "words"),
    [
        ("1tok", "1 token chunk"),
        ("50tok", "50 token chunks"),
        ("0.5ms", "0.5 ms"),
        ("200ms", "0.2 s"),
        ("2m", "120 s"),
    ],
)
def test_a_point_is_shown_in_the_unit_that_reads_best(text: str, words: str) -> None:
    assert str(parse_cancel_point(text)) == words


def test_a_longer_plan_has_the_same_requests_cancelled_and_more() -> None:
    short, long = (draw_cancellations(0.3, POINT, STREAM, count).chosen for count in (40, 400))
    assert (long[:40] == short).all()


def test_the_share_is_that_of_the_requests_within_chance() -> None:
    count = draw_cancellations(0.1, POINT, STREAM, 100_000).count
    assert abs(count - 10_000) < 4 * np.sqrt(100_000 * 0.1 * 0.9)


# Two sessions: a main line 0, 1, 4 with a sub-agent 2, 3 beside 1 that 4 joins; and a chain of two.
TREE = Turns(
    np.array([0, 5, 7]),
    np.array([0, 10, 20, 30, 40, 0, 50]),
    make_waits(
        [(), (0,), (0,), (2,), (1, 3), (), (5,)],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0],
        ("main", "explore"),
        [0, 1, 2, 3, 4, 0, 5],
    ),
)


def describe(turns: Turns) -> tuple[list[int], list[int], WaitFacts | None]:
    return turns.begins.tolist(), turns.delays_ns.tolist(), turns.describe_waits()


def test_waits_are_of_the_sessions_that_are_chosen() -> None:
    require(TREE.waits).check(TREE.begins)
    chosen = TREE.choose(np.array([1, 0, 0]))
    assert describe(chosen) == (
        [0, 2, 7, 12],
        [0, 50, 0, 10, 20, 30, 40, 0, 10, 20, 30, 40],
        WaitFacts(
            before=((), (0,), (), (2,), (2,), (4,), (3, 5), (), (7,), (7,), (9,), (8, 10)),
            lanes=(0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0),
            depths=(0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0),
            roles=(0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0),
            role_names=("main", "explore"),
            tool_ns=(0, 5, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4),
        ),
    )
    assert describe(TREE.choose(np.array([0]))) == describe(TREE.take_first(1))
    assert TREE.list_chosen(np.array([1, 0])).tolist() == [5, 6, 0, 1, 2, 3, 4]
    cut = TREE.cut(4).scale_delays(0.5)
    assert (cut.begins.tolist(), cut.delays_ns.tolist()) == ([0, 4], [0, 5, 10, 15])
    assert require(cut.waits).list_before(3) == [2]


def test_a_chain_has_no_branches_and_is_kept_if_more_is_known_of_it() -> None:
    assert TREE.has_branches
    chain = TREE.choose(np.array([1]))
    assert not chain.has_branches
    assert chain.describe_waits() is not None
    plain = msgspec.structs.replace(chain, waits=msgspec.structs.replace(require(chain.waits), tool_ns=None))
    assert plain.describe_waits() is None


@loop_over(("changes", "message"), TABLES["refused"])
def test_waits_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    facts = require(TREE.describe_waits())
    with pytest.raises(ValueError, match=message):
        msgspec.structs.replace(facts, **changes).waits.check(TREE.begins)
