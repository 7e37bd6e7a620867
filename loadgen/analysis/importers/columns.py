"""Columns: what a column of someone's table holds, by its title, and the cells of a row as figures."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.analysis.importers import blocks, numbers
from loadgen.analysis.importers.numbers import AmbiguousError
from loadgen.results.speed_formulas import FORMULAS

SPEED = "speed_tok_s"
DECODE = "decode_tok_s"  # of one request: one over its time per token
# Titles in lower case, without their unit, and what stands below them.
_FACTS: tuple[tuple[str, str], ...] = (
    (r"models?|name|checkpoint|model[ _](?:name|id)|llm", "model"),
    (r"load|scenario|workload|load[ _]level|traffic|profile", "load"),
    (r"(?:max(?:imum)?[ _])?(?:request[ _])?concurrency|concurrent(?: (?:requests|users|streams))?|users"
     r"|clients|streams|parallel|batch(?:[ _]size)?|bs", "max_concurrency"),
    (r"(?:input|prompt)[ _](?:len(?:gth)?|size)|isl|context(?:[ _]len(?:gth)?)?", "input_length"),
    (r"(?:output|answer|generation)[ _](?:len(?:gth)?|size)|osl", "output_length"),
    (r"quant(?:ization)?|precision|dtype|weights", "quantization"),
    (r"gpu[ _]num|# ?gpus?|gpus|num[ _]gpus|tp(?:[ _]size)?", "gpu_num"),
    (r"gpu|machine|device|hardware|platform|accelerator", "machine"),
    (r"engine|backend|framework|server", "engine"),
    (r"(?:gpu[ _]|peak[ _])?(?:memory|vram|mem)(?:[ _]usage)?", "memory"),
    (r"notes?|remarks?|comments?", "note"),
    (r"# ?prompts|num[ _]prompts|prompts", "prompts"),
)  # fmt: skip
_RATES: tuple[tuple[str, str], ...] = (
    (r"speed", SPEED),
    (r"(?:total|overall)(?:[ _]token)?(?:[ _]throughput)?", "total_token_throughput"),
    (r"(?:output|generation|generated)?[ _]?(?:tokens?)?[ _]?throughput|output", "output_throughput"),
    (r"decod(?:e|ing)(?:[ _]speed)?|(?:per[ -](?:user|request|stream))", DECODE),
    (r"", SPEED),
)
_TOKENS_PER_S = re.compile(r"(?:output )?(?:tok(?:en)?s?|t)(?:/|_per_| per )(?:s|sec|second)\b|tps")
_REQUESTS_PER_S = re.compile(r"qps|rps|req(?:uest)?s?/s(?:ec)?|request[ _]throughput(?: \(req/s\))?")
_LATENCIES: Mapping[str, str] = {
    "ttft": "ttft", "time to first token": "ttft", "tpot": "tpot", "time per output token": "tpot",
    "itl": "itl", "inter-token latency": "itl", "inter token latency": "itl", "e2e": "e2el", "e2el": "e2el",
    "end-to-end latency": "e2el", "e2e latency": "e2el",
}  # fmt: skip
_RANK = r"mean|avg\.?|average|median|p\d\d(?:\.\d+)?"
_LATENCY = re.compile(
    rf"(?:({_RANK}) )?({'|'.join(sorted(map(re.escape, _LATENCIES), key=len, reverse=True))})(?: ({_RANK}))?"
)
_UNIT = re.compile(r"(.*?)[ ,]*[(\[]([^()\[\]]*)[)\]]|(.*?)[ ,]+(ms|s)")
_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_SAID = re.compile(r"\s*(?:±.*|\+/-.*|(?:tok(?:en)?s?/s|t/s|tps|ms|s|x|×|GiB|GB|MiB|MB)\.?)$", re.IGNORECASE)
_MEASURED = re.compile(r".*_(?:ms|throughput|tok_s)")
_SHOWN = 40
_EMPTY = frozenset({"", "-", "–", "—", "n/a", "na", "oom", "none", "null", "?"})


class TableColumn(msgspec.Struct, frozen=True):
    """What a column holds: a fact or a figure by its key; "" of one that is not known."""

    key: str
    unit: str = ""  # of memory
    times: float = 1.0  # what its numbers are multiplied with

    def scaled(self, value: float) -> float:
        """A number of the column in the figure's own unit, with no more digits than it is written with."""
        return value if self.times == 1.0 else float(f"{value * self.times:.12g}")


