"""Ladder rows: a run as a row of speeds, by input length, after N cached tokens, or of N requests at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.engines import engines
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline.estimate import count_devices
from loadgen.features.roofline.models import split_gguf
from loadgen.figures.metrics import peak_tokens
from loadgen.figures.per_request import PerRequest
from loadgen.report.result_file import SIMULATED
from loadgen.report.run_directory import Result
from loadgen.run.session import Session
from loadgen.server.checkpoint import Checkpoint
from loadgen.settings.request_settings import CHAT_APIS
from loadgen.study import labels
from loadgen.study.speed.speed_rows import (
    FORMULAS,
    TOTAL,
    EngineSetting,
    Memory,
    SpeedRow,
    ThroughputRow,
    draw_cells,
    round_speed,
)
from loadgen.verdict.verdict import Level

_DECIMALS = ("speed_tok_s", "ttft_ms", "decode_tok_s")
# The pages' words in their order; then whatever else the engine was given, but where it is and for whom.
_WORDS = ("gpu_memory_utilization", "max_model_len", "enforce_eager")
_PLACE = (
    "host", "port", "served_model_name", "model", "model_path", "tensor_parallel_size", "tp_size",
    "profiler_config",
)  # fmt: skip


def make_speed_row(run: Result, formula: str) -> SpeedRow:
    """Make the row of one rung, by tokens and seconds of its successful requests; without any a note why.

    A request's time is from its first byte sent to the last received, prefill included. TTFT and decoding are
    those of the run's report: means over the rung's requests; None where nothing was streamed.
    """
    facts, records, ok = run.facts, run.records, run.records.ok
    seconds = int((records.end_ns[ok] - records.sent_ns[ok]).sum()) / 1e9
    prompt, output = int(records.input_tokens[ok].sum()), int(records.output_tokens[ok].sum())
    named, ttft, tpot = name_model(facts), run.metrics.ttft, run.metrics.tpot
    return SpeedRow(
        model=named.model,
        backend=named.backend,
        gpu=facts.environment.get("gpu", facts.environment.get("cpu", "")),
        input_length=facts.profile.input_len,
        quantization=named.quantization,
        gpu_num=(count_devices(facts) or 1) if ok.any() and "gpu" in facts.environment else None,
        speed_tok_s=round_speed(FORMULAS[formula](prompt, output, seconds)) if ok.any() else None,
        gpu_memory=_find_memory(facts),
        note=", ".join(_list_notes(run)),
        formula=formula,
        output_length=facts.profile.output_len,
        setting=find_setting(facts),
        ttft_ms=round_speed(ttft.mean_ms) if ttft.n else None,
        decode_tok_s=round_speed(1e3 / tpot.mean_ms) if tpot.n and tpot.mean_ms > 0 else None,
    )


def make_throughput_row(run: Result) -> ThroughputRow:
    """Make the row of prompts sent all at once: requests and tokens over the time for all of them."""
    metrics, formula = run.metrics, FORMULAS[TOTAL]
    rate = formula(metrics.total_input_tokens, metrics.total_output_tokens, metrics.duration_s)
    qps = round_speed(metrics.completed / metrics.duration_s)
    return ThroughputRow(
        *name_model(run.facts)[:2], metrics.completed, qps, round_speed(rate), _describe_doubts(run)
    )


class NamedModel(NamedTuple):
    """What is measured, as the columns of a row name it."""

    model: str  # without its quantization
    quantization: str  # by the model's name, else by its files, else ""
    backend: str  # the engine as the pages name it; one that they do not have by its own name
    served: str  # the model as the server names it; a simulation is marked


def name_model(facts: Facts) -> NamedModel:
    """Name the model of a run."""
    server = facts.server
    return _name_model(
        server.model, server.model_root, server.engine, bool(server.simulated), facts.checkpoint
    )


def name_served(session: Session) -> NamedModel:
    """Name the model that a session measures, before any run of it."""
    model, root, engine = session.served.model, session.served.model_root, session.served.engine
    return _name_model(model, root, engine.name, engine.simulated, session.checkpoint)


def _name_model(model: str, root: str, engine: str, simulated: bool, files: Checkpoint | None) -> NamedModel:
    own = "" if simulated else root  # a simulation's names its timing
    base, quantization = split_gguf(own or model)
    quantization = quantization or (files.quantization if files is not None else "")
    backend = engines.find_by_name(engine).published_as or engine
    return NamedModel(base, quantization, backend, model + (SIMULATED if simulated else ""))


def find_setting(facts: Facts) -> EngineSetting | None:
    """Return the flags an engine was started with here, without host, port or model; None without any."""
    if facts.launched is None:
        return None
    command, image = facts.launched.command, facts.launched.image
    # Flags before a container's image are for its engine: docker's --gpus, podman's --device.
    given = {}
    for flag, value in labels.pair_flags(command[command.index(image) :] if image else command):
        if value is None:
            given[flag.removeprefix("no_")] = str(not flag.startswith("no_"))
        else:
            given[flag] = value
    if facts.server.engine == "vLLM" and given.keys() & set(_WORDS):
        given.setdefault("enforce_eager", "False")  # its default, which the pages write out
    words = {word: given[word] for word in (*_WORDS, *given) if word in given and word not in _PLACE}
    return EngineSetting.make(**words) if words else None


def _find_memory(facts: Facts) -> Memory | None:
    """Return the server's peak MB, on the GPU, else the host's; None if unknown, or an engine takes all."""
    engine = engines.find_by_name(facts.server.engine)
    if engine.takes_all_memory or facts.sensed is None:
        return None
    level = facts.sensed.server or facts.sensed.pss or facts.sensed.rss
    return Memory.of_bytes(level.peak_bytes, "MB") if level is not None else None


def list_remarks(run: Result, known: Collection[str] = ()) -> Iterator[str]:
    """Yield what a reader of any row must know: simulation, failures, all doubts unless each is `known`."""
    yield from _list_failures(run)
    if run.records.ok.any() and not set(run.verdict.reasons) <= set(known):
        yield _describe_doubts(run)


def _list_failures(run: Result) -> Iterator[str]:
    failed = run.records.failed
    if run.facts.server.simulated:
        yield "SIMULATED, no model ran"
    if failed:
        yield f"{len(failed)} of {len(run.records)} failed: {failed[0].kind}: {failed[0].detail}"


def _list_notes(run: Result) -> Iterator[str]:
    """Yield a rung's notes: simulation, failures, streams, lengths not as asked, host memory, doubts."""
    records, profile = run.records, run.facts.profile
    ok = records.ok
    yield from _list_failures(run)
    if not ok.any():
        return
    if profile.max_concurrency != 1:
        yield f"{profile.max_concurrency or 'all'} at a time"
    for what, column, wanted in (
        ("input", records.input_tokens[ok], profile.input_len),
        ("output", records.output_tokens[ok], profile.output_len),
    ):
        if (column != wanted).any():
            least, most = int(column.min()), int(column.max())
            yield f"{what} of {least}" + (f" to {most}" if most > least else "") + f" tokens, not {wanted}"
    sensed = run.facts.sensed
    if _find_memory(run.facts) is not None and sensed is not None and sensed.server is None:
        yield "host memory"
    yield from filter(None, [_describe_doubts(run)])


