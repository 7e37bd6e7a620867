from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_data
from builders.loops import loop_over, read_tables
from builders.made_cases import run
from loadgen.base.errors import UsageError
from loadgen.base.parsing import parse_metadata
from loadgen.facts.run_facts import Client, Facts, Server
from loadgen.figures.metrics import compute_metrics
from loadgen.records.record import Record, Records
from loadgen.report.result_file import make_result, name_result_file, write_result
from loadgen.study.importers.clients import vllm_files
from loadgen.study.run_summary import summarise_result
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("result_file")

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "results" / "vllm_bench_serve.json").read_text())


DETAILED = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")

WHEN = datetime(2026, 11, 20, 19, 30, 43).astimezone()


def facts_of(workload: dict[str, Any] | None = None, model: str = "qwen3", **facts: Any) -> Facts:
    """Those of the recorded run, but for what is given."""
    server = Server(url="http://h/v1/completions", engine="vLLM", model=model)
    facts = {"finished": WHEN, "server": server, "tokenizer": "/models/x", "requests": 32, **facts}
    return run([], {"backend": "vllm", "max_concurrency": 8, **(workload or {})}, **facts).facts


def recorded_run() -> Records:
    """The recorded run's own times as Records: what vLLM saw, for our formulas."""

    def record(i: int) -> Record:
        sent_ns = round(RECORDED["start_times"][i] * 1e9)
        steps = np.array([RECORDED["ttfts"][i], *RECORDED["itls"][i]])
        arrival_ns = sent_ns + np.rint(np.cumsum(steps) * 1e9).astype(np.int64)
        return Record(
            index=i,
            slot=0,
            intended_ns=sent_ns - round(RECORDED["queue_times"][i] * 1e9),
            sent_ns=sent_ns,
            end_ns=int(arrival_ns[-1]),
            arrival_ns=arrival_ns,
            tokens=np.ones(len(arrival_ns), np.int64),
            input_tokens=RECORDED["input_lens"][i],
            output_tokens=RECORDED["output_lens"][i],
            text=RECORDED["generated_texts"][i],
        )

    return Records.from_records(record(i) for i in range(32))


def result_of(
    records: Records, workload: dict[str, Any] | None = None, detailed: bool = False, **known: Any
) -> dict[str, Any]:
    facts = facts_of(workload, **known)
    result = make_result(compute_metrics(records, facts.ask()), records, facts, {}, detailed)
    strict: dict[str, Any] = json.loads(json.dumps(result, allow_nan=False))
    assert strict == result
    return strict


def one(**fields: Any) -> Record:
    return Record(index=0, slot=0, intended_ns=1, sent_ns=1, end_ns=5, **fields)


def test_every_key_of_the_recorded_file_is_there_in_its_order() -> None:
    result = result_of(recorded_run(), detailed=True)
    assert list(result) == [*RECORDED, "loadgen"]
    assert [key for key in result if type(result[key]) is not type(RECORDED.get(key, {}))] == []


PRESET = Server(url="http://h/v1/completions", engine="loadgen engine", model="m", simulated="instant")


@pytest.mark.parametrize("metadata", [(), ("simulated=false",)])
def test_a_simulation_is_marked_where_tools_read_the_model(metadata: tuple[str, ...]) -> None:
    result = result_of(recorded_run(), server=PRESET, metadata=metadata)
    assert next(iter(result.items())) == ("simulated", True)
    assert result["model_id"] == "m (simulated)"
    assert set(result) - {"simulated"} == set(result_of(recorded_run()))
    assert result["loadgen"]["server"]["model"] == "m"


def test_without_detail_the_long_lists_are_left_out() -> None:
    assert list(result_of(recorded_run())) == [*(k for k in RECORDED if k not in DETAILED), "loadgen"]


