"""Rungs and batches: the speed worked out by hand, or llama-benchy's, and what a reader must know of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from builders import made_runs
from builders.loops import loop_over, read_tables
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Client, Facts, Launched, Server
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.server_counters import ServerWindow
from loadgen.settings.validation import ServerSettings
from loadgen.study.importers import result_sources
from loadgen.study.speed import ladder_rows
from loadgen.study.speed.ladder_rows import (
    BatchRow,
    BatchTest,
    DepthRow,
    DepthTest,
    make_batch_row,
    make_benchy_report,
    make_depth_row,
    measure_batch,
)
from loadgen.study.speed.speed_rows import (
    OUTPUT,
    TOTAL,
    EngineSetting,
    SpeedRow,
)
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("ladder_rows")
MS = 1_000_000
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAILED = Failure(FailureKind.HTTP_STATUS, "400: too long")


@dataclass(frozen=True)
class Req:
    """A request that waited 50 ms before it was sent, and took so long from there to its end."""

    took_ms: int
    input_tokens: int = 10
    output_tokens: int = 5
    failure: Failure | None = None

    def record(self, index: int, sent_ns: int) -> Record:
        arrival_ns = sent_ns + np.linspace(20, self.took_ms, self.output_tokens).astype(np.int64) * MS
        return Record(
            index, 0, sent_ns - 50 * MS, sent_ns, sent_ns + self.took_ms * MS, arrival_ns=arrival_ns,
            tokens=np.ones(self.output_tokens, np.int64), first_byte_ns=int(arrival_ns[0]),
            planned_input=10, planned_output=5, input_tokens=self.input_tokens,
            output_tokens=self.output_tokens, usage=True, reads=self.output_tokens + 1, failure=self.failure,
        )  # fmt: skip


THREE = (Req(100), Req(200), Req(300))


def made(requests: Sequence[Req] = THREE, **changes: Any) -> Result:
    keys = {"input_len": 10, "output_len": 5, "num_prompts": 3, "max_concurrency": 1}
    client = Client(
        transport="wire", cpu_s=0.1, wall_s=3.0, clock_step_ms=0.0, late_bodies=0, backlog_bytes=0
    )
    facts: dict[str, Any] = {
        "started": WHEN, "finished": WHEN, "command": ["loadgen", "ladder"],
        "profile": profile.build({"name": "p", **keys}), "seed": 7, "seed_chosen": True,
        "plan_digest": "abc", "prompt_format": "ids", "server": server(), "client": client,
        "environment": {"gpu": "A GPU", "cpu": "A processor"}, "warmups": 1, "requests": 3,
    }  # fmt: skip
    ends_ns = accumulate((request.took_ms * MS for request in requests), initial=10**9)  # one after another
    records = [
        request.record(index, at) for index, (request, at) in enumerate(zip(requests, ends_ns, strict=False))
    ]
    return Result(Facts(**(facts | changes)), Records.from_records(records))


def server(engine: str = "vLLM", model: str = "org/Qwen3-8B", **changes: Any) -> Server:
    return Server(url="http://h/v1/completions", engine=engine, model=model, **changes)


def launched(*command: str, **changes: Any) -> Launched:
    known: dict[str, Any] = {"how": "vllm", "environment": {}, "settings": ServerSettings(), "ready_s": 1.0}
    return Launched(command=list(command), owned="o", **(known | changes))


def test_a_rung_is_a_row() -> None:
    assert ladder_rows.make_speed_row(made(), TOTAL) == SpeedRow(
        "Qwen3-8B", "vLLM", "A GPU", 10, "", 1, Decimal("75.00"), formula=TOTAL, output_length=5,
        ttft_ms=Decimal("20.00"), decode_tok_s=Decimal("22.22"),
    )  # fmt: skip


@loop_over(("requests", "total", "output", "note"), TABLES["rungs"])
def test_a_rungs_speed_and_note_are_those_worked_out_by_hand(
    requests: list[list[int]], total: str, output: str, note: str
) -> None:
    """Of each request its ms, its tokens in and out, and whether it failed: what failed has no length."""
    run = made(
        [Req(ms, asked, answered, FAILED if failed else None) for ms, asked, answered, failed in requests]
    )
    row = ladder_rows.make_speed_row(run, TOTAL)
    assert (str(row.speed_tok_s), row.note) == (total, note)
    assert str(ladder_rows.make_speed_row(run, OUTPUT).speed_tok_s) == output
    assert (row.gpu_num is None) == (row.speed_tok_s is None)


@loop_over(("facts", "expected"), TABLES["models"])
def test_a_model_is_named_by_its_files_and_quantized_as_it_says(
    facts: dict[str, Any], expected: list[str]
) -> None:
    told: dict[str, Any] = {"server": server(**facts["server"])} if "server" in facts else {}
    if "checkpoint" in facts:
        told["checkpoint"] = Checkpoint(path="/m", config_digest="0", quantization=facts["checkpoint"])
    assert list(ladder_rows.name_model(made(**told).facts)[:2]) == expected


SERVE = ["vllm", "serve", "org/m", "--host", "127.0.0.1", "--port", "8000", "--served-model-name", "m"]
EAGER = {"enforce_eager": "False"}


@loop_over(("command", "words"), TABLES["settings"])
def test_a_setting_is_what_the_launcher_was_given(command: list[str], words: dict[str, str]) -> None:
    found = ladder_rows.find_setting(made(launched=launched(*SERVE, *command)).facts)
    assert found == EngineSetting.make(**words)


PP, TG = DepthTest("pp", 2048, 4096), DepthTest("tg", 128, 4096)


def answer(index: int, test: DepthTest, cached: int, ttft_ms: int = 500, **more: Any) -> Record:
    """One whose first token comes so late, each further one 10 ms later; it found so much cached."""
    arrival_ns = (1000 + ttft_ms + 10 * np.arange(test.output_len, dtype=np.int64)) * MS
    return Record(
        index, 0, 1000 * MS, 1000 * MS, int(arrival_ns[-1]), arrival_ns=arrival_ns, usage=True,
        tokens=np.ones(test.output_len, np.int64), input_tokens=test.depth + test.input_len,
        output_tokens=test.output_len, cached_tokens=cached, **more,
    )  # fmt: skip


def measured(test: DepthTest, *cached: int, window: ServerWindow | None = None, **more: Any) -> DepthRow:
    """The row of a request that fills the cache, slowly, and those that found so much in it."""
    records = [answer(0, test, 0, 9000, **more)]
    records += [answer(index, test, count, **more) for index, count in enumerate(cached, 1)]
    facts = replace(made_runs.run(window=None).facts, window=window)
    return make_depth_row(Result(facts, Records.from_records(records)), test)


def test_speeds_are_of_new_tokens_next_to_the_servers_own() -> None:
    assert measured(PP, 4096, 4096).tok_s == pytest.approx(2048 / 0.5)
    assert measured(PP, 4080, 4080).tok_s == pytest.approx(2064 / 0.5)  # whole blocks are cached
    assert measured(PP, 4096, 4096).requests == 2
    found = measured(TG, 4096, 4096)
    assert [found.tok_s, found.std_tok_s] == pytest.approx([100, 0])
    assert (measured(TG, 4096).std_tok_s, measured(TG, 4096).server_tok_s) == (None, None)
    timings: dict[str, Any] = {"server_prompt_tokens": 2048, "server_prefill_ns": 400 * MS}
    assert measured(PP, 4096, **timings).server_tok_s == pytest.approx(2048 / 0.4)
    timings = {"server_output_tokens": 128, "server_decode_ns": 1270 * MS}
    assert measured(TG, 4096, **timings).server_tok_s == pytest.approx(100)


@pytest.mark.parametrize(("cached", "why"), TABLES["depths"])
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


BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_SCHEMA = Path(__file__).parents[2] / "data/schemas/llama_benchy_report_0.4.0.json"
PAIR = BatchTest(100, 4, 400, 2)


def request(index: int, sent_ms: int, arrivals_ms: list[int], tokens: list[int], cached: int = 400) -> Record:
    """One with a prompt of 500 tokens, whose messages come at these times."""
    arrival_ns = np.array(arrivals_ms, np.int64) * MS
    return Record(
        index=index, slot=index, intended_ns=sent_ms * MS, sent_ns=sent_ms * MS,
        end_ns=int(arrival_ns[-1]) + 5, arrival_ns=arrival_ns, tokens=np.array(tokens, np.int64),
        input_tokens=500, usage=True, output_tokens=sum(tokens), cached_tokens=cached,
    )  # fmt: skip


def batch(*records: Record, backend: str = "openai") -> Result:
    """The run of a batch, not scraped."""
    plain = made_runs.run(window=None)
    profile = plain.facts.profile.model_copy(update={"backend": backend, "max_concurrency": len(records)})
    return Result(replace(plain.facts, profile=profile), Records.from_records(list(records)))


SHORT = batch(
    request(0, 1000, [1200, 1250, 1300, 1400], [1, 1, 1, 1]), request(1, 1010, [1300, 1350, 1500], [1, 2, 1])
)
OF_LONG = {
    "tg_tok_s": 4 / 1.5, "peak_tok_s": 4.0, "tg_each": (4 / 1.5,), "peak_each": (4.0,),
    "ttft_ms": (200.0,), "ttfr_ms": (200.0,),
}  # fmt: skip
LONG = batch(request(0, 1000, [1200, 1900, 2100, 2600, 2700], [1, 1, 1, 1, 1]))


@loop_over(
    ("run", "test", "expected"),
    [
        (  # as llama-benchy 0.4.0 computes them (BenchmarkResults.add) of these arrivals, its speeds and ms
            SHORT,
            PAIR,
            {
                "pp_tok_s": 200 / 0.3, "tg_tok_s": 6 / 0.3, "peak_tok_s": 8 / 0.3,
                "pp_each": (100 / 0.2, 100 / 0.29), "tg_each": (3 / 0.2, 3 / 0.2),
                "peak_each": (4 / 0.2, 4 / 0.2),
                "ttft_ms": (200.0, 290.0), "ttfr_ms": (200.0, 290.0),
            },
        ),
        (LONG, BatchTest(100, 5, 400, 1), {**OF_LONG, "pp_tok_s": 500.0, "pp_each": (500.0,)}),
        (  # of a context every token of the prompt is new
            LONG,
            BatchTest(100, 5, 499, 1, is_context=True),
            {**OF_LONG, "pp_tok_s": 2500.0, "pp_each": (2500.0,)},
        ),
    ],
)  # fmt: skip
def test_a_batch_has_the_figures_of_llama_benchy(
    run: Result, test: BatchTest, expected: dict[str, Any]
) -> None:
    found = measure_batch(run, test)
    for key, value in expected.items():
        assert getattr(found, key) == pytest.approx(value), key


def make_rows() -> list[BatchRow]:
    """A row of two batches, one of a request at a time, one without a batch."""
    pair = make_batch_row(SHORT, PAIR, "a").merge(make_batch_row(SHORT, PAIR, "b"))
    alone = make_batch_row(LONG, BatchTest(100, 5, 400, 1), "c")
    return [pair, alone, replace(alone, test=replace(alone.test, depth=8), batches=(), note="needs more")]


def test_the_report_is_one_by_the_published_schema_and_read_back(tmp_path: Path) -> None:
    report = make_benchy_report(make_rows(), BEGAN, "loadgen 1")
    jsonschema.Draft202012Validator(json.loads(_SCHEMA.read_text())).validate(report)
    assert (report["timestamp"], report["max_concurrency"]) == ("2026-01-02 03:04:05Z", 2)
    sizes = [(each["context_size"], each["concurrency"]) for each in report["benchmarks"]]
    assert sizes == [(400, 2), (400, 1)]
    pair, alone = report["benchmarks"]
    assert pair["pp_throughput"] == {"mean": 200 / 0.3, "std": 0.0, "values": [200 / 0.3] * 2}
    assert pair["e2e_ttft"] == {"mean": 245.0, "std": 45.0, "values": [200.0, 290.0] * 2}
    assert alone["pp_throughput"] == alone["pp_req_throughput"]
    (tmp_path / "x.json").write_text(json.dumps(report))
    read = result_sources.read_sources([str(tmp_path / "x.json")]).reported
    assert [(run.load.name, run.load.max_concurrency) for run in read] == [
        ("pp100 @ d400 (c2)", 2), ("tg4 @ d400 (c2)", 2), ("pp100 @ d400", 1), ("tg5 @ d400", 1),
    ]  # fmt: skip
