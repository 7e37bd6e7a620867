"""Engines: the table of the engines that are known, those that are not, and the metrics of routers."""

from __future__ import annotations

from loadgen.engines.engine import STARTED, Engine, EngineMetrics, MetricSeries, name_histogram
from loadgen.engines.llamacpp_engine import LLAMACPP
from loadgen.engines.lmdeploy_engine import LMDEPLOY
from loadgen.engines.sglang_engine import SGLANG
from loadgen.engines.trtllm_engine import TRTLLM
from loadgen.engines.vllm_engine import VLLM

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


# `max_tokens` is taken by all, or refused in words; some ignore `max_completion_tokens`, silently.
UNKNOWN = Engine("unknown", checks_model=False, max_tokens_field="max_tokens", unproven=True)
# A public https address whose models are not signed by a known engine.
HOSTED = Engine("hosted API", checks_model=False, max_tokens_field="max_tokens", unproven=True, hosted=True)
TRANSFORMERS = Engine(
    "transformers serve",
    own_path="/load_model",
    sends_at_once=True,
    takes_ids=False,
    takes_ignore_eos=False,
    # Generating begins by taking the first end of sequence for padding where the model names none.
    forces_length='{"eos_token_id":[],"pad_token_id":0}',
    max_tokens_field="max_tokens",
    lists_its_model=False,
    published_as="Transformers",
    launch_name="transformers",
)
_OWN = (
    Engine(
        "loadgen engine",
        owned_by="loadgen-engine",
        sends_at_once=True,
        ours=True,
        simulated=True,
        reset_path="/reset_prefix_cache",
        own_times="start it by `loadgen engine --enable-per-request-metrics`",
    ),
    Engine("loadgen null server", owned_by="loadgen-null", sends_at_once=True, ours=True, checks_model=False),
    Engine("loadgen null server with Nagle's algorithm", owned_by="loadgen-null-nagle", checks_model=False),
)
OLLAMA = Engine(
    "Ollama",
    owned_by="library",  # the namespace of a model: one of another's namespace is not recognised
    checks_model=False,
    max_tokens_field="max_tokens",
    version_path="/api/version",
    unproven=True,
    no_metrics="Ollama has no /metrics in any release",
)
# Where two rows could read one log or answer, the later one's value counts.
ENGINES = (VLLM, SGLANG, *_OWN, TRANSFORMERS, LLAMACPP, TRTLLM, LMDEPLOY, OLLAMA)
LAUNCHED = tuple(engine.launch_name for engine in ENGINES if engine.launch_name)
# An exposition may have the names of two rows, as a Dynamo worker's has its engine's. The earlier row's are
# read: an engine comes before what wraps it, so that its own figures win. Production-stack's router begins
# its names as vLLM does, which has none of its marks.
_ENGINES_METRICS = tuple(engine.metrics for engine in ENGINES if engine.metrics is not None)
METRICS = {row.name: row for row in (PRODUCTION_STACK, *_ENGINES_METRICS, *OTHERS)}


def find_by_name(name: str) -> Engine:
    """Find the engine of this name, in any case; UNKNOWN if there is none."""
    sought = name.lower()
    return next((engine for engine in (*ENGINES, HOSTED) if engine.name.lower() == sought), UNKNOWN)


def find_by_owner(owned_by: str) -> Engine | None:
    """Find the engine whose /v1/models reports this `owned_by`; None if there is none."""
    return next((engine for engine in ENGINES if engine.owned_by and engine.owned_by == owned_by), None)
