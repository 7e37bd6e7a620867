"""Columns: the key and the unit of a table's column by its title, and a row's cells as figures.

A unit stands in the title or in the cells; that of a cell is the cell's own, whatever the title has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.figures.figure_table import LATENCIES
from loadgen.roofline.bound import DECODING, PREFILL
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import numbers, pasted_blocks, translation
from loadgen.study.importers.pasted.grids import Grid, Row
from loadgen.study.importers.pasted.numbers import AmbiguousError
from loadgen.study.speed.speed_rows import FORMULAS, OUTPUT, TOTAL, convert_speed

SPEED = "speed_tok_s"
DECODE = "decode_tok_s"  # of one request, where there is one at a time: one over its time per token
OF_ONE = "request_tok_s"  # of one request, however many there are
RATE = "requested_rate"  # requests per second that were asked for
LENGTHS = "lengths"  # of prompt and answer in one cell: 1024/128
_ACCEPTED = "acceptance_rate"  # of no unit: a share, or the tokens that a pass gives
_MOST_ACCEPTED = 16.0  # tokens a pass
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
     rf"|{_MEAN} (?:input|prompt) tokens(?: per request)?", "input_length"),
    (rf"(?:output|out|answer|generation){_LEN}|osl|max[ _]tokens|{_MEAN} output tokens(?: per request)?",
     "output_length"),
    (r"quant(?:ization)?|(?:llm[ _])?prec(?:ision)?|dtype|weights", "quantization"),
    (r"gpu[ _]num|# ?gpus?|gpus|num[ _]gpus|tp(?:[ _]size)?", "gpu_num"),
    (r"gpu|machine|device|hardware|platform|accelerator", "machine"),
    (r"engine|backend|framework|server", "engine"),
    (r"(?:gpu[ _]|peak[ _])?(?:memory|vram|mem)(?:[ _]usage)?", "memory"),
    (r"notes?|remarks?|comments?", "note"),
    (r"(?:# ?|num[ _]|total )?(?:prompts|requests|reqs)|n", "prompts"),
    (r"request[ _]rate|arrival[ _]rate", RATE),
    (r"test", "test"),  # of llama-bench
    (r"acc(?:ept(?:ance)?)?[ _]rate", _ACCEPTED),
)  # fmt: skip
_RATES: tuple[tuple[str, str], ...] = (
    (r"speed", SPEED),
    (r"(?:total|overall)(?:[ _]token)?(?:[ _]throughput)?", "total_token_throughput"),
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
_REQUESTS_PER_S = re.compile(
    r"qps|rps|req(?:uest)?s?(?:/| per )s(?:ec(?:ond)?)?|request[ _]throughput(?: \(req/s\))?"
)
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
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
_LAST_UNIT = re.compile(r"(.*?)(?:(?:[ ,_]+|\s+/\s*)(ms|s|sec|[u\u00b5\u03bc]s)|/(ms|[u\u00b5\u03bc]s))")
_MS = {
    "us": 1e-3, "\u00b5s": 1e-3, "\u03bcs": 1e-3, "ms": 1.0, "msec": 1.0, "s": 1e3, "sec": 1e3, "secs": 1e3,
    "second": 1e3, "seconds": 1e3,
}  # fmt: skip
# What a unit is of, in a title and in a cell, and how titles have it.
_KINDS: tuple[tuple[str, str, str], ...] = (
    ("time", "|".join(sorted(_MS, key=len, reverse=True)), "ms"),
    ("tokens", r"tok(?:en)?s?(?:/| per )s(?:ec(?:ond)?)?|t/s|tps", "tok/s"),
    ("requests", r"req(?:uest)?s?(?:/| per )s(?:ec(?:ond)?)?|rps|qps", "req/s"),
    ("memory", r"[kmgt]i?b", "gb"),
)
_UNIT_KINDS = tuple((kind, re.compile(pattern, re.IGNORECASE), unit) for kind, pattern, unit in _KINDS)
_CELL = re.compile(
    rf"[~≈]?\s?(?P<number>{numbers.PATTERN.pattern})\s?(?P<thousands>[km](?![a-z])|[km](?=tok|t/s))?\s?"
    r"(?:(?:±|\+/-)[\s\d.,%]*)?"
    rf"(?:(?P<unit>{'|'.join(pattern for _, pattern, _ in _KINDS)})(?:/tok(?:en)?)?)?"
    r"\.?(?:\s?(?:±|\+/-)[\s\d.,]*(?:ms|s|%)?)?"
    r"(?:\s?\([^()]*\))?",
    re.IGNORECASE,
)
# Marks of a footnote behind a number.
_FOOTNOTE = re.compile(
    r"(?<=\S)\s?(?:[\u00b9\u00b2\u00b3\u2070-\u207e]{1,8}|\[(?:\^\w{1,8}|\d{1,3})\]|[†‡§¶]{1,4})\s{0,4}$"
)
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6}
_KILO = re.compile(r"\bk(?=tok(?:en)?s?/|t/s)", re.IGNORECASE)  # of a unit: ktok/s
_LONGEST_CELL = 80
_ROUND = re.compile(r"\d{1,6}(?:\.[05]0?)?|inf(?:inite|inity)?|∞", re.IGNORECASE)
_MEASURED = re.compile(r".*_(?:ms|throughput|tok_s)")
_SHARES = frozenset({"success_rate", "spec_decode_acceptance_rate"})  # in percent, with its sign or without
_SHOWN = 40
_MOST_PROBED = 200  # cells of a column that its unit is read from
_LEAST_ASKED = 2  # rows, from which on round requests per second were asked for
_MOST_DIGITS = 18  # of a count
Lengths = tuple[float | None, float | None]  # tokens of a prompt and of an answer
_EMPTY = frozenset({"", "-", "–", "—", "n/a", "na", "oom", "none", "null", "?"})
_NO_NUMBERS = {"nan": math.nan, "-nan": math.nan, "inf": math.inf, "+inf": math.inf, "infinity": math.inf,
               "∞": math.inf, "-inf": -math.inf, "-infinity": -math.inf, "-∞": -math.inf}  # fmt: skip


class TableColumn(msgspec.Struct, frozen=True):
    """The content of a column: a fact or a figure by its key; "" of an unknown one."""

    key: str
    unit: str = ""  # of memory
    times: float = 1.0  # what its numbers are multiplied with
    title: str = ""
    bare: bool = True  # whether a number without a unit of its own is in the title's


class CellNumber(msgspec.Struct, frozen=True):
    """A number as a cell has it: 3.9k tok/s is the text 3.9, times 1000, in tok/s."""

    text: str
    times: float = 1.0
    unit: str = ""
    kind: str = ""  # of the unit


def read_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[TableColumn]:
    """Read the columns of a table by their titles and the units in their cells.

    Requests per second that stand before every figure and are round were asked for, not measured.
    """
    found = [
        read_column(title, [row[at] for row in rows if at < len(row)]) for at, title in enumerate(titles)
    ]
    first = next((at for at, each in enumerate(found) if is_measured(each.key)), len(found))
    for at, each in enumerate(found[: first + 1]):
        cells = [row[at].strip() for row in rows[:_MOST_PROBED] if at < len(row) and row[at].strip()]
        measured = _MEASURED_RATE.search(each.title.lower()) is not None or len(cells) < _LEAST_ASKED
        if each.key == "request_throughput" and not measured and all(map(_is_round, cells)):
            found[at] = replace(each, key=RATE)
    return found


def read_column(title: str, cells: Sequence[str] = ()) -> TableColumn:
    """Read a column's title, as `Speed (tokens/s)`, `Mean TTFT (ms)`, `P99 TPOT [ms]`, `GPU Memory (MB)`.

    A figure whose unit neither the title nor the cells have is not known.
    """
    plain = " ".join(translation.translate_title(_FOOTNOTE.sub("", title)).split())
    of_thousands = _KILO.search(plain) is not None
    found = _parse_title(_KILO.sub("", plain))
    if of_thousands:
        found = replace(found, times=1e3 * found.times)
    if not found.key or (found.key == "memory" and not found.unit):
        units = [
            part for cell in cells[:_MOST_PROBED] if (part := parse_cell(cell)) is not None and part.unit
        ]
        kinds = {part.kind for part in units}
        if len(kinds) == 1:
            found = _parse_title(f"{plain} ({_unit_of(units)})") if found.key or units else found
            found = replace(found, bare=kinds != {"time"})
    return replace(found, title=title)


def _unit_of(cells: Sequence[CellNumber]) -> str:
    """The unit of cells of one kind as titles have it; of memory their own, where that is one."""
    own = {cell.unit.lower() for cell in cells}
    return own.pop() if len(own) == 1 else next(unit for kind, _, unit in _KINDS if kind == cells[0].kind)


def _parse_title(title: str) -> TableColumn:
    plain = title.lower()
    plain = _PER_SECOND.sub("(tok/s)" if "token" in plain else "(req/s)", plain)
    if "".join(plain.split()) in FORMULAS:  # a speed under its formula's name
        return TableColumn(SPEED)
    base, unit = _split_unit(plain)
    before = plain.partition("(")[0].partition("[")[0].strip()
    rated = _unit_kind(unit) in ("time", "tokens", "requests")
    facts = (
        (key, pattern)
        for pattern, key in _FACTS
        if (not rated or key == RATE) and not (key == _ACCEPTED and "%" in plain)
    )
    if key := next((key for key, pattern in facts if re.fullmatch(pattern, before)), ""):
        return TableColumn(key, unit if key == "memory" else "")
    rate, _, shared = base.rpartition(" ")
    if not unit and shared in _SHARED and _TOKENS_PER_S.fullmatch(rate):
        return TableColumn(_SHARED[shared])
    if (own := pasted_blocks.find_key(title)) is not None:
        return TableColumn(own.replace("p50_", "median_"))
    if _REQUESTS_PER_S.fullmatch(plain) or (
        _REQUESTS_PER_S.fullmatch(unit) and re.fullmatch(r"(?:request )?(?:throughput|rate)|", base)
    ):
        return TableColumn("request_throughput")
    latency = _LATENCY.fullmatch(base.replace("_", " "))
    if latency is not None and not _TOKENS_PER_S.fullmatch(unit):
        rank = (latency[1] or latency[3] or "mean").rstrip(".")
        key = f"{_RANKS.get(rank, rank)}_{_LATENCIES[latency[2]]}_ms"
        known = unit in _MS and bool(latency[1] or latency[3] or latency[2] not in _OF_A_RANK)
        return TableColumn(key if known else "", times=_MS.get(unit, 1.0))
    if _TOKENS_PER_S.fullmatch(unit) or (not unit and _TOKENS_PER_S.search(plain) is not None):
        word = base if unit else _TOKENS_PER_S.sub(lambda found: found[1] or "", plain, 1)
        return TableColumn(
            next((key for pattern, key in _RATES if re.fullmatch(pattern, word.strip(" _"))), "")
        )
    return TableColumn("")


def _split_unit(plain: str) -> tuple[str, str]:
    """A title's words and its unit, which stands in brackets or at its end; a rank in brackets is a word."""
    inside = [part.strip() for found in _BRACKETS.findall(plain) for part in re.split(r"[,;]", found)]
    words, unit = " ".join(_BRACKETS.sub(" ", plain).split()), ""
    for part in inside:
        if _unit_kind(part) and not unit:
            unit = part
        else:
            words = f"{words} {part}".strip()
    if not unit and (last := _LAST_UNIT.fullmatch(words)) is not None:
        words, unit = last[1].strip(), last[2] or last[3]
    return words.strip(" ,/:"), unit


