"""Numbers: figures as people write them, in their country's signs, units and words, where unambiguous."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache

import msgspec

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields

# Words of Chinese titles, the longer ones first.
_WORDS = {
    "首token延迟": "ttft", "每token延迟": "tpot", "端到端延迟": "e2e latency", "token间延迟": "itl",
    "并发数": "concurrency", "请求速率": "request rate", "请求吞吐量": "request throughput",
    "总吞吐量": "total throughput", "输出吞吐量": "output throughput", "吞吐量": "throughput",
    "失败数": "failed requests", "请求数": "prompts", "输入长度": "input length", "输出长度": "output length",
    "平均值": "mean", "平均": "mean", "中位数": "median", "标准差": "std", "模型": "model", "引擎": "engine",
    "量化": "quantization", "备注": "note", "指标": "metric", "负载": "load", "毫秒": "ms", "/秒": "/s",
    "秒": "s",
}  # fmt: skip
_FOREIGN = re.compile("|".join(_WORDS))


def translate_title(title: str) -> str:
    """Translate a title's Chinese words into English, its letters to plain width; unknown ones stay."""
    plain = unicodedata.normalize("NFKC", title)
    if _FOREIGN.search(plain) is None:
        return plain
    plain = _FOREIGN.sub(lambda word: f" {_WORDS[word[0]]} ", plain.replace("Token", "token"))
    inside = re.sub(r"\s+([)\]])", r"\1", re.sub(r"([(\[])\s+", r"\1", plain)).replace(" /", "/")
    return " ".join(inside.split())


_SPACES = "\u00a0\u2007\u2009\u202f"
_APOSTROPHES = "'\u2019"
_MINUS = "\u2212\u2013"  # as typesetting has it: before a digit they are one
# Digits, then groups of three behind a sign of grouping (a plain space is one), a decimal part, an exponent.
PATTERN = re.compile(
    rf"[-+{_MINUS}]?(?:\d{{1,3}}(?:[ {_SPACES}{_APOSTROPHES}]\d{{3}}(?!\d))+(?:[.,]\d+)?|\d+(?:[.,]\d+)*)"
    r"(?:[eE][-+]?\d+)?"
)
_LONGEST = 40  # characters of a figure
_MOST_DECIMALS = 6  # above which a figure is taken as exact
_GROUPED = re.compile(rf"(?<=\d)[ {_SPACES}{_APOSTROPHES}](?=\d)")
# A number by its decimal sign: the other sign groups digits by three.
_FORMS = {
    sign: re.compile(rf"([-+]?(?:\d*|[1-9]\d{{0,2}}(?:{group}\d{{3}})+))([{sign}]\d*)?([eE][-+]?\d+)?")
    for sign, group in ((".", ","), (",", r"\."))
}


class ComputedNumber(float):
    """A figure that was computed from a printed one, with what one unit of that one's last digit is in it."""

    last_digit: float = 0.0

    @classmethod
    def make(cls, value: float, last_digit: float) -> ComputedNumber:
        """Make a figure of a computed value and what its last digit is worth: of 4.1 s 4100 and 100 ms."""
        made = cls(value)
        made.last_digit = last_digit
        return made


def find_last_digit(value: float) -> float:
    """Return one unit of the last digit printed, 23.00 taken as 23.0; 0 of over 6 decimals, NaN, infinity."""
    if isinstance(value, ComputedNumber):
        return value.last_digit
    if not math.isfinite(value):
        return 0.0
    decimals = -int(Decimal(repr(value)).as_tuple().exponent)
    return 0.0 if decimals > _MOST_DECIMALS else 10.0 ** -max(decimals, 0)


def scale_figure(value: float, times: float) -> float:
    """Scale a printed figure to another unit; the product keeps what its last digit was worth."""
    if times == 1.0:
        return value
    return ComputedNumber.make(float(f"{value * times:.15g}"), find_last_digit(value) * times)


def compute_each_ms(per_s: float) -> float:
    """Compute the milliseconds of each, from a printed rate per second."""
    each_ms = 1e3 / per_s
    return ComputedNumber.make(each_ms, find_last_digit(per_s) * each_ms / per_s)


def find_decimal_sign(written: Iterable[str]) -> str:
    """Find the decimal sign that the unambiguous ones of these numbers share; "" if none or several."""
    read = (_read_forms(text) for text in written)
    signs = {
        sign for forms in read if len({*forms.values()}) == 1 for sign, text in forms.items() if "." in text
    }
    return signs.pop() if len(signs) == 1 else ""


def parse_number(written: str, sign: str = "") -> float:
    """Parse a written number; `sign` is the decimal one where that is ambiguous, else UsageError.

    Raises ValueError of what is no number, is out of bounds or has over 40 characters.
    1.234,56 and 1,234.56 and 1 234,56 and 1'234.56 are one number. 1.234 and 1,234 are two, unless other
    numbers of the page show which sign is the decimal one.
    """
    if len(written) > _LONGEST:
        raise ValueError(f"{written[:_LONGEST]}… has too many digits")
    forms = _read_forms(written)
    if len({*forms.values()}) > 1 and not sign:
        raise UsageError(f"{written} is ambiguous: the sign in it may group digits or begin the decimals")
    text = forms.get(sign) or next(iter(forms.values()), "")
    value = parsing.read_figure(float(text))  # of "" ValueError, too
    if value is None:
        raise ValueError(f"{written} is out of bounds")
    return int(value) if "." not in text and float(value).is_integer() else value


