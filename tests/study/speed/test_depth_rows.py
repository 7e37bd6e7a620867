"""A row at a depth: what the speed is of, and when there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import made_runs
from loadgen.base.structs import replace
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.server.server_counters import ServerWindow
from loadgen.study.speed import ladder_rows
from loadgen.study.speed.ladder_rows import DepthRow, DepthTest, make_depth_row

MS = 1_000_000
PP, TG = DepthTest("pp", 2048, 4096), DepthTest("tg", 128, 4096)


def answer(index: int, test: DepthTest, cached: int, ttft_ms: int = 500, **more: Any) -> Record:
    """One whose first token comes so late, each further one 10 ms later; it found so much cached."""
    arrival_ns = (1000 + ttft_ms + 10 * np.arange(test.output_len, dtype=np.int64)) * MS
    fields: dict[str, Any] = {
        "input_tokens": test.depth + test.input_len,
        "output_tokens": test.output_len,
        "cached_tokens": cached,
        "usage": True,
        **more,
    }
    return Record(
        index=index,
        slot=0,
        intended_ns=1000 * MS,
        sent_ns=1000 * MS,
        end_ns=int(arrival_ns[-1]),
        arrival_ns=arrival_ns,
        tokens=np.ones(test.output_len, np.int64),
        **fields,
    )


def measured(test: DepthTest, *cached: int, window: ServerWindow | None = None, **more: Any) -> DepthRow:
    """The row of a request that fills the cache, slowly, and those that found so much in it."""
    records = [
        answer(0, test, 0, 9000, **more),
        *(answer(i, test, c, **more) for i, c in enumerate(cached, 1)),
    ]
    plain = made_runs.run(window=None)
    facts = replace(plain.facts, window=window)
    return make_depth_row(Result(facts, Records.from_records(records)), test)


def test_names_are_those_of_llama_bench() -> None:
    assert (str(PP), str(TG), str(DepthTest("pp", 512, 0))) == ("pp2048 @ d4096", "tg128 @ d4096", "pp512")


def test_a_prompts_speed_is_of_the_tokens_that_were_computed() -> None:
    assert measured(PP, 4096, 4096).tok_s == pytest.approx(2048 / 0.5)
    assert measured(PP, 4080, 4080).tok_s == pytest.approx(2064 / 0.5)  # whole blocks are cached
    assert measured(PP, 4096, 4096).requests == 2


def test_an_answers_speed_is_of_what_came_after_its_first_token() -> None:
    found = measured(TG, 4096, 4096)
    assert found.tok_s == pytest.approx(100)
    assert found.std_tok_s == pytest.approx(0)
    assert measured(TG, 4096).std_tok_s is None


def test_the_servers_own_speed_stands_next_to_it() -> None:
    timings: dict[str, Any] = {"server_prompt_tokens": 2048, "server_prefill_ns": 400 * MS}
    assert measured(PP, 4096, **timings).server_tok_s == pytest.approx(2048 / 0.4)
    timings = {"server_output_tokens": 128, "server_decode_ns": 1270 * MS}
    assert measured(TG, 4096, **timings).server_tok_s == pytest.approx(100)
    assert measured(TG, 4096).server_tok_s is None


@pytest.mark.parametrize(
    ("cached", "why"),
    [
        ((0, 0), "not at that depth: 0 of 4096 tokens were cached"),
        ((4096, 3000), "not at that depth: 3000 of 4096 tokens were cached"),
        ((4096, 6143), "2047 of the 2048 new tokens were cached as well"),
        ((-1, -1), "how much was cached is not reported (vLLM: --enable-prompt-tokens-details)"),
    ],
)
def test_without_the_depth_there_is_no_speed(cached: tuple[int, ...], why: str) -> None:
    found = measured(PP, *cached)
    assert (found.tok_s, found.note.partition(";")[0]) == (None, why)


def test_counters_stand_in_for_answers_that_do_not_report_it() -> None:
    window = ServerWindow(names="vllm", prefix_hits=2 * 4096, prefix_queries=3 * 6144)
    found = measured(PP, -1, -1, window=window)
    assert found.cached_tokens == 4096
    assert found.tok_s == pytest.approx(2048 / 0.5)
    assert measured(PP, -1, -1, window=window.model_copy(update={"settled": False})).tok_s is None


def test_a_row_is_drawn_as_llama_bench_draws_it() -> None:
    rows = [measured(PP, 4096, 4096), measured(TG, 0)]
    text = ladder_rows.draw_depths(rows, "md")
    assert "| Test | t/s |" in text
    assert "pp2048 @ d4096 | 4096.00 ± 0.00 |" in text
    assert ladder_rows.describe_depth(rows[0]).startswith("pp2048 @ d4096: 4096.00 ± 0.00 t/s")
    assert ladder_rows.describe_depth(rows[1]).startswith("tg128 @ d4096: - (not at that depth")