def _unit_kind(unit: str) -> str:
    return next((kind for kind, pattern, _ in _UNIT_KINDS if pattern.fullmatch(unit)), "")


def _is_round(cell: str) -> bool:
    part = parse_cell(cell)
    return _ROUND.fullmatch(cell) is not None or (
        part is not None and _ROUND.fullmatch(part.text) is not None
    )


def parse_cell(cell: str) -> CellNumber | None:
    """Parse the number of a cell with its unit, without its interval and brackets behind it."""
    plain = _FOOTNOTE.sub("", cell[: _LONGEST_CELL + 1])  # before a ¹ becomes a digit
    text = translation.translate_title(plain).strip().strip("*`✅🏆⭐↑↓ ")
    match = _CELL.fullmatch(text) if len(text) <= _LONGEST_CELL else None
    if match is None:
        return None
    unit = match["unit"] or ""
    return CellNumber(match["number"], _THOUSANDS[(match["thousands"] or "").lower()], unit, _unit_kind(unit))


def is_measured(key: str) -> bool:
    """Whether what stands under a key is a latency, a throughput or a speed."""
    return _MEASURED.fullmatch(key) is not None


def read_cells(
    cells: Sequence[tuple[TableColumn, str]], *, strict: bool = False
) -> tuple[dict[str, float], list[str]]:
    """Read the figures of a row's cells, the first of a key, and a remark on each that could not be read.

    A `strict` reader raises AmbiguousError where a number is ambiguous, which is a remark otherwise.
    """
    plain = ((column, cell.strip().rstrip("%") if column.key in _SHARES else cell) for column, cell in cells)
    parts = [(column, cell, parse_cell(cell)) for column, cell in plain]
    sign = numbers.find_decimal_sign(part.text for _, _, part in parts if part is not None)
    values, remarks = dict[str, float](), list[str]()
    for column, cell, part in parts:
        if why := explain_unread(column, cell, part):
            remarks.append(f"{column.title or column.key} {cell.strip()[:_SHOWN]!r} {why}: left out")
            continue
        try:
            if (value := _value(column, cell, part, sign)) is not None:
                values.setdefault(column.key, value)
        except AmbiguousError as error:
            if strict:
                raise
            remarks.append(f"{column.key} {error}: left out")
        except ValueError:
            remarks.append(
                f"{column.title or column.key} {cell.strip()[:_SHOWN]!r} is not a number: left out"
            )
    return values, remarks


