"""llm-d report: a run as llm-d's Benchmark Report v0.2.1, which its analysis and dashboards read.

The fields are those of `br_v0_2_json_schema.json` of llm-d-benchmark; what a run does not know is left out.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.base.urls import is_this_machine
from loadgen.facts.run_facts import Facts
from loadgen.features.export.ranked_latencies import rank_latencies
from loadgen.figures.distribution import Distribution, compute_percentiles
from loadgen.figures.metrics import list_known_throughputs
from loadgen.figures.per_request import PerRequest
from loadgen.plan.request_sources import RANDOM
from loadgen.report.load_identity import find_asked_input, find_asked_output, has_range
from loadgen.report.result_file import make_strict, name_marked_model
from loadgen.report.run_directory import Result
from loadgen.server.sample_file import list_gauge_series

VERSION = "0.2.1"
_RANKS = {
    0.1: "p0p1", 1.0: "p1", 5.0: "p5", 10.0: "p10", 25.0: "p25", 50.0: "p50", 75.0: "p75", 90.0: "p90",
    95.0: "p95", 99.0: "p99", 99.9: "p99p9",
}  # fmt: skip
# Its names of our latencies, and their units.
_LATENCIES = {
    "time_to_first_token": ("ttft", "ms"),
    "normalized_time_per_output_token": ("e2el_per_token", "ms/token"),
    "time_per_output_token": ("tpot", "ms/token"),
    "inter_token_latency": ("itl", "ms/token"),
    "request_latency": ("e2el", "ms"),
}
_RATES = {
    "output_token_rate": ("output_throughput", "tokens/s"),
    "total_token_rate": ("total_token_throughput", "tokens/s"),
    "request_rate": ("request_throughput", "queries/s"),
}
# Its names of the sampled gauges, their units, and the factor from ours.
_GAUGES = {
    "running_requests": ("running", "count", 1),
    "waiting_requests": ("waiting", "count", 1),
    "kv_cache_usage": ("kv_cache_usage", "percent", 100),
}
_ENGINE = "engine"  # the label of the stack's one component
_POINTLESS = re.compile(r'(?m)^(\s*(?:"[^"\\]*": )?-?\d+)(e[-+]\d+,?)$')


def encode_llmd_report(run: Result) -> str:
    """Encode the report of a run as JSON that is YAML 1.1 too, so that llm-d's reader of `*.yaml` takes it.

    A reader of YAML takes 1e-05 for a text, and 1.0e-05 for a number.
    """
    text = json.dumps(make_llmd_report(run), indent=2, allow_nan=False)
    return _POINTLESS.sub(r"\1.0\2", text) + "\n"


def make_llmd_report(run: Result) -> dict[str, Any]:
    """Make the report of a run: when, the load, the engine, and the figures over successful requests."""
    facts = run.facts
    scenario = {"stack": [_describe_engine(facts)], "load": _describe_load(run)}
    results: dict[str, Any] = {"request_performance": {"aggregate": _list_figures(run)}}
    if gauges := _summarize_gauges(run):
        results["observability"] = {"components": [{"component_label": _ENGINE, "aggregate": gauges}]}
    return {
        "version": VERSION,
        "run": {
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{facts.plan_digest} {facts.started.isoformat()}")),
            "time": {
                "start": facts.started.isoformat(),
                "end": facts.finished.isoformat(),
                "duration": f"PT{run.metrics.duration_s:.9f}S",
            },
            "description": facts.label or _describe_run(facts),
        },
        "scenario": {name: part for name, part in scenario.items() if part},
        "results": results,
    }


def _describe_run(facts: Facts) -> str:
    """Describe a run without a label by its model, and its profile where that has a name."""
    model, profile = name_marked_model(facts), facts.profile.name
    return f"{model} [{profile}]" if profile else model


def _describe_engine(facts: Facts) -> dict[str, Any]:
    """Describe the engine as a component, as an inference engine where its accelerators are known.

    That needs their name, their number, and that it is the number of tensor parallel ones: its reader takes
    each kind of parallelism that is left out for 1.
    """
    server, as_run, launched = facts.server, facts.as_run, facts.launched
    parallel, gpus = facts.tensor_parallel, facts.gpu_count
    gpu = facts.environment.get("gpu", "") if is_this_machine(server.url) else ""
    engine = {"tool": server.engine, "tool_version": server.version}
    flags = {"command": launched.command} if launched is not None else {}
    config = {key: value for key, value in (as_run.model_dump() if as_run else {}).items() if value}
    native = {"args": flags, "config": config}
    if gpu and gpus and parallel == gpus and not (facts.targets or facts.role_windows):
        standardized = {
            "kind": "inference_engine",
            **engine,
            "role": "replica",
            "replicas": 1,
            "model": {"name": name_marked_model(facts)},
            "accelerator": {"model": gpu, "count": gpus, "parallelism": {"tp": parallel}},
        }
    else:
        known = {"accelerator": gpu, "accelerators": gpus, "tensor_parallel": parallel}
        extra = {key: value for key, value in known.items() if value}
        standardized = {"kind": "generic", **engine, "model": name_marked_model(facts), **extra}
    return {
        "metadata": {"label": _ENGINE, "cfg_id": _hash_config(native)},
        "standardized": standardized,
        "native": {name: part for name, part in native.items() if part},
    }


def _hash_config(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a configuration as sorted JSON, as llm-d identifies one."""
    return sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _describe_load(run: Result) -> dict[str, Any]:
    """Describe the load in llm-d's terms, and natively as our profile; {} if prompts' lengths are unknown."""
    facts, profile = run.facts, run.facts.profile
    prompts = _list_lengths(run)[0]
    lengths = _describe_lengths(facts, find_asked_input(facts), prompts)
    if not lengths:
        return {}
    native = {"config": list_workload(facts)}
    rate = facts.planned_rate_per_s
    standardized: dict[str, Any] = {
        "tool": "loadgen",
        "tool_version": facts.environment.get("loadgen", ""),
        "parallelism": facts.client.workers,
        "source": "random" if facts.data.kind == RANDOM and not facts.data.text else "sampled",
        "input_seq_len": lengths,
    }
    answers = find_asked_output(facts)
    if answers and profile.ignore_eos and not facts.ignore_eos_refused:
        standardized["output_seq_len"] = _describe_lengths(facts, answers, None)
    if math.isfinite(rate) and not profile.shaped:
        standardized["rate_qps"] = rate
    if facts.held_concurrency is not None:
        standardized["concurrency"] = facts.held_concurrency
    if facts.session_turns:
        standardized["multi_turn"] = {"enabled": True}
    return {
        "metadata": {"cfg_id": _hash_config(native)},
        "standardized": standardized,
        "native": native,
    }


