"""SGLang engine: how SGLang is recognised, what its requests may hold, its counters, log and settings."""

from __future__ import annotations

from loadgen.engines.config_patterns import (
    InfoField,
    LogPattern,
    Value,
    read_chunk,
    read_count,
    read_engine_flags,
    read_gib,
    read_graph_mode,
    read_kv_dtype,
    read_off_if_true,
    read_on,
    read_opposite,
    read_seconds,
    read_sizes,
    read_speculative,
    read_word,
)
from loadgen.engines.engine import STARTED, Engine, EngineMetrics, MetricSeries, name_histogram

_SGLANG = r"server_args=(?:ServerArgs\(|\{)"
_LOADED, _ALLOCATED = r"Load weight end\.", r"KV [Cc]ache (?:is )?allocated\."
_METRICS = EngineMetrics(
    "sglang",
    {
        **STARTED,
        "sglang:prompt_tokens_total": MetricSeries("prompt_tokens"),
        "sglang:generation_tokens_total": MetricSeries("generation_tokens"),
        "sglang:num_requests_total": MetricSeries("requests"),
        "sglang:num_aborted_requests_total": MetricSeries("requests", "abort"),
        "sglang:cached_tokens_total": MetricSeries("prefix_hits"),
        "sglang:num_retracted_requests_total": MetricSeries("preemptions"),
        "sglang:num_running_reqs": MetricSeries("running"),
        "sglang:num_queue_reqs": MetricSeries("waiting"),
        "sglang:token_usage": MetricSeries("kv_cache_usage"),
        "sglang:spec_accept_length": MetricSeries("accept_length"),
        "sglang:spec_verify_calls_total": MetricSeries("drafts"),
        **name_histogram("sglang:time_to_first_token_seconds", "ttft"),
        **name_histogram("sglang:inter_token_latency_seconds", "itl"),
        **name_histogram("sglang:e2e_request_latency_seconds", "e2e"),
        **name_histogram("sglang:queue_time_seconds", "queue"),
        # First scheduled → prompt computed, once a request; it counts no stage of decoding.
        **name_histogram("sglang:per_stage_req_latency_seconds", "prefill", stage="prefill_forward"),
        # Gauges of the last transfer in older versions, which have no series of these names.
        **name_histogram("sglang:kv_transfer_latency_ms", "kv_transfer_s", 0.001),
        "sglang:kv_transfer_latency_ms_count": MetricSeries("kv_transfers"),
        "sglang:kv_transfer_total_mb_sum": MetricSeries("kv_transfer_bytes", scale=1 << 20),
        "sglang:num_transfer_failed_reqs_total": MetricSeries("kv_transfers_failed"),
    },
    marks=("sglang:",),
    lazy=frozenset(
        {"prompt_tokens", "generation_tokens", "requests", "prefix_hits", "preemptions", "drafts"}
    ),
    flag="--enable-metrics",
    shares=("priority",),
)


def _match_argument(field: str, name: str, value: Value) -> LogPattern:
    """Make the pattern of an SGLang argument, logged as a call or, in 0.5.23, as a dict."""
    return LogPattern(field, rf"\b{name}(?:=|': )([^,)}}]+)", value, after=_SGLANG)


