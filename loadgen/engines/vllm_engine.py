"""VLLM engine: how vLLM is recognised, what its requests may hold, its counters, log and settings."""

from __future__ import annotations

from loadgen.engines.config_patterns import (
    InfoField,
    LogPattern,
    Value,
    join_distinct,
    read_backend,
    read_blocks,
    read_count,
    read_engine_flags,
    read_gib,
    read_graph_mode,
    read_kv_dtype,
    read_method,
    read_off,
    read_off_if_true,
    read_on,
    read_seconds,
    read_sizes,
    read_speculative,
    read_switch,
    read_word,
)
from loadgen.engines.engine import STARTED, Engine, EngineMetrics, MetricSeries, name_histogram

_VLLM = r"Initializing an? (?:V[01] )?LLM engine "
_SIZES = r"['\"]?: ?\[([\d, ]+)\]"
_SOURCE = r"(?:cuda|rocm|xpu|cpu|tpu|selector|interface)\.py:\d+\] "
_METRICS = EngineMetrics(
    "vllm",
    {
        **STARTED,
        "vllm:prompt_tokens_total": MetricSeries("prompt_tokens"),
        "vllm:generation_tokens_total": MetricSeries("generation_tokens"),
        "vllm:request_success_total": MetricSeries("requests", label="finished_reason"),
        "vllm:prefix_cache_queries_total": MetricSeries("prefix_queries"),
        "vllm:prefix_cache_hits_total": MetricSeries("prefix_hits"),
        "vllm:num_preemptions_total": MetricSeries("preemptions"),
        "vllm:spec_decode_num_drafts_total": MetricSeries("drafts"),
        "vllm:spec_decode_num_accepted_tokens_per_pos_total": MetricSeries(
            "accepted_by_position", label="position"
        ),
        "vllm:spec_decode_num_draft_tokens_total": MetricSeries("draft_tokens"),
        "vllm:spec_decode_num_accepted_tokens_total": MetricSeries("accepted_tokens"),
        "vllm:num_requests_running": MetricSeries("running"),
        "vllm:num_requests_waiting": MetricSeries("waiting"),
        "vllm:kv_cache_usage_perc": MetricSeries("kv_cache_usage"),
        "vllm:gpu_cache_usage_perc": MetricSeries("kv_cache_usage"),  # to 0.10
        **name_histogram("vllm:time_to_first_token_seconds", "ttft"),
        **name_histogram("vllm:inter_token_latency_seconds", "itl"),
        **name_histogram("vllm:e2e_request_latency_seconds", "e2e"),
        **name_histogram("vllm:request_queue_time_seconds", "queue"),
        **name_histogram("vllm:request_prefill_time_seconds", "prefill"),
        **name_histogram("vllm:request_decode_time_seconds", "decode"),
        **name_histogram("vllm:request_inference_time_seconds", "inference"),
        # NIXL's connector has one for each rank that transfers.
        **name_histogram("vllm:nixl_xfer_time_seconds", "kv_transfer_s"),
        "vllm:nixl_xfer_time_seconds_count": MetricSeries("kv_transfers"),
        "vllm:nixl_bytes_transferred_sum": MetricSeries("kv_transfer_bytes"),
        "vllm:nixl_num_failed_transfers_total": MetricSeries("kv_transfers_failed"),
    },
    marks=("vllm:",),
)


def _match_setting(field: str, name: str, value: Value) -> LogPattern:
    """Make the pattern of a setting in the line in which vLLM logs its configuration."""
    return LogPattern(field, rf"\b{name}=([^,\s)]+)", value, after=_VLLM)


