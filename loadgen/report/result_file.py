"""Result file: vLLM's keys in vLLM's order, and ours under one more."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen.base import files
from loadgen.base.arrays import Int64
from loadgen.base.errors import Broken, UsageError, make_each
from loadgen.base.parsing import parse_metadata
from loadgen.base.text import make_file_name
from loadgen.facts.run_facts import Facts
from loadgen.figures.figure_table import percentile_name
from loadgen.figures.metrics import (
    DEFINITIONS_VERSION,
    Metrics,
    describe_traffic,
    list_known_throughputs,
    list_latencies,
    list_peaks,
)
from loadgen.figures.per_request import PerRequest
from loadgen.records.record import Records

OURS = "loadgen"
SIMULATED = " (simulated)"  # follows the model's name where the embedded engine answered
# Parts under that key that are computed: one that raises is null, and costs nothing else.
Derived = Mapping[str, Callable[[], Any]]


def name_result_file(facts: Facts) -> str:
    """Make the file name that vLLM would give the result, without characters of a path."""
    profile, rate = facts.profile, facts.profile.request_rate
    if facts.data.schedule is not None or profile.shaped:
        rate = float(f"{facts.planned_rate_per_s:.4g}")
    concurrency = "" if profile.max_concurrency is None else f"-concurrency{profile.max_concurrency}"
    model = make_file_name(facts.server.model.split("/")[-1])
    label = make_file_name(facts.label or profile.backend)
    if (ramp := profile.ramp) is not None:
        ends = f"{ramp.begin:g}qps-{ramp.end:g}qps"
        return f"{label}-ramp-up-{profile.ramp_up_strategy}-{ends}{concurrency}-{model}-{_date(facts)}.json"
    return f"{label}-{float(rate)}qps{concurrency}-{model}-{_date(facts)}.json"


def _date(facts: Facts) -> str:
    """Format when the run finished, in the time zone where it ran, as vLLM does."""
    return facts.finished.strftime("%Y%m%d-%H%M%S")


def make_result(
    metrics: Metrics, records: Records, facts: Facts, derived: Derived, detailed: bool = False
) -> dict[str, Any]:
    """Make the result as `vllm bench serve` 0.32 saves it, ours under one more key, as strict JSON.

    Times are seconds, `start_times` on CLOCK_MONOTONIC as theirs; what a failed request never reached is 0,
    as theirs. `detailed` adds every request. A simulation is marked as one, in the model's name too: that is
    what tools which read vLLM's keys show.
    """
    each, block = PerRequest.from_records(records, facts.ask()), facts.block()
    traffic = describe_traffic(block)
    mark = {"simulated": True} if facts.server.simulated else {}
    ramp_keys: dict[str, Any] = {}
    if (ramp := facts.profile.ramp) is not None:
        ramp_keys = {
            "ramp_up_strategy": facts.profile.ramp_up_strategy,
            "ramp_up_start_rps": ramp.begin,
            "ramp_up_end_rps": ramp.end,
        }
    return {
        **mark,
        "date": _date(facts),
        "endpoint_type": facts.profile.backend,
        "backend": facts.profile.backend,
        "label": facts.label,
        "model_id": name_marked_model(facts),
        "tokenizer_id": facts.tokenizer,
        "num_prompts": facts.own_requests,
        **parse_metadata(facts.metadata),
        **mark,  # in place of what --metadata has under this name
        "request_rate": traffic["request_rate"],
        "burstiness": make_strict(facts.profile.burstiness),
        "max_concurrency": traffic["max_concurrency"],
        **ramp_keys,
        **list_known_throughputs(metrics),
        **_list_requests(records, each, detailed),
        **list_peaks(metrics),
        **list_latencies(metrics, block),
        OURS: _make_ours(metrics, records, facts, derived, detailed),
    }


def name_marked_model(facts: Facts) -> str:
    """Return the model's name, marked where the embedded engine answered."""
    return facts.server.model + (SIMULATED if facts.server.simulated else "")


