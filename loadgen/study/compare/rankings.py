"""Rankings: tables of checkpoints: by speed, by quantization, and by the memory that they fit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import msgspec

from loadgen.base.passages import Passage
from loadgen.base.tables import Table, make_table
from loadgen.base.text import GIB
from loadgen.engines import engines
from loadgen.features.roofline import models
from loadgen.study.compare.comparison import find_column
from loadgen.study.compare.model import ComparedLoad, Line
from loadgen.study.consistency.ceilings import find_weights
from loadgen.study.run_summary import Reported

_PLAIN = ("", "BF16", "FP16")
_PARAMETERS = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)B(?![A-Za-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(r"(?<![A-Za-z0-9.])A(\d+(?:\.\d+)?)B(?![A-Za-z0-9])", re.IGNORECASE)
UNLIKE = "*"
SIZES_GIB = (8, 16, 24, 48, 96)
CONTEXT = 8192  # tokens of the one request whose keys and values must fit too
OVERHEAD_GIB = 1.0  # the driver's context, activations, buffers


class Model(msgspec.Struct, frozen=True):
    """The parts of a checkpoint's name: base model, parameters in 1e9, how its weights are stored."""

    base: str
    quantization: str  # "" where the name has none: as trained, in 16 bits
    parameters_b: float | None
    active_b: float | None  # of a mixture of experts

    @classmethod
    def parse(cls, name: str) -> Model:
        """Parse a checkpoint's name; its sizes are by its own words, else by the table of models or None."""
        stored, known = models.find_suffix(name), models.find_model(name)
        base = re.sub(rf"-{re.escape(stored)}$", "", name, flags=re.IGNORECASE) if stored else name
        size, active = _PARAMETERS.search(name), _ACTIVE.search(name)
        size_b = float(size[1]) if size else None
        active_size_b = float(active[1]) if active else None
        if known is not None:
            row = models.read_rows()[known.key]
            size_b = size_b or row.parameters_b
            active_size_b = active_size_b or row.active_b or None
        return cls(base, stored, size_b, active_size_b)

    @property
    def params(self) -> str:
        """The parameters as the pages write them: 4B, 30B (3B active); "-" if unknown."""
        if self.parameters_b is None:
            return "-"
        active = f" ({self.active_b:g}B active)" if self.active_b else ""
        return f"{self.parameters_b:g}B{active}"

    @property
    def type(self) -> str:
        """The kind of model as the pages write it: Dense BF16, Dense AWQ, MoE FP8."""
        return f"{'MoE' if self.active_b else 'Dense'} {self.quantization or 'BF16'}"


def make_ranking_table(comparison: ComparedLoad) -> Table:
    """Make a table of one load's rows with its headline figure, the fastest first; unlike ones are marked."""
    key = comparison.headline
    ranked = [line for line in comparison.lines if key in line.summaries]
    ranked.sort(
        key=lambda line: line.summaries[key].mean, reverse=find_column(key).higher_is_faster is not False
    )
    body = []
    for rank, line in enumerate(ranked, 1):
        model = Model.parse(find_checkpoint_name(line))
        name = f"{line.shown_name}{UNLIKE if is_unlike(comparison, line) else ''}"
        body.append((str(rank), name, model.params, model.type, _format_figure(line, key)))
    columns: list[str | tuple[str, str]] = ["rank", "model", "params", "type", (key, _find_label(key))]
    note = f"{UNLIKE} unlike {comparison.baseline}, the baseline: its rank is of another load"
    return make_table(columns, body, notes=[note] if any(row[1].endswith(UNLIKE) for row in body) else [])


def make_effect_table(comparison: ComparedLoad) -> Table:
    """Make a table of base models × quantizations: the headline figure, and how many times as fast as BF16.

    391.2 (1.88×) where it is 208.1 in BF16. A row that is unlike the baseline, or has no such figure, is left
    out.
    """
    cells: dict[tuple[float, str, str], dict[str, Line]] = {}
    for line in comparison.lines:
        if comparison.headline in line.summaries and not is_unlike(comparison, line):
            model = Model.parse(find_checkpoint_name(line))
            kind = "BF16" if model.quantization.upper() in _PLAIN else model.quantization
            where = line.name.removeprefix(find_checkpoint_name(line))  # on which server, by whom
            base = model.parameters_b or 0.0, model.params, f"{model.base}{where}"
            cells.setdefault(base, {})[kind] = line
    kinds = sorted(
        {kind for by_kind in cells.values() for kind in by_kind}, key=lambda kind: (kind != "BF16", kind)
    )
    body = []
    for (_, size, name), by_kind in sorted(cells.items(), key=lambda cell: cell[0]):
        shown = (_format_ratio(by_kind.get(kind), by_kind.get("BF16"), comparison.headline) for kind in kinds)
        body.append((size, name, *shown))
    note = f"{_find_label(comparison.headline)}; × relative to the same model in BF16, if it was run"
    return make_table(("size", "model", *kinds), body, notes=[note])


