"""Run roofline: what a run could have reached at best, from its facts, and its figures next to that."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from loadgen.facts.run_facts import Facts
from loadgen.figures import vllm_keys
from loadgen.figures.figure_table import DEFAULT_METRICS
from loadgen.figures.metrics import Metrics
from loadgen.roofline import bound
from loadgen.roofline.bound import Lengths
from loadgen.roofline.ceiling import Ceiling
from loadgen.roofline.estimate import ModelIdentity, find_ceiling
from loadgen.roofline.flags import Flags
from loadgen.verdict import evidence

_HARDLY = 0.01  # of the prompt tokens: pieces of one text may begin alike


def find_run_ceiling(facts: Facts, flags: Flags) -> tuple[Ceiling | None, str]:
    """Find the best that a run's model can do on its machine; else None, why, and what to pass."""
    return find_ceiling(identify_model(facts), flags)


def identify_model(facts: Facts) -> ModelIdentity:
    """Collect the machine, the model and its quantization from a run's facts."""
    server, files, engine = facts.server, facts.checkpoint, facts.as_run
    environment = facts.environment
    return ModelIdentity(
        model=server.model if server.simulated else server.model_root or server.model,
        checkpoint_path=files.path if files is not None else "",
        declared=files.quantization if files is not None else "",
        as_run=engine.quantization if engine is not None else "",
        kv_dtype=engine.kv_cache_dtype if engine is not None else "",
        simulated=server.simulated,
        gpu=environment.get("gpu", ""),
        memory=environment.get("memory", ""),
        partitioned=bool(environment.get("gpu_mig")),
        devices=count_devices(facts),
    )


def list_bound_figures(facts: Facts, metrics: Metrics) -> tuple[dict[str, Any], Lengths]:
    """Collect a run's figures and lengths for comparison with the roofline, shown in the report or not.

    Where prompts share tokens on purpose, or may, TTFT is of the rest alone: it is left out.
    """
    shared = evidence.expected_reuse(facts)
    selected = DEFAULT_METRICS if shared is not None and shared <= _HARDLY else DEFAULT_METRICS[1:]
    completed = max(metrics.completed, 1)
    load = Lengths(
        input_len=metrics.total_input_tokens / max(metrics.completed - metrics.unknown_inputs, 1),
        output_len=metrics.total_output_tokens / completed,
        max_concurrency=facts.profile.max_concurrency,
    )
    return vllm_keys.list_figures(metrics, replace(facts.block(), selected=selected)), load


def describe_roofline(facts: Facts, metrics: Metrics) -> list[str]:
    """Describe the roofline for the report, or why it is missing, in lines not yet wrapped."""
    if not facts.whole_load:
        return []
    if facts.ceiling is None:
        return [f"roofline: unknown: {facts.no_ceiling}"] if facts.no_ceiling else []
    return bound.render_lines(facts.ceiling, *list_bound_figures(facts, metrics))


def count_devices(facts: Facts) -> int | None:
    """Count the GPUs that share the model: as the engine reports, was started, or has memory on."""
    reported = facts.as_run.tensor_parallel if facts.as_run is not None else None
    given = facts.launched.settings.tensor_parallel if facts.launched is not None else None
    sensed = facts.sensed
    holding = len(sensed.gpus) if sensed is not None and sensed.holds_server else None
    return reported or given or holding or None