def _make_ours(
    metrics: Metrics, records: Records, facts: Facts, derived: Derived, detailed: bool
) -> dict[str, Any]:
    """Make our part of the result: figures, facts and what is derived.

    Metrics, derived or per-request values that fail are None, explained in `failed_parts`; facts may raise.
    """
    parts: dict[str, Callable[[], Any]] = {"metrics": lambda: metrics, **derived}
    if detailed:
        parts["per_request"] = lambda: {
            "success": records.ok.tolist(),
            "request_ids": ids if any(ids := list_request_ids(facts, records.index)) else None,
        }
    broken: list[Broken] = []

    def check(make: Callable[[], Any]) -> Any:
        part = make_strict(make())
        json.dumps(part, allow_nan=False)  # raises TypeError or ValueError of what is no JSON
        return part

    checked = {name: partial(check, make) for name, make in parts.items()}
    made = {**dict.fromkeys(parts), **make_each(checked, broken)}
    failed = {"failed_parts": {item.name: item.why for item in broken}} if broken else {}
    # A fact is read again as what it was: NaN, a number to pydantic, as its name.
    return {
        "definitions_version": DEFINITIONS_VERSION,
        "metrics": made.pop("metrics"),
        **make_strict(facts.json(), nan="nan"),
        **made,
        **failed,
    }


def write_result(path: Path, result: Mapping[str, Any], append: bool = False) -> None:
    """Make the directory and write the result as one line of JSON, after what is there if `append`.

    A file is replaced whole or not at all, a pipe or a device is written to. Raises UsageError when the file
    cannot be written, as where it is a symbolic link.
    """
    text = json.dumps(result, allow_nan=False).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_output(path, lambda file: file.write(text), append)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write {path}: {reason}; choose another --result-dir") from error


def _list_requests(records: Records, each: PerRequest, detailed: bool) -> dict[str, Any]:
    """List the per-request values in plan order; without `detailed` only the two vLLM always keeps."""
    queue_ns = np.where(records.sent_ns > 0, records.sent_ns - records.intended_ns, 0)
    always = {"latencies": _convert_to_seconds(each.e2el_ns), "queue_times": (queue_ns / 1e9).tolist()}
    if not detailed:
        return always
    bounds = zip(records.start[:-1].tolist(), records.start[1:].tolist(), strict=True)
    return {
        "input_lens": each.input_tokens.clip(0).tolist(),
        "output_lens": each.output_tokens.tolist(),
        "ttfts": _convert_to_seconds(each.ttft_ns),
        "itls": [(np.diff(records.arrival_ns[a:b]) / 1e9).tolist() for a, b in bounds],
        "latencies": always["latencies"],
        "start_times": _convert_to_seconds(records.sent_ns),
        "queue_times": always["queue_times"],
        "generated_texts": [text or "" for text in records.texts],
        "errors": [
            f"{failure.kind.value}: {failure.detail}" if failure else "" for failure in records.failures
        ],
    }


def _convert_to_seconds(times_ns: Int64) -> list[float]:
    seconds: list[float] = (times_ns.clip(0) / 1e9).tolist()
    return seconds


def make_strict(value: Any, nan: str | None = None) -> Any:
    """Convert a value to strict JSON: NaN becomes null or `nan`, an infinity its name."""
    if isinstance(value, msgspec.Struct):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else percentile_name(key): make_strict(item, nan)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [make_strict(item, nan) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return nan if math.isnan(value) else str(value)
    return value


def list_request_ids(facts: Facts, indices: Int64) -> list[str | None]:
    """List the x-request-id of the requests with these plan indices; None where it was not stored."""
    shards = {row.number: row.request_id_prefix for row in facts.shards}
    common, of = facts.request_id_prefix, max(len(shards), 1)
    prefixes = [common if common is not None else shards.get(number) for number in range(of)]
    pairs = ((prefixes[index % of], index) for index in indices.tolist())
    return [None if prefix is None else f"{prefix}{index}" for prefix, index in pairs]