_LOG_PATTERNS = (
    LogPattern("version", r"version (\d+\.\d\S*)|LLM engine \(v([^()\n]+)\) with config"),
    LogPattern("flags", r"\A(\{.*\})", read_engine_flags, after=r"non-default args: (?=\{)"),
    _match_setting("quantization", "quantization", read_method),
    LogPattern("attention_backend", rf"{_SOURCE}Using ([\w. ]+?) backend", read_backend),
    LogPattern("attention_backend", r"Using (\w+) attention backend out of", read_backend, join_distinct),
    _match_setting("dtype", "dtype", read_word),
    LogPattern("kv_cache_dtype", r"Using (\w+) data type to store kv cache"),
    _match_setting("kv_cache_dtype", "kv_cache_dtype", read_kv_dtype),
    LogPattern("cuda_graphs", r"(Graph capturing finished) in", read_on),
    _match_setting("cuda_graphs", "enforce_eager", read_off_if_true),
    LogPattern("cuda_graphs", r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", read_graph_mode),
    LogPattern("cuda_graphs", r"Overriding cudagraph_mode(?: from \w+)? to (\w+)", read_graph_mode),
    LogPattern("cuda_graphs", r"(Skipping (?:encoder and decoder )?CUDA graph capture)", read_off),
    LogPattern("cuda_graph_sizes", rf"cudagraph_capture_sizes{_SIZES}", read_sizes),
    LogPattern(
        "speculative",
        r"speculative_config=SpeculativeConfig\(([^)]*)",
        read_speculative,
        after="Initializing ",
    ),
    _match_setting("prefix_caching", "enable_prefix_caching", read_switch),
    _match_setting("chunked_prefill", "(?:enable_chunked_prefill|chunked_prefill_enabled)", read_switch),
    _match_setting("tensor_parallel", "tensor_parallel_size", read_count),
    _match_setting("max_model_len", "max_seq_len", read_count),
    LogPattern("weights_bytes", r"(?:Model loading|Loading model weights) took ([\d.]+) Gi?B", read_gib, max),
    LogPattern("kv_capacity_tokens", r"KV cache size: ([\d,]+) tokens", read_count),
    LogPattern(
        "kv_capacity_tokens",
        r"(?s)\A(\d+.*?tokens per request: [\d.]+)x",
        read_blocks,
        after=r"# (?:GPU|cuda) blocks: (?=\d)",
        lines=2,
    ),
    LogPattern(
        "kv_bytes", r"(?:Available KV cache memory:|reserved for KV Cache is) ([\d.]+) ?GiB", read_gib, max
    ),
    LogPattern("kv_bytes", r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache", read_gib, max),
    LogPattern("load_s", r"Loading weights took ([\d.]+) seconds", read_seconds, max),
    LogPattern(
        "load_s", r"Model loading took [\d.]+ Gi?B(?: memory)? and ([\d.]+) seconds", read_seconds, max
    ),
)
_INFO_FIELDS = (
    InfoField("quantization", "vllm_config.model_config.quantization", read_method),
    InfoField("attention_backend", "vllm_config.attention_config.backend", read_backend),
    InfoField("dtype", "vllm_config.model_config.dtype", read_word),
    InfoField("kv_cache_dtype", "vllm_config.cache_config.cache_dtype", read_kv_dtype),
    InfoField("cuda_graphs", "vllm_config.model_config.enforce_eager", read_off_if_true),
    InfoField("prefix_caching", "vllm_config.cache_config.enable_prefix_caching", read_switch),
    InfoField("chunked_prefill", "vllm_config.scheduler_config.enable_chunked_prefill", read_switch),
    InfoField("tensor_parallel", "vllm_config.parallel_config.tensor_parallel_size", read_count),
    InfoField("max_model_len", "vllm_config.model_config.max_model_len", read_count),
    InfoField("kv_capacity_tokens", "vllm_config.cache_config.kv_cache_size_tokens", read_count),
    InfoField("speculative", "vllm_config.speculative_config", read_speculative, prefix=""),
)
VLLM = Engine(
    "vLLM",
    owned_by="vllm",
    vllm_fields=True,
    sends_at_once=True,
    takes_all_memory=True,
    info_path="/server_info?config_format=json",
    reset_path="/reset_prefix_cache",
    reset_needs="VLLM_SERVER_DEV_MODE=1",
    salt_field="cache_salt",
    unsalted=r"v?0\.\d\.",
    trace_start_path="/start_profile",
    trace_stop_path="/stop_profile",
    trace_needs="""--profiler-config '{"profiler": "torch", "torch_profiler_dir": "/DIR"}' """
    "(older vLLM: VLLM_TORCH_PROFILER_DIR=/DIR)",
    launch_name="vllm",
    own_times="start vLLM with --enable-per-request-metrics",
    past_context="longer than the maximum model length|cannot be greater than max_model_len",
    metrics=_METRICS,
    log_patterns=_LOG_PATTERNS,
    info_fields=_INFO_FIELDS,
)
