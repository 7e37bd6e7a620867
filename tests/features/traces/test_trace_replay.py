"""Replay: a trace's own times and lengths, what is left out counted, the same prompts whatever is sent."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from builders.required import require
from builders.traces import (
    AZURE,
    MOONCAKE,
    SERVEGEN,
    SUBJECT,
    TIMED,
    TRACELAB,
    WEKA,
    WEKA_AGENTS,
    jsonl,
    list_waits,
    offsets_ms,
    planned,
    prompts,
    waits_of,
)
from loadgen.engines.engine import Engine
from loadgen.engines.engines import ENGINES, UNKNOWN
from loadgen.features.data.data_command import PlanPreview
from loadgen.features.traces.trace_blocks import make_block_places
from loadgen.features.traces.trace_replay import ReplayedRequests, keep_rows
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import make_waits
from loadgen.plan.request_sources import ModelTarget, Seed, WordCounts
from loadgen.settings.shard_settings import Share


def rows(*at: float, **changes: Any) -> list[dict[str, Any]]:
    return [{"timestamp": t, "input_length": 20, "output_length": 4, **changes} for t in at]


def timed(directory: Path, made: list[dict[str, Any]], **keys: Any) -> plan.Plan:
    return planned(jsonl(directory, made), trace_format="timed", **keys)


def test_prompts_without_hashes_differ_between_traces(tmp_path: Path) -> None:
    one, other = (tmp_path / name for name in ("one.csv", "other.csv"))
    one.write_text(AZURE.read_text("utf-8"))
    other.write_text(AZURE.read_text("utf-8").replace(",44", ",45"))
    firsts = [{tuple(prompt[:8]) for prompt in prompts(planned(path))} for path in (AZURE, one, other)]
    assert firsts[0] == firsts[1]
    assert not firsts[0] & firsts[2]


def test_a_request_is_the_same_in_any_window() -> None:
    whole, part = planned(MOONCAKE), planned(MOONCAKE, trace_window="30:45")
    first = [offset >= 30_000 for offset in offsets_ms(whole)].index(True)
    assert prompts(part) == prompts(whole)[first : first + len(part)]
    assert isinstance(part.requests, ReplayedRequests)
    assert part.requests.rows.tolist() == list(range(first + 1, first + 1 + len(part)))


@loop_over(
    "keys", [{"seed": 8}, {"name": "q"}, {"num_prompts": 20}, {"speed_up": 2.0}, {"trace_window": "3:"}]
)
def test_the_digest_says_whether_two_plans_are_equal(keys: dict[str, Any]) -> None:
    assert planned(MOONCAKE).digest() == planned(MOONCAKE).digest()
    assert planned(MOONCAKE, **keys).digest() != planned(MOONCAKE).digest()


def test_the_digest_covers_hashes_beyond_the_first_requests(tmp_path: Path) -> None:
    made = [{**TIMED[0], "timestamp": i} for i in range(200)]
    changed = [*made[:-1], {**made[-1], "hash_ids": [1, 2, 4]}]
    assert timed(tmp_path, made).digest() != timed(tmp_path, changed).digest()


def test_other_ids_make_other_digests() -> None:
    table = {"name": "p", "trace": str(AZURE)}
    digests = {
        plan.make(profile.build(table), ModelTarget(SUBJECT.engine, "m", vocab_size=size), Seed(1)).digest()
        for size in (4000, 5000)
    }
    assert len(digests) == 2


def test_mooncakes_grid_is_found_and_spread_on_request() -> None:
    plain, spread = planned(MOONCAKE), planned(MOONCAKE, trace_jitter="uniform")
    for of, moves in ((plain, False), (spread, True)):
        facts = require(of.facts.schedule)
        assert (facts.grid_s, facts.instants, facts.requests, facts.spread) == (3.0, 25, 47, moves)
    due, moved = np.array(offsets_ms(plain)), np.array(offsets_ms(spread))
    assert len(np.unique(moved)) == 47
    assert ((moved >= due) & (moved < due + 3003)).all()
    assert (np.diff(moved) >= 0).all()
    assert offsets_ms(planned(MOONCAKE, trace_jitter="uniform")) == moved.tolist()
    assert prompts(plain) == prompts(spread)


def test_servegens_clients_have_their_published_rates_and_lengths() -> None:
    made = planned(SERVEGEN)
    assert len(made) == 312  # of the only window with requests: 600 s at 0.52 per second
    assert require(made.facts.schedule).span_s < 600
    lens = [(len(p), int(made.requests.output_lens[i])) for i, p in enumerate(prompts(made))]
    assert {prompt for prompt, _ in lens} <= set(range(60, 128))
    assert {answer for _, answer in lens} <= set(range(87, 1453))
    assert abs(np.mean([prompt for prompt, _ in lens]) - 67.5) < 3
    assert offsets_ms(planned(SERVEGEN)) == offsets_ms(made)
    assert offsets_ms(planned(SERVEGEN, seed=8)) != offsets_ms(made)


def test_servegens_requests_are_the_same_in_any_window() -> None:
    whole, part = planned(SERVEGEN), planned(SERVEGEN, trace_window="40900:40950")
    assert 0 < len(part) < len(whole)
    lens = whole.requests.input_lens.tolist()
    own = part.requests.input_lens.tolist()
    assert any(lens[i : i + len(own)] == own for i in range(len(lens)))


def test_hashes_of_two_weka_sessions_are_each_ones_own(tmp_path: Path) -> None:
    made = planned(jsonl(tmp_path, [WEKA, WEKA]), trace_replay="recorded")
    assert "the 2 sessions of the trace all begin at once, as in its file" in made.notes
    firsts = [prompt for prompt in prompts(made) if len(prompt) == 128]
    assert firsts[0] != firsts[1]
    shared = planned(jsonl(tmp_path, [{**WEKA, "hash_id_scope": "global"}] * 2))  # closed: the same prompts
    firsts = [prompt for prompt in prompts(shared) if len(prompt) == 128]
    assert firsts[0] == firsts[1]
    assert shared.facts.skipped == {"no token in the prompt or in the answer": 2}


def test_a_weka_session_is_never_divided_between_shards(tmp_path: Path) -> None:
    made = planned(jsonl(tmp_path, [WEKA] * 3), trace_replay="recorded")
    sessions = require(made.sessions)
    assert len(sessions) == len(made)
    shards = [
        set(sessions[Share(number, 2).list_indices(len(made), sessions)].tolist()) for number in range(2)
    ]
    assert shards == [{1, 3}, {2}]
    assert timed(tmp_path, rows(0, 1)).sessions is None


def test_the_seed_of_blocks_is_the_documented_one(tmp_path: Path) -> None:
    name = b'["7","p",0,"measure","blocks"]'
    seed = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little") % 2**64
    made = timed(tmp_path, TIMED)  # type: ignore[arg-type]
    allowed = 4000  # ids of SUBJECT
    assert prompts(made)[0][:32] == make_block_places(np.array([1, 2]), seed, 16, allowed).tolist()


TEXT_ONLY = next(engine for engine in ENGINES if not engine.takes_ids)
EXACT = WordCounts(tuple(f"w{i}" for i in range(64)), overhead=5, how="the server counts so")
HALF = WordCounts(tuple(f"w{i}" for i in range(64)), overhead=5, per_word=2.0, how="two a word")


def made(
    directory: Path, counts: WordCounts | None = EXACT, engine: Engine = UNKNOWN, seed: int = 1, **keys: Any
) -> Plan:
    table = {
        "name": "p",
        "trace": str(jsonl(directory, TIMED)),
        "trace_format": "timed",
        "backend": "openai-chat",
        **keys,
    }
    return plan.make(profile.build(table), ModelTarget(engine, "m", word_counts=counts), Seed(seed))


def texts(of: Plan) -> list[list[str]]:
    return [of.requests.request(i, of.dialect, "m")["messages"][0]["content"].split() for i in range(len(of))]


def test_prompts_have_the_words_that_the_server_counts_as_their_tokens(tmp_path: Path) -> None:
    exact, half = made(tmp_path), made(tmp_path, HALF)
    assert [len(words) for words in texts(exact)] == [40 - 5, 33 - 5]
    assert [len(words) for words in texts(half)] == [round(35 / 2), 14]
    assert exact.requests.input_lens.tolist() == half.requests.input_lens.tolist() == [40, 33]
    assert "prompts of words: the server counts so" in exact.notes
    assert exact.facts.text == "common words"


def test_shared_hashes_are_shared_words(tmp_path: Path) -> None:
    first, second = texts(made(tmp_path, WordCounts(EXACT.words)))
    assert (len(first), len(second)) == (40, 33)
    assert first[:33] == second[:33]  # "the", and two blocks of 16
    other_first, _ = texts(made(tmp_path, WordCounts(EXACT.words), seed=2))
    assert other_first[:17] != first[:17]
    assert first[0] == other_first[0] == "the"


def test_a_prompt_is_never_shorter_than_the_servers_template(tmp_path: Path) -> None:
    long = WordCounts(EXACT.words, overhead=36.0)
    of = made(tmp_path, long)
    assert of.requests.input_lens.tolist() == [40, 37]
    assert [len(words) for words in texts(of)] == [4, 1]


@loop_over(
    ("engine", "keys", "counts", "asked"),
    [
        (UNKNOWN, {}, None, True),
        (UNKNOWN, {}, EXACT, False),
        (TEXT_ONLY, {"backend": "openai"}, None, True),
        (UNKNOWN, {"backend": "openai"}, None, False),
        (UNKNOWN, {"backend": "openai", "prompt_format": "words"}, None, True),
    ],
)
def test_the_server_is_asked_where_words_are_sent(
    tmp_path: Path, engine: Engine, keys: dict[str, Any], counts: WordCounts | None, asked: bool
) -> None:
    of = made(tmp_path, counts, engine, **keys)
    subject = ModelTarget(engine, "m", word_counts=counts)
    assert plan.is_counted_by_server(of.profile, subject) == asked
    assert of.requests.format == ("words" if asked or counts else "ids")


@pytest.mark.parametrize("counts", [HALF, WordCounts(EXACT.words[1:], overhead=5)])
def test_the_digest_has_the_words_and_how_they_are_counted(tmp_path: Path, counts: WordCounts) -> None:
    assert made(tmp_path).digest() == made(tmp_path).digest()
    assert made(tmp_path).digest() != made(tmp_path, counts).digest()


def test_agents_of_a_published_session_are_a_tree() -> None:
    made = planned(WEKA_AGENTS)
    turns, waits = require(made.turns), waits_of(made)
    assert offsets_ms(made) == [0, 0]
    assert turns.begins.tolist() == [0, 15, 21]
    assert list_waits(made)[:15] == [
        [], [0], [0], [1], [2], [3], [4, 5], [6], [7], [8], [9], [10], [11], [12], [13],
    ]  # fmt: skip
    assert list_waits(made)[15:] == [[], [], [15, 16], [17], [18], [19]]
    assert waits.lanes.tolist() == [0, 1, 2, 1, 2, 1, 0, 0, 3, 4, 4, 3, 0, 5, 5, 0, 1, 0, 0, 2, 0]
    assert waits.depths.tolist() == [0, *[1] * 5, 0, 0, 1, 2, 2, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0]
    assert set(waits.role_names) == {"main", "explore", "plan", "general-purpose"}
    assert (turns.delays_ns[:4] / 1e9).tolist() == [0, 0.39, 0.39, 1.0]
    assert made.facts.schedule is None
    few = planned(WEKA_AGENTS, num_sessions=3, no_oversample=True)
    assert few.notes == ("the trace has 2 of the 3 sessions that were asked for",)


def test_prompts_are_those_of_the_recorded_replay() -> None:
    closed, recorded = planned(WEKA_AGENTS), planned(WEKA_AGENTS, trace_replay="recorded")
    assert sorted(prompts(closed)) == sorted(prompts(recorded))
    assert recorded.turns is None
    assert closed.facts.reuse == recorded.facts.reuse


def test_what_waited_for_a_left_out_row_waits_for_what_that_did() -> None:
    waits = make_waits([[], [0], [1], [2], [1, 3]], [0] * 5, [0] * 5, [0] * 5, ("main",))
    kept = keep_rows(waits, np.array([0, 3, 4]))
    assert [kept.list_before(i) for i in range(3)] == [[], [0], [0, 1]]


def test_a_preview_shows_agents_and_the_time_of_tools(tmp_path: Path) -> None:
    shown = PlanPreview(planned(WEKA_AGENTS))
    text = str(dict(shown.list_parts()))
    assert "main 9, explore 8, plan 2, general-purpose 2 requests; 6 lines a session" in text
    assert shown.json()["agents"]["depths"] == {"0": 9, "1": 10, "2": 2}
    assert shown.json()["agents"]["tools_s"] is None
    chain = PlanPreview(planned(TRACELAB))
    assert "76.0 s of the delays" in dict(chain.list_parts())["tools"]
    assert PlanPreview(planned(WEKA_AGENTS, trace_replay="recorded")).json()["agents"] is None


@loop_over("path", [WEKA_AGENTS, TRACELAB])
def test_sessions_are_repeated_with_prompts_of_their_own(path: Path) -> None:
    once, more = planned(path), planned(path, num_sessions=5)
    count = len(once)
    counts = require(once.turns).counts.tolist()
    assert require(more.turns).counts.tolist() == [*counts, *counts, counts[0]]
    waits = list_waits(more)
    assert waits[count : 2 * count] == [[i + count for i in before] for before in waits[:count]]
    found = prompts(more)
    assert found[:count] == prompts(once)
    assert [len(prompt) for prompt in found[count : 2 * count]] == [len(prompt) for prompt in found[:count]]
    last = len(found[0]) - 1
    assert len({tuple(found[i][last - 40 : last]) for i in (0, count, 2 * count)}) == 3
    assert any("are repeated, each time with prompts of their own" in note for note in more.notes)
    assert planned(path, num_prompts=count + 1).turns.counts.tolist() == [*counts, 1]  # type: ignore[union-attr]
    assert (
        require(once.facts.reuse) - 0.01 < require(more.facts.reuse) < require(once.facts.reuse) + 0.1
    )  # what all begin with
