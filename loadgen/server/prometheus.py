"""Prometheus: a server's `/metrics` under one set of names, whichever engine it is."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import msgspec

from loadgen.base import untrusted

Series = tuple[str, str, str]  # model, quantity, and which part of it: a reason, a bucket's bound, "sum"
GAUGES = frozenset({"running", "waiting", "kv_cache_usage", "started"})  # the others only grow
SAMPLED = GAUGES | {"generation_tokens"}

_GREATEST = ("kv_cache_usage", "started")  # of several engines the greatest, not the sum
# Every rank of SGLang counts the same requests, and each process has a row of its own.
_REPEATED = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
_REPEATED_GAUGE = (*_REPEATED, "priority")  # in addition to the whole, each priority's share
_LONGEST_QUOTE = 60
_SWITCHED_OFF = (404, 501)  # statuses of a server without it
# The parser's time grows with the square of a line. Real lines have some hundred characters, and the models
# and engines behind one port rarely have more lines.
_LONGEST_LINE, _MOST_LINES, _MOST_CHARS = 2048, 20_000, 1 << 22


class MetricSeries(msgspec.Struct, frozen=True):
    """The meaning of a metric's name: a quantity, and its part, fixed or by a label."""

    quantity: str
    part: str = ""
    label: str = ""


class EngineMetrics(msgspec.Struct, frozen=True):
    """One engine's metric names; `lazy` are the quantities that appear with their first event."""

    meanings: Mapping[str, MetricSeries]
    lazy: frozenset[str] = frozenset()
    flag: str = ""  # without which it has no /metrics


def _name_histogram(name: str, quantity: str) -> dict[str, MetricSeries]:
    return {
        f"{name}_bucket": MetricSeries(quantity, label="le"),
        f"{name}_sum": MetricSeries(quantity, "sum"),
    }


_STARTED = {"process_start_time_seconds": MetricSeries("started")}
ENGINE_METRICS: dict[str, EngineMetrics] = {
    "vllm": EngineMetrics(
        {
            **_STARTED,
            "vllm:prompt_tokens_total": MetricSeries("prompt_tokens"),
            "vllm:generation_tokens_total": MetricSeries("generation_tokens"),
            "vllm:request_success_total": MetricSeries("requests", label="finished_reason"),
            "vllm:prefix_cache_queries_total": MetricSeries("prefix_queries"),
            "vllm:prefix_cache_hits_total": MetricSeries("prefix_hits"),
            "vllm:num_preemptions_total": MetricSeries("preemptions"),
            "vllm:spec_decode_num_draft_tokens_total": MetricSeries("draft_tokens"),
            "vllm:spec_decode_num_accepted_tokens_total": MetricSeries("accepted_tokens"),
            "vllm:num_requests_running": MetricSeries("running"),
            "vllm:num_requests_waiting": MetricSeries("waiting"),
            "vllm:kv_cache_usage_perc": MetricSeries("kv_cache_usage"),
            "vllm:gpu_cache_usage_perc": MetricSeries("kv_cache_usage"),  # to 0.10
            **_name_histogram("vllm:time_to_first_token_seconds", "ttft"),
            **_name_histogram("vllm:inter_token_latency_seconds", "itl"),
            **_name_histogram("vllm:e2e_request_latency_seconds", "e2e"),
            **_name_histogram("vllm:request_queue_time_seconds", "queue"),
        }
    ),
    "sglang": EngineMetrics(
        {
            **_STARTED,
            "sglang:prompt_tokens_total": MetricSeries("prompt_tokens"),
            "sglang:generation_tokens_total": MetricSeries("generation_tokens"),
            "sglang:num_requests_total": MetricSeries("requests"),
            "sglang:num_aborted_requests_total": MetricSeries("requests", "abort"),
            "sglang:cached_tokens_total": MetricSeries("prefix_hits"),
            "sglang:num_retracted_requests_total": MetricSeries("preemptions"),
            "sglang:num_running_reqs": MetricSeries("running"),
            "sglang:num_queue_reqs": MetricSeries("waiting"),
            "sglang:token_usage": MetricSeries("kv_cache_usage"),
            **_name_histogram("sglang:time_to_first_token_seconds", "ttft"),
            **_name_histogram("sglang:inter_token_latency_seconds", "itl"),
            **_name_histogram("sglang:e2e_request_latency_seconds", "e2e"),
            **_name_histogram("sglang:queue_time_seconds", "queue"),
        },
        lazy=frozenset({"prompt_tokens", "generation_tokens", "requests", "prefix_hits", "preemptions"}),
        flag="--enable-metrics",
    ),
    "llamacpp": EngineMetrics(
        {
            "llamacpp:prompt_tokens_total": MetricSeries("computed_tokens"),  # without those of the cache
            "llamacpp:prompt_tokens_cached_total": MetricSeries("prefix_hits"),  # of recent versions
            "llamacpp:tokens_predicted_total": MetricSeries("generation_tokens"),
            "llamacpp:spec_decode_num_draft_tokens_total": MetricSeries("draft_tokens"),
            "llamacpp:spec_decode_num_accepted_tokens_total": MetricSeries("accepted_tokens"),
            "llamacpp:requests_processing": MetricSeries("running"),
            "llamacpp:requests_deferred": MetricSeries("waiting"),
        },
        flag="--metrics",
    ),
}


