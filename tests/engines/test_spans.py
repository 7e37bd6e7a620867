"""vLLM's own times of each request, by its spans and by its answers, next to its own histograms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.clients import load_run, measured
from engines.running import VLLM_ON_CPU, Engine
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.report.run_directory import Result
from loadgen_servers.process.running import free_port

pytestmark = pytest.mark.engine

_NEAR = 0.02
# A queue for a slot, and prompts whose prefill others' decoding waits for.
_LOAD = ["--random-input-len", "256", "--random-output-len", "48", "--num-prompts", "24"]
_LOAD += ["--max-concurrency", "8", "--num-warmups", "2", "--seed", "44", "--quiet"]
_ON_CPU = "--dtype bfloat16 --max-model-len 1024 --enforce-eager --max-num-seqs 4 --no-enable-prefix-caching"


def _check_sums(run: Result) -> None:
    """The columns' sums are the histograms' sums, and so is what is made of both."""
    window, records = run.facts.window, run.records
    assert window is not None
    for histogram, column in (
        (window.queue, records.server_queue_ns),
        (window.prefill, records.server_prefill_ns),
        (window.decode, records.server_decode_ns),
        (window.inference, records.server_prefill_ns + records.server_decode_ns),
    ):
        assert histogram is not None
        assert (histogram.count, int((column >= 0).sum())) == (24, 24)
        assert column.sum() / 1e6 == pytest.approx(histogram.count * histogram.mean_ms, rel=_NEAR)
    assert records.server_queue_ns.sum() > 0.1 * records.server_prefill_ns.sum()  # some waited for a slot


def test_spans_give_each_request_the_servers_times(engines_python: Path, model: Path, tmp_path: Path) -> None:
    launch = ["--launch", "vllm", "--server-python", str(engines_python), "--model", str(model)]
    receive = ["--server-args", _ON_CPU, "--receive-spans", str(free_port())]
    measured([*launch, *receive, *_LOAD], tmp_path, more=VLLM_ON_CPU)
    run = load_run(tmp_path)
    assert any("spans: 24 of 24 requests have the server's own" in line for line in run.facts.telemetry)
    _check_sums(run)
    records, each = run.records, PerRequest.from_records(run.records, MetricOptions())
    parts_ns = records.server_queue_ns + records.server_prefill_ns
    # Each of a request's own figures encloses the next, but for the clock that began it.
    assert (records.server_first_token_ns >= parts_ns - 1_000_000).all()
    assert (each.ttft_ns >= records.server_first_token_ns - 1_000_000).all()
    decode_ns = each.last_ns - each.first_ns
    assert np.median(np.abs(decode_ns / records.server_decode_ns - 1)) < _NEAR
    assert np.corrcoef(each.ttft_ns, records.server_first_token_ns)[0, 1] > 0.99
    window = run.facts.window
    assert window is not None
    assert window.ttft is not None
    assert records.server_first_token_ns.mean() / 1e6 == pytest.approx(window.ttft.mean_ms, rel=_NEAR)


def test_answers_give_the_same_without_spans(caching_vllm: Engine, model: Path, tmp_path: Path) -> None:
    where = ["--base-url", caching_vllm.base_url, "--model", "qwen3", "--tokenizer", str(model)]
    measured([*where, *_LOAD, "--reset-cache"], tmp_path)
    run = load_run(tmp_path)
    _check_sums(run)
    assert (run.records.server_first_token_ns == -1).all()
    assert run.facts.telemetry == ()


def test_a_vllm_that_exports_by_grpc_is_explained(engines_python: Path, model: Path, tmp_path: Path) -> None:
    port = free_port()
    launch = ["--launch", "vllm", "--server-python", str(engines_python), "--model", str(model)]
    by_grpc = [
        "--server-args", _ON_CPU, "--server-env", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc",
        "--receive-spans", str(port),
    ]  # fmt: skip
    finished = measured([*launch, *by_grpc, *_LOAD], tmp_path, more=VLLM_ON_CPU)
    run = load_run(tmp_path)
    assert "refused: gRPC" in " ".join(run.facts.telemetry)
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in finished.err
    assert (run.records.server_first_token_ns == -1).all()