def test_our_formulas_on_the_recorded_times_give_the_recorded_figures() -> None:
    result = result_of(recorded_run(), detailed=True)
    # The clock of theirs runs from before the first task to after the last; buckets are not peaks.
    other = ("duration", "_throughput", "max_output_tokens_per_s", "max_concurrent_requests")
    same = [key for key in RECORDED if not key.endswith(other) and key != "itls"]
    for key in same:
        expected = RECORDED[key]
        number = isinstance(expected, float) or (
            isinstance(expected, list) and key not in ("generated_texts", "errors")
        )
        assert result[key] == (pytest.approx(expected, rel=1e-6, abs=1e-8) if number else expected), key
    assert result["itls"][31] == pytest.approx(RECORDED["itls"][31], abs=2e-9)
    assert result["duration"] == pytest.approx(RECORDED["duration"], rel=0.005)
    assert result["max_concurrent_requests"] == 8
    assert result["max_output_tokens_per_s"] >= result["output_throughput"]


def test_a_request_never_sent_waited_for_nothing() -> None:
    unsent = Record(0, 0, intended_ns=9, sent_ns=0, end_ns=9, failure=Failure(FailureKind.CONNECT))
    assert result_of(Records.from_records([unsent]))["queue_times"] == [0.0]


@loop_over(("facts", "per_request"), TABLES["per_request"])
def test_with_detail_our_part_says_which_requests_succeeded_and_their_ids(
    facts: dict[str, Any], per_request: object
) -> None:
    cut = Record(index=3, slot=0, intended_ns=1, sent_ns=1, end_ns=5, failure=Failure(FailureKind.TRUNCATED))
    ours = result_of(Records.from_records([one(), cut]), **facts)["loadgen"]
    assert ours.get("per_request") == per_request


def test_a_fact_that_is_no_number_is_written_as_a_word_that_reads_back() -> None:
    odd = Client(transport="wire", cpu_s=math.nan, wall_s=math.inf, clock_step_ms=-math.inf)
    ours = result_of(Records.from_records([one()]), client=odd)["loadgen"]
    assert [ours["client"][name] for name in ("cpu_s", "wall_s", "clock_step_ms")] == ["nan", "inf", "-inf"]
    again = Facts.read_stored(ours).client
    assert math.isnan(again.cpu_s)
    assert (again.wall_s, again.clock_step_ms) == (math.inf, -math.inf)


@loop_over(("facts", "name"), TABLES["names"])
def test_the_file_is_named_as_vllm_names_it(facts: dict[str, Any], name: str) -> None:
    if "rate_per_s" in facts:
        facts = {"data": made_data.trace(facts["rate_per_s"])}
    assert name_result_file(facts_of(**facts)) == name


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose another --result-dir"):
        write_result(tmp_path, {})


def test_metadata_pairs_are_read_or_refused() -> None:
    assert parse_metadata(["a = b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(UsageError, match="--metadata gpu: write KEY=VALUE"):
        parse_metadata(["gpu"])


def test_what_rests_on_prompt_tokens_is_null_where_they_are_not_known() -> None:
    unknown = replace_inputs(recorded_run())
    result = result_of(unknown)
    assert [result[key] for key in ("total_input_tokens", "total_token_throughput")] == [None, None]
    assert (result["total_output_tokens"], result["completed"]) == (RECORDED["total_output_tokens"], 32)
    stored = json.loads(json.dumps(result))
    stored["loadgen"]["verdict"] = {"level": "VALID", "doubts": []}
    old = {**stored, "total_input_tokens": 0, "total_token_throughput": 1.0}  # as files were written once
    for document in (stored, old):
        reported = summarise_result(facts_of(), document, "f", None)
        assert (reported.figure("total_input_tokens"), reported.figure("total_token_throughput")) == (
            None,
            None,
        )
        assert reported.load.input_len is None
    (foreign,) = vllm_files.VLLM.read_runs({key: stored[key] for key in stored if key != "loadgen"}, "f")
    assert "total_input_tokens" not in foreign.figures


def replace_inputs(records: Records) -> Records:
    """The records of a server that reports no usage."""
    return replace(records, input_tokens=np.full(len(records), -1))
