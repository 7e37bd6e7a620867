"""Depth rows: the speed of a prompt and of an answer after N cached tokens, named as llama-bench's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.table import Column, Table
from loadgen.figures.per_request import PerRequest
from loadgen.figures.record import Records
from loadgen.report import speed_ladder
from loadgen.report.run_directory import Result
from loadgen.report.speed_tables import TABLES

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
    """What is measured: N tokens of a prompt or of an answer, after others that are cached."""

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

    @property
    def need(self) -> int:
        """Tokens of a request, prompt and answer together."""
        return self.depth + self.input_len + self.output_len


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


def row(run: Result, test: DepthTest) -> DepthRow:
    """A test's run as a row; the first request of one at a depth puts the prefix into the cache."""
    model, quantization = speed_ladder.name(run.facts)
    known = DepthRow(
        model, quantization, speed_ladder.backend(run.facts.server.engine), str(test), test.depth
    )
    measured = run.records.ok & (run.records.index >= (test.depth > 0))
    notes = list(speed_ladder.remarks(run, _OF_THE_FIRST if test.depth else ()))
    if not measured.any():
        return msgspec.structs.replace(known, note="; ".join([*notes, "no request was measured"]))
    cached = _cached(run, measured)
    least = int(cached[measured].min()) if cached is not None else None
    known = msgspec.structs.replace(known, requests=int(measured.sum()), cached_tokens=least)
    if why := _not_at_depth(test, None if cached is None else cached[measured]):
        return msgspec.structs.replace(known, note="; ".join([why, *notes]))
    each = PerRequest.of(run.records, run.ask)
    speeds = _SPEEDS[test.kind](each, run.records, _zeros(cached, measured))[measured]
    speeds = speeds[np.isfinite(speeds)]
    server = _SERVER[test.kind](run.records)[measured]
    if not len(speeds):
        return msgspec.structs.replace(known, note="; ".join(["no answer of several tokens", *notes]))
    return msgspec.structs.replace(
        known,
        tok_s=float(speeds.mean()),
        std_tok_s=float(speeds.std(ddof=1)) if len(speeds) > 1 else None,
        server_tok_s=float(server.mean()) if np.isfinite(server).all() else None,
        note="; ".join(notes),
    )


def _zeros(cached: Int64 | None, measured: Bool) -> Int64:
    return np.zeros(len(measured), np.int64) if cached is None else cached


def _cached(run: Result, measured: Bool) -> Int64 | None:
    """Prompt tokens that each request found cached: by usage, by timings, else the counters' mean."""
    for column in (run.records.cached_tokens, run.records.server_cached_tokens):
        if (column[measured] >= 0).all():
            return column
    window = run.facts.window
    if window is None or window.error or window.prefix_hits is None or not window.settled:
        return None
    return np.full(len(measured), window.prefix_hits // int(measured.sum()), np.int64)


def _not_at_depth(test: DepthTest, cached: Int64 | None) -> str:
    """Why a run does not show the speed at a depth: the prefix was not in the cache; "" where it was."""
    if cached is None:
        hint = "vLLM: --enable-prompt-tokens-details"
        return f"how much was cached is not reported ({hint})" if test.depth else ""
    missing = test.depth - int(cached.min())
    if missing > min(_BLOCK, test.depth // 2):
        return f"not at that depth: {int(cached.min())} of {test.depth} tokens were cached"
    if (more := int(cached.max()) - test.depth) > min(_BLOCK, test.tokens // 2):
        return f"{more} of the {test.tokens} new tokens were cached as well"
    return ""


def _prompt_speed(each: PerRequest, records: Records, cached: Int64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        speed: Float64 = (each.input_tokens - cached) / each.ttft_ns * SECOND_NS
    return np.where(each.has_ttft, speed, np.nan)


def _generation_speed(each: PerRequest, records: Records, cached: Int64) -> Float64:
    tpot_ns = each.tpot_ns()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(each.has_tpot & (tpot_ns > 0), SECOND_NS / tpot_ns, np.nan)


def _of_prompts(records: Records) -> Float64:
    return _per_second(records.server_prompt_tokens, records.server_prefill_ns)


def _of_generation(records: Records) -> Float64:
    return _per_second(records.server_output_tokens - 1, records.server_decode_ns)


def _per_second(tokens: Int64, time_ns: Int64) -> Float64:
    known = (tokens > 0) & (time_ns > 0)
    return np.where(known, tokens / np.where(known, time_ns, 1) * SECOND_NS, np.nan)


_SPEEDS: dict[str, Callable[[PerRequest, Records, Int64], Float64]] = {
    PROMPT: _prompt_speed,
    GENERATION: _generation_speed,
}
_SERVER: dict[str, Callable[[Records], Float64]] = {PROMPT: _of_prompts, GENERATION: _of_generation}


def line(row: DepthRow) -> str:
    """A test as it ends: pp2048 @ d4096: 5012.33 ± 12.10 t/s (by server 5101.20)."""
    by_server = f" (by server {row.server_tok_s:.2f})" if row.server_tok_s is not None else ""
    speed = f"{_speed(row)} t/s{by_server}" if row.tok_s is not None else "-"
    return f"{row.test}: {speed}" + (f" ({row.note})" if row.note else "")


def _speed(row: DepthRow) -> str:
    if row.tok_s is None:
        return "-"
    return f"{row.tok_s:.2f}" + (f" ± {row.std_tok_s:.2f}" if row.std_tok_s is not None else "")


def render(rows: Sequence[DepthRow], form: str) -> str:
    """The rows in a form of `TABLES`."""
    cells = [_cells(row) for row in rows]
    keys = [key for key in _COLUMNS if any(each[key] for each in cells)]
    body = tuple(tuple(each[key] for key in keys) for each in cells)
    columns = tuple(Column(key, _COLUMNS[key]) for key in keys)
    return TABLES[form](Table(columns, body, 1, tuple(_used(rows))))


def _cells(row: DepthRow) -> dict[str, str]:
    return {
        "model": " ".join(filter(None, (row.model, row.quantization))),
        "test": row.test,
        "speed": _speed(row),
        "server": "" if row.server_tok_s is None else f"{row.server_tok_s:.2f}",
        "cached": "" if row.cached_tokens is None else str(row.cached_tokens),
        "note": row.note,
    }


def _used(rows: Sequence[DepthRow]) -> Iterator[str]:
    yield _NOTES[0]
    if any(row.depth for row in rows):
        yield _NOTES[1]


def json(rows: Sequence[DepthRow]) -> dict[str, Any]:
    """The rows as JSON has them."""
    return {"rows": [asdict(row) for row in rows]}
