"""Fits: which checkpoint goes into which memory, from bytes that were measured or computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from loadgen.engines import engines
from loadgen.report.speed_tables import Column, Table
from loadgen.study.compare.ceilings import stored
from loadgen.study.compare.model import ComparedLoad
from loadgen.study.compare.rankings import checkpoint
from loadgen.study.run_summary import Reported

SIZES_GIB = (8, 16, 24, 48, 96)
CONTEXT = 8192  # tokens of the one request whose keys and values must fit too
OVERHEAD_GIB = 1.0  # the driver's context, activations, buffers
_GIB = 2.0**30


class Need(msgspec.Struct, frozen=True):
    """The bytes that a checkpoint takes, and how they are known."""

    gib: float  # NaN: not known
    how: str


def fits(comparisons: Iterable[ComparedLoad], context: int = CONTEXT) -> Table:
    """Each checkpoint once: GiB that it needs, the source of that, and yes or no for each size of memory.

    Measured: the server's peak, of engines that take what they need. Else weights (of the files, of the
    safetensors headers, or computed from the model's shape) + keys and values of one request of `context`
    tokens + 1 GiB.
    """
    rows: dict[str, list[Reported]] = {}
    for line in (line for comparison in comparisons for line in comparison.lines if line.runs):
        rows.setdefault(checkpoint(line), []).extend(line.runs)
    body = []
    for name, runs in rows.items():
        need = needed(name, runs, context)
        is_known = math.isfinite(need.gib)
        answers = (("yes" if need.gib <= size else "no") if is_known else "-" for size in SIZES_GIB)
        body.append((name, f"{need.gib:.1f}" if is_known else "-", *answers, need.how))
    sizes = (Column(f"gib_{size}", str(size)) for size in SIZES_GIB)
    columns = (Column("model", "model"), Column("gib", "GiB"), *sizes, Column("how", "how known"))
    return Table(columns, tuple(body), notes=_notes(context))


def needed(name: str, runs: Sequence[Reported], context: int = CONTEXT) -> Need:
    """What a checkpoint needs, from the best source."""
    measured = [run.memory_bytes for run in runs if run.memory_bytes and _takes_what_it_needs(run)]
    if measured:
        return Need(max(measured) / _GIB, "measured")
    files = max((run.weight_bytes for run in runs if run.weight_bytes), default=None)
    weights = next((run.ceiling.weights for run in runs if run.ceiling is not None), None) or stored(name)
    if weights is not None:
        kept = (files or weights.total_bytes) + weights.kv_bytes(context)
        return Need(kept / _GIB + OVERHEAD_GIB, "files + KV" if files else "computed")
    if files:
        return Need(files / _GIB + OVERHEAD_GIB, "files, no KV")
    return Need(math.nan, "unknown model")


def _takes_what_it_needs(run: Reported) -> bool:
    """Whether the engine's peak is what the model needs; False of an unknown engine."""
    engine = run.engine.lower()
    named = (each for each in engines.ENGINES if engine.startswith(each.name.lower()))
    profile = next(named, engines.UNKNOWN)
    return bool(engine) and not profile.takes_all_memory and not profile.simulated


def _notes(context: int) -> tuple[str, ...]:
    return (
        f"computed, files: weights + keys and values of one request of {context} tokens + "
        f"{OVERHEAD_GIB:g} GiB for the driver, activations and buffers; measured: the server's own peak",
        "yes: it fits a memory of that many GiB with nothing else in it; "
        "where the system shares the memory (Jetson, GB10) leave room for it",
    )
