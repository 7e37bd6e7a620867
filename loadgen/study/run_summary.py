"""Reported: one run as anyone reports it, ours or another client's, in one shape."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict
from pydantic import BaseModel

from loadgen.base import parsing
from loadgen.base.parsing import parse_metadata
from loadgen.base.urls import is_this_machine
from loadgen.engines import engines
from loadgen.facts.ceiling import Ceiling
from loadgen.facts.run_facts import Cell, Facts, Fingerprint
from loadgen.features.roofline.models import split_name
from loadgen.features.sessions.session_figures import summarize_sessions
from loadgen.features.speculation.speculation_figures import measure_speculation
from loadgen.figures.figure_table import COUNTS, LATENCY, OF_PROMPTS, OWN, PEAKS, SELECTABLE
from loadgen.figures.metrics import Figures, describe_traffic, list_known_throughputs, list_peaks
from loadgen.report.load_identity import Load, identify_load
from loadgen.report.run_directory import Result
from loadgen.study import labels, load_table
from loadgen.study.quality.quality_record import Quality

OURS = "loadgen"
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
_UNQUANTIZED = ("", "BF16")
_KEYS = ("request_rate", "max_concurrency", *(figure.key for figure in (*COUNTS, *PEAKS)), "backend")
SESSION_MS = "mean_session_ms"  # a figure of ours: how long a finished session takes, mean


class Reported(msgspec.Struct, frozen=True):
    """One run's figures under vLLM's result keys (milliseconds, seconds, tokens per second).

    A figure that the source does not have is absent; a key of ours is `speed_tok_s`, of a speed table.
    """

    name: str  # of the checkpoint, as the source has it: base model and quantization
    figures: Figures
    load: Load
    source: str  # the file, and the place in it
    told_by: str = OURS  # loadgen, vllm, sglang, aiperf, guidellm, page, speed table
    engine: str = ""  # with its version
    machine: str = ""  # the GPU's or the CPU's own name
    power_mode: str = ""
    started: datetime | None = None
    plan_digest: str = ""  # equal where the prompts were the same
    memory_bytes: int | None = None  # the server's peak
    weight_bytes: int | None = None  # of the checkpoint's files
    joules_per_token: float | None = None
    level: str = ""  # our verdict on the run: VALID, SUSPECT, INVALID
    doubts: tuple[str, ...] = ()  # their names, the grave ones
    saturated: bool = False  # ended early, since the server fell further and further behind
    simulated: str = ""  # the embedded engine's timing preset; "": a real server answered
    speed_formula: str = ""  # what a speed table's tokens per second are over
    # Notes on figures that differ from their key's definition, and on what could not be read.
    remarks: tuple[str, ...] = ()
    ceiling: Ceiling | None = None
    fingerprint: Fingerprint | None = None
    quality: Quality | None = None  # of the server, against a reference
    file: str = ""  # that it stands in, perhaps with others; "": in a directory of its own
    cell: Cell | None = None  # of a campaign
    run: Result | None = None  # our own, with every arrival
    result_facts: Facts | None = None  # of our own, where only its result file is there
    model: str = ""  # the checkpoint, where `name` is more or something else: a heading, a row's label
    place: str = ""  # as it was named to be read: a file, a directory; "": by none
    unread: Mapping[str, str] = {}  # labels and settings of the source that nothing is read from

    @property
    def facts(self) -> Facts | None:
        """Everything that a run of ours records of itself; None of another client's."""
        return self.result_facts if self.run is None else self.run.facts

    @property
    def checkpoint(self) -> str:
        """The name by which its weights are found: that of the checkpoint, where it is known apart."""
        return self.model or self.name

    def figure(self, key: str) -> float | None:
        """Return a figure that is a number; None if it is absent, null, "inf", NaN or not a measurement's."""
        return _read_measured(self.figures.get(key))

    @property
    def held(self) -> dict[str, float]:
        """The figures that are numbers and describe its load; of a saturated run only some do."""
        figures = self.figures
        if self.saturated:
            figures = {} if self.run is None else load_table.saturated_figures(self.run)
        known = ((key, _read_measured(value)) for key, value in figures.items())
        return {key: value for key, value in known if value is not None}

    @property
    def impossible(self) -> dict[str, float]:
        """The figures that no measurement gives: below zero, NaN, infinite or beyond all bounds."""
        found = {}
        for key, value in self.figures.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or (value == -1 and key in _UNCOUNTED):
                continue
            is_huge = key != _RATE and value > 1 and parsing.read_figure(value) is None
            if math.isnan(value) or is_below_zero(value) or is_huge:
                found[key] = value
        return found

    @property
    def selected(self) -> tuple[str, ...]:
        """The metrics that `--percentile-metrics` named; none if that is not known."""
        return () if self.run is None else self.run.facts.block().selected

    @property
    def sent(self) -> float | None:
        """The number of requests planned, else answered; None if neither is known."""
        planned = self.load.requests
        return self.figure("completed") if planned is None else float(planned)

    @property
    def failures(self) -> tuple[float, float]:
        """How many requests failed, of how many that were answered or failed; (0, 0) if neither is known.

        Where a client of others counts no failures, what was asked for and not answered has failed.
        """
        answered, failed = self.figure("completed"), self.figure("failed")
        if failed is None and self.told_by != OURS and self.load.duration_s is None:
            failed = max(0.0, (self.load.requests or 0) - (answered or 0.0))
        return failed or 0.0, (failed or 0.0) + (answered or 0.0)

    @property
    def input_len(self) -> float | None:
        """Tokens of a prompt, mean: of the answered requests, else as the load reports."""
        return self._mean("total_input_tokens", self.load.input_len)

    @property
    def output_len(self) -> float | None:
        """Tokens of an answer, mean: of the answered requests, else as the load reports."""
        return self._mean("total_output_tokens", self.load.output_len)

    def _mean(self, key: str, otherwise: float | None) -> float | None:
        """Compute a total ÷ the answered requests, else return `otherwise` if it is a figure, else None."""
        total, completed = self.figure(key), self.figure("completed")
        if total is not None and completed:
            return total / completed
        mean = parsing.read_figure(otherwise)
        return None if mean is None else float(mean)


