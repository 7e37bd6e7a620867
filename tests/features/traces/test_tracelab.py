"""TraceLab: rounds of coding agents, whose prompts begin as the round before them did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from builders.loops import loop_over
from builders.required import require
from builders.traces import TRACELAB, offsets_ms, planned, prompts, text
from loadgen.base.parsing import parse_instant_ns

ROWS = [json.loads(line) for line in TRACELAB.read_text().splitlines()]
SHEET = """id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len
0,5,2,0.000000,0,120.500000,10
0,4,2,0.000000,1,0.000000,15
1,6,3,500.000000,1,0.000000,9
1,7,3,500.000000,0,40.000000,2
"""


def shared(one: list[int], other: list[int]) -> int:
    """How many tokens two prompts begin with alike."""
    least = min(len(one), len(other))
    differs = np.flatnonzero(np.array(one[:least]) != np.array(other[:least]))
    return int(differs[0]) if len(differs) else least


def test_a_prompt_begins_as_the_round_before_it() -> None:
    made = planned(TRACELAB)
    found = prompts(made)
    assert [len(prompt) for prompt in found] == [row["input_tokens_total"] for row in ROWS]
    kept = [shared(found[i - 1], found[i]) for i in range(1, 7)]
    assert kept == [row["prefix_tokens"] for row in ROWS[1:7]]
    assert shared(found[9], found[10]) == 3456  # a shorter prefix: compacted, or missed by the cache
    assert shared(found[10], found[11]) == 10_152  # 10,240 are more than the prompt before it had
    assert shared(found[0], found[7]) < 8
    whole = made.requests.input_lens.tolist()
    reused = [0, *(row["prefix_tokens"] for row in ROWS[1:7]), 0, 9324, 9856, 3456, 10_152, 9216, 10_436]
    expected = sum(min(tokens, size - 1) // 16 * 16 for tokens, size in zip(reused, whole, strict=True))
    assert made.facts.reusable_tokens == expected


def test_prompts_of_words_begin_as_those_of_ids_do() -> None:
    made = planned(TRACELAB, backend="openai-chat")
    words = [made.payload(i)["messages"][0]["content"].split() for i in range(3)]
    numbers: dict[str, int] = {}
    found = [[numbers.setdefault(word, len(numbers)) for word in prompt] for prompt in words]
    assert [len(prompt) for prompt in found] == [row["input_tokens_total"] for row in ROWS[:3]]
    assert [shared(found[i - 1], found[i]) for i in (1, 2)] == [29_380, 35_738]


def test_sessions_of_one_model_begin_with_the_same_text(tmp_path: Path) -> None:
    again = [{**row, "session_id": "other"} for row in ROWS[:2]]
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS[:2], *again]))
    found = prompts(planned(path))
    assert shared(found[0], found[2]) == 27_217


def test_the_canonical_sheet_has_waits_for_tools(tmp_path: Path) -> None:
    made = planned(text(tmp_path, SHEET))
    assert require(made.turns).counts.tolist() == [2, 2]
    assert (require(made.turns).delays_ns / 1e6).tolist() == [0, 120.5, 0, 40]
    assert made.requests.input_lens.tolist() == [15, 19, 9, 15]
    found = prompts(made)
    assert [shared(found[0], found[1]), shared(found[2], found[3])] == [15, 9]
    assert shared(found[0], found[2]) == 2
    recorded = planned(text(tmp_path, SHEET), trace_replay="recorded")
    assert offsets_ms(recorded) == [0, 120.5, 500, 540]
    assert any("follow the session's arrival" in note for note in recorded.notes)


@loop_over(
    ("written", "ns"),
    [
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01 01:00:00.000000001+01:00", 1),
        ("1970-01-01T00:00:00", 0),
        ("1970-01-01 00:00:00,0000000129 +0000", 12),
        ("01/Jan/1970:00:00:01 +0000", 1_000_000_000),
        ("2026-06-01T05:40:20.151Z", 1_780_292_420_151_000_000),
    ],
)
def test_instants_are_exact_to_the_nanosecond(written: str, ns: int) -> None:
    assert parse_instant_ns(written) == ns
