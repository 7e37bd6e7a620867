"""Trace sessions: traces of agents as sessions, whose requests wait for answers as they did when recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from builders.traces import MOONCAKE, TRACELAB, WEKA, WEKA_AGENTS, jsonl, offsets_ms, planned, prompts
from loadgen.base.errors import UsageError
from loadgen.features.data.data_command import PlanPreview
from loadgen.features.traces.call_order import find_order
from loadgen.features.traces.trace_replay import keep_rows
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import make_waits


def list_waits(made: Plan) -> list[list[int]]:
    assert made.turns is not None
    assert made.turns.waits is not None
    made.turns.waits.check(made.turns.begins)
    return [made.turns.waits.list_before(i) for i in range(len(made))]


def row(t: float, api: float | None = None, **keys: Any) -> dict[str, Any]:
    return {"t": t, "in": 64, "out": 2, "hash_ids": [1], **({} if api is None else {"api_time": api}), **keys}


def agent(t: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "subagent_type": "Explore", "requests": list(requests)}


def test_agents_of_a_published_session_are_a_tree() -> None:
    made = planned(WEKA_AGENTS)
    turns = made.turns
    assert turns is not None
    assert turns.waits is not None
    assert made.offsets_ns is not None
    assert offsets_ms(made) == [0, 0]
    assert turns.begins.tolist() == [0, 15, 21]
    assert list_waits(made)[:15] == [
        [], [0], [0], [1], [2], [3], [4, 5], [6], [7], [8], [9], [10], [11], [12], [13],
    ]  # fmt: skip
    assert list_waits(made)[15:] == [[], [], [15, 16], [17], [18], [19]]
    assert turns.waits.lanes.tolist() == [0, 1, 2, 1, 2, 1, 0, 0, 3, 4, 4, 3, 0, 5, 5, 0, 1, 0, 0, 2, 0]
    assert turns.waits.depths.tolist() == [0, *[1] * 5, 0, 0, 1, 2, 2, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0]
    assert set(turns.waits.role_names) == {"main", "explore", "plan", "general-purpose"}
    assert (turns.delays_ns[:4] / 1e9).tolist() == [0, 0.39, 0.39, 1.0]
    assert made.facts.schedule is None
    few = planned(WEKA_AGENTS, num_sessions=3, no_oversample=True)
    assert few.notes == ("the trace has 2 of the 3 sessions that were asked for",)


@loop_over(
    ("requests", "waits", "delays_s"),
    [
        pytest.param([row(0, 6.0), row(21, 1), row(38, 1)], [[], [0], [1]], [0, 15, 16], id="think"),
        pytest.param([row(15, 6.9), row(21, 10.67), row(31)], [[], [0], [1]], [0, 0, 0], id="whole seconds"),
        pytest.param([row(0.5, 6.9), row(7.0, 1)], [[], []], [0, 6.5], id="fractions overlap"),
        pytest.param([row(0, 2), row(5, 1, think_time=1.5)], [[], [0]], [0, 1.5], id="think time"),
        pytest.param(
            [row(0), agent(4, row(4), row(6)), row(9)], [[], [0], [1], [2]], [0, 0, 0, 3], id="no ends"
        ),
        pytest.param([row(0, 2), agent(3, row(3, 9)), row(4, 1)], [[], [0], [0]], [0, 1, 2], id="background"),
        pytest.param([agent(1, row(1, 1)), row(3, 1)], [[], [0]], [0, 1], id="agent first"),
    ],
)
def test_what_requests_of_a_session_wait_for(
    tmp_path: Path, requests: list[dict[str, Any]], waits: list[list[int]], delays_s: list[float]
) -> None:
    made = planned(jsonl(tmp_path, [{"requests": requests}]))
    assert list_waits(made) == waits
    assert made.turns is not None
    assert (made.turns.delays_ns / 1e9).round(3).tolist() == pytest.approx(delays_s)


def test_prompts_are_those_of_the_recorded_replay() -> None:
    closed, recorded = planned(WEKA_AGENTS), planned(WEKA_AGENTS, trace_replay="recorded")
    assert sorted(prompts(closed)) == sorted(prompts(recorded))
    assert recorded.turns is None
    assert closed.facts.reuse == recorded.facts.reuse


@loop_over(
    ("keys", "counts", "delays_s"),
    [
        ({"num_sessions": 1}, [15], [0, 0.39]),
        ({"num_prompts": 17}, [15, 2], [0, 0.39]),
        ({"num_prompts": 3}, [3], [0, 0.39]),
        ({"speed_up": 2.0}, [15, 6], [0, 0.195]),
        ({"trace_idle_cap": 0.1}, [15, 6], [0, 0.1]),
        ({"turn_delays": "none"}, [15, 6], [0, 0]),
        ({"max_concurrency": 1}, [15, 6], [0, 0.39]),
        ({"trace_max_input_len": 400}, [7, 4], [0, 0.39]),
        ({"trace_window": "0:12"}, [7, 5], [0, 0.39]),
    ],
)
def test_keys_of_conversations_and_of_traces_hold(
    keys: dict[str, Any], counts: list[int], delays_s: list[float]
) -> None:
    made = planned(WEKA_AGENTS, **keys)
    assert made.turns is not None
    assert made.turns.counts.tolist() == counts
    assert (made.turns.delays_ns[:2] / 1e9).tolist() == delays_s
    list_waits(made)


def test_what_waited_for_a_left_out_row_waits_for_what_that_did() -> None:
    waits = make_waits([[], [0], [1], [2], [1, 3]], [0] * 5, [0] * 5, [0] * 5, ("main",))
    kept = keep_rows(waits, np.array([0, 3, 4]))
    assert [kept.list_before(i) for i in range(3)] == [[], [0], [0, 1]]


@loop_over(
    ("path", "keys", "why"),
    [
        (MOONCAKE, {"trace_replay": "closed", "trace_format": "mooncake"}, "has no sessions whose requests"),
        (WEKA_AGENTS, {"trace_replay": "closed", "self_timed": False}, "are two: leave out one of them"),
        (WEKA_AGENTS, {"assistant": "live"}, "made of lengths alone"),
        (WEKA_AGENTS, {"trace_replay": "recorded", "num_sessions": 2}, "or --trace-replay closed"),
        (WEKA_AGENTS, {"trace_jitter": "uniform"}, "--trace-jitter spreads requests of one instant"),
        (WEKA_AGENTS, {"trace_replay": "recorded", "request_rate": 2.0}, "are two schedules"),
        (WEKA_AGENTS, {"prefill_concurrency": 2}, "does not go with conversations"),
    ],
)
def test_keys_that_contradict_are_refused(path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        planned(path, **keys)


def test_without_its_own_times_a_trace_is_requests_alone() -> None:
    made = planned(WEKA_AGENTS, self_timed=False, max_concurrency=2)
    assert (made.turns, made.offsets_ns, made.profile.trace_replay) == (None, None, "recorded")


def test_sessions_begin_at_the_given_rate(tmp_path: Path) -> None:
    made = planned(jsonl(tmp_path, [WEKA] * 3), request_rate=2.0, burstiness=float("inf"))
    assert made.turns is not None
    assert (len(made.turns), len(made)) == (3, 9)
    assert np.diff(offsets_ms(made)).tolist() == [500, 500]


def test_waits_of_a_session_are_those_of_its_own_times() -> None:
    session = json.loads(WEKA_AGENTS.read_text().splitlines()[1])["requests"]
    main = [entry for entry in session if entry["type"] != "subagent"]
    begins = [int(entry["t"]) for entry in main]
    ends = [int(entry["t"] + entry["api_time"]) for entry in main]
    assert find_order(begins, ends, [0] * len(main), [-1]) == [[], [], [0, 1], [2], [3]]


def test_a_preview_shows_agents_and_the_time_of_tools(tmp_path: Path) -> None:
    shown = PlanPreview(planned(WEKA_AGENTS))
    text = " ".join(" ".join(shown.lines()).split())
    assert "agents main 9, explore 8, plan 2, general-purpose 2 requests; 6 lines a session" in text
    assert shown.json()["agents"]["depths"] == {"0": 9, "1": 10, "2": 2}
    assert shown.json()["agents"]["tools_s"] is None
    chain = PlanPreview(planned(TRACELAB))
    assert "tools 76.0 s of the delays" in " ".join(" ".join(chain.lines()).split())
    assert PlanPreview(planned(WEKA_AGENTS, trace_replay="recorded")).json()["agents"] is None


@loop_over("path", [WEKA_AGENTS, TRACELAB])
def test_sessions_are_repeated_with_prompts_of_their_own(path: Path) -> None:
    once, more = planned(path), planned(path, num_sessions=5)
    assert once.turns is not None
    assert more.turns is not None
    count = len(once)
    counts = once.turns.counts.tolist()
    assert more.turns.counts.tolist() == [*counts, *counts, counts[0]]
    waits = list_waits(more)
    assert waits[count : 2 * count] == [[i + count for i in before] for before in waits[:count]]
    found = prompts(more)
    assert found[:count] == prompts(once)
    assert [len(prompt) for prompt in found[count : 2 * count]] == [len(prompt) for prompt in found[:count]]
    last = len(found[0]) - 1
    assert len({tuple(found[i][last - 40 : last]) for i in (0, count, 2 * count)}) == 3
    assert any("are repeated, each time with prompts of their own" in note for note in more.notes)
    assert planned(path, num_prompts=count + 1).turns.counts.tolist() == [*counts, 1]  # type: ignore[union-attr]
    assert once.facts.reuse is not None
    assert more.facts.reuse is not None
    assert once.facts.reuse - 0.01 < more.facts.reuse < once.facts.reuse + 0.1  # what all begin with


def test_agents_nested_without_end_are_refused(tmp_path: Path) -> None:
    nested = agent(1, row(1, 1))
    for _ in range(70):
        nested = agent(1, nested)
    with pytest.raises(UsageError, match="row 1: its sub-agents are nested more than 64 deep"):
        planned(jsonl(tmp_path, [{"requests": [row(0, 1), nested]}]))