def _describe_doubts(run: Result) -> str:
    if run.verdict.level is Level.VALID:
        return ""
    return f"{run.verdict.level.value}: {', '.join(run.verdict.reasons)}"


def describe_speed(row: SpeedRow) -> str:
    """Describe a rung: "input 6144: TTFT 310.20 ms, decode 148.10 tok/s", its speed and its note."""
    figures = (
        ("TTFT", row.ttft_ms, "ms"), ("decode", row.decode_tok_s, "tok/s"),
        (row.formula, row.speed_tok_s, "tok/s"),
    )  # fmt: skip
    shown = ", ".join(f"{name} {value} {unit}" for name, value, unit in figures if value is not None)
    return f"input {row.input_length}: {shown or '-'}" + (f" ({row.note})" if row.note else "")


def encode_speed_row(row: SpeedRow) -> dict[str, Any]:
    """Make a row as JSON has it, its run last."""
    memory, encoded = row.gpu_memory, asdict(row)
    del encoded["run"]
    return {
        **encoded,
        **{key: None if (value := getattr(row, key)) is None else float(value) for key in _DECIMALS},
        "gpu_memory": None if memory is None else float(memory.amount),
        "gpu_memory_unit": None if memory is None else memory.unit,
        "setting": None if row.setting is None else dict(row.setting.words),
        "run": row.run,
    }