def _value(column: TableColumn, cell: str, part: CellNumber | None, sign: str) -> float | None:
    """A cell's number, NaN and infinity too, which an audit names; None of a cell without one.

    Raises AmbiguousError, and ValueError of digits that are not a number.
    """
    if part is None:
        return _NO_NUMBERS.get(cell.strip().strip("*`").lower())
    try:
        return scale_cell(column, part, numbers.parse_number(part.text, sign))
    except AmbiguousError:
        raise
    except ValueError:
        beyond = float(part.text)  # as 1e400: a number, and no figure
        return math.copysign(math.inf, beyond) if beyond else 0.0


def scale_cell(column: TableColumn, part: CellNumber | None, number: float) -> float:
    """Scale a cell's number to the unit of its column's figure: by its own unit, else by the title's."""
    times = column.times if part is None else part.times
    if part is not None:
        times *= _MS[part.unit.lower()] if part.kind == "time" else column.times
    return numbers.scale_figure(number, times)


def explain_unread(column: TableColumn, cell: str, part: CellNumber | None) -> str:
    """Say why a cell of a column of figures is not a number; "" of a readable and of an empty one."""
    if part is None:
        said = cell.strip().strip("*~≈ ")
        return "" if said.lower() in _EMPTY or not any(map(str.isdecimal, said)) else "is not a number"
    timed = column.key.endswith("_ms")
    if part.kind and part.kind != "memory" and (part.kind == "time") is not timed:
        return "has another unit than its column"
    return "has no unit" if timed and not column.bare and not part.unit else ""