# -1 of these: SGLang's and evalscope's clients write it where they did not count.
_UNCOUNTED = frozenset({
    "max_output_tokens_per_s", "max_concurrent_requests", "concurrency", "total_output_tokens_retokenized",
    "total_input_text_tokens", "total_input_vision_tokens", "accept_length", "request_rate",
})  # fmt: skip
_RATE = "request_rate"  # infinite where requests are not paced


class FailedCell(BaseModel, extra="ignore", frozen=True, defer_build=True):
    """A cell of a campaign that came to nothing, and why."""

    cell: Cell
    reason: str


def is_below_zero(value: float) -> bool:
    """Whether a number is below zero, as a printed -0.00 is."""
    return value < 0 or (value == 0 and math.copysign(1.0, value) < 0)


def _read_measured(value: object) -> float | None:
    """Return a number that a measurement may give; None of anything else, so of one below zero."""
    number = parsing.read_figure(value)
    return None if number is None or is_below_zero(number) else float(number)


def summarise_run(directory: Path, run: Result) -> Reported:
    """Summarise a run of ours by its arrivals, with every figure that a layout shows, as of `directory`."""
    metrics, facts = run.metrics, run.facts
    counts = (
        describe_traffic(facts.block())
        | list_known_throughputs(metrics)
        | list_peaks(metrics)
        | {"backend": facts.profile.backend}
    )
    distributions = {
        figure.field: asdict(getattr(metrics, figure.field))
        for figure in SELECTABLE.values()
        if figure.kind == LATENCY or metrics.times_tokens
    }
    own = {figure.field: getattr(metrics, figure.field) for figure in OWN}
    sessions = run.derive(summarize_sessions)
    session_ms = {} if sessions is None else {SESSION_MS: sessions.figures.duration.mean_ms}
    speculation = msgspec.to_builtins(run.derive(measure_speculation))
    figures = _collect_figures(counts, distributions | own, session_ms | _list_step_figures(speculation))
    doubts = tuple(finding.rule.code for finding in run.verdict.grave)
    return _summarise_run(facts, figures, (run.verdict.level.value, doubts), str(directory), run)


def summarise_result(facts: Facts, stored: Mapping[str, Any], source: str, run: Result | None) -> Reported:
    """Summarise a run of ours by its result file; raises KeyError or TypeError where that is damaged.

    `run` is the run with its arrivals, None if only the file is there.
    """
    latencies, verdict = stored["loadgen"]["metrics"], stored["loadgen"]["verdict"]
    counts = stored
    if latencies.get("unknown_inputs"):  # the file leaves them out where prompt tokens are not known
        counts = {**stored, **dict.fromkeys(OF_PROMPTS)}
    sessions = stored["loadgen"].get("sessions")
    session_ms = {SESSION_MS: sessions["figures"]["duration"]["mean_ms"]} if sessions else {}
    steps = _list_step_figures(stored["loadgen"].get("speculation"))
    figures = _collect_figures(counts, latencies, session_ms | steps)
    doubts = tuple(doubt["name"] for doubt in verdict["doubts"] if doubt["severity"] != "note")
    return _summarise_run(facts, figures, (verdict["level"], doubts), source, run)