PROMPT, GENERATION = "pp", "tg"
_OF_THE_FIRST = ("first-wave",)  # doubts about a request that is in no row
_BLOCK = 256  # tokens of the largest block that prefix caches keep or drop as a whole
_COLUMNS = {
    "model": "Model", "test": "Test", "speed": "t/s", "server": "By server (t/s)", "cached": "Cached",
    "note": "Note",
}  # fmt: skip
_NOTES = (
    "pp: new prompt tokens / TTFT; tg: (output tokens - 1) / (last token - first token); mean ± deviation",
    "@ dN: after N tokens that the server had in its cache",
)


class DepthTest(msgspec.Struct, frozen=True):
    """A test measures N tokens of a prompt or of an answer, after others that are cached."""

    kind: str  # PROMPT or GENERATION
    tokens: int
    depth: int

    def __str__(self) -> str:
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def input_len(self) -> int:
        """New tokens of the prompt: an answer needs one."""
        return self.tokens if self.kind == PROMPT else 1

    @property
    def output_len(self) -> int:
        """Tokens of the answer: a prompt's speed needs one."""
        return self.tokens if self.kind == GENERATION else 1


class DepthRow(msgspec.Struct, frozen=True):
    """One test's speed in tokens per second; None where it has none, and the note has the reason."""

    model: str
    quantization: str
    backend: str
    test: str
    depth: int
    requests: int = 0
    tok_s: float | None = None
    std_tok_s: float | None = None
    server_tok_s: float | None = None  # by the timings of its answers, where it reports them
    cached_tokens: int | None = None  # the fewest of a request
    note: str = ""
    run: str = ""  # the directory of its run


def make_depth_row(run: Result, test: DepthTest) -> DepthRow:
    """Make the row of a test's run; the first request at a depth is left out, it fills the cache.

    Without a speed the note has the reason: no request, the prefix not cached, no answer of several tokens.
    """
    known = DepthRow(*name_model(run.facts)[:3], str(test), test.depth)
    measured = run.records.ok & (run.records.index >= (test.depth > 0))
    notes = list(list_remarks(run, _OF_THE_FIRST if test.depth else ()))
    if not measured.any():
        return replace(known, note="; ".join([*notes, "no request was measured"]))
    cached = count_cached(run, measured)
    least = int(cached[measured].min()) if cached is not None else None
    known = replace(known, requests=int(measured.sum()), cached_tokens=least)
    if why := explain_not_at_depth(test, None if cached is None else cached[measured]):
        return replace(known, note="; ".join([why, *notes]))
    each = PerRequest.from_records(run.records, run.ask)
    # New prompt tokens ÷ TTFT, or 1 ÷ TPOT; by the server's timings, of prefill or decoding.
    with np.errstate(divide="ignore", invalid="ignore"):
        if test.kind == PROMPT:
            new_tokens = each.input_tokens - (0 if cached is None else cached)
            speeds = np.where(each.has_ttft, new_tokens / each.ttft_ns * SECOND_NS, np.nan)
            tokens, time_ns = run.records.server_prompt_tokens, run.records.server_prefill_ns
        else:
            tpot_ns = each.tpot_ns()
            speeds = np.where(each.has_tpot & (tpot_ns > 0), SECOND_NS / tpot_ns, np.nan)
            tokens, time_ns = run.records.server_output_tokens - 1, run.records.server_decode_ns
    timed = (tokens > 0) & (time_ns > 0)
    server = np.where(timed, tokens / np.where(timed, time_ns, 1) * SECOND_NS, np.nan)[measured]
    speeds = speeds[measured & np.isfinite(speeds)]
    if not len(speeds):
        return replace(known, note="; ".join(["no response of several tokens", *notes]))
    return replace(
        known,
        tok_s=float(speeds.mean()),
        std_tok_s=float(speeds.std(ddof=1)) if len(speeds) > 1 else None,
        server_tok_s=float(server.mean()) if np.isfinite(server).all() else None,
        note="; ".join(notes),
    )


