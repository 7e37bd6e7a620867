"""Pages: pasted blocks in any text, each with the nearest heading above it as its name."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.study.importers import blocks, commands, headings, json_fields, sglang, text, titles
from loadgen.study.importers.blocks import PastedBlock
from loadgen.study.importers.headings import Kind, Outline, Subject
from loadgen.study.run_summary import Load, Reported, short_name, simulation, unnamed_preset

PAGE = "page"
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_ELEMENT = re.compile(
    r"(?=<(?:h[1-6]|p|div|pre|li|tr|table|section|article|summary|details|figcaption)\b)|(?<=</h[1-6]>)",
    re.IGNORECASE,
)
_OPEN_HEADING = re.compile(r"\s*+<h[1-6]\b[^<>]{0,300}>(?:(?!</h[1-6]>).){0,300}+", re.IGNORECASE)
# What a report of ours has above its block, and below it.
_SIMULATED = re.compile(r"[\s>#*]{0,20}SIMULATED\b(?:.{0,100}?with the timing of ([\w./-]{1,60}))?")
_SERVER = re.compile(r"[\s>#*]{0,20}server: ([^,]{1,60}), model (\S{1,200}?),(?:\s|$)")
_VERDICT = re.compile(r"[\s>#*]{0,20}verdict: (SIMULATED, )?(VALID|SUSPECT|INVALID)\b")
_MOST_LINES = 5  # of a heading
_COMMENT = re.compile(r"\s*(#+|//+|--+|;+|%+|\*|!+|'|REM)\s+")
_MOST_INDENT = 80  # characters before a block's first line, with the sign of a comment in them
_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{8,}+;?")  # no character has such a number
_ENGINES = {"sglang": "SGLang", "vllm": "vLLM", "lmdeploy": "LMDeploy", "trt": "TensorRT-LLM"}


@dataclass
class _Pasted:
    """A block's lines, and what stands above it."""

    line: int
    subject: Subject
    asked: dict[str, str]
    unread: dict[str, str]
    lines: list[str] = field(default_factory=list)
    closed: bool = False
    # As a report of ours has it, above the block or below.
    simulated: str = ""
    engine: str = ""
    level: str = ""

    def report(self, line: str) -> None:
        """Take what a line of our report below the block has."""
        if (verdict := _VERDICT.match(line)) is not None and not self.level:
            self.level = verdict[2]
            self.simulated = self.simulated or unnamed_preset(bool(verdict[1]))


def read(page: str, path: Path) -> list[Reported]:
    """Every block of a page, what cannot be read as a remark; raises UsageError of too many blocks."""
    text.check_results(path, len(blocks.HEADER.findall(page)))
    return [_reported(pasted, path) for pasted in [*_pasted(page)]]  # the last lines may be of all


def _pasted(page: str) -> Iterator[_Pasted]:
    outline, above = Outline(), list[str]()
    block: _Pasted | None = None
    last: _Pasted | None = None
    cleaned = html.unescape(_REFERENCE.sub("\ufffd", uncoloured(page))).replace("\u00ad", "")
    numbers, texts = pieces(uncommented(split(cleaned)))
    for line in headings.lines(texts):
        if not line.text:
            if above and above[-1]:
                above.append("")  # a command does not continue after it
            continue
        begins = blocks.HEADER.search(line.text)
        if block is not None and (begins or line.kind in (Kind.HEADING, Kind.FENCE)):  # it was not closed
            yield block
            block, above = None, []
        rest = line.text
        if begins:
            block = last = _begun(numbers[line.number - 1], outline.subject, above)
            rest = rest[begins.end() :]
        if block is not None:
            block.lines.append(_TAG.sub(" ", rest))
            block.closed = blocks.RULE.search(rest) is not None
            if block.closed:
                yield block
                block, above = None, []
        elif line.kind in (Kind.HEADING, Kind.ITEM):
            outline.enter(line)
            above = [line.text] if line.kind is Kind.ITEM else []
            last = None if line.kind is Kind.HEADING else last
        else:
            if line.kind is Kind.LINE:
                outline.enter(line)
            above.append(line.text)
            if last is not None:
                last.report(line.text)
    if block is not None:
        if not cleaned.endswith("\n"):
            block.lines.pop()  # its last figure may be cut
        yield block