def list_workload(facts: Facts) -> dict[str, Any]:
    """List the keys of a run's workload whose values are not the defaults, as strict JSON."""
    return dict(make_strict(facts.profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)))


def _describe_lengths(facts: Facts, asked: int | None, counted: NDArray[Any] | None) -> dict[str, Any]:
    """Describe lengths in tokens: fixed as asked, else by what was counted; {} where neither is known."""
    if asked is not None and not has_range(facts):
        return {"distribution": "fixed", "value": asked}
    if counted is None:
        return {} if asked is None else {"distribution": "uniform", "value": asked}
    form = "other" if asked is None else "uniform"
    return {
        "distribution": form,
        "value": float(counted.mean()),
        "std_dev": float(counted.std()),
        "min": int(counted.min()),
        "max": int(counted.max()),
    }


def _list_lengths(run: Result) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return the tokens of successful prompts and answers; None where one is unknown, or none succeeded."""
    each = PerRequest.from_records(run.counted, run.ask)
    prompts, answers = each.input_tokens[each.ok], each.output_tokens[each.ok]
    known = [lens if len(lens) and (lens >= 0).all() else None for lens in (prompts, answers)]
    return known[0], known[1]


def _list_figures(run: Result) -> dict[str, Any]:
    """List requests, latencies and throughput; a figure that the run does not have is left out."""
    metrics, known = run.metrics, list_known_throughputs(run.metrics)
    requests: dict[str, Any] = {
        "total": metrics.requests,
        "failures": metrics.failed,
        "incomplete": metrics.cancelled + metrics.cut_off,
    }
    for name, lens in zip(("input_length", "output_length"), _list_lengths(run), strict=True):
        if lens is not None:
            requests[name] = _summarize("count", lens.astype(np.float64))
    ranked = rank_latencies(run, tuple(_RANKS))
    latency = {
        name: _encode_distribution(unit, ranked[key])
        for name, (key, unit) in _LATENCIES.items()
        if key in ranked
    }
    throughput = {
        name: {"units": unit, "mean": known[key]}
        for name, (key, unit) in _RATES.items()
        if metrics.duration_s and known.get(key) is not None
    }
    if "total_token_rate" in throughput:
        throughput["input_token_rate"] = {"units": "tokens/s", "mean": metrics.input_throughput_per_s}
    parts = {"requests": requests, "latency": latency, "throughput": throughput}
    return {name: part for name, part in parts.items() if part}


def _encode_distribution(unit: str, figure: Distribution) -> dict[str, Any]:
    """Encode a latency's distribution as llm-d's Statistics."""
    return {
        "units": unit,
        "mean": figure.mean_ms,
        "stddev": figure.std_ms,
        "min": figure.min_ms,
        **{name: figure.percentiles_ms[rank] for rank, name in _RANKS.items()},
        "max": figure.max_ms,
    }


def _summarize(unit: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """Summarize numbers, at least one, as llm-d's Statistics; they are reordered in place."""
    return {
        "units": unit,
        "mean": float(values.mean()),
        "stddev": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
        **dict(zip(_RANKS.values(), map(float, compute_percentiles(values, tuple(_RANKS))), strict=True)),
    }


def _summarize_gauges(run: Result) -> dict[str, Any]:
    """Summarize the server's sampled gauges; one without samples is left out."""
    window = run.facts.own_window
    if window is None:
        return {}
    series = {each.quantity: each.values for each in list_gauge_series(window, 0)}
    return {
        name: _summarize(unit, series[quantity] * float(factor))
        for name, (quantity, unit, factor) in _GAUGES.items()
        if quantity in series and len(series[quantity])
    }
