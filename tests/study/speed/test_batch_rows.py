"""A batch's figures are llama-benchy's, by the same arrivals; what is not known of a batch is left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from builders import made_runs
from builders.loops import loop_over
from loadgen.base.structs import replace
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.study.importers import result_sources
from loadgen.study.speed.ladder_rows import (
    BatchRow,
    BatchTest,
    make_batch_row,
    make_benchy_report,
    measure_batch,
)

MS = 1_000_000
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