def find_checkpoint_name(line: Line) -> str:
    """Return the name of the checkpoint of a row with runs, without where it ran."""
    cell = line.runs[0].cell
    return line.runs[0].name or line.name if cell is None else cell.checkpoint


def is_unlike(comparison: ComparedLoad, line: Line) -> bool:
    """Whether a row has no verdict by the headline since its load or machine was not the baseline's."""
    effect = line.effects.get(comparison.headline)
    return effect is not None and effect.unlike


def _find_label(key: str) -> str:
    return "tok/s" if key == "speed_tok_s" else find_column(key).label  # as the pages have it


def _format_ratio(line: Line | None, plain: Line | None, key: str) -> str:
    """Write a row's figure with how many times as fast as `plain` it is, if that is another; "-" without."""
    if line is None:
        return "-"
    text = _format_figure(line, key)
    if plain is None or plain is line:
        return text
    ratio = line.summaries[key].mean / plain.summaries[key].mean
    times = ratio if find_column(key).higher_is_faster else 1 / ratio
    return f"{text} ({times:.2f}×)"


def _format_figure(line: Line, key: str) -> str:
    summary = line.summaries[key]
    return str(summary.mean) if summary.units == 1 and len(str(summary.mean)) < 8 else f"{summary.mean:.2f}"


def make_fit_passage(comparisons: Iterable[ComparedLoad]) -> Passage:
    """Make the passage of checkpoints: the GiB each needs, how known, and if it fits each size of memory."""
    rows: dict[str, list[Reported]] = {}
    for line in (line for comparison in comparisons for line in comparison.lines if line.runs):
        rows.setdefault(find_checkpoint_name(line), []).extend(line.runs)
    body = []
    for name, runs in rows.items():
        gib, how = compute_need(name, runs)
        is_known = math.isfinite(gib)
        answers = (("yes" if gib <= size else "no") if is_known else "-" for size in SIZES_GIB)
        body.append((name, f"{gib:.1f}" if is_known else "-", *answers, how))
    sizes = ((f"gib_{size}", str(size)) for size in SIZES_GIB)
    columns = (("model", "model"), ("gib", "GiB"), *sizes, ("how", "how known"))
    notes = (
        f"computed, files: weights + keys and values of one request of {CONTEXT} tokens + "
        f"{OVERHEAD_GIB:g} GiB for the driver, activations and buffers; measured: the server's own peak",
        "yes: it fits a memory of that many GiB with nothing else in it; "
        "where the system shares the memory (Jetson, GB10) leave room for it",
    )
    title, table = "What fits which memory (GiB)", make_table(columns, body, notes=notes)
    return Passage(title, "fits", table=table)


def compute_need(name: str, runs: Sequence[Reported]) -> tuple[float, str]:
    """Compute the GiB that a checkpoint needs: the most measured, else files or weights and KV; else NaN.

    Measured are peaks of real engines that take what they need, not a share of all; files without a known
    shape are without KV. Returned with how it is known.
    """
    measured = []
    for run in runs:
        engine = run.engine.lower()
        named = (each for each in engines.ENGINES if engine.startswith(each.name.lower()))
        profile = next(named, engines.UNKNOWN)
        if run.memory_bytes and engine and not profile.takes_all_memory and not profile.simulated:
            measured.append(run.memory_bytes)
    if measured:
        return max(measured) / GIB, "measured"
    files = max((run.weight_bytes for run in runs if run.weight_bytes), default=None)
    weights = next((run.ceiling.weights for run in runs if run.ceiling is not None), None) or find_weights(
        name
    )
    if weights is not None:
        kept = (files or weights.total_bytes) + weights.kv_bytes(CONTEXT)
        return kept / GIB + OVERHEAD_GIB, "files + KV" if files else "computed"
    if files:
        return files / GIB + OVERHEAD_GIB, "files, no KV"
    return math.nan, "unknown model"