def _list_step_figures(speculation: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the mean acceptance length and step time (ms) that speculation has; {} without any."""
    keys = ("acceptance_length", "step_ms")
    known = {key: speculation.get(key) for key in keys} if speculation else {}
    return {key: estimate["mean"] for key, estimate in known.items() if estimate}


def _collect_figures(
    counts: Mapping[str, Any], metrics: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Collect figures under vLLM's keys, and what SGLang alone prints; None where one is out of bounds."""
    figures = {key: counts[key] for key in _KEYS}
    for figure in SELECTABLE.values():
        if values := metrics.get(figure.field):
            figures |= figure.statistics(values)
    figures |= {figure.key: metrics.get(figure.field) for figure in OWN}
    figures |= more
    e2el = metrics["e2el"]
    if (duration_s := figures["duration"]) and e2el["n"]:
        inputs = figures["total_input_tokens"]
        figures["input_throughput"] = None if inputs is None else inputs / duration_s
        figures["concurrency"] = e2el["n"] * e2el["mean_ms"] / 1e3 / duration_s
    figures["max_itl_ms"] = metrics["itl"]["max_ms"]
    return {
        key: value if isinstance(value, str) else parsing.read_figure(value) for key, value in figures.items()
    }


def _summarise_run(
    facts: Facts, figures: Figures, verdict: tuple[str, tuple[str, ...]], source: str, run: Result | None
) -> Reported:
    """Make the summary of a run of ours from its facts, figures, and verdict with grave doubts.

    Machine and power mode are set only if the server ran on this machine.
    """
    environment, sensed, server = facts.environment, facts.sensed, facts.server
    ours = is_this_machine(server.url)  # else it is the client's machine that we know
    machine = next((environment[key] for key in ("gpu", "jetson", "cpu") if environment.get(key)), "")
    peak = sensed and (sensed.server or sensed.pss or sensed.rss)
    totals, answered = (figures["total_input_tokens"], figures["total_output_tokens"]), figures["completed"]
    means = (None if total is None or not answered else total / answered for total in totals)
    return Reported(
        name=facts.cell.checkpoint if facts.cell is not None else name_checkpoint(facts),
        figures=figures,
        load=identify_load(facts, *means),
        source=source,
        engine=f"{server.engine} {server.version}".strip(),
        machine=machine if ours and not server.simulated else "",
        power_mode=environment.get("jetson_power_mode", environment.get("power_mode", "")) if ours else "",
        started=facts.started,
        plan_digest=facts.plan_digest,
        memory_bytes=peak.peak_bytes if peak else None,
        weight_bytes=facts.checkpoint.weight_bytes if facts.checkpoint is not None else None,
        # All tokens count, as in the energy. Without samples of power no arrivals are read.
        joules_per_token=sensed.joules_per_token(totals[1] if run is None else run.whole.total_output_tokens)
        if sensed
        else None,
        level=verdict[0],
        doubts=verdict[1],
        saturated=facts.saturated,
        simulated=server.simulated,
        remarks=tuple(_list_remarks(facts)),
        ceiling=facts.ceiling,
        fingerprint=facts.fingerprint,
        cell=facts.cell,
        run=run,
        unread=labels.read_labels(parse_metadata(facts.metadata)),
        result_facts=facts if run is None else None,
    )


def name_checkpoint(facts: Facts) -> str:
    """Name the checkpoint of a run: by its label, else by its files' name and quantization.

    The name that requests carry is the last resort: many checkpoints are served under one.
    """
    if facts.label:
        return facts.label
    server, files = facts.server, facts.checkpoint
    root = "" if server.simulated or server.model_root == server.model else server.model_root
    model = root or (files.path if files is not None else "") or server.model
    declared = files.quantization if files is not None else ""
    return join_quantization(shorten_name(model), "" if split_name(model)[1] else declared)


def join_quantization(base: str, quantization: str) -> str:
    """Join a checkpoint's name and its quantization, unless that is BF16, "" or in the name."""
    named = quantization.rpartition("-")[2].lower() in base.lower()
    return base if named or quantization.upper() in _UNQUANTIZED else f"{base}-{quantization}"


def shorten_name(model: str) -> str:
    """Shorten a path's or a hub's name to its last part without .gguf: Qwen/Qwen3-8B-FP8 is Qwen3-8B-FP8."""
    return "-".join(filter(None, split_name(model.strip()))).removesuffix(".gguf")


def find_unnamed_preset(simulated: bool) -> str:
    """Return "an unnamed preset" for a run that is marked as simulated without a name; "" for a real one."""
    return "an unnamed preset" if simulated else ""


def describe_simulation(preset: str) -> str:
    """Write the remark on a run that the embedded engine answered."""
    return f"SIMULATED with the timing of {preset}: no model ran"


def _list_remarks(facts: Facts) -> Iterator[str]:
    """Yield remarks on a run that is simulated or partial, and on memory that is not the model's need."""
    if facts.server.simulated:
        yield describe_simulation(facts.server.simulated)
    if facts.partial:
        yield f"PARTIAL: {facts.partial}"
    if facts.sensed is None:
        return
    engine = engines.find_by_name(facts.server.engine)
    if facts.sensed.server is None and (facts.sensed.pss or facts.sensed.rss):
        yield "memory is the host's: no GPU memory was reported"
    elif facts.sensed.server is not None and engine.takes_all_memory:
        yield f"memory is what {engine.name} reserved at its start, not what the model needs"


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, in order of appearance."""
    items_by_key: dict[Key, list[Item]] = {}
    for item in items:
        items_by_key.setdefault(key(item), []).append(item)
    return items_by_key


def strip_load(load: str) -> str:
    """Strip a load's name of how it is spelt on pages and in profiles: high, high-load, High load are one."""
    return re.sub(r"[\s_-]*load$", "", load.lower()) or load
