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

# Traditional and Japanese characters as the simplified ones, in titles and in the words below.
_SIMPLIFIED = str.maketrans(
    "並發併數請輸長顯記憶體遲時總條個開關離線單間後測試実続",
    "并发并数请输长显记忆体迟时总条个开关离线单间后测试实续",
)
_SPAN = "(?:延迟|时延|延时|耗时|用时|时间|間隔|间隔|遅延|時間|待ち時間|レイテンシー?)"
_TOKEN = "(?:tokens?|词元|字符?|令牌|トークン)"
# In this order: a word that is inside another one would cut it.
_WORDS: tuple[tuple[str, str], ...] = (
    (rf"(?:首(?:个|次)?|第一个?)\s*(?:{_TOKEN}|包)\s*(?:生成|响应)?{_SPAN}?|首字{_SPAN}?", "ttft"),
    (rf"(?:最初の|初回|先頭)\s*{_TOKEN}\s*(?:まで)?の?(?:生成)?{_SPAN}?", "ttft"),
    (rf"[每毎]\s*个?\s*(?:输出|出力)?\s*{_TOKEN}\s*(?:的|の)?(?:生成)?{_SPAN}", "tpot"),
    (rf"(?:出力)?{_TOKEN}\s*(?:あたり|当たり)の?(?:生成)?{_SPAN}", "tpot"),
    (rf"{_TOKEN}\s*之?間\s*[的の]?{_SPAN}?", "itl"),
    (rf"(?:端到端|エンドツーエンド|整体)\s*[的の]?{_SPAN}?", "e2e latency"),
    (r"(?:最大)?(?:并发|并行)\s*(?:请求|用户)?(?:数|量|度)?(?:用户)?", "concurrency"),
    (r"(?:最大)?同時\s*(?:接続|実行|リクエスト|ユーザー?)数?|並[列行][度数]?", "concurrency"),
    (r"(?:请求|リクエスト)\s*(?:速率|レート)", "request rate"),
    (r"[每毎]秒(?:的|の)?\s*(?:请求|查询|リクエスト)数?", "req/s"),
    (r"(?:请求|リクエスト)\s*(?:吞吐[量率]?|スループット)", "request throughput"),
    (rf"(?:总|全体|合計)\s*{_TOKEN}?\s*(?:吞吐[量率]?|スループット)", "total throughput"),
    (rf"(?:输出|生成|出力)\s*{_TOKEN}?\s*(?:吞吐[量率]?|スループット)", "output throughput"),
    (r"吞吐[量率]?|スループット", "throughput"),
    (r"(?:解码|デコード)\s*(?:速度|速率)", "decode speed"),
    (r"(?:失败|失敗|错误|エラー)(?:的|の)?(?:请求|リクエスト)?(?:总)?(?:数量?|次数|件数)", "failed requests"),
    (r"超时(?:数量?|次数)?|タイムアウト数?", "timeouts"),
    (r"(?:总|総)?(?:请求|提示词?|样本|リクエスト|プロンプト)\s*(?:总)?(?:数量?|件数)", "prompts"),
    (rf"(?:输入|提示词?|入力|プロンプト)\s*{_TOKEN}?\s*(?:长度?|数|長)", "input length"),
    (rf"(?:输出|生成|出力)\s*{_TOKEN}?\s*(?:长度?|数|長)", "output length"),
    (r"上下文(?:长度)?|コンテキスト長?", "context length"),
    (r"批(?:处理|次)?(?:大小)?|バッチ\s*(?:サイズ|数)?", "batch size"),
    (r"(?:显存|内存)(?:占用|使用量?)?|(?:GPU)?\s*メモリ(?:使用量)?", "gpu memory"),
    (r"显卡(?:型号)?|硬件|设备|ハードウェア", "hardware"),
    (r"模型(?:名称?)?|モデル(?:名)?", "model"),
    (r"(?:推理|推論)?(?:引擎|框架|エンジン|フレームワーク)", "engine"),
    (r"量子?化(?:方式|方法)?|精度", "quantization"),
    (r"场景|シナリオ|负载|負荷", "load"),
    (r"备注|说明|備考|注記", "note"),
    (r"指[标標]|项目|項目", "metric"),
    (r"数值|结果|結果", "value"),
    (r"单位|単位", "unit"),
    (r"平均值?|均值", "mean"),
    (r"中位数?|中央値", "median"),
    (r"最大值?|最高", "max"),
    (r"标准差|標準偏差", "std"),
    (r"毫秒|ミリ秒", "ms"),
    (r"(?<![每毎])秒", "s"),
    (r"(?:生成|推理|推論)?速度", "speed"),
    (r"输出|出力", "output"),
    (r"输入|入力", "input"),
    (_SPAN, "latency"),
    (r"[个の的]", " "),
)  # fmt: skip
_PATTERNS = tuple(
    (re.compile(pattern.translate(_SIMPLIFIED), re.IGNORECASE), f" {english} ") for pattern, english in _WORDS
)
_FOREIGN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_PERCENTILE = re.compile(r"[pP]?(\d\d(?:\.\d+)?)\s*(?:分位[数值]?|パーセンタイル)")
_PER_SECOND = re.compile(rf"{_TOKEN}\s*[/每毎]\s*秒", re.IGNORECASE)
_REQUESTS_PER_SECOND = re.compile(r"(?:请求|次|件|リクエスト|req)\s*/\s*秒", re.IGNORECASE)


