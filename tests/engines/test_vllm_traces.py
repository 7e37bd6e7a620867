"""A real vLLM that traces: its spans are children of ours, and show in which order agents' requests came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines import running
from engines.clients import loadgen
from fakes.otlp_receiver import OtlpReceiver, read_attributes
from fakes.surroundings import wait
from loadgen.report.run_directory import load

pytestmark = pytest.mark.engine

_REQUESTS = 12
_AGENTS, _AGENTS_REQUESTS = Path(__file__).resolve().parents[1] / "data" / "traces" / "weka_agents.jsonl", 21


def test_vllms_spans_join_ours(engines_python: Path, model: Path, tmp_path: Path) -> None:
    with OtlpReceiver() as collector:
        traces = ["--otlp-traces-endpoint", f"{collector.url}/v1/traces"]
        engine = running.vllm(engines_python, model, traces)
        engine.env = {**engine.env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
        words = f"""--base-url {engine.base_url} --model qwen3 --tokenizer {model} --num-warmups 2
            --random-input-len 32 --random-output-len 8 --num-prompts {_REQUESTS} --max-concurrency 4
            --otel {collector.url}"""
        with engine:
            assert loadgen(words.split(), tmp_path).code == 0

            def find_theirs() -> list[object]:
                return [span for span in collector.spans if span.name == "llm_request"]

            wait(lambda: len(find_theirs()) >= _REQUESTS + 2, "spans of vLLM")
    ours = {span.span_id: span for span in collector.spans if not span.parent_span_id and span.kind == 3}
    theirs = {span.parent_span_id: span for span in collector.spans if span.name == "llm_request"}
    assert len(ours) == _REQUESTS
    assert ours.keys() <= theirs.keys()
    for place, span in ours.items():
        child = theirs[place]
        assert child.trace_id == span.trace_id
        assert span.start_time_unix_nano < child.start_time_unix_nano
        tokens = "gen_ai.usage.completion_tokens"
        assert read_attributes(child)[tokens] == read_attributes(span)["gen_ai.usage.output_tokens"] == 8


def test_agents_wait_at_vllm_for_what_they_waited_for(
    engines_python: Path, model: Path, tmp_path: Path
) -> None:
    with OtlpReceiver() as collector:
        more = (
            f"--otlp-traces-endpoint {collector.url}/v1/traces --block-size 32 --enable-prompt-tokens-details"
        )
        engine = running.vllm(engines_python, model, more.split())
        engine.env = {**engine.env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
        words = f"""--base-url {engine.base_url} --model qwen3 --tokenizer {model} --num-warmups 0
            --max-concurrency 2 --turn-delays 0.01 --trace-max-output-len 32 --trace-too-long clip --trace"""
        with engine:
            assert loadgen([*words.split(), str(_AGENTS)], tmp_path).code == 0

            def find_theirs() -> dict[str, Any]:
                spans = [span for span in collector.spans if span.name == "llm_request"]
                return {read_attributes(span)["gen_ai.request.id"]: span for span in spans}

            wait(lambda: len(find_theirs()) >= _AGENTS_REQUESTS, "spans of vLLM")
            theirs = find_theirs()
    (run,) = (tmp_path / "runs").iterdir()
    result = load(run)
    facts, records = result.facts, result.records
    waits = facts.make_waits()
    assert waits is not None
    assert (len(records), len(records.failed)) == (_AGENTS_REQUESTS, 0)
    ids = [f"{facts.request_id_prefix}{index}-" for index in range(_AGENTS_REQUESTS)]
    found = [next(span for name, span in theirs.items() if each in f"{name}-") for each in ids]
    spans_ns = [(span.start_time_unix_nano, span.end_time_unix_nano) for span in found]
    for index, (begin_ns, _) in enumerate(spans_ns):
        assert all(spans_ns[each][1] <= begin_ns for each in waits.list_before(index))
    assert spans_ns[2][0] < spans_ns[1][1]  # two sub-agents of the first session
    window = facts.own_window
    assert window is not None
    assert window.prefix_hits == records.cached_tokens.sum() > 0
