"""Blocks: the "Serving Benchmark Result" text read back, of any layout, its figures under vLLM's keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.analysis.importers import numbers
from loadgen.analysis.importers.numbers import AmbiguousError
from loadgen.results.result_block import LAYOUTS, BlockRow

HEADER = re.compile(r"(?<!=)={3,}+\s*Serving Benchmark Result\s*={3,}", re.IGNORECASE)
RULE = re.compile(r"={20,}")
_ROWS = {row.label.lower(): row for layout in LAYOUTS.values() for row in layout.rows}
_SECTIONS = {section.name.lower(): section.key for layout in LAYOUTS.values() for section in layout.sections}


def _any(words: Mapping[str, object]) -> str:
    return "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in sorted(words, key=len, reverse=True))


# A label wherever it stands, so that bars, prompts and whole blocks pasted as one line do not matter.
_LABEL = re.compile(
    rf"(?<![\w-])(?:(?P<row>{_any(_ROWS)})"
    rf"|(?P<word>Mean|Median|Std|Max|P\d+(?:\.\d+)?)\s+(?P<section>{_any(_SECTIONS)})\s+\(ms\):)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[\s|]*")
_NO_NUMBER = re.compile(r"nan|inf(?:inity)?|none|null|n/a|not set", re.IGNORECASE)
_GROUPS = re.compile(r"\d{1,3}(?:[.,]\d{3})+")  # of a count: it has no decimals
_STATISTICS = [f"{word}_{key}_ms" for key in ("ttft", "tpot", "itl") for word in ("mean", "median")]
# What every client of either engine has printed since 2024, SGLang's of 2025 but for TPOT.
_ALWAYS = (
    "completed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
    "output_throughput", "total_token_throughput", *_STATISTICS,
)  # fmt: skip
_SHOWN = 40
_LONGEST_WORD = 100
_TPOT = {"mean_tpot_ms", "median_tpot_ms"}


class PastedBlock(msgspec.Struct, frozen=True):
    """A block's figures, and what of it could not be read."""

    figures: dict[str, Any]
    remarks: tuple[str, ...]

    @property
    def by_sglang(self) -> bool:
        """Whether SGLang's client printed it."""
        return "backend" in self.figures


class _Written(msgspec.Struct, frozen=True):
    """One figure as it is written."""

    key: str
    label: str
    text: str  # "" where nothing is
    whole: bool = False  # a count
    word: bool = False  # may be one


def parse(lines: Sequence[str], closed: bool = True) -> PastedBlock:
    """The figures of a block's lines; the first of a key counts. What cannot be read is a remark."""
    written: dict[str, _Written] = {}
    for line in lines:
        for one in _written(line):
            written.setdefault(one.key, one)
    sign = numbers.decimal_sign(one.text for one in written.values() if not one.whole)
    figures: dict[str, Any] = {}
    remarks = []
    for one in written.values():
        try:
            figures[one.key] = _value(one, sign)
        except AmbiguousError as error:
            remarks.append(f"{one.label} {error}: left out")
        except ValueError:
            remarks.append(f"{one.label} {one.text[:_SHOWN]!r} is no number: left out")
    optional = _TPOT if closed and "backend" in figures else set()
    lacking = [key for key in _ALWAYS if key not in figures and key not in optional]
    if lacking:
        remarks.append(f"{'' if closed else 'the block is cut off: '}it has no {', '.join(lacking)}")
    return PastedBlock({key: value for key, value in figures.items() if value == value}, tuple(remarks))


def key_of(label: str) -> str | None:
    """The key of a label, with its colon or without; None where no layout has it."""
    found = _LABEL.fullmatch(label.strip().removesuffix(":") + ":")
    return None if found is None else _key(found)[0]


def known_keys() -> set[str]:
    """Every key that a layout prints under a label of its own."""
    return {row.key for row in _ROWS.values()}


def _written(line: str) -> Iterator[_Written]:
    labels = [*_LABEL.finditer(line)]
    for label, end in zip(labels, [*(one.start() for one in labels[1:]), len(line)], strict=False):
        key, row = _key(label)
        start = _BETWEEN.match(line, label.end())
        behind = line[start.end() if start is not None else label.end() : end]
        said = " ".join(label[0].split())
        if row is not None and row.text:
            yield _Written(key, said, behind.split()[0].strip("|") if behind.split() else "", word=True)
            continue
        found = numbers.PATTERN.match(behind) or _NO_NUMBER.match(behind)
        text = found[0] if found is not None else (behind.split() or [""])[0]
        yield _Written(key, said, text, whole=row is not None and not row.spec)


def _key(label: re.Match[str]) -> tuple[str, BlockRow | None]:
    if label["row"] is not None:
        row = _ROWS[" ".join(label["row"].lower().split())]
        return row.key, row
    section = _SECTIONS[" ".join(label["section"].lower().split())]
    return f"{label['word'].lower()}_{section}_ms", None


def _value(one: _Written, sign: str) -> Any:
    """The value as the figures have it; NaN of what is said to be none, None of what is not set."""
    said = one.text.lower()
    if said == "not set":
        return None
    if one.word and said.startswith("inf"):
        return "inf"
    if _NO_NUMBER.fullmatch(said):
        return float("nan")
    if one.whole and _GROUPS.fullmatch(one.text):
        return int(numbers.number(re.sub("[.,]", "", one.text)))
    try:
        value = numbers.number(one.text, sign)
    except ValueError:
        if one.word and one.text and not one.text[:1].isdigit():
            return one.text[:_LONGEST_WORD]
        raise
    if one.whole and value != int(value):
        raise ValueError(f"{one.text} is no count")
    return int(value) if one.whole else value
