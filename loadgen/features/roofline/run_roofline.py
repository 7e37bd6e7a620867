"""Run roofline: what a run could have reached at best, from its facts, and its figures next to that.

What computes a ceiling is imported only for runs that may have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from loadgen.base.structs import replace
from loadgen.engines import engines
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline.roofline_checks import list_bound_figures
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions

if TYPE_CHECKING:
    from loadgen.features.roofline.estimate import ModelIdentity


def add_ceiling(facts: Facts, flags: Flags) -> Facts:
    """Return the facts with the roofline, or why it is unknown, and the number of GPUs.

    Without flags a hosted API's facts, and those of a preset of no machine, stay as they are. Several servers
    have none.
    """
    if engines.find_by_name(facts.server.engine).hosted and flags == Flags():
        return facts
    if facts.targets or len(facts.role_windows) > 1:
        why = "several servers share the load: the batch of each is not known; measure one alone"
        return replace(facts, no_ceiling=why)
    if facts.server.simulated and "/" not in facts.server.simulated and flags == Flags():
        return facts  # a preset of no machine
    from loadgen.features.roofline import estimate, machines

    bound, why = estimate.find_ceiling(identify_model(facts), flags)
    named = 0 if flags.hardware is None else machines.find_machine(flags.hardware).devices
    gpus = facts.gpus or named or facts.gpu_count
    return replace(facts, ceiling=bound, no_ceiling=why, gpus=gpus)


def identify_model(facts: Facts) -> ModelIdentity:
    """Return the machine, the model and its quantization in a run's facts, "" for what is unknown."""
    from loadgen.features.roofline.estimate import ModelIdentity

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


def count_devices(facts: Facts) -> int | None:
    """Count the GPUs that share the model, by the engine's report, its start, or memory; None: unknown."""
    holding = () if facts.sensed is None else facts.sensed.server_gpus
    return facts.tensor_parallel or len(holding) or None


def describe_roofline(result: Result, options: ReportOptions) -> Iterable[str]:
    """Return lines, not wrapped, on the roofline, or why it is missing; [] if there is no reason either."""
    facts = result.facts
    if facts.ceiling is None:
        return [f"roofline: unknown: {facts.no_ceiling}"] if facts.no_ceiling else []
    from loadgen.features.roofline import bound

    return bound.render_lines(facts.ceiling, *list_bound_figures(facts, result.metrics))


def summarize_roofline(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the share of the machine's best decoding speed that was reached, if known."""
    if (ceiling := result.facts.ceiling) is None:
        return
    from loadgen.features.roofline import bound

    step = bound.compare_decode(ceiling, *list_bound_figures(result.facts, result.metrics))
    if step is not None:
        share = f"{100 * step.share:.0f} % of the best decoding of {ceiling.machine.name}"
        yield f"roofline: {share} ({step.reached_tps:,.0f} of {step.best_tps:,.0f} tok/s)"
