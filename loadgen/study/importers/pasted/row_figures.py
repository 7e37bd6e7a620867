"""Row figures: the figures of a table's rows, by the titles of its columns, and those that follow from them.

The unit of a cell is the cell's own, whatever the title of its column has. A test of llama.cpp, as pp512 or
tg128 @ d4096, is a load, and shows which phase its tokens per second are of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.figures.figure_table import LATENCIES
from loadgen.figures.metrics import DECODING, PREFILL
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import numbers, pasted_blocks
from loadgen.study.importers.pasted.numbers import (
    FOOTNOTE,
    KINDS,
    CellNumber,
    find_kind,
    parse_cell,
    translate_title,
)
from loadgen.study.speed.speed_rows import FORMULAS, OUTPUT, TOTAL, UNIT_BYTES, convert_speed

WHOLE_THROUGHPUT = "total_token_throughput"
SPEED = "speed_tok_s"
DECODE = "decode_tok_s"  # of one request, where there is one at a time: one over its time per token
OF_ONE = "request_tok_s"  # of one request, however many there are
RATE = "requested_rate"  # requests per second that were asked for
LENGTHS = "lengths"  # of prompt and answer in one cell: 1024/128
FAILED = "failed"
FORMULA = "formula"  # of a speed, by its name
ACCEPTED = "acceptance_rate"  # of no unit: a share, or the tokens that a pass gives
_LEN = r"(?:[ _](?:seq(?:uence)?[ _])?(?:len(?:gth)?|size|tokens))"
_MEAN = r"(?:avg\.?|average|mean)"
# Titles in lower case, without their unit, and what stands below them.
_FACTS: tuple[tuple[str, str], ...] = (
    (r"models?|name|checkpoint|model[ _](?:name|id)|llm", "model"),
    (r"load|scenario|workload|load[ _]level|traffic|profile", "load"),
    (r"(?:max(?:imum)?[ _]|number of )?(?:request[ _])?conc(?:ur(?:rency)?)?\.?"
     r"|concurrent(?: (?:req(?:uest)?s|users|streams))?|(?:num[ _]|# ?)?(?:users|clients|streams)"
     r"|parallel(?:ism)?|batch(?:[ _]size)?|bs|vus?", "max_concurrency"),
    (rf"isl ?[/:x,] ?osl|(?:input|in|prompt){_LEN}? ?[/:x,] ?(?:output|out){_LEN}?", LENGTHS),
    (r"(?:prefill|prompt)[ _]tokens", "prefill_tokens"),  # of all requests of a batch
    (rf"(?:input|in|prompt){_LEN}|isl|context(?:[ _]len(?:gth)?)?|input"
     rf"|{_MEAN} (?:input|prompt)(?: tokens(?: per request)?|{_LEN})", "input_length"),
    (rf"(?:output|out|answer|generation){_LEN}|osl|max[ _]tokens"
     rf"|{_MEAN} output(?: tokens(?: per request)?|{_LEN})",
     "output_length"),
    (r"quant(?:ization)?|(?:llm[ _])?prec(?:ision)?|dtype|weights", "quantization"),
    (r"gpu[ _]num|# ?gpus?|gpus|num[ _]gpus|tp(?:[ _]size)?", "gpu_num"),
    (r"gpu|machine|device|hardware|platform|accelerator", "machine"),
    (r"engine|backend|framework|server", "engine"),
    (r"(?:gpu[ _]|peak[ _])?(?:memory|vram|mem)(?:[ _]usage)?(?:_[mg]b)?", "memory"),
    (r"notes?|remarks?|comments?", "note"),
    (r"(?:# ?|num[ _]|total )?(?:prompts|requests|reqs)|n", "prompts"),
    (r"(?:request|arrival)[ _]rate(?: configured)?"
     r"|(?:offered|requested|target|configured)[ _](?:load|rate|qps|rps)"
     r"|(?:req(?:uest)?s?/s|qps|rps)[ _](?:sent|offered|requested|configured)", RATE),
    (r"(?:# ?|num[ _]|total )?(?:failed|failures|errors?)(?:[ _](?:requests?|reqs)(?: count)?)?", FAILED),
    (r"test", "test"),  # of llama-bench
    (r"formula", FORMULA),
    (r"setting", "setting"),
    (r"acc(?:ept(?:ance)?)?[ _]rate", ACCEPTED),
)  # fmt: skip
_RATES: tuple[tuple[str, str], ...] = (
    (r"speed", SPEED),
    (r"(?:total|overall)(?:[ _]token)?(?:[ _]throughput)?", WHOLE_THROUGHPUT),
    (r"(?:output|generation|generated)?[ _]?(?:tokens?)?[ _]?throughput|out(?:put)?", "output_throughput"),
    (r"gen\.", "output_throughput"),  # of evalscope's summary
    (r"decod(?:e|ing)(?:[ _]speed)?", DECODE),
    (r"(?:/ ?|per[ -])(?:user|req(?:uest)?|stream)", OF_ONE),
    (r"(?:prefill(?:ing)?|pp|prompt(?:[ _](?:processing|eval(?:uation)?))?)"
     r"(?:[ _](?:speed|rate|throughput))?", PREFILL),
    (r"(?:generation|gen|tg|eval|(?:text|token)[ _]generation)(?:[ _](?:speed|rate))?"
     r"|decod(?:e|ing)[ _]throughput", DECODING),
    (r"peak", "max_output_tokens_per_s"),
    (r"", SPEED),
)  # fmt: skip
# What stands behind tokens per second: of all requests at once, or of each.
_SHARED = {"total": SPEED, "all": SPEED, "req": OF_ONE, "request": OF_ONE, "user": OF_ONE, "stream": OF_ONE}
_TOKENS_PER_S = re.compile(r"(output )?(?:tok(?:en)?s?|t)(?:/|_per_| per )(?:s|sec|second)\b|tps")
_UNDERSCORED = re.compile(r"(?:(?<=[a-z])_|^)tok(?:en)?s?_s$")  # of a database's column
_REQUESTS_PER_S = re.compile(
    r"(?:(?:achieved|actual|measured|completed)[ _])?(?:qps|rps|req(?:uest)?s?(?:/| per )s(?:ec(?:ond)?)?"
    r"|request[ _]throughput(?: \(req/s\))?)"
)
_STATISTIC_KEY = re.compile(r"(?:mean|median|std|p\d\d(?:\.\d+)?)_[a-z0-9_]+_ms")
_PER_SECOND = re.compile(r"\(per sec(?:ond)?\)")  # of genai-perf's rates
_MEASURED_RATE = re.compile(r"throughput|achieved|measured|completed")
_LATENCIES = {title: figure.key for figure in LATENCIES for title in figure.titles} | dict.fromkeys(
    ("est ppt", "prefill", "prefill time", "prefill latency"), "prefill"
)
_OF_A_RANK = ("latency", "lat.")  # of a request, where a statistic is named; else of anything
_RANK = r"mean|avg\.?|average|median|std|min|max|p\d\d(?:\.\d+)?"
_RANKS = {"avg": "mean", "average": "mean", "p50": "median"}
_LATENCY = re.compile(
    rf"(?:({_RANK}) )?({'|'.join(sorted(map(re.escape, _LATENCIES), key=len, reverse=True))})(?: ({_RANK}))?"
)
_COUNTED = re.compile(r" ?\((?:requests|count|tokens)\)$", re.IGNORECASE)
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
_LAST_UNIT = re.compile(
    r"(.*?)(?:(?:[ ,_]+|\s+/\s*)(ms|s|sec|[u\u00b5\u03bc]s|[mg]b)|/(ms|[u\u00b5\u03bc]s))"
)
_KILO = re.compile(r"\bk(?=tok(?:en)?s?/|t/s)", re.IGNORECASE)  # of a unit: ktok/s
_ROUND = re.compile(r"\d{1,6}(?:\.[05]0?)?|inf(?:inite|inity)?|∞", re.IGNORECASE)
_MEASURED = re.compile(r".*_(?:ms|throughput|tok_s)")
_MOST_PROBED = 200  # cells of a column that its unit is read from
_LEAST_ASKED = 2  # rows, from which on round requests per second were asked for


class TableColumn(msgspec.Struct, frozen=True):
    """The content of a column: a fact or a figure by its key; "" of an unknown one."""

    key: str
    times: float = 1.0  # what its numbers are multiplied with; 0 of memory in an unknown unit
    title: str = ""
    bare: bool = True  # whether a number without a unit of its own is in the title's


def read_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[TableColumn]:
    """Read the columns of a table by their titles and the units in their first 200 cells.

    Requests per second that stand before every figure and are round were asked for, not measured.
    """
    probed = [[row[at] for row in rows[:_MOST_PROBED] if at < len(row)] for at in range(len(titles))]
    found = [*map(read_column, titles, probed)]
    for at, each in enumerate(found):
        cells = [cell.strip() for cell in probed[at] if cell.strip()]
        asked = len(cells) >= _LEAST_ASKED and not _MEASURED_RATE.search(each.title.lower())
        if each.key == "request_throughput" and asked:
            parts = (parse_cell(cell) for cell in cells)
            plain = (cell if part is None else part.text for cell, part in zip(cells, parts, strict=True))
            found[at] = replace(each, key=RATE) if all(map(_ROUND.fullmatch, plain)) else each
        if is_measured(each.key):
            break
    return found


def is_measured(key: str) -> bool:
    """Whether what stands under a key is a latency, a throughput or a speed."""
    return _MEASURED.fullmatch(key) is not None


def read_column(title: str, cells: Sequence[str] = ()) -> TableColumn:
    """Read a column's title, as `Speed (tokens/s)`, `Mean TTFT (ms)`, `P99 TPOT [ms]`, `GPU Memory (MB)`.

    Without a unit there it is that of the cells, if they have one kind; a figure without either is not known.
    """
    plain = " ".join(translate_title(FOOTNOTE.sub("", title)).split())
    found = _parse_title(_KILO.sub("", plain))
    if _KILO.search(plain) is not None:
        found = replace(found, times=1e3 * found.times)
    if not found.key or not found.times:
        parts = [part for cell in cells if (part := parse_cell(cell)) is not None and part.unit]
        kinds, own = {part.kind for part in parts}, {part.unit.lower() for part in parts}
        if len(kinds) == 1:
            # Of cells of one kind, of memory the unit itself, where it is one.
            (kind,) = kinds
            unit = own.pop() if len(own) == 1 else KINDS[kind][1]
            found = replace(_parse_title(f"{plain} ({unit})"), bare=kind != "time")
    return replace(found, title=title)


@lru_cache(512)  # a page repeats its titles in each table
def _parse_title(title: str) -> TableColumn:
    """Parse a title without `k`: a fact, a rate, a latency in a unit of time; the key is "" if unknown."""
    plain = _UNDERSCORED.sub(" tok/s", title.lower())
    plain = _PER_SECOND.sub("(tok/s)" if "token" in plain else "(req/s)", plain)
    if "".join(plain.split()) in FORMULAS:  # a speed under its formula's name
        return TableColumn(SPEED)
    base, unit = _split_unit(plain)
    before = plain.partition("(")[0].partition("[")[0].strip()
    rated = find_kind(unit) in ("time", "tokens", "requests")
    for pattern, key in _FACTS:
        is_fact = (not rated or key == RATE) and not (key in (ACCEPTED, FAILED) and "%" in plain)
        if is_fact and re.fullmatch(pattern, before):
            size = UNIT_BYTES.get(unit.upper().replace("I", ""), 0)
            return TableColumn(key, times=size if key == "memory" else 1.0)
    rate, _, shared = base.rpartition(" ")
    if not unit and shared in _SHARED and _TOKENS_PER_S.fullmatch(rate):
        return TableColumn(_SHARED[shared])
    if plain in pasted_blocks.list_keys() | {SPEED} or _STATISTIC_KEY.fullmatch(plain):
        return TableColumn(plain)
    if (own := pasted_blocks.find_key(_COUNTED.sub("", title))) is not None:
        return TableColumn(own.replace("p50_", "median_"))
    if _REQUESTS_PER_S.fullmatch(plain) or (
        _REQUESTS_PER_S.fullmatch(unit) and re.fullmatch(r"(?:request )?(?:throughput|rate)|", base)
    ):
        return TableColumn("request_throughput")
    latency = _LATENCY.fullmatch(base.replace("_", " "))
    if latency is not None and not _TOKENS_PER_S.fullmatch(unit):
        rank = (latency[1] or latency[3] or "mean").rstrip(".")
        key = f"{_RANKS.get(rank, rank)}_{_LATENCIES[latency[2]]}_ms"
        known = unit in numbers.MS and bool(latency[1] or latency[3] or latency[2] not in _OF_A_RANK)
        return TableColumn(key if known else "", times=numbers.MS.get(unit, 1.0))
    if _TOKENS_PER_S.fullmatch(unit) or (not unit and _TOKENS_PER_S.search(plain) is not None):
        word = base if unit else _TOKENS_PER_S.sub(lambda found: found[1] or "", plain, 1)
        return TableColumn(
            next((key for pattern, key in _RATES if re.fullmatch(pattern, word.strip(" _"))), "")
        )
    return TableColumn("")


def _split_unit(plain: str) -> tuple[str, str]:
    """Split a title into words and its unit, in brackets or at its end; a rank in brackets is a word."""
    inside = [part.strip() for found in _BRACKETS.findall(plain) for part in re.split(r"[,;]", found)]
    words, unit = " ".join(_BRACKETS.sub(" ", plain).split()), ""
    for part in inside:
        if find_kind(part) and not unit:
            unit = part
        else:
            words = f"{words} {part}".strip()
    if not unit and (last := _LAST_UNIT.fullmatch(words)) is not None:
        words, unit = last[1].strip(), last[2] or last[3]
    return words.strip(" ,/:"), unit


_SHARES = frozenset({"success_rate", "spec_decode_acceptance_rate"})  # in percent, with its sign or without
_SHOWN = 40
_ALIKE = 0.05  # a speed of prompts and answers, and requests per second times their lengths
PER_USER = (
    "tok/s of each user or request are no TPOT: they may include the time of the first token"  # a remark
)
UNKNOWN_FORMULA = "lengths, batch size and formula of the speed are unknown"  # a remark
_MOST_ACCEPTED = 16.0  # tokens a pass
_INFINITE = ("∞", "inf")
Lengths = tuple[float | None, float | None]  # tokens of a prompt and of an answer


def read_cells(cells: Sequence[tuple[TableColumn, str]]) -> tuple[dict[str, float], list[str]]:
    """Read the figures of a row's cells, the first of a key, and a remark on each that could not be read."""
    plain = [(column, cell.rstrip(" %") if column.key in _SHARES else cell) for column, cell in cells]
    parts = [numbers.parse_cell(cell) for _, cell in plain]
    sign = numbers.find_decimal_sign(part.text for part in parts if part is not None)
    values, remarks = dict[str, float](), list[str]()
    for (column, cell), part in zip(plain, parts, strict=True):
        try:
            value = _read_value(column, cell, part, sign)
        except UsageError as error:
            remarks.append(f"{column.key} {error}: left out")
        except ValueError as error:
            remarks.append(f"{column.title or column.key} {cell.strip()[:_SHOWN]!r} {error}: left out")
        else:
            values |= {} if value is None else {column.key: values.get(column.key, value)}
    return values, remarks