@lru_cache(4096)  # a row's numbers are read for their sign, then for themselves
def _read_forms(written: str) -> dict[str, str]:
    """Return what a number may be by its decimal sign, without signs of grouping and with a point."""
    plain = _GROUPED.sub("", written.strip())
    plain = f"-{plain[1:]}" if plain[:1] in (*_MINUS,) else plain
    forms = dict[str, str]()
    for sign, form in _FORMS.items():
        if (match := form.fullmatch(plain)) is not None:
            whole, fraction, exponent = match.groups("")
            forms[sign] = whole.replace(",", "").replace(".", "") + fraction.replace(sign, ".") + exponent
    return forms


MS = {
    "us": 1e-3, "\u00b5s": 1e-3, "\u03bcs": 1e-3, "ms": 1.0, "msec": 1.0, "s": 1e3, "sec": 1e3, "secs": 1e3,
    "second": 1e3, "seconds": 1e3,
}  # fmt: skip
# By what they measure: the units in titles and cells, and the one that a title without one is given.
KINDS = {
    "time": ("|".join(sorted(MS, key=len, reverse=True)), "ms"),
    "tokens": (r"tok(?:en)?s?(?:/| per )s(?:ec(?:ond)?)?|t/s|tps", "tok/s"),
    "requests": (r"req(?:uest)?s?(?:/| per )s(?:ec(?:ond)?)?|rps|qps", "req/s"),
    "memory": (r"[kmgt]i?b", "gb"),
}
_CELL = re.compile(
    rf"[~≈]?\s?(?P<number>{PATTERN.pattern})\s?(?P<thousands>[km](?![a-z])|[km](?=tok|t/s))?\s?"
    r"(?:(?:±|\+/-)[\s\d.,%]*)?"
    rf"(?:(?P<unit>{'|'.join(pattern for pattern, _ in KINDS.values())})(?:/tok(?:en)?)?)?"
    r"\.?(?:\s?(?:±|\+/-)[\s\d.,]*(?:ms|s|%)?)?"
    r"(?:\s?\([^()]*\))?",
    re.IGNORECASE,
)
# Marks of a footnote behind a number.
FOOTNOTE = re.compile(
    r"(?<=\S)\s?(?:[\u00b9\u00b2\u00b3\u2070-\u207e]{1,8}|\[(?:\^\w{1,8}|\d{1,3})\]|[†‡§¶]{1,4})\s{0,4}$"
)
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6}
_LONGEST_CELL = 80
_ZEROS = re.compile(r"(?<=\d)\.(?:0{1,2}|0{4,12})$")  # three may be thousands
_THOUSANDS_SIGN = re.compile(r"(?<=\d),(?=\d{3})")


class CellNumber(msgspec.Struct, frozen=True):
    """A number as a cell has it: 3.9k tok/s is the text 3.9, times 1000, in tok/s."""

    text: str
    times: float = 1.0
    unit: str = ""
    kind: str = ""  # of the unit


@lru_cache(512)
def find_kind(unit: str) -> str:
    """Return the kind of a unit: time, tokens, requests, memory; "" of anything else."""
    found = (kind for kind, (pattern, _) in KINDS.items() if re.fullmatch(pattern, unit, re.IGNORECASE))
    return next(found, "")


def parse_cell(cell: str) -> CellNumber | None:
    """Parse the number of a cell with its unit, without its interval and brackets; None if it has none."""
    plain = FOOTNOTE.sub("", cell[: _LONGEST_CELL + 1])  # before a ¹ becomes a digit
    text = translate_title(plain).strip().strip("*`✅🏆⭐↑↓ ")
    match = _CELL.fullmatch(text) if len(text) <= _LONGEST_CELL else None
    if match is None:
        return None
    unit = match["unit"] or ""
    return CellNumber(match["number"], _THOUSANDS[(match["thousands"] or "").lower()], unit, find_kind(unit))


def parse_rate(cell: str) -> float | None:
    """Parse a requested rate: `4`, `4 req/s`, `inf` (evalscope's -1); None of anything else, as of 1.125."""
    if (part := parse_cell(cell)) is None:
        return json_fields.read_rate(cell.strip().replace("∞", "inf"))
    try:
        asked = parse_number(part.text) * part.times
    except (ValueError, UsageError):
        return None
    return math.inf if asked < 0 else asked


def parse_whole(cell: str) -> int | None:
    """Parse a count, with commas and with decimals that are zeros or without; None of anything else."""
    return json_fields.parse_count(_ZEROS.sub("", _THOUSANDS_SIGN.sub("", cell.strip())))


def parse_mean(cell: str) -> int | None:
    """Parse a length in tokens, a mean rounded to whole ones; None of anything else."""
    count = parse_whole(cell)
    amount = parse_decimal(cell) if count is None else None
    return count if amount is None else round(amount)


def parse_decimal(cell: str) -> Decimal | None:
    """Parse a cell's number above zero with the digits that it is written with; None of 3.9k, and without."""
    part = parse_cell(cell)
    text = "" if part is None or part.times != 1.0 else _THOUSANDS_SIGN.sub("", part.text)
    return Decimal(text) if re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", text) and float(text) > 0 else None
