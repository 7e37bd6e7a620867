"""Replay: a trace's own times and lengths, what is left out counted, the same prompts whatever is sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from builders.traces import TIMED, TRACELAB, WEKA_AGENTS, jsonl, planned
from loadgen.engines.engines import UNKNOWN
from loadgen.features.data.data_command import PlanPreview
from loadgen.features.traces.trace_replay import keep_rows
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import make_waits
from loadgen.plan.request_sources import ModelTarget, Seed, WordCounts

EXACT = WordCounts(tuple(f"w{i}" for i in range(64)), overhead=5, how="the server counts so")
HALF = WordCounts(tuple(f"w{i}" for i in range(64)), overhead=5, per_word=2.0, how="two a word")


def made(directory: Path, counts: WordCounts = EXACT, seed: int = 1) -> Plan:
    keys = {"trace": str(jsonl(directory, TIMED)), "trace_format": "timed", "backend": "openai-chat"}
    return plan.make(profile.build(keys), ModelTarget(UNKNOWN, "m", word_counts=counts), Seed(seed))


def texts(of: Plan) -> list[list[str]]:
    return [of.requests.request(i, of.dialect, "m")["messages"][0]["content"].split() for i in range(len(of))]


def test_prompts_have_the_words_that_the_server_counts_as_their_tokens(tmp_path: Path) -> None:
    exact, half = made(tmp_path), made(tmp_path, HALF)
    assert [len(words) for words in texts(exact)] == [40 - 5, 33 - 5]
    assert [len(words) for words in texts(half)] == [round(35 / 2), 14]
    assert exact.requests.input_lens.tolist() == half.requests.input_lens.tolist() == [40, 33]
    assert "prompts of words: the server counts so" in exact.notes
    assert exact.facts.text == "common words"
    others = (HALF, WordCounts(EXACT.words[1:], overhead=5), EXACT)
    assert [made(tmp_path, counts).digest() == exact.digest() for counts in others] == [False, False, True]


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
