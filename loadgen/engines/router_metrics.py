"""Router metrics: the metric names of routers, of what wraps an engine, and of TGI, which has both in one."""

from __future__ import annotations

from loadgen.engines.engine import STARTED, EngineMetrics, MetricSeries, name_histogram

# A router measures many a duration of a stream up to its response's headers: such a one is no E2E.
TGI = EngineMetrics(
    "tgi",
    {
        "tgi_request_input_length_sum": MetricSeries("prompt_tokens"),
        "tgi_request_generated_tokens_sum": MetricSeries("generation_tokens"),
        "tgi_request_success": MetricSeries("requests"),
        "tgi_request_failure": MetricSeries("requests", "error"),
        "tgi_batch_current_size": MetricSeries("running"),
        "tgi_queue_size": MetricSeries("waiting"),
        **name_histogram("tgi_request_duration", "e2e"),
        **name_histogram("tgi_request_queue_duration", "queue"),
        **name_histogram("tgi_request_inference_duration", "inference"),
    },
    marks=("tgi_",),
    label="TGI",
)
# It says `vllm:` too. It counts the tokens of whole answers only; its gauges are the engines' of seconds ago,
# or means.
PRODUCTION_STACK = EngineMetrics(
    "production_stack",
    {"vllm:num_incoming_requests_total": MetricSeries("requests")},
    marks=("vllm:healthy_pods_total",),
    routes=True,
    model_label="model",
    label="production-stack's router",
)
DYNAMO = EngineMetrics(
    "dynamo",
    {
        "dynamo_frontend_input_sequence_tokens_sum": MetricSeries("prompt_tokens"),
        "dynamo_frontend_output_tokens_total": MetricSeries("generation_tokens"),
        "dynamo_frontend_requests_total": MetricSeries("requests", label="status"),
        "dynamo_frontend_cached_tokens_sum": MetricSeries("prefix_hits"),
        "dynamo_frontend_inflight_requests": MetricSeries("running"),
        # `queued_requests` has those in prefill too.
        "dynamo_frontend_router_queue_pending_requests": MetricSeries("waiting"),
        **name_histogram("dynamo_frontend_time_to_first_token_seconds", "ttft"),
        **name_histogram("dynamo_frontend_inter_token_latency_seconds", "itl"),
        **name_histogram("dynamo_frontend_request_duration_seconds", "e2e"),
    },
    marks=("dynamo_frontend_",),
    routes=True,
    model_label="model",
    label="Dynamo's frontend",
)
DYNAMO_WORKER = EngineMetrics(
    "dynamo_worker",
    {
        "dynamo_component_requests_total": MetricSeries("requests"),
        "dynamo_component_inflight_requests": MetricSeries("running"),
        **name_histogram("dynamo_component_request_duration_seconds", "e2e"),
    },
    marks=("dynamo_component_",),
    model_label="model",
    only={"dynamo_endpoint": "generate"},  # others load adapters, or answer the router
    label="Dynamo's worker",
)
VLLM_ROUTER = EngineMetrics(
    "vllm_router",
    {
        "vllm_router_requests_total": MetricSeries("requests"),
        "vllm_router_pd_requests_total": MetricSeries("requests"),
        "vllm_router_running_requests": MetricSeries("running"),
        "vllm_router_pd_active_decode_requests": MetricSeries("running"),
    },
    marks=("vllm_router_",),
    routes=True,
    label="vllm-router",
)
# SGLang's router had three sets of names: `sgl_router_` (2025, not read), `smg_`, others of `sgl_router_`.
# With prefill and decode apart, both workers' gauges have a request: their sum is not what runs.
SMG = EngineMetrics(
    "smg",
    {
        "smg_router_requests_total": MetricSeries("requests"),
        **name_histogram("smg_router_ttft_seconds", "ttft"),  # of gRPC workers
    },
    marks=("smg_",),
    routes=True,
    model_label="model",
    label="sglang-router",
)
SGL_ROUTER = EngineMetrics(
    "sgl_router",
    {
        "sgl_router_requests_total": MetricSeries("requests"),
        **name_histogram("sgl_router_ttft_seconds", "ttft"),
        **name_histogram("sgl_router_request_duration_seconds", "e2e"),
    },
    marks=("sgl_router_workers", "sgl_router_worker_requests_total", "sgl_router_active_load"),
    routes=True,
    model_label="model_id",
    label="sgl-router",
)


def _name_endpoint_picker(prefix: str) -> dict[str, MetricSeries]:
    """Map the names of an endpoint picker of the inference extension, before llm-d's own, to meanings."""
    return {
        f"{prefix}_request_total": MetricSeries("requests"),
        f"{prefix}_running_requests": MetricSeries("running"),
        f"{prefix}_input_tokens_sum": MetricSeries("prompt_tokens"),
        f"{prefix}_output_tokens_sum": MetricSeries("generation_tokens"),
        f"{prefix}_prompt_cached_tokens_sum": MetricSeries("prefix_hits"),
        **name_histogram(f"{prefix}_request_duration_seconds", "e2e"),
    }


# llm-d's scheduler, and the Gateway API inference extension that it grew out of: newest names first.
_PICKERS = ("llm_d_router_epp", "inference_objective", "inference_model")
LLM_D = EngineMetrics(
    "llm_d",
    {
        **STARTED,
        "llm_d_epp_request_total": MetricSeries("requests"),
        "llm_d_epp_request_running": MetricSeries("running"),
        "llm_d_epp_flow_control_queue_size": MetricSeries("waiting"),
        "llm_d_epp_request_input_tokens_sum": MetricSeries("prompt_tokens"),
        "llm_d_epp_request_output_tokens_sum": MetricSeries("generation_tokens"),
        "llm_d_epp_request_cached_tokens_sum": MetricSeries("prefix_hits"),
        **name_histogram("llm_d_epp_request_ttft_seconds", "ttft"),
        **name_histogram("llm_d_epp_request_streaming_itl_seconds", "itl"),
        **name_histogram("llm_d_epp_request_duration_seconds", "e2e"),
        **name_histogram("llm_d_epp_flow_control_request_queue_duration_seconds", "queue"),
        **{name: series for each in _PICKERS for name, series in _name_endpoint_picker(each).items()},
    },
    marks=("llm_d_epp_", "inference_pool_", *(f"{each}_" for each in _PICKERS)),
    routes=True,
    label="llm-d",
)
OTHERS = (TGI, DYNAMO, DYNAMO_WORKER, VLLM_ROUTER, SMG, SGL_ROUTER, LLM_D)