def count_cached(run: Result, measured: Bool) -> Int64 | None:
    """Return each request's prompt tokens found cached, by usage, else timings, else the counters' mean.

    None if none of them has it for every measured request.
    """
    for column in (run.records.cached_tokens, run.records.server_cached_tokens):
        if (column[measured] >= 0).all():
            return column
    window = run.facts.window
    if window is None or window.error or window.prefix_hits is None or not window.settled:
        return None
    return np.full(len(measured), window.prefix_hits // int(measured.sum()), np.int64)


def explain_not_at_depth(test: DepthTest, cached: Int64 | None) -> str:
    """Write why a run does not show the speed at a depth; "" if its prefix was cached, and little more.

    Up to a block of 256 tokens, or half of the prefix or of the new tokens, may be missing or more.
    """
    if cached is None:
        hint = "vLLM: --enable-prompt-tokens-details"
        return f"how much was cached is not reported ({hint})" if test.depth else ""
    missing = test.depth - int(cached.min())
    if missing > min(_BLOCK, test.depth // 2):
        return f"not at that depth: {int(cached.min())} of {test.depth} tokens were cached"
    if (more := int(cached.max()) - test.depth) > min(_BLOCK, test.tokens // 2):
        return f"{more} of the {test.tokens} new tokens were cached as well"
    return ""


def describe_depth(row: DepthRow) -> str:
    """Describe a test as it ends: pp2048 @ d4096: 5012.33 ± 12.10 t/s (by server 5101.20)."""
    by_server = f" (by server {row.server_tok_s:.2f})" if row.server_tok_s is not None else ""
    speed = f"{_format_speed(row)} t/s{by_server}" if row.tok_s is not None else "-"
    return f"{row.test}: {speed}" + (f" ({row.note})" if row.note else "")


def _format_speed(row: DepthRow) -> str:
    if row.tok_s is None:
        return "-"
    return f"{row.tok_s:.2f}" + (f" ± {row.std_tok_s:.2f}" if row.std_tok_s is not None else "")


def draw_depths(rows: Sequence[DepthRow], form: str) -> str:
    """Draw the rows in a form of `TABLES`."""
    notes = _NOTES if any(row.depth for row in rows) else _NOTES[:1]
    cells = [
        {
            "model": " ".join(filter(None, (row.model, row.quantization))),
            "test": row.test,
            "speed": _format_speed(row),
            "server": "" if row.server_tok_s is None else f"{row.server_tok_s:.2f}",
            "cached": "" if row.cached_tokens is None else str(row.cached_tokens),
            "note": row.note,
        }
        for row in rows
    ]
    return draw_cells(cells, _COLUMNS, form, notes)


# Batches are those of llama-benchy: a test is a batch, repeated. N requests begin together, each with a
# context of its own, which a batch before has put into the server's cache. Definitions are those of
# llama-benchy 0.4 (`results.py`), by our arrivals; the report is its JSON, which Spark Arena's `sparkrun` and
# our importer read.
_BATCH_COLUMNS = {
    "model": "Model", "test": "Test", "total": "t/s (total)", "each": "t/s (req)", "peak": "peak t/s",
    "ttft": "e2e_ttft (ms)", "cached": "Cached", "note": "Note",
}  # fmt: skip
_BATCH_NOTES = (
    "pp: prompt tokens / time until all responses began; tg: tokens after the first / time of decoding; of "
    "all (total) or of one request (req); ctx: the context itself; mean ± deviation over batches or requests",
)
# Doubts about what a batch is meant to be: a single wave, its contexts cached.
_OF_A_BATCH = ("first-wave", "prefix-cache")


class BatchTest(msgspec.Struct, frozen=True):
    """A test of one or several requests at once: each of new tokens after a context, and its answer."""

    prompt: int
    answer: int
    depth: int
    concurrency: int
    is_context: bool = False  # the context itself is the prompt

    def name(self, kind: str) -> str:
        """Name the test of prompts or answers as llama-benchy does: pp2048 @ d4096 (c2), ctx_pp @ d4096."""
        tokens = self.prompt if kind == PROMPT else self.answer
        begin = f"ctx_{kind}" if self.is_context else f"{kind}{tokens}"
        return begin + (f" @ d{self.depth}" if self.depth else "") + f" (c{self.concurrency})"

    @property
    def workload(self) -> dict[str, Any]:
        """The keys of a batch's workload; a context's are its test's, name too, but for an input of 1."""
        return {
            "name": f"pp{self.prompt}-tg{self.answer}-d{self.depth}-c{self.concurrency}",
            "input_len": 1 if self.is_context else self.prompt,  # an engine wants one after a context alone
            "output_len": self.answer,
            "prefix_len": self.depth,
            "prefix_groups": self.concurrency,
            "num_prompts": self.concurrency,
            "max_concurrency": self.concurrency,
        }


class BatchFigures(msgspec.Struct, frozen=True):
    """The figures of one batch: tokens per second of all its requests and of each; milliseconds of each."""

    pp_tok_s: float | None = None  # prompt tokens / (last first token - first sent)
    tg_tok_s: float | None = None  # tokens after each first message / (last token - first token)
    peak_tok_s: float | None = None  # most tokens in a second; in a shorter batch all, over its length
    pp_each: tuple[float, ...] = ()  # prompt tokens / TTFT
    tg_each: tuple[float, ...] = ()  # tokens after the first message / (last - first)
    peak_each: tuple[float, ...] = ()
    ttft_ms: tuple[float, ...] = ()  # first token - sent
    ttfr_ms: tuple[float, ...] = ()  # first message - sent; in chat it may have no token: not kept


class BatchRow(msgspec.Struct, frozen=True):
    """A test and the figures of its batches; without any the note has the reason."""

    model: str
    quantization: str
    backend: str
    served: str  # the model as the server names it; a simulation is marked
    test: BatchTest
    batches: tuple[BatchFigures, ...] = ()
    cached_tokens: int | None = None  # the fewest of a request
    note: str = ""
    runs: tuple[str, ...] = ()  # the directories of its runs

    def merge(self, other: BatchRow) -> BatchRow:
        """Return the row with the batches, runs and notes of another row of this test added."""
        notes = [note for row in (self, other) for note in row.note.split("; ") if note]
        cached = [row.cached_tokens for row in (self, other) if row.cached_tokens is not None]
        return replace(
            self,
            batches=(*self.batches, *other.batches),
            cached_tokens=min(cached, default=None),
            note="; ".join(dict.fromkeys(notes)),
            runs=(*self.runs, *other.runs),
        )

    @property
    def kinds(self) -> Sequence[str]:
        """The speeds that it has: of prompts, and of answers if there is a batch."""
        return (PROMPT, GENERATION) if self.batches else (PROMPT,)

    def list_samples(self, kind: str, of_each: bool) -> list[float]:
        """List tokens/s of a kind: of each request, also where one is sent at a time, else of each batch."""
        if of_each or self.test.concurrency == 1:
            return [value for batch in self.batches for value in getattr(batch, f"{kind}_each")]
        totals = (getattr(batch, f"{kind}_tok_s") for batch in self.batches)
        return [value for value in totals if value is not None]

    def list_times(self, field: str) -> list[float]:
        """List milliseconds of all requests, by the field of `BatchFigures`."""
        return [value for batch in self.batches for value in getattr(batch, field)]


def make_batch_row(run: Result, test: BatchTest, directory: str) -> BatchRow:
    """Make the row of one batch from its run; without the batch if its contexts were not cached as meant."""
    ok, notes = run.records.ok, list(list_remarks(run, _OF_A_BATCH))
    row = BatchRow(*name_model(run.facts), test, runs=(directory,))
    if not ok.any():
        return replace(row, note="; ".join([*notes, "no request was measured"]))
    cached = count_cached(run, ok)
    row = replace(row, cached_tokens=None if cached is None else int(cached[ok].min()))
    tokens, before = (test.depth, 0) if test.is_context else (test.prompt, test.depth)
    meant = DepthTest(PROMPT, tokens, before)  # a context is a prompt with nothing before it
    if why := explain_not_at_depth(meant, None if cached is None else cached[ok]):
        return replace(row, note="; ".join([why, *notes]))
    figures = measure_batch(run, test)
    if not figures.ttft_ms:
        return replace(row, note="; ".join(["no response was streamed", *notes]))
    return replace(row, batches=(figures,), note="; ".join(notes))


def measure_batch(run: Result, test: BatchTest) -> BatchFigures:
    """Measure the one batch that a run is, by its successful requests with a first token; empty without."""
    records, each = run.records, PerRequest.from_records(run.records, run.ask)
    begun = np.flatnonzero(each.has_ttft)
    if not len(begun):
        return BatchFigures()
    known = 0 if test.is_context else test.depth
    prompts = each.input_tokens[begun] - known
    sent_ns, first_ns, last_ns = records.sent_ns[begun], each.first_ns[begun], each.last_ns[begun]
    streams = [slice(*records.start[index : index + 2]) for index in begun.tolist()]
    arrivals = [(records.arrival_ns[stream], records.tokens[stream]) for stream in streams]
    after = np.array([int(tokens[1:].sum()) for _, tokens in arrivals], np.int64)
    all_ns, all_tokens = (np.concatenate(column) for column in zip(*arrivals, strict=True))
    ttft_ms = tuple(((first_ns - sent_ns) / MS_NS).tolist())
    spans_ns = last_ns - first_ns
    return BatchFigures(
        pp_tok_s=_divide(prompts.sum(), first_ns.max() - sent_ns.min()),
        tg_tok_s=_divide(after.sum(), last_ns.max() - first_ns.min()),
        peak_tok_s=_find_peak(all_ns, all_tokens),
        pp_each=_divide_each(prompts, first_ns - sent_ns),
        tg_each=_divide_each(after, spans_ns),
        peak_each=tuple(_find_peak(*arrival) for arrival in arrivals),
        ttft_ms=ttft_ms,
        ttfr_ms=() if run.facts.profile.backend in CHAT_APIS else ttft_ms,
    )


def _divide(tokens: np.int64, time_ns: np.int64) -> float | None:
    return float(tokens / time_ns * SECOND_NS) if tokens > 0 and time_ns > 0 else None


def _divide_each(tokens: Int64, time_ns: Int64) -> tuple[float, ...]:
    has = (tokens > 0) & (time_ns > 0)
    speeds: Float64 = tokens[has] / time_ns[has] * SECOND_NS
    return tuple(speeds.tolist())


def _find_peak(arrival_ns: Int64, tokens: Int64) -> float:
    """Return the most tokens in any second; of less than a second, all tokens over the time they took."""
    span_ns = int(arrival_ns.max() - arrival_ns.min())
    if 0 < span_ns < SECOND_NS:
        return float(tokens.sum() / span_ns * SECOND_NS)
    return float(peak_tokens(arrival_ns, tokens, SECOND_NS))


def draw_batches(rows: Sequence[BatchRow], form: str) -> str:
    """Draw the rows, prompts and answers of each, in a form of `TABLES`."""
    cells = []
    for row in rows:
        peaks = [batch.peak_tok_s for batch in row.batches if batch.peak_tok_s is not None]
        for kind in row.kinds:
            is_prompt = kind == PROMPT
            cells.append(
                {
                    "model": " ".join(filter(None, (row.model, row.quantization))),
                    "test": row.test.name(kind),
                    "total": _format_mean(row.list_samples(kind, of_each=False)),
                    "each": _format_mean(row.list_samples(kind, of_each=True)),
                    "peak": "" if is_prompt else _format_mean(peaks),
                    "ttft": _format_mean(row.list_times("ttft_ms")) if is_prompt else "",
                    "cached": "" if row.cached_tokens is None else str(row.cached_tokens),
                    "note": row.note,
                }
            )
    return draw_cells(cells, _BATCH_COLUMNS, form, _BATCH_NOTES)


def _format_mean(samples: Sequence[float]) -> str:
    """Write a mean, with ± the population's deviation of several; "" without a sample."""
    if not samples:
        return ""
    spread = f" ± {np.std(samples):.2f}" if len(samples) > 1 else ""
    return f"{np.mean(samples):.2f}{spread}"


def describe_batch(row: BatchRow) -> str:
    """Describe a test as it ends: `pp2048 @ d4096 (c2): 5012.33 t/s, tg 61.20 t/s`, and its note."""
    speeds = (f"{_format_mean(row.list_samples(kind, of_each=False)) or '-'} t/s" for kind in row.kinds)
    shown = f", {GENERATION} ".join(speeds) if row.batches else "-"
    return f"{row.test.name(PROMPT)}: {shown}" + (f" ({row.note})" if row.note else "")


def encode_batch_row(row: BatchRow) -> dict[str, Any]:
    """Make a row as `depth.json` has it: the test by its parts, its batches, runs and note."""
    encoded: dict[str, Any] = msgspec.to_builtins(row)
    return {**encoded.pop("test"), **encoded}


# Keys of its metrics, and the samples that each is the mean of: a kind, of batches or of requests.
_SPEEDS = {
    "pp_throughput": ("pp", False), "pp_req_throughput": ("pp", True),
    "tg_throughput": ("tg", False), "tg_req_throughput": ("tg", True),
    "peak_throughput": ("peak", False), "peak_req_throughput": ("peak", True),
}  # fmt: skip
# est_ppt is ttfr less the network's latency, which is not measured here (latency_mode "none").
_TIMES = {"ttfr": "ttfr_ms", "est_ppt": "ttfr_ms", "e2e_ttft": "ttft_ms"}


def make_benchy_report(rows: Sequence[BatchRow], began: datetime, version: str) -> dict[str, Any]:
    """Make llama-benchy's report of rows, one at least with a batch; what has no sample is left out.

    A figure has its mean, the population's deviation and the values.
    """
    measured = [row for row in rows if row.batches]
    entries = []
    for row in measured:
        test, samples = row.test, {key: row.list_samples(kind, each) for key, (kind, each) in _SPEEDS.items()}
        samples |= {key: row.list_times(field) for key, field in _TIMES.items()}
        if not samples["ttfr"]:  # a request's prefill is by est_ppt, and unknown where that is
            samples["pp_req_throughput"] = []
            if test.concurrency == 1:
                samples["pp_throughput"] = []
        entries.append(
            {
                "concurrency": test.concurrency,
                "context_size": test.depth,
                "prompt_size": test.prompt,
                "response_size": test.answer,
                "is_context_prefill_phase": test.is_context,
                **{
                    key: {"mean": float(np.mean(values)), "std": float(np.std(values)), "values": values}
                    for key, values in samples.items()
                    if values
                },
            }
        )
    return {
        "version": version,
        "timestamp": began.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        "latency_mode": "none",
        "latency_ms": 0.0,
        "model": measured[0].served,
        "prefix_caching_enabled": any(row.test.depth for row in rows),
        "max_concurrency": max(row.test.concurrency for row in rows),
        "benchmarks": entries,
    }
