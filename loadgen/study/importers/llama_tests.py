"""Tests: what a row of llama-bench or llama-benchy measures, by its name: pp2048, tg32 @ d4096."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto

import msgspec

from loadgen.report.speed_formulas import OUTPUT, TOTAL, converted
from loadgen.roofline.bound import DECODING, PREFILL
from loadgen.study.importers import numbers
from loadgen.study.importers.grids import Grid, Row

_TEST = re.compile(
    r"(?P<context>ctx_)?(?:(?P<prompt>pp) ?(?P<prompted>\d{1,8})?)?(?P<plus> ?\+ ?)?"
    r"(?:(?P<answer>tg) ?(?P<answered>\d{1,8})?)?(?: ?@ ?d(?P<depth>\d{1,8}))?"
    r"(?: ?\(c(?P<streams>\d{1,6})\))?",
    re.IGNORECASE,
)


# llama.cpp's name of a type of weights, as `Q4_K - Medium`; a test as the title of a column.
_TYPE = re.compile(r"\b(I?Q\d_K) - (Small|Medium|Large)\b", re.IGNORECASE)
_COLUMN = re.compile(r"(.{2,40}?)(?: ?[(\[]?(?:t|tok|tokens)/s(?:ec)?[)\]]?)?", re.IGNORECASE)


class Measured(Enum):
    """What the tokens per second of a test are of."""

    PREFILL = auto()
    DECODING = auto()
    BOTH = auto()  # prompt and answer tokens over the time of both


class LlamaTest(msgspec.Struct, frozen=True):
    """One test: its tokens are None where the name does not have them."""

    name: str
    measured: Measured
    prompt: int | None  # computed, or already there where answers alone are measured
    answer: int | None
    streams: int  # requests at once

    def facts(self) -> dict[str, str]:
        """The load, as the cells of a table of anyone would have it."""
        lengths = {"input_length": self.prompt, "output_length": self.answer}
        known = {key: str(tokens) for key, tokens in lengths.items() if tokens}
        return {"load": self.name, "max_concurrency": str(self.streams), **known}

    def figures(self, speed: float | None, of_a_request: float | None) -> dict[str, float]:
        """The figures that its tokens per second are: of all requests, and of one."""
        if self.measured is Measured.PREFILL:
            of_each = {} if of_a_request is None else {"mean_prefill_speed": of_a_request}
            return of_each if speed is None else {PREFILL: speed, **of_each}
        if self.measured is Measured.BOTH:
            return {} if speed is None else self._of_both(speed)
        return decoding(speed, of_a_request, self.streams)

    def _of_both(self, speed: float) -> dict[str, float]:
        figures = {"total_token_throughput": speed}
        if self.prompt and self.answer:
            figures["output_throughput"] = converted(speed, TOTAL, OUTPUT, self.prompt, self.answer)
        return figures


def decoding(speed: float | None, of_a_request: float | None, streams: int) -> dict[str, float]:
    """A decoding speed of all requests, of one, or both, with the time per token that it comes to."""
    one = of_a_request if of_a_request is not None or speed is None else numbers.scaled(speed, 1 / streams)
    timed = {"mean_tpot_ms": numbers.milliseconds_each(one)} if one else {}
    return timed if speed is None else {DECODING: speed, **timed}


def parse(name: str) -> LlamaTest | None:
    """The test of a name; None of anything else."""
    plain = " ".join(name.split())
    match = _TEST.fullmatch(plain)
    if match is None or not (match["prompt"] or match["answer"]):
        return None
    both = bool(match["prompt"] and match["answer"])
    if both is not bool(match["plus"]):
        return None
    tokens = {key: int(match[key]) if match[key] else None for key in ("prompted", "answered", "depth")}
    prompt = tokens["prompted"] if match["prompt"] and not match["context"] else tokens["depth"]
    measured = Measured.BOTH if both else Measured.PREFILL if match["prompt"] else Measured.DECODING
    return LlamaTest(plain, measured, prompt, tokens["answered"], int(match["streams"] or 1))


def with_load(facts: Mapping[str, str]) -> dict[str, str]:
    """A row's facts with the load that its test stands for; unchanged without a test."""
    test = parse(facts.get("test", ""))
    if test is None:
        return dict(facts)
    known = {**test.facts(), **{key: cell for key, cell in facts.items() if cell}}
    if known.get("engine"):  # its column `backend` has what llama.cpp computes with: CUDA, Metal, Vulkan
        known["engine"] = f"llama.cpp {known['engine']}"
    if known.get("model"):
        known["model"] = _TYPE.sub(lambda match: f"{match[1]}_{match[2][0].upper()}", known["model"])
    return known


def one_a_row(grid: Grid) -> Grid:
    """A table whose tests are columns, as pp512 (t/s), with a row for each of them; any other unchanged."""
    tests = {
        at: match[1]
        for at, title in enumerate(grid.titles)
        if (match := _COLUMN.fullmatch(title)) is not None
    }
    tests = {at: name for at, name in tests.items() if parse(name) is not None}
    if not any(grid.titles[at] != name or any(map(str.isdigit, name)) for at, name in tests.items()):
        return grid  # PP alone may be pipeline parallelism
    others = [at for at in range(len(grid.titles)) if at not in tests]
    rows = [
        Row(row.line, (*(row.cells[other] for other in others), name, row.cells[at]))
        for row in grid.rows
        for at, name in tests.items()
        if row.cells[at].strip()
    ]
    titles = (*(grid.titles[other] for other in others), "test", "t/s")
    return Grid(titles, tuple(rows), grid.first, grid.last)
