"""Batch rows: speed at depth of N requests at once, as llama-benchy measures it.

A test is a batch, repeated: N requests begin together, each with a context of its own, which a batch before
has put into the server's cache. Definitions are those of llama-benchy 0.4 (`results.py`), by our arrivals.
The report is its JSON, which Spark Arena's `sparkrun` and our importer read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.figures.peaks import peak_tokens
from loadgen.figures.per_request import PerRequest
from loadgen.report.result_file import name_marked_model
from loadgen.report.run_directory import Result
from loadgen.settings.request_settings import CHAT_APIS
from loadgen.study.speed.ladder_rows import (
    GENERATION,
    PROMPT,
    DepthTest,
    count_cached,
    explain_not_at_depth,
    list_remarks,
    name_backend,
    name_model,
)
from loadgen.study.speed.speed_tables import draw_cells

_COLUMNS = {
    "model": "Model", "test": "Test", "total": "t/s (total)", "each": "t/s (req)", "peak": "peak t/s",
    "ttft": "e2e_ttft (ms)", "cached": "Cached", "note": "Note",
}  # fmt: skip
_NOTES = (
    "pp: prompt tokens / time until all answers began; tg: tokens after the first / time of decoding; of all",
    "(total) or of one request (req); ctx: the context itself; mean ± deviation over batches or requests",
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
        """The keys of a batch's workload; a context's name is that of its test: contexts are drawn by it."""
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
        """Return the row with the batches, runs and notes of another row of this test added.

        The names are those of a row with a run, if one has any.
        """
        notes = [note for row in (self, other) for note in row.note.split("; ") if note]
        cached = [row.cached_tokens for row in (self, other) if row.cached_tokens is not None]
        return replace(
            self if self.runs else other,
            batches=(*self.batches, *other.batches),
            cached_tokens=min(cached, default=None),
            note="; ".join(dict.fromkeys(notes)),
            runs=(*self.runs, *other.runs),
        )

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
    model, quantization = name_model(run.facts)
    ok, notes = run.records.ok, list(list_remarks(run, _OF_A_BATCH))
    backend, served = name_backend(run.facts.server.engine), name_marked_model(run.facts)
    row = BatchRow(model, quantization, backend, served, test, runs=(directory,))
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
        return replace(row, note="; ".join(["no answer was streamed", *notes]))
    return replace(row, batches=(figures,), note="; ".join(notes))


def measure_batch(run: Result, test: BatchTest) -> BatchFigures:
    """Measure the one batch that a run is, over its successful requests with a first token."""
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
    """Divide each request's tokens by its nanoseconds, in tokens per second; without those that have none."""
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
    cells = [_make_cells(row, kind) for row in rows for kind in _list_kinds(row)]
    return draw_cells(cells, _COLUMNS, form, _NOTES)


def _list_kinds(row: BatchRow) -> Iterable[str]:
    return (PROMPT, GENERATION) if row.batches else (PROMPT,)


def _make_cells(row: BatchRow, kind: str) -> dict[str, str]:
    is_prompt = kind == PROMPT
    return {
        "model": " ".join(filter(None, (row.model, row.quantization))),
        "test": row.test.name(kind),
        "total": _format(row.list_samples(kind, of_each=False)),
        "each": _format(row.list_samples(kind, of_each=True)),
        "peak": "" if is_prompt else _format([b.peak_tok_s for b in row.batches if b.peak_tok_s is not None]),
        "ttft": _format(row.list_times("ttft_ms")) if is_prompt else "",
        "cached": "" if row.cached_tokens is None else str(row.cached_tokens),
        "note": row.note,
    }


def _format(samples: Sequence[float]) -> str:
    if not samples:
        return ""
    spread = f" ± {np.std(samples):.2f}" if len(samples) > 1 else ""
    return f"{np.mean(samples):.2f}{spread}"


def describe_batch(row: BatchRow) -> str:
    """Describe a test as it ends: `pp2048 @ d4096 (c2): 5012.33 t/s, tg 61.20 t/s`, and its note."""
    speeds = (f"{_format(row.list_samples(kind, of_each=False)) or '-'} t/s" for kind in _list_kinds(row))
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
    """Make the report of rows, of which one has a batch; tests and figures without a sample are left out.

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
