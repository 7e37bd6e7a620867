"""Blocks: the "Serving Benchmark Result" text read back, of any layout, its figures under vLLM's keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.base.text import list_first
from loadgen.report.result_block import LAYOUTS, BlockRow
from loadgen.study.importers.pasted import numbers

HEADER = re.compile(r"(?<!=)={3,}+[^\S\n]*Serving Benchmark Result[^\S\n]*={3,}", re.IGNORECASE)
RULE = re.compile(r"={20,}")
# Lines that clients print and no layout of ours does: a draft's, and what forks and older versions call it.
# By key: the format, and the labels.
_OTHERS = {
    "spec_decode_acceptance_rate": (".2f", "Acceptance rate (%)"),
    "spec_decode_acceptance_length": (".2f", "Acceptance length|Mean acceptance length"),
    "spec_decode_num_drafts": ("", "Drafts"),
    "spec_decode_draft_tokens": ("", "Draft tokens"),
    "spec_decode_accepted_tokens": ("", "Accepted tokens"),
    "accept_length": (".2f", "Acc length|Average accept length|Accepted length"),
    "max_concurrency": ("", "Max concurrency|Max reqeuest concurrency"),
    "total_output_tokens": ("", "Total output tokens"),
    "completed": ("", "Succeed requests|Succeeded requests|Success requests|Request count"),
    "success_rate": (".1f", "Success rate"),
    "duration": (".2f", "Time taken for tests (s)|Time taken for tests (seconds)|Test duration (s)"),
    "request_throughput": (".2f", "Req throughput (req/s)"),
    "output_throughput": (".2f", "Throughput (average output tokens per second)|Output throughput (tok/s)"),
    "total_token_throughput": (".2f", "Total throughput (tok/s)"),
    "input_throughput": (".2f", "Input throughput (tok/s)"),
}
_ROWS = {
    f"{label.lower()}:": BlockRow(f"{label}:", key, spec)
    for key, (spec, labels) in _OTHERS.items()
    for label in labels.split("|")
} | {row.label.lower(): row for each in LAYOUTS.values() for row in each.rows}
_SECTIONS = {
    section.name.lower(): f"{section.key}_ms" if section.unit == "ms" else section.key
    for layout in LAYOUTS.values()
    for section in layout.sections
}


def _make_pattern(words: Mapping[str, object]) -> str:
    """Make the pattern of any of these words, the longest first, with any blanks between their parts."""
    return "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in sorted(words, key=len, reverse=True))


# A label anywhere in a line, so that bars, prompts and whole blocks pasted as one line can be read.
_LABEL = re.compile(
    rf"(?<![\w-])(?:(?P<row>{_make_pattern(_ROWS)})"
    rf"|(?P<word>Mean|Median|Std|Max|P\d+(?:\.\d+)?)\s+(?P<section>{_make_pattern(_SECTIONS)})\s+\((?:ms|tok/s)\):)",
    re.IGNORECASE,
)
_NO_NUMBER = re.compile(r"[-+]?nan|[-+]?inf(?:inity)?|none|null|n/a|not set", re.IGNORECASE)
_UNSET = "not set"  # SGLang's word for no limit
_GROUPS = re.compile(r"\d{1,3}(?:[.,]\d{3})+")  # of a count: it has no decimals
_STATISTICS = [f"{word}_{key}_ms" for key in ("ttft", "tpot", "itl") for word in ("mean", "median")]
# What every client of either engine has printed since 2024, SGLang's of 2025 but for TPOT.
_ALWAYS = (
    "completed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
    "output_throughput", "total_token_throughput", *_STATISTICS,
)  # fmt: skip
_LONGEST_LINE, _MOST_NAMED = 200, 8
_SHOWN = 40
_LONGEST_WORD = 100
_TPOT = {"mean_tpot_ms", "median_tpot_ms"}
# A line with a number that has none of these labels; those of parts of a figure that is read are left out.
_UNKNOWN = re.compile(r"[\s|>#*]{0,20}([A-Za-z][\w ()/%.+-]{1,60}?)\s{0,20}:\s{0,60}[|\s]{0,5}[-+]?\d")
_PARTS = re.compile(r"Position \d+")
LAST_LINE = (
    "SGLang's client: E2E and TPOT run to the last line of the response, usage included, not its last token"
)


def parse_block(lines: Sequence[str], closed: bool = True) -> tuple[dict[str, Any], list[str]]:
    """Parse the figures of a block's lines, the first of each key, and make remarks on the rest.

    Remarks are on numbers and lines that cannot be read, and on figures that are missing: of a block that is
    not `closed` by a rule since it is cut off.
    """
    written: dict[str, tuple[str, str, BlockRow | None]] = {}  # by key: the label, the text, and its row
    unknown, figures, remarks = list[str](), dict[str, Any](), list[str]()
    for line in lines:
        found = [*_split_figures(line)]
        for key, label, text, row in found:
            written.setdefault(key, (label, text, row))
        other = None if found else _UNKNOWN.match(line[:_LONGEST_LINE])
        if other is not None and not _PARTS.fullmatch(other[1]):
            unknown.append(" ".join(other[1].split()))
    sign = numbers.find_decimal_sign(text for _, text, row in written.values() if not _is_count(row))
    for key, (label, text, row) in written.items():
        try:
            value = _parse_figure(text, row, sign)
            if value is not None or text.lower() == _UNSET:
                figures[key] = value
        except UsageError as error:
            remarks.append(f"{label} {error}: left out")
        except ValueError:
            remarks.append(f"{label} {text[:_SHOWN]!r} is not a number: left out")
    if unknown:
        remarks.append(f"not read: {list_first(unknown, _MOST_NAMED)}")
    optional = _TPOT if closed and "backend" in figures else set()
    if missing := [key for key in _ALWAYS if key not in figures and key not in optional]:
        remarks.append(f"{'' if closed else 'the block is cut off: '}missing {', '.join(missing)}")
    return figures, remarks


def find_key(label: str) -> str | None:
    """Return the key of a figure by its label in a block, with or without its colon; None if unknown."""
    match = _LABEL.fullmatch(label.strip().removesuffix(":") + ":")
    return None if match is None else _find_row(match)[0]


def list_keys() -> set[str]:
    """Return every key of a figure that has a line, and a label, of its own in a block."""
    return {row.key for row in _ROWS.values()}


def _split_figures(line: str) -> Iterator[tuple[str, str, str, BlockRow | None]]:
    """Yield each figure in a line: its key, its label, the text up to the next label, and its row."""
    labels = [*_LABEL.finditer(line)]
    ends = [*(label.start() for label in labels), len(line)][1:]
    for label, end in zip(labels, ends, strict=True):
        key, row = _find_row(label)
        rest = line[label.end() : end].lstrip("| \t\r\f\v")
        first = (rest.split() or [""])[0]
        if row is not None and row.text:
            text = first.strip("|")
        else:
            match = numbers.PATTERN.match(rest) or _NO_NUMBER.match(rest)
            text = first if match is None else match[0]
        yield key, " ".join(label[0].split()), text, row


def _find_row(label: re.Match[str]) -> tuple[str, BlockRow | None]:
    if label["row"] is not None:
        row = _ROWS[" ".join(label["row"].lower().split())]
        return row.key, row
    section = _SECTIONS[" ".join(label["section"].lower().split())]
    return f"{label['word'].lower()}_{section}", None


def _is_count(row: BlockRow | None) -> bool:
    return row is not None and not row.spec and not row.text


def _parse_figure(text: str, row: BlockRow | None, sign: str) -> Any:
    """Parse a figure's text, NaN or infinite too; None where it is not set or not reported.

    A text that may be a word is one if it is no number. Raises ValueError of anything else, UsageError of a
    number that `sign` does not settle.
    """
    lower = text.lower().lstrip("-+")
    is_count, may_be_word = _is_count(row), row is not None and row.text
    if may_be_word and lower.startswith("inf"):
        return "inf"
    if lower in ("nan", "inf", "infinity"):
        return float(text)
    if _NO_NUMBER.fullmatch(lower):
        return None
    if is_count and _GROUPS.fullmatch(text):
        return int(numbers.parse_number(re.sub("[.,]", "", text)))
    try:
        value = numbers.parse_number(text, sign)
    except ValueError:
        if may_be_word and text and not text[:1].isdigit():
            return text[:_LONGEST_WORD]
        raise
    if is_count and value != int(value):
        raise ValueError(f"{text} is not a count")
    return int(value) if is_count else value
