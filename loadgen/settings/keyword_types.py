"""Keyword types: the keywords of `loadgen.bench`, which checkers, editors and the run time read here.

No TypedDict can be derived from the settings' classes, and a keyword takes more than its key holds: a number
for a share, a text for a count of failures. A test holds that no setting is forgotten.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from loadgen.settings.data_settings import Compat, DatasetName, ImageFormat, PromptFormat, TraceFormat
from loadgen.settings.request_settings import Backend


class WorkloadOptions(TypedDict, total=False):
    """The keys of a profile, laid over the one that is named; docs/profiles.md has units and defaults."""

    backend: Backend
    num_prompts: int | None
    max_concurrency: int | None
    request_rate: float
    burstiness: float
    exact_rate: bool
    duration: float | None
    prefill_concurrency: int
    cancel_rate: str | float
    cancel_after: str
    num_warmups: int | Literal["wave"]
    schedule: str
    bursts: str
    ramp_up_strategy: Literal["linear", "exponential"]
    ramp_up_start_rps: float
    ramp_up_end_rps: float
    classes: list[dict[str, Any]]
    num_sessions: int | None
    turns: int | None
    think_time: str | float
    turn_delays: str | float
    assistant: Literal["recorded", "live", "server"]
    session_header: str
    max_requests: int | None
    turn_timeout: float | None
    users: int | None
    user_rate: float | None
    dataset_name: DatasetName
    dataset_path: str
    dataset_category: str
    disable_shuffle: bool
    no_oversample: bool
    skip_chat_template: bool
    sharegpt_output_len: int
    custom_output_len: int
    prefix_repetition_prefix_len: int
    prefix_repetition_suffix_len: int
    prefix_repetition_num_prefixes: int
    prefix_repetition_output_len: int
    timed_trace_label_timestamp: str
    timed_trace_label_input_length: str
    timed_trace_label_output_length: str
    timed_trace_label_hash_ids: str
    timed_trace_chunk_hash_size: int
    timed_trace_sec_multiplier: float
    image_size: str
    images: str | int
    image_dir: str
    image_format: ImageFormat
    random_mm_base_items_per_request: int
    random_mm_num_mm_items_range_ratio: float
    random_mm_limit_mm_per_prompt: str
    random_mm_bucket_config: str
    input_len: int
    output_len: int
    range_ratio: str | float
    compat: Compat
    input_dist: str
    output_dist: str
    prefix_len: int
    prefix_groups: int
    prefix_zipf: float
    prompt_format: PromptFormat
    prompt_corpus: str
    trace: str
    trace_format: TraceFormat
    self_timed: bool
    trace_replay: Literal["recorded", "closed"]
    trace_window: str
    speed_up: float
    trace_max_input_len: int
    trace_max_output_len: int
    trace_too_long: Literal["skip", "clip"]
    trace_idle_cap: float
    trace_jitter: Literal["none", "uniform"]
    ignore_eos: bool
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logprobs: int
    extra_body: dict[str, Any]
    chat_template_kwargs: dict[str, Any]
    stream: bool
    continuous_usage: bool
    request_timeout: float
    stall_timeout: float
    percentile_metrics: str
    metric_percentiles: str
    goodput: list[str]
    slo: str
    warmup: str
    cooldown: str


class BenchOptions(WorkloadOptions, total=False):
    """The options of `bench`, with the names and meanings of the flags of `loadgen bench`."""

    endpoint: str
    model: str
    served_model_name: str
    tokenizer: str
    vocab_size: int
    headers: dict[str, str]
    insecure: bool
    ca_cert: str
    client_cert: str
    client_key: str
    ready_check_timeout_s: float
    metrics_url: list[str]
    preset: str
    seed: int
    request_id_prefix: str
    transport: Literal["auto", "wire", "ring", "httpx"]
    http2: bool
    source_address: list[str]
    workers: int | Literal["auto"]
    reset_cache: bool
    observe: bool
    probe_memory: bool
    power_url: list[str]
    fingerprint: bool
    shard: str
    start_at: str
    expect_plan: str
    cluster: str
    shards: int
    max_failures: int | str
    max_consecutive_failures: int
    max_duration_s: float
    drain_timeout_s: float
    stop_when_saturated: bool
    hardware: str
    bandwidth: float
    model_config: str
    gpus: int
    run_dir: str
    metadata: list[str]
    label: str
    otel: str
    prometheus: str
    receive_spans: str
    api_key: str