def translate_title(title: str) -> str:
    """Translate a title's Chinese and Japanese words into English, its letters to plain width.

    A word that is not known stays as it is, so that the title stays unlike others.
    """
    plain = unicodedata.normalize("NFKC", title)
    if _FOREIGN.search(plain) is None:
        return plain
    plain = plain.translate(_SIMPLIFIED)
    plain = _REQUESTS_PER_SECOND.sub("req/s", _PER_SECOND.sub("tok/s", plain))
    plain = _PERCENTILE.sub(r" p\1 ", plain)
    for pattern, english in _PATTERNS:
        plain = pattern.sub(english, plain)
    inside = re.sub(r"\s+([)\]])", r"\1", re.sub(r"([(\[])\s+", r"\1", plain))
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


class AmbiguousError(UsageError):
    """A number that is one thing here and another elsewhere: 1.234."""


class ComputedNumber(float):
    """A figure that was computed from a printed one, with what one unit of that one's last digit is in it."""

    last_digit: float = 0.0

    @classmethod
    def scale(cls, value: float, last_digit: float) -> ComputedNumber:
        """Scale a printed figure and its last digit: 4.1 s is 4100 ms, and 100 ms either way."""
        made = cls(value)
        made.last_digit = last_digit
        return made


def find_last_digit(value: float) -> float:
    """Return one unit of the last digit that was printed of a figure; 0 of one that is taken as exact.

    Trailing zeros are lost with the text, so 23.00 is taken as 23.0: wider, never narrower.
    """
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
    return ComputedNumber.scale(float(f"{value * times:.12g}"), find_last_digit(value) * times)


def compute_each_ms(per_s: float) -> float:
    """Compute the milliseconds of each, from a printed rate per second."""
    each_ms = 1e3 / per_s
    return ComputedNumber.scale(each_ms, find_last_digit(per_s) * each_ms / per_s)


def find_decimal_sign(written: Iterable[str]) -> str:
    """Find the decimal sign that the unambiguous ones of these numbers share; "" if none or several."""
    signs = {sign for text in written if (sign := _find_sign(text))}
    return signs.pop() if len(signs) == 1 else ""


def parse_number(written: str, sign: str = "") -> float:
    """Parse the number; `sign` settles what is ambiguous. Raises AmbiguousError, and ValueError of no number.

    1.234,56 and 1,234.56 and 1 234,56 and 1'234.56 are one number. 1.234 and 1,234 are two, unless other
    numbers of the page show which sign is the decimal one.
    """
    if len(written) > _LONGEST:
        raise ValueError(f"{written[:_LONGEST]}… has too many digits")
    plain = re.sub(f"^[{_MINUS}]", "-", _GROUPED.sub("", written.strip()))
    points, commas = plain.count("."), plain.count(",")
    decimal = _find_sign(written)
    if not decimal and points + commas == 1:
        if not sign:
            raise AmbiguousError(
                f"{written} is ambiguous: the sign in it may group digits or begin the decimals"
            )
        decimal = sign
    for grouping in {".", ","} - {decimal}:
        groups = rf"[-+]?\d{{1,3}}(?:\{grouping}\d{{3}})+"
        fraction = rf"(?:\{decimal}[^{grouping}]*)?" if decimal else ""
        if grouping in plain and not re.fullmatch(groups + fraction, plain):
            raise ValueError(f"{plain} is not a number")
        plain = plain.replace(grouping, "")
    value = parsing.read_figure(float(plain.replace(decimal, ".") if decimal else plain))
    if value is None:
        raise ValueError(f"{plain} is out of bounds")
    return int(value) if not decimal and float(value).is_integer() else value


def _find_sign(written: str) -> str:
    plain = re.sub(r"[eE][-+]?\d+$", "", _GROUPED.sub("", written.strip()).lstrip(f"+-{_MINUS}"))
    grouped = plain != written.strip().lstrip(f"+-{_MINUS}") and not re.search(r"[eE]", written)
    signs = [letter for letter in plain if letter in ".,"]
    if not signs:
        return ""
    if len(set(signs)) == 2:  # the last one, where it is alone
        return signs[-1] if signs.count(signs[-1]) == 1 else ""
    if len(signs) > 1:
        return ""  # 1.234.567: both are groups
    whole, _, fraction = plain.partition(signs[0])
    telling = grouped or len(fraction) != 3 or len(whole) > 3 or whole.startswith("0")
    return signs[0] if telling else ""


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
    """Parse requests per second that were asked for: `4`, `4 req/s`, `inf`, evalscope's -1; else None."""
    if (part := parse_cell(cell)) is None:
        return json_fields.read_rate(cell.strip().replace("∞", "inf"))
    try:
        asked = parse_number(part.text) * part.times
    except ValueError:
        return None
    return math.inf if asked < 0 else asked


def read_number_text(cell: str) -> str:
    """Return a cell's number without its unit and interval; "" without a number, and in thousands (3.9k)."""
    part = parse_cell(cell)
    return "" if part is None or part.times != 1.0 else part.text


def parse_whole(cell: str) -> int | None:
    """Parse a count, with commas and with decimals that are zeros or without; None of anything else."""
    return json_fields.parse_count(_ZEROS.sub("", _THOUSANDS_SIGN.sub("", cell.strip())))


def parse_mean(cell: str) -> int | None:
    """Parse a length in tokens, a mean rounded to whole ones; None of anything else."""
    count = parse_whole(cell)
    amount = parse_decimal(cell) if count is None else None
    return count if amount is None else round(amount)


def parse_decimal(cell: str) -> Decimal | None:
    """Parse a number above zero of a cell, with the digits that it is written with; else None."""
    text = _THOUSANDS_SIGN.sub("", read_number_text(cell))
    return Decimal(text) if re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", text) and float(text) > 0 else None