def complete_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Add to a row's facts those that follow: the load of a test, the length of each prompt of a batch."""
    known = add_test_load(facts)
    tokens, batch = (_parse_count(known.get(key, "")) for key in ("prefill_tokens", "max_concurrency"))
    if tokens and not known.get("input_length"):
        known["input_length"] = str(round(tokens / (batch or 1)))
    return known


def _parse_count(cell: str) -> int:
    plain = cell.replace(",", "").strip()
    return int(plain) if plain.isdecimal() and len(plain) <= _MOST_DIGITS else 0


def derive_figures(
    figures: Mapping[str, Any], limit: int | None, facts: Mapping[str, str], lengths: Lengths = (None, None)
) -> dict[str, Any]:
    """Derive a row's figures from one another.

    A decoding speed of one request is one over TPOT; of a batch it is of all of it. Tokens per second of a
    test are of prefill, of decoding, or of both. Next to requests per second they are of prompts and answers,
    as on the Qwen2 page, unless lengths show that they are of answers alone; next to a load, a concurrency or
    a TTFT they are output throughput.
    """
    values = _derive_speeds(figures, limit, facts)
    if "mean_prefill_ms" in values:
        values.setdefault("mean_ttft_ms", values["mean_prefill_ms"])
    values |= _parse_acceptance(facts.get(_ACCEPTED, "")) | values
    rate, (prompt, answer) = values.get("request_throughput"), lengths
    if SPEED not in values or "output_throughput" in values:
        return values
    if rate and prompt and answer:
        ways = {"total_token_throughput": rate * (prompt + answer), "output_throughput": rate * answer}
        values.setdefault(min(ways, key=lambda key: abs(ways[key] - values[SPEED])), values.pop(SPEED))
    elif rate:
        values.setdefault("total_token_throughput", values.pop(SPEED))
    served = limit is not None or {"load", RATE} & {*facts} or "mean_ttft_ms" in values
    if SPEED in values and served and (limit is not None or "input_length" not in facts):
        values.setdefault("output_throughput", values.pop(SPEED))
    return values