def _begun(line: int, subject: Subject, above: Sequence[str]) -> _Pasted:
    """A block that begins, with what the lines above it have: a command, or the head of a report of ours."""
    pasted = _Pasted(line, subject, commands.asked(above), commands.labels_above(above))
    for said in above:
        if (simulated := _SIMULATED.match(said)) is not None:
            pasted.simulated = simulated[1] or unnamed_preset(True)
        elif (server := _SERVER.match(said)) is not None:
            pasted.engine = server[1]
            pasted.asked.setdefault("model", server[2])
    return pasted


def uncoloured(text: str) -> str:
    """A text without what a terminal takes as commands."""
    return _COLOUR.sub("", text)


def split(text: str) -> list[str]:
    """Lines as an editor counts them; what a progress bar wrote over itself is one."""
    plain = text.replace("\r\n", "\n")
    return (plain if "\n" in plain else plain.replace("\r", "\n")).split("\n")


def uncommented(lines: Sequence[str]) -> list[str]:
    """Lines without the sign of a comment that stands before a block, and before the command above it."""
    plain, sign = list(lines), ""
    for at, line in enumerate(lines):
        begins = blocks.HEADER.search(line) if "=" in line else None
        if begins is not None:
            marked = _COMMENT.fullmatch(line[: begins.start()]) if begins.start() < _MOST_INDENT else None
            sign = marked[1] if marked is not None else ""
            above = at - 1
            while sign and above >= 0 and commands.is_command(said := _unsigned(lines[above], sign)):
                plain[above], above = said, above - 1
        if sign and line.lstrip().startswith(sign):
            plain[at] = _unsigned(line, sign)
            sign = "" if begins is None and blocks.RULE.search(line) else sign
        else:
            sign = ""
    return plain


def _unsigned(line: str, sign: str) -> str:
    return line.lstrip().removeprefix(sign).removeprefix(" ")


def pieces(lines: Sequence[str]) -> tuple[list[int], list[str]]:
    """The number and the text of each line; HTML is parted at its elements, a heading's lines are one."""
    numbers, pieces = list[int](), list[str]()
    for number, line in enumerate(lines, 1):
        for piece in _ELEMENT.split(line) if "<" in line else [line]:
            if pieces and number - numbers[-1] <= _MOST_LINES and _OPEN_HEADING.fullmatch(pieces[-1]):
                pieces[-1] = f"{pieces[-1].rstrip()} {piece.strip()}"
            elif piece or not line:
                numbers.append(number)
                pieces.append(piece)
    return numbers, pieces


def _reported(pasted: _Pasted, path: Path) -> Reported:
    block = blocks.parse(pasted.lines, pasted.closed)
    subject = pasted.subject
    asked = titles.with_storage(short_name(pasted.asked.get("model", "")), subject.quantization)
    model = subject.model or asked
    name = subject.name or model or subject.heading or path.stem
    return Reported(
        name=name if " " in name else short_name(name),
        model=model if model != name else "",
        figures=block.figures,
        load=_load(pasted, block),
        unread=pasted.unread,
        source=f"{path}:{pasted.line}",
        told_by=PAGE,
        simulated=pasted.simulated,
        level=pasted.level,
        engine=pasted.engine or _ENGINES.get(str(block.figures.get("backend", "")).partition("-")[0], ""),
        remarks=(
            *filter(None, [pasted.simulated and simulation(pasted.simulated)]),
            *[sglang.LAST_LINE] * ("backend" in block.figures),
            *block.remarks,
        ),
    )


def _load(pasted: _Pasted, block: PastedBlock) -> Load:
    figures, asked = block.figures, pasted.asked
    limit = commands.whole(asked, "max_concurrency")
    named = titles.concurrency(pasted.subject.load) if limit is None else limit
    if figures.get("max_concurrency", limit) != limit:
        asked = {}  # of another block
    return Load(
        name=pasted.subject.load,
        requests=commands.whole(asked, "requests"),
        asked_output_len=commands.whole(asked, "output_len"),
        max_concurrency=figures.get("max_concurrency", named),
        request_rate_per_s=_rate(figures.get("request_rate", asked.get("request_rate"))),
        asked_input_len=commands.whole(asked, "input_len"),
        seed=commands.whole(asked, "seed"),
    )


def _rate(rate: Any) -> float | None:
    try:
        return None if rate is None else json_fields.rate(float(rate))
    except ValueError:
        return None