class MetricLines(msgspec.Struct, frozen=True):
    """The lines of an answer with known metrics, not yet parsed; or an error."""

    names: str = ""  # a key of ENGINE_METRICS
    lines: tuple[str, ...] = ()
    error: str = ""


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """A server's metrics at one moment, summed over its engines; or an error."""

    names: str = ""
    counters: Mapping[Series, float] = msgspec.field(default_factory=dict)  # histograms by bound, cumulative
    gauges: Mapping[Series, float] = msgspec.field(default_factory=dict)
    error: str = ""

    def gauge(self, quantity: str, model: str = "") -> float | None:
        """One model's gauge, or that of all models together; None if the server has none."""
        values = [
            value
            for (owner, name, _), value in self.gauges.items()
            if name == quantity and model in ("", owner)
        ]
        return _combine_values(quantity, values) if values else None


def sum_snapshots(snapshots: Sequence[MetricsSnapshot]) -> MetricsSnapshot:
    """The metrics of several servers as those of one; without when each was started, which has no sum."""
    if failed := next((snapshot for snapshot in snapshots if snapshot.error), None):
        return failed
    if len(names := sorted({snapshot.names for snapshot in snapshots})) > 1:
        return MetricsSnapshot(error=f"/metrics has the names of {' and '.join(names)} at different servers")
    counters: dict[Series, float] = {}
    gauges: dict[Series, list[float]] = {}
    for snapshot in snapshots:
        for series, value in snapshot.counters.items():
            counters[series] = counters.get(series, 0.0) + value
        for series, value in snapshot.gauges.items():
            gauges.setdefault(series, []).append(value)
    whole = {
        series: _combine_values(series[1], each) for series, each in gauges.items() if series[1] != "started"
    }
    return MetricsSnapshot("".join(names), counters, whole)


def select_lines(status: int, body: bytes, wanted: Container[str] | None = None) -> MetricLines:
    """The lines of an answer with metrics in ENGINE_METRICS, of all quantities or those `wanted`.

    It does not parse them: the parser is slow and slow to import, and this is called during a run.
    """
    if status != 200:
        flags = ", ".join(
            f"{name} needs {names.flag}" for name, names in ENGINE_METRICS.items() if names.flag
        )
        hint = f" ({flags})" if status in _SWITCHED_OFF else ""
        return MetricLines(error=f"/metrics answers {status}{hint}")
    text = body.decode("utf-8", "replace")
    if not text.strip():
        return MetricLines(error="/metrics is empty")
    if text.lstrip()[0] in "<{[":
        kind = "HTML" if text.lstrip()[0] == "<" else "JSON"
        return MetricLines(error=f"/metrics is {kind}, not Prometheus text")
    lines = text.splitlines()
    whose = next((name for name in ENGINE_METRICS if any(line.startswith(f"{name}:") for line in lines)), "")
    if not whose:
        *others, last = ENGINE_METRICS
        return MetricLines(error=f"/metrics has none of the names of {', '.join(others)} or {last}")
    if not text.endswith("\n"):
        return MetricLines(error=f"/metrics is cut off in {lines[-1][:_LONGEST_QUOTE]!r}")
    meanings = ENGINE_METRICS[whose].meanings
    if wanted is not None:
        meanings = {name: meaning for name, meaning in meanings.items() if meaning.quantity in wanted}
    selected = tuple(line for line in lines if line.partition("{")[0].partition(" ")[0] in meanings)
    longest = max(selected, key=len, default="")
    if len(longest) > _LONGEST_LINE:
        return MetricLines(
            error=f"/metrics has a line of {len(longest)} characters: {longest[:_LONGEST_QUOTE]!r}"
        )
    if len(selected) > _MOST_LINES or sum(map(len, selected)) > _MOST_CHARS:
        return MetricLines(error=f"/metrics has {len(selected)} lines of {whose}'s: too many to be read")
    return MetricLines(whose, selected)


def parse_metrics(selection: MetricLines) -> MetricsSnapshot:
    """The metrics in the selected lines, without the repetitions of ranks, summed over engines."""
    if selection.error:
        return MetricsSnapshot(error=selection.error)
    from prometheus_client.parser import text_string_to_metric_families

    meanings = ENGINE_METRICS[selection.names].meanings
    rows: dict[Series, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in selection.lines:
        try:  # without a TYPE line each sample is a family of its own name
            (family,) = text_string_to_metric_families(line + "\n")
            (sample,) = family.samples
            meaning = meanings[sample.name]
        except (KeyError, ValueError):
            return MetricsSnapshot(error=f"/metrics is malformed in {line[:_LONGEST_QUOTE]!r}")
        repeated = _REPEATED_GAUGE if meaning.quantity in GAUGES else _REPEATED
        labels = {name: value for name, value in sample.labels.items() if name not in repeated}
        part = labels.pop(meaning.label, "") if meaning.label else meaning.part
        bound = part if meaning.label == "le" and part not in ("+Inf", "Inf", "inf") else 0
        if untrusted.read_number(sample.value) is None or untrusted.read_number(bound) is None:
            continue  # not a possible count or bucket
        series = (
            untrusted.read_text(labels.pop("model_name", "")),
            meaning.quantity,
            untrusted.read_text(part),
        )
        places, place = rows.setdefault(series, {}), tuple(sorted(labels.items()))
        places[place] = max(places.get(place, sample.value), sample.value)
    sums = {series: _combine_values(series[1], list(places.values())) for series, places in rows.items()}
    values = {series: value for series, value in sums.items() if untrusted.read_number(value) is not None}
    return MetricsSnapshot(
        selection.names,
        counters={series: value for series, value in values.items() if series[1] not in GAUGES},
        gauges={series: value for series, value in values.items() if series[1] in GAUGES},
    )


def _combine_values(quantity: str, values: Sequence[float]) -> float:
    return max(values) if quantity in _GREATEST else sum(values)