def _parse_acceptance(cell: str) -> dict[str, float]:
    """Read an acceptance rate: a share of the drafted tokens, or the tokens of a pass."""
    text = number_text(cell.strip().rstrip("%")).replace(",", "")
    if not re.fullmatch(r"\d{1,4}(?:\.\d{1,6})?", text):
        return {}
    rate = float(text)
    if "%" not in cell and 1 < rate <= _MOST_ACCEPTED:
        return {"accept_length": rate}
    return {"spec_decode_acceptance_rate": rate * (100 if "%" not in cell and rate <= 1 else 1)}


def _derive_speeds(figures: Mapping[str, Any], limit: int | None, facts: Mapping[str, str]) -> dict[str, Any]:
    """A row's figures with what its speeds of prefill and decoding come to, of a test or of a batch."""
    values = dict(figures)
    if (test := parse_test(facts.get("test", ""))) is not None:
        values |= test.figures(values.pop(SPEED, None), values.pop(OF_ONE, None))
    elif DECODING in values:
        values = derive_decoding(values.pop(DECODING), values.pop(OF_ONE, None), limit or 1) | values
    if decode := values.pop(DECODE, None):
        # Of several at once it may be of each or of all: no time per token.
        several = (limit or 1) > 1
        values |= {DECODING: decode} if several else {"mean_tpot_ms": numbers.milliseconds_each(decode)}
    if of_one := values.pop(OF_ONE, None):
        values.setdefault("mean_tpot_ms", numbers.milliseconds_each(of_one))
    return values


def parse_rate(cell: str) -> float | None:
    """Parse requests per second that were asked for: `4`, `4 req/s`, `inf`, evalscope's -1; else None."""
    part = parse_cell(cell)
    if part is None:
        return json_fields.rate(cell.strip().replace("∞", "inf"))
    asked = _scale_number(part)
    return math.inf if asked is not None and asked < 0 else asked


def _scale_number(part: CellNumber) -> float | None:
    try:
        return numbers.parse_number(part.text) * part.times
    except ValueError:
        return None


def number_text(cell: str) -> str:
    """Return a cell's number without its unit and its interval; "" of a cell without a number."""
    part = parse_cell(cell)
    return "" if part is None or part.times != 1.0 else part.text


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
    """The phase that the tokens per second of a test are of."""

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
        return derive_decoding(speed, of_a_request, self.streams)

    def _of_both(self, speed: float) -> dict[str, float]:
        figures = {"total_token_throughput": speed}
        if self.prompt and self.answer:
            figures["output_throughput"] = convert_speed(speed, TOTAL, OUTPUT, self.prompt, self.answer)
        return figures


def derive_decoding(speed: float | None, of_a_request: float | None, streams: int) -> dict[str, float]:
    """Derive the time per token of a decoding speed of all requests, of one, or both."""
    one = (
        of_a_request
        if of_a_request is not None or speed is None
        else numbers.scale_figure(speed, 1 / streams)
    )
    timed = {"mean_tpot_ms": numbers.milliseconds_each(one)} if one else {}
    return timed if speed is None else {DECODING: speed, **timed}


def parse_test(name: str) -> LlamaTest | None:
    """Parse the test of a name; None of anything else."""
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


def add_test_load(facts: Mapping[str, str]) -> dict[str, str]:
    """Add to a row's facts the load that its test stands for; unchanged without a test."""
    test = parse_test(facts.get("test", ""))
    if test is None:
        return dict(facts)
    known = {**test.facts(), **{key: cell for key, cell in facts.items() if cell}}
    if known.get("engine"):  # its column `backend` has what llama.cpp computes with: CUDA, Metal, Vulkan
        known["engine"] = f"llama.cpp {known['engine']}"
    if known.get("model"):
        known["model"] = _TYPE.sub(lambda match: f"{match[1]}_{match[2][0].upper()}", known["model"])
    return known


def split_tests(grid: Grid) -> Grid:
    """Split the columns of tests, as pp512 (t/s), into a row each; any other table is unchanged."""
    tests = {
        at: match[1]
        for at, title in enumerate(grid.titles)
        if (match := _COLUMN.fullmatch(title)) is not None
    }
    tests = {at: name for at, name in tests.items() if parse_test(name) is not None}
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