_LOG_PATTERNS = (
    _match_argument("quantization", "quantization", read_word),
    LogPattern("quantization", r"\bquant=([\w-]+)", after=_LOADED),
    _match_argument("attention_backend", "attention_backend", read_word),
    LogPattern("attention_backend", r"Attention backend not specified\. Use (\w+) backend by default"),
    LogPattern(
        "attention_backend", r"\A(.+)\.", after="Using hybrid attention backend for decode and prefill: "
    ),
    LogPattern("dtype", r"\bdtype=([\w.]+)", read_word, after=_LOADED),
    _match_argument("kv_cache_dtype", "kv_cache_dtype", read_kv_dtype),
    LogPattern("kv_cache_dtype", r"Using KV cache dtype: ([\w.]+)", read_word),
    LogPattern("kv_cache_dtype", r"KV Cache is allocated\. dtype: ([\w.]+),", read_word),
    LogPattern("cuda_graphs", r"\A[\w ]*?((?:cuda|CUDA) graph begin)", read_on, after="Capture "),
    _match_argument("cuda_graphs", "disable_cuda_graph", read_off_if_true),
    LogPattern(
        "cuda_graph_sizes", r"Capture cuda graph bs \[([\d, ]+)\]|graph end\. bs=\[([\d, ]+)\]", read_sizes
    ),
    LogPattern("speculative", r"\bspeculative_(algorithm\b.*)", read_speculative, after="server_args="),
    _match_argument("prefix_caching", "disable_radix_cache", read_opposite),
    LogPattern("chunked_prefill", r"chunked_prefill_size=(-?\w+)", read_chunk, after="max_total_num_tokens="),
    _match_argument("tensor_parallel", "tp_size", read_count),
    LogPattern("max_model_len", r"context_len=(\d+)", read_count, after="max_total_num_tokens="),
    LogPattern("weights_bytes", r"mem usage=(-?[\d.]+) GB", read_gib, max, _LOADED),
    LogPattern("kv_capacity_tokens", r"#tokens: (\d+)", read_count, max, _ALLOCATED),
    LogPattern("kv_capacity_tokens", r"max_total_num_tokens=(\d+),", read_count),
    LogPattern("kv_bytes", r"(K size: [\d.]+ GB, V size: [\d.]+) GB", read_gib, max, _ALLOCATED),
    LogPattern("kv_bytes", r", KV size: ([\d.]+) GB", read_gib, max, _ALLOCATED),
    LogPattern("load_s", r"Load weight end\. elapsed=([\d.]+) s", read_seconds, max),
)
_INFO_FIELDS = (
    InfoField("version", "version", read_word),
    InfoField("flags", "launch_command", read_engine_flags),
    InfoField("quantization", "quantization", read_word),
    InfoField("kernel", "fp8_gemm_runner_backend", read_word),
    InfoField("kernel", "fp4_gemm_runner_backend", read_word),
    InfoField("moe_kernel", "moe_runner_backend", read_word),
    InfoField("attention_backend", "attention_backend", read_word),
    InfoField("dtype", "dtype", read_word),
    InfoField("kv_cache_dtype", "kv_cache_dtype", read_kv_dtype),
    InfoField("cuda_graphs", "disable_cuda_graph", read_opposite),
    InfoField("cuda_graphs", "cuda_graph_config.decode.backend", read_graph_mode),
    InfoField("cuda_graph_sizes", "internal_states.0.decode_cuda_graph_bs", read_sizes),
    InfoField("prefix_caching", "disable_radix_cache", read_opposite),
    InfoField("chunked_prefill", "chunked_prefill_size", read_chunk),
    InfoField("tensor_parallel", "tp_size", read_count),
    InfoField("max_model_len", "context_length", read_count),
    InfoField("weights_bytes", "internal_states.0.memory_usage.weight", read_gib),
    InfoField("kv_capacity_tokens", "max_total_num_tokens", read_count),
    InfoField("kv_bytes", "internal_states.0.memory_usage.kvcache", read_gib),
    InfoField("load_s", "startup_time.load_weight", read_seconds),
    InfoField("speculative", "", read_speculative, prefix="speculative_"),
)
SGLANG = Engine(
    "SGLang",
    owned_by="sglang",
    vllm_fields=True,
    sends_at_once=True,
    takes_all_memory=True,
    checks_model=False,
    version_path="/server_info",
    info_path="/server_info",
    older_info_path="/get_server_info",
    reset_path="/flush_cache",
    trace_start_path="/start_profile",
    trace_stop_path="/stop_profile",
    trace_directory_field="output_dir",
    native_backend="sglang",
    launch_name="sglang",
    own_times="measure SGLang's own API: --backend sglang",
    past_context="longer than the model's context length|context length is only",
    metrics=_METRICS,
    log_patterns=_LOG_PATTERNS,
    info_fields=_INFO_FIELDS,
)
