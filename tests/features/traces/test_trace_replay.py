"""Replay: a trace's own times and lengths, what is left out counted, the same prompts whatever is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from builders.traces import (
    TIMED,
    TRACELAB,
    WEKA_AGENTS,
    jsonl,
    planned,
)
from loadgen.engines.engine import Engine
from loadgen.engines.engines import ENGINES, UNKNOWN
from loadgen.features.data.data_command import PlanPreview
from loadgen.features.traces.trace_replay import keep_rows
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import make_waits
from loadgen.plan.request_sources import ModelTarget, Seed, WordCounts

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