def _read_value(column: TableColumn, cell: str, part: CellNumber | None, sign: str) -> float | None:
    """Read a cell's number in its figure's unit, NaN and infinity too, which an audit names; else None.

    Its own unit counts, else that of the title. Raises UsageError of an ambiguous one, and ValueError of
    digits that are not a number, and of another unit.
    """
    timed, text = column.key.endswith("_ms"), cell if part is None else part.text
    number = json_fields.parse_number(text.strip().strip("*`").lower().replace(*_INFINITE))
    if part is None:
        if number is None and any(map(str.isdecimal, text)):
            raise ValueError("is not a number")
        return number
    if part.kind not in ("", "memory") and (part.kind == "time") is not timed:
        raise ValueError("has another unit than its column")
    if timed and not column.bare and not part.unit:
        raise ValueError("has no unit")
    own = numbers.MS[part.unit.lower()] if part.kind == "time" else column.times
    try:
        return numbers.scale_figure(numbers.parse_number(text, sign), part.times * own)
    except ValueError:
        if number is None:
            raise ValueError("is not a number") from None
        return math.copysign(math.inf, number) if number else 0.0  # as 1e400: a number, and no figure


def list_remarks(read: Mapping[str, float], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield remarks on speeds that `read` had and `values`, derived of it, have as something else."""
    if OF_ONE in values:
        yield PER_USER
    if "output_throughput" in read and "output_throughput" not in values:
        yield "tok/s are of prompts and outputs together, as requests/s and their lengths show"
    if SPEED in values:
        yield UNKNOWN_FORMULA


def complete_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Return a row's facts with those that follow: the load of a test, the mean prompt of a batch."""
    known = dict(facts)
    if (test := parse_test(facts.get("test", ""))) is not None:
        lengths = {"input_length": test.prompt, "output_length": test.answer}
        known = {"load": test.name, "max_concurrency": str(test.streams)}
        known |= {key: str(tokens) for key, tokens in lengths.items() if tokens}
        known |= {key: cell for key, cell in facts.items() if cell}
        if known.get("engine"):  # its column `backend` has what llama.cpp computes with: CUDA, Metal, Vulkan
            known["engine"] = f"llama.cpp {known['engine']}"
        if known.get("model"):
            known["model"] = _TYPE.sub(lambda match: f"{match[1]}_{match[2][0].upper()}", known["model"])
    tokens, batch = (numbers.parse_whole(known.get(key, "")) for key in ("prefill_tokens", "max_concurrency"))
    if tokens and not known.get("input_length"):
        known["input_length"] = str(round(tokens / (batch or 1)))
    return known


def derive_figures(
    figures: Mapping[str, Any], limit: int | None, facts: Mapping[str, str], lengths: Lengths = (None, None)
) -> dict[str, Any]:
    """Return a row's figures with those that follow, each speed under the figure that it is.

    A decoding speed of one request is one over TPOT; of a batch it is of all of it. Tokens per second of each
    request or user are no time per token, since others divide by the time of the first token too. Those of a
    test are of prefill, of decoding, or of both. Next to requests per second they are of prompts and answers,
    as on the Qwen2 page, unless lengths show that they are of answers alone; next to a load, a concurrency or
    a TTFT they are output throughput. An output throughput that is, by requests per second and lengths, of
    prompts and answers is their total.
    """
    values = _derive_speeds(figures, limit or 1, parse_test(facts.get("test", "")))
    if "mean_prefill_ms" in values:
        values.setdefault("mean_ttft_ms", values["mean_prefill_ms"])
    values = _parse_acceptance(facts.get(ACCEPTED, "")) | values
    rate, (prompt, answer) = values.get("request_throughput"), lengths
    of_all = rate * (prompt + answer) if rate and prompt and answer else 0.0
    speed = values.get("output_throughput")
    if speed and of_all and WHOLE_THROUGHPUT not in values and abs(speed / of_all - 1) <= _ALIKE:
        values[WHOLE_THROUGHPUT] = values.pop("output_throughput")
    if SPEED not in values or "output_throughput" in values:
        return values
    served = limit is not None or {"load", RATE} & {*facts} or "mean_ttft_ms" in values
    if rate:
        of_answers = of_all and abs(rate * (answer or 0) - values[SPEED]) < abs(of_all - values[SPEED])
        values.setdefault("output_throughput" if of_answers else WHOLE_THROUGHPUT, values.pop(SPEED))
    elif served and (limit is not None or "input_length" not in facts):
        values["output_throughput"] = values.pop(SPEED)
    return values


def _parse_acceptance(cell: str) -> dict[str, float]:
    """Parse an acceptance rate: the share of drafted tokens in percent, or tokens of a pass; else {}."""
    if (number := numbers.parse_decimal(cell.strip().rstrip("%"))) is None:
        return {}
    rate = float(number)
    if "%" not in cell and 1 < rate <= _MOST_ACCEPTED:
        return {"accept_length": rate}
    return {"spec_decode_acceptance_rate": rate * (100 if "%" not in cell and rate <= 1 else 1)}


_TEST = re.compile(
    r"(?P<context>ctx_)?(?:(?P<prompt>pp) ?(?P<prompted>\d{1,8})?)?(?P<plus> ?\+ ?)?"
    r"(?:(?P<answer>tg) ?(?P<answered>\d{1,8})?)?(?: ?@ ?d(?P<depth>\d{1,8}))?"
    r"(?: ?\(c(?P<streams>\d{1,6})\))?",
    re.IGNORECASE,
)
# llama.cpp's name of a type of weights, as `Q4_K - Medium`.
_TYPE = re.compile(r"\b(I?Q\d_K) - (Small|Medium|Large)\b", re.IGNORECASE)


class LlamaTest(msgspec.Struct, frozen=True):
    """One test of llama.cpp: its tokens are None where the name does not have them."""

    name: str
    measured: str  # what its tokens per second are: of prefill, decoding, or both in the time of both
    prompt: int | None  # computed, or already there where answers alone are measured
    answer: int | None
    streams: int  # requests at once


def parse_test(name: str) -> LlamaTest | None:
    """Parse the name of a test of llama.cpp, as pp512 or tg128 @ d4096; None of anything else."""
    plain = " ".join(name.split())
    match = _TEST.fullmatch(plain)
    both = match is not None and bool(match["prompt"] and match["answer"])
    if match is None or not (match["prompt"] or match["answer"]) or both is not bool(match["plus"]):
        return None
    keys = ("prompted" if match["prompt"] and not match["context"] else "depth", "answered", "streams")
    prompt, answer, streams = (int(match[key]) if match[key] else None for key in keys)
    measured = WHOLE_THROUGHPUT if both else PREFILL if match["prompt"] else DECODING
    return LlamaTest(plain, measured, prompt, answer, streams or 1)


def _derive_speeds(figures: Mapping[str, Any], limit: int, test: LlamaTest | None) -> dict[str, Any]:
    """Return figures with the speed of a test, of decoding or of one request under the keys of what it is."""
    values = dict(figures)
    measured, of_one, streams = DECODING, None, limit
    if test is not None:
        measured, of_one, streams = test.measured, values.pop(OF_ONE, None), test.streams
    speed = values.pop(measured if test is None else SPEED, None)
    if speed is not None:
        values[measured] = speed
    if measured == DECODING:
        of_one = numbers.scale_figure(speed, 1 / streams) if of_one is None and speed is not None else of_one
        values |= {"mean_tpot_ms": numbers.compute_each_ms(of_one)} if of_one else {}
    elif measured == PREFILL and of_one is not None:
        values["mean_prefill_speed"] = of_one
    elif test is not None and speed is not None and test.prompt and test.answer:
        values["output_throughput"] = convert_speed(speed, TOTAL, OUTPUT, test.prompt, test.answer)
    # Of several at once a decoding speed may be of each or of all: no time per token.
    if decode := values.pop(DECODE, None):
        values |= {DECODING: decode} if limit > 1 else {"mean_tpot_ms": numbers.compute_each_ms(decode)}
    return values
