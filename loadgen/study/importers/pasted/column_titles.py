"""Column titles: the figure or the fact of a table's column, by its title and the units in its cells."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from loadgen.figures.figure_table import LATENCIES
from loadgen.figures.metrics import DECODING, PREFILL
from loadgen.study.importers.pasted import numbers, pasted_blocks
from loadgen.study.importers.pasted.numbers import FOOTNOTE, KINDS, find_kind, parse_cell
from loadgen.study.importers.pasted.translation import translate_title
from loadgen.study.speed.speed_rows import FORMULAS

WHOLE_THROUGHPUT = "total_token_throughput"
SPEED = "speed_tok_s"
DECODE = "decode_tok_s"  # of one request, where there is one at a time: one over its time per token
OF_ONE = "request_tok_s"  # of one request, however many there are
RATE = "requested_rate"  # requests per second that were asked for
LENGTHS = "lengths"  # of prompt and answer in one cell: 1024/128
FAILED = "failed"
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
    (r"(?:gpu[ _]|peak[ _])?(?:memory|vram|mem)(?:[ _]usage)?", "memory"),
    (r"notes?|remarks?|comments?", "note"),
    (r"(?:# ?|num[ _]|total )?(?:prompts|requests|reqs)|n", "prompts"),
    (r"(?:request|arrival)[ _]rate(?: configured)?"
     r"|(?:offered|requested|target|configured)[ _](?:load|rate|qps|rps)"
     r"|(?:req(?:uest)?s?/s|qps|rps)[ _](?:sent|offered|requested|configured)", RATE),
    (r"(?:# ?|num[ _]|total )?(?:failed|failures|errors?)(?:[ _](?:requests|reqs))?", FAILED),
    (r"test", "test"),  # of llama-bench
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
_UNDERSCORED = re.compile(r"(?<=[a-z])_tok(?:en)?s?_s$")  # of a database's column
_REQUESTS_PER_S = re.compile(
    r"(?:(?:achieved|actual|measured|completed)[ _])?(?:qps|rps|req(?:uest)?s?(?:/| per )s(?:ec(?:ond)?)?"
    r"|request[ _]throughput(?: \(req/s\))?)"
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
_KILO = re.compile(r"\bk(?=tok(?:en)?s?/|t/s)", re.IGNORECASE)  # of a unit: ktok/s
_ROUND = re.compile(r"\d{1,6}(?:\.[05]0?)?|inf(?:inite|inity)?|∞", re.IGNORECASE)
_MEASURED = re.compile(r".*_(?:ms|throughput|tok_s)")
_MOST_PROBED = 200  # cells of a column that its unit is read from
_LEAST_ASKED = 2  # rows, from which on round requests per second were asked for


class TableColumn(msgspec.Struct, frozen=True):
    """The content of a column: a fact or a figure by its key; "" of an unknown one."""

    key: str
    unit: str = ""  # of memory
    times: float = 1.0  # what its numbers are multiplied with
    title: str = ""
    bare: bool = True  # whether a number without a unit of its own is in the title's


def read_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[TableColumn]:
    """Read the columns of a table by their titles and the units in their first 200 cells.

    Requests per second that stand before every figure and are round were asked for, not measured.
    """
    probed = [[row[at] for row in rows[:_MOST_PROBED] if at < len(row)] for at in range(len(titles))]
    found = [*map(read_column, titles, probed)]
    first = next((at for at, each in enumerate(found) if is_measured(each.key)), len(found))
    for at, each in enumerate(found[: first + 1]):
        cells = [cell.strip() for cell in probed[at] if cell.strip()]
        measured = _MEASURED_RATE.search(each.title.lower()) is not None or len(cells) < _LEAST_ASKED
        if each.key == "request_throughput" and not measured and all(map(_is_round, cells)):
            found[at] = replace(each, key=RATE)
    return found


def _is_round(cell: str) -> bool:
    """Whether a cell is a rate that one would ask for: whole, a half, or infinite."""
    part = parse_cell(cell)
    return any(_ROUND.fullmatch(text) for text in (cell, part.text if part is not None else ""))


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
    if not found.key or (found.key == "memory" and not found.unit):
        parts = [part for cell in cells if (part := parse_cell(cell)) is not None and part.unit]
        kinds, own = {part.kind for part in parts}, {part.unit.lower() for part in parts}
        if len(kinds) == 1:
            # Of cells of one kind, of memory the unit itself, where it is one.
            (kind,) = kinds
            unit = own.pop() if len(own) == 1 else KINDS[kind][1]
            found = replace(_parse_title(f"{plain} ({unit})"), bare=kind != "time")
    return replace(found, title=title)


def _parse_title(title: str) -> TableColumn:
    """Parse a title without `k`: a fact, a rate, a latency in a unit of time; the key is "" if unknown."""
    plain = _UNDERSCORED.sub(" tok/s", title.lower())
    plain = _PER_SECOND.sub("(tok/s)" if "token" in plain else "(req/s)", plain)
    if "".join(plain.split()) in FORMULAS:  # a speed under its formula's name
        return TableColumn(SPEED)
    base, unit = _split_unit(plain)
    before = plain.partition("(")[0].partition("[")[0].strip()
    rated = find_kind(unit) in ("time", "tokens", "requests")
    facts = (
        (key, pattern)
        for pattern, key in _FACTS
        if (not rated or key == RATE) and not (key in (ACCEPTED, FAILED) and "%" in plain)
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
