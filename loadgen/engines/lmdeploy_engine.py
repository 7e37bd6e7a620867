"""LMDeploy engine: how LMDeploy's server is recognised, and the names of its metrics."""

from __future__ import annotations

from loadgen.engines.engine import Engine, EngineMetrics, MetricSeries, name_histogram

_FAILED = (
    "engine_stop_error", "session_repeat", "session_not_exist", "handler_not_exist", "input_length_error",
    "internal_engine_error", "prefix_cache_conflict", "no_queue", "not_supported", "out_of_memory",
)  # fmt: skip
_METRICS = EngineMetrics(
    "lmdeploy",
    {
        "lmdeploy:prompt_tokens_total": MetricSeries("prompt_tokens"),
        "lmdeploy:generation_tokens_total": MetricSeries("generation_tokens"),
        "lmdeploy:request_success_total": MetricSeries("requests", label="finished_reason"),
        "lmdeploy:cached_tokens_total": MetricSeries("prefix_hits"),
        "lmdeploy:spec_decode_num_drafts_total": MetricSeries("drafts"),
        "lmdeploy:spec_decode_num_draft_tokens_total": MetricSeries("draft_tokens"),
        "lmdeploy:spec_decode_num_accepted_tokens_total": MetricSeries("accepted_tokens"),
        "lmdeploy:spec_decode_num_accepted_tokens_per_pos_total": MetricSeries(
            "accepted_by_position", label="position"
        ),
        "lmdeploy:num_requests_running": MetricSeries("running"),
        "lmdeploy:num_requests_waiting": MetricSeries("waiting"),
        "lmdeploy:gpu_cache_usage_perc": MetricSeries("kv_cache_usage"),
        **name_histogram("lmdeploy:time_to_first_token_seconds", "ttft"),
        **name_histogram("lmdeploy:iter_token_latency", "itl"),
        **name_histogram("lmdeploy:e2e_request_latency_seconds", "e2e"),
        **name_histogram("lmdeploy:request_queue_time_seconds", "queue"),
        **name_histogram("lmdeploy:request_prefill_time_seconds", "prefill"),
        **name_histogram("lmdeploy:request_decode_time_seconds", "decode"),
        **name_histogram("lmdeploy:request_inference_time_seconds", "inference"),
    },
    marks=("lmdeploy:",),
    reasons={"cancel": "abort", **dict.fromkeys(_FAILED, "error")},
)
LMDEPLOY = Engine(
    "LMDeploy",
    owned_by="lmdeploy",
    checks_model=False,
    max_tokens_field="max_tokens",
    unproven=True,
    metrics=_METRICS,
)
