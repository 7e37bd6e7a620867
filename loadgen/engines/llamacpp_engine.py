"""Llama.cpp engine: how llama.cpp's server is recognised, what its requests may hold, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.base import untrusted
from loadgen.engines.config_patterns import InfoField, read_count, read_word
from loadgen.engines.engine import Engine, EngineMetrics, MetricSeries, SelfDescription

_METRICS = EngineMetrics(
    "llamacpp",
    {
        "llamacpp:prompt_tokens_total": MetricSeries("computed_tokens"),  # without those of the cache
        "llamacpp:prompt_tokens_cached_total": MetricSeries("prefix_hits"),  # of recent versions
        "llamacpp:tokens_predicted_total": MetricSeries("generation_tokens"),
        "llamacpp:spec_decode_num_drafts_total": MetricSeries("drafts"),  # of recent versions
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total": MetricSeries(
            "accepted_by_position", label="position"
        ),
        "llamacpp:spec_decode_num_draft_tokens_total": MetricSeries("draft_tokens"),
        "llamacpp:spec_decode_num_accepted_tokens_total": MetricSeries("accepted_tokens"),
        "llamacpp:requests_processing": MetricSeries("running"),
        "llamacpp:requests_deferred": MetricSeries("waiting"),
    },
    marks=("llamacpp:",),
    flag="--metrics",
)
_INFO_FIELDS = (
    InfoField("version", "build_info", read_word),
    InfoField("quantization", "model_ftype", "GGUF {}".format),
    InfoField("max_model_len", "default_generation_settings.n_ctx", read_count),
    InfoField("max_running", "total_slots", read_count),
)


def _read_props(answer: Mapping[str, Any]) -> SelfDescription:
    each, root = untrusted.read_mapping(answer.get("default_generation_settings")), answer.get("model_path")
    template = untrusted.read_mapping(answer.get("chat_template_caps"))
    return SelfDescription(
        untrusted.read_text(answer.get("build_info")),
        root if isinstance(root, str) else "",
        untrusted.read_count(each.get("n_ctx")) or 0,
        untrusted.read_count(answer.get("total_slots")) or 0,
        template.get("supports_tools") is False,
    )


LLAMACPP = Engine(
    "llama.cpp server",
    owned_by="llamacpp",
    asked_for_ids=True,
    max_tokens_field="max_tokens",
    checks_model=False,
    version_path="/props",
    info_path="/props",
    describe=_read_props,
    launch_name="llamacpp",
    shares_context=True,
    closing_server="llama.cpp",
    past_context=r"exceed_context_size|exceed\w{0,3}\b.{0,40}\bcontext (?:size|length|window)",
    metrics=_METRICS,
    info_fields=_INFO_FIELDS,
)