def column(title: str) -> TableColumn:
    """What stands below a title, as `Speed (tokens/s)`, `Mean TTFT (ms)`, `P99 TPOT [ms]`, `GPU Memory (MB)`.

    A latency without a unit is not known.
    """
    plain = " ".join(title.lower().split())
    if "".join(plain.split()) in FORMULAS:  # a speed under its formula's name
        return TableColumn(SPEED)
    parted = _UNIT.fullmatch(plain)
    base, unit = (
        ((parted[1] or parted[3] or "").strip(), parted[2] or parted[4] or "") if parted else (plain, "")
    )
    unit = unit.strip()
    if key := next((key for pattern, key in _FACTS if re.fullmatch(pattern, base)), ""):
        return TableColumn(key, unit if key == "memory" else "")
    if (own := blocks.key_of(title)) is not None:
        return TableColumn(own)
    if _REQUESTS_PER_S.fullmatch(plain) or _REQUESTS_PER_S.fullmatch(unit):
        return TableColumn("request_throughput")
    if (latency := _LATENCY.fullmatch(base)) is not None:
        rank = (latency[1] or latency[3] or "mean").rstrip(".")
        rank = {"avg": "mean", "average": "mean", "p50": "median"}.get(rank, rank)
        return TableColumn(
            f"{rank}_{_LATENCIES[latency[2]]}_ms" if unit in _MS else "", times=_MS.get(unit, 1.0)
        )
    if _TOKENS_PER_S.fullmatch(unit) or (not unit and _TOKENS_PER_S.search(plain) is not None):
        word = base if unit else _TOKENS_PER_S.sub("", plain, 1)
        return TableColumn(
            next((key for pattern, key in _RATES if re.fullmatch(pattern, word.strip(" _"))), "")
        )
    return TableColumn("")


def is_measured(key: str) -> bool:
    """Whether what stands under a key is a latency, a throughput or a speed."""
    return _MEASURED.fullmatch(key) is not None


def figures(cells: Sequence[tuple[TableColumn, str]]) -> tuple[dict[str, float], list[str]]:
    """The figures of a row's cells, the first of a key, and a remark on each ambiguous one."""
    plain = [(column, number_text(cell)) for column, cell in cells]
    sign = numbers.decimal_sign(text for _, text in plain if text)
    values, remarks = dict[str, float](), list[str]()
    for column, text in plain:
        try:
            if text:
                values.setdefault(column.key, column.scaled(numbers.number(text, sign)))
        except AmbiguousError as error:
            remarks.append(f"{column.key} {error}: left out")
        except ValueError:  # out of bounds
            remarks.append(f"{column.key} {text[:_SHOWN]} is out of bounds: left out")
    return values, remarks


def derived(figures: Mapping[str, Any], limit: int | None, facts: Collection[str]) -> dict[str, Any]:
    """A row's figures by what they are next to one another.

    A decoding speed is one over TPOT. Tokens per second next to requests per second are of prompts and
    answers, as on the Qwen2 page; next to a load, a concurrency or a TTFT they are output throughput.
    """
    values = dict(figures)
    if decode := values.pop(DECODE, None):
        values.setdefault("mean_tpot_ms", 1e3 / decode)
    if SPEED in values and not {"input_length", "output_throughput"} & {*facts, *values}:
        if "request_throughput" in values:
            values.setdefault("total_token_throughput", values.pop(SPEED))
        elif limit is not None or "load" in facts or "mean_ttft_ms" in values:
            values.setdefault("output_throughput", values.pop(SPEED))
    return values


def number_text(cell: str) -> str:
    """A cell's number without its unit and its interval; "" of one that has none."""
    text = cell.strip().strip("*~≈ ")
    while (plain := _SAID.sub("", text)) != text:
        text = plain
    return "" if text.lower() in _EMPTY or numbers.PATTERN.fullmatch(text) is None else text
