"""TensorRT-LLM engine: how `trtllm-serve` is recognised, and the names of its metrics."""

from __future__ import annotations

from loadgen.engines.engine import Engine, EngineMetrics, MetricSeries, name_histogram

_AT_FIRST = ("trtllm_", "")  # up to 1.2 `trtllm-serve` had five names, without a prefix but with Dynamo
_METRICS = EngineMetrics(
    "trtllm",
    {
        "trtllm_prompt_tokens_total": MetricSeries("prompt_tokens"),
        "trtllm_generation_tokens_total": MetricSeries("generation_tokens"),
        **{
            f"{prefix}request_success_total": MetricSeries("requests", label="finished_reason")
            for prefix in _AT_FIRST
        },
        "trtllm_request_error_total": MetricSeries("requests", "error"),
        "trtllm_num_aborted_requests_total": MetricSeries("requests", "abort"),  # with Dynamo
        "trtllm_prompt_cached_tokens_total": MetricSeries("prefix_hits"),
        "trtllm_spec_decode_num_draft_tokens_total": MetricSeries("draft_tokens"),
        "trtllm_spec_decode_num_accepted_tokens_total": MetricSeries("accepted_tokens"),
        "trtllm_spec_decode_accepted_tokens_total": MetricSeries(
            "accepted_by_position", label="token_position"
        ),
        "trtllm_num_requests_running": MetricSeries("running"),
        "trtllm_num_requests_waiting": MetricSeries("waiting"),
        "trtllm_kv_cache_utilization": MetricSeries("kv_cache_usage"),
        "trtllm_spec_decode_acceptance_length": MetricSeries("accept_length"),
        # `time_per_output_token_seconds` is a mean of each request: no inter-token latency.
        **{
            name: meaning
            for prefix in _AT_FIRST
            for name, meaning in {
                **name_histogram(f"{prefix}time_to_first_token_seconds", "ttft"),
                **name_histogram(f"{prefix}e2e_request_latency_seconds", "e2e"),
                **name_histogram(f"{prefix}request_queue_time_seconds", "queue"),
            }.items()
        },
        **name_histogram("trtllm_request_prefill_time_seconds", "prefill"),
        **name_histogram("trtllm_request_decode_time_seconds", "decode"),
        **name_histogram("trtllm_request_inference_time_seconds", "inference"),
        **name_histogram("trtllm_kv_transfer_latency_seconds", "kv_transfer_s"),  # with Dynamo
        "trtllm_kv_transfer_bytes_sum": MetricSeries("kv_transfer_bytes"),
        "trtllm_kv_transfer_success_total": MetricSeries("kv_transfers"),
    },
    marks=("trtllm_", "e2e_request_latency_seconds", "time_per_output_token_seconds"),
    flag="return_perf_metrics: true",
    path="/prometheus/metrics",  # its /metrics is JSON, of which each read takes away what it read
    reasons={"cancelled": "abort", "timeout": "abort"},
)
TRTLLM = Engine(
    "TensorRT-LLM",
    owned_by="tensorrt_llm",
    checks_model=False,
    max_tokens_field="max_tokens",
    unproven=True,
    metrics=_METRICS,
)
