"""A real vLLM that traces: its spans are children of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines import running
from engines.clients import loadgen
from fakes.otlp_receiver import OtlpReceiver, read_attributes
from fakes.surroundings import wait

pytestmark = pytest.mark.engine

_REQUESTS = 12


def test_vllms_spans_join_ours(engines_python: Path, model: Path, tmp_path: Path) -> None:
    with OtlpReceiver() as collector:
        traces = ["--otlp-traces-endpoint", f"{collector.url}/v1/traces"]
        engine = running.vllm(engines_python, model, tmp_path / "log", traces)
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
