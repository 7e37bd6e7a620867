"""Synthetic turns: conversations of text that no other session has, their lengths and pauses as asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders.required import require
from loadgen.engines.engines import ENGINES
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import make_waits
from loadgen.plan.request_sources import ModelTarget, Seed, WordCounts

SMALL = {"turns": 3, "num_sessions": 4, "input_len": 8, "output_len": 5, "max_concurrency": 2}
ANSWER = {"role": "assistant", "content": "I know"}


def made(seed: int = 1, counts: WordCounts | None = None, **keys: Any) -> Plan:
    target = ModelTarget(ENGINES[0], "m", word_counts=counts)
    return plan.make(profile.build({**SMALL, **keys}), target, Seed(seed, chosen=True))


def messages(of: Plan, i: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = of.payload(i)["messages"]
    return found


def words(of: Plan, i: int) -> int:
    return sum(len(message["content"].split()) for message in messages(of, i))


def test_no_message_and_no_answer_is_of_two_sessions() -> None:
    of = made(input_len=20, output_len=20)
    texts = [message["content"] for session in range(4) for message in messages(of, 3 * session + 2)]
    assert len(set(texts)) == len(texts) == 4 * 5
    assert len({text[:40] for text in texts}) == len(texts)


def test_lengths_vary_as_asked_for() -> None:
    of = made(num_sessions=50, input_dist="uniform:min=5,max=9", output_dist="uniform:min=2,max=4")
    own = [len(messages(of, i)[-1]["content"].split()) for i in range(150)]
    assert (min(own), max(own)) == (5, 9)
    assert set(of.requests.output_lens.tolist()) == {2, 3, 4}
    assert [words(of, i) for i in range(150)] == of.requests.input_lens.tolist()
    ratio = made(range_ratio="0.5")
    assert [words(ratio, i) for i in range(12)] == ratio.requests.input_lens.tolist()
    assert len(set(ratio.requests.output_lens.tolist())) > 1


def test_system_prompts_are_shared_by_groups_of_sessions() -> None:
    of = made(prefix_len=20, prefix_groups=2)
    systems = [messages(of, i)[0] for i in range(12)]
    assert {message["role"] for message in systems} == {"system"}
    assert [systems[i]["content"] == systems[i - i % 3]["content"] for i in range(12)] == [True] * 12
    assert len({message["content"] for message in systems}) == 2


def test_live_answers_stand_in_place_of_those_made_here() -> None:
    of = made()
    recorded = messages(of, 2)
    body = msgspec.json.decode(of.body_after(2, [ANSWER]))
    assert body["messages"] == [recorded[0], ANSWER, *recorded[2:]]
    assert msgspec.json.decode(of.body_after(2, [ANSWER, ANSWER]))["messages"][3] == ANSWER
    assert messages(of, 2) == recorded


def test_one_seed_makes_the_same_conversations_in_any_order() -> None:
    one, same, other = made(), made(), made(seed=2)
    bodies = [one.body(i) for i in range(12)]
    assert [same.body(i) for i in reversed(range(12))] == bodies[::-1]
    assert one.digest() == same.digest() != other.digest()
    assert messages(one, 0) != messages(other, 0)


def test_think_time_is_drawn_from_its_distribution() -> None:
    turns = require(made(num_sessions=2000, think_time="lognormal:mean=2.5,sd=1,max=20").turns)
    drawn_s = turns.delays_ns[turns.delays_ns > 0] / 1e9
    assert len(drawn_s) == 4000
    assert (drawn_s.mean(), drawn_s.std()) == pytest.approx((2.5, 1), rel=0.05)
    none = require(made(think_time="2", turn_delays="none").turns)
    assert not none.delays_ns.any()


def test_a_tree_with_one_branch_has_a_conversations_digest_and_facts() -> None:
    plain = made(turns=4, num_sessions=3, think_time="0.5")
    assert plain.turns is not None
    before = [[i - 1] if i % 4 else [] for i in range(12)]
    waits = make_waits(before, [0] * 12, [0] * 12, [0] * 12, ("main",))
    chain = replace(plain, turns=replace(plain.turns, waits=waits))
    assert chain.digest() == plain.digest()
    assert (require(chain.turns).describe_waits(), plain.turns.describe_waits()) == (None, None)
    fork = make_waits([*before[:2], [0], *before[3:]], [0, 0, 1, 1, *[0] * 8], [0] * 12, [0] * 12, ("main",))
    forked = replace(plain, turns=replace(plain.turns, waits=fork))
    assert forked.digest() != plain.digest()
