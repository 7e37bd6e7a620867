"""Pasted pages: the blocks of any text, each with its heading and the command above it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.report.load_identity import Load
from loadgen.study import labels
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import headings, pasted_blocks, surroundings
from loadgen.study.importers.pasted.headings import Kind, Outline, Subject
from loadgen.study.importers.pasted.pasted_blocks import LAST_LINE
from loadgen.study.importers.pasted.surroundings import Surroundings
from loadgen.study.run_summary import Reported, describe_simulation, find_unnamed_preset, shorten_name

PAGE = "page"
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_ELEMENT = re.compile(
    r"(?=<(?:h[1-6]|p|div|pre|li|tr|table|section|article|summary|details|figcaption|t[dh])\b)|(?<=</h[1-6]>)"
    r"|(?<==)(?=[^=]{1,200}?={3,}\s*Serving Benchmark Result)",
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
    line: int
    subject: Subject
    asked: dict[str, str]
    around: Surroundings
    lines: list[str] = field(default_factory=list)
    closed: bool = False
    # As a report of ours has it, above the block or below.
    simulated: str = ""
    engine: str = ""
    level: str = ""


def read_page(page: str, path: Path) -> list[Reported]:
    """Read every block of a page as a run; an unreadable part is a remark.

    Raises UsageError of over 10,000 blocks.
    """
    json_fields.check_results(path, len(pasted_blocks.HEADER.findall(page)))
    below = list[str]()
    found = [*_find_blocks(page, below)]  # the last lines may be of all
    unread = surroundings.describe_surroundings([pasted.around for pasted in found], below)
    return [_make_run(*each, path) for each in zip(found, unread, strict=True)]


def _find_blocks(page: str, below: list[str]) -> Iterator[_Pasted]:
    """Yield each block of a page with what stands above it; lines below it may still set its verdict.

    The lines below the last one are appended to `below`.
    A block ends with its rule, or where another, a heading or a fence begins. The last line of a page that is
    cut off in a block is left out.
    """
    outline, above = Outline(), list[str]()
    block: _Pasted | None = None
    last: _Pasted | None = None
    cleaned = html.unescape(_REFERENCE.sub("\ufffd", strip_colours(page))).replace("\u00ad", "")
    whole = _strip_comments(split_lines(cleaned))
    numbers, texts = split_pieces(whole)
    find_cell = surroundings.name_cells(whole)
    in_report = False  # whether a line is of the report whose verdict stands below its block
    for line in headings.read_lines(texts):
        if not line.text:
            in_report = False
            if above and above[-1]:
                above.append("")  # a command does not continue after it
            continue
        begins = pasted_blocks.HEADER.search(line.text)
        if block is not None and (begins or line.kind in (Kind.HEADING, Kind.FENCE)):  # it was not closed
            yield block
            block, above = None, []
        rest = line.text
        if begins:
            cell = find_cell(numbers[line.number - 1])
            above = [*above, line.text[: begins.start()]] if cell is None else cell
            block = last = _begin_block(numbers[line.number - 1], outline.subject, above)
            rest = rest[begins.end() :]
        if block is not None:
            block.lines.append(_TAG.sub(" ", rest))
            closes = pasted_blocks.RULE.search(rest)
            block.closed = closes is not None
            if closes is not None:
                yield block
                block, above = None, [rest[closes.end() :]]
            continue
        in_report = (
            in_report
            and line.kind is Kind.TEXT
            and not (_SIMULATED.match(line.text) or _SERVER.match(line.text))
        )
        if line.kind in (Kind.HEADING, Kind.ITEM, Kind.LINE):
            outline.enter(line)
        if line.kind is Kind.HEADING:
            last = None
        if line.kind is Kind.HEADING and headings.parse_title(line.name).named:
            above = []
            continue
        verdict = None if last is None or last.level else _VERDICT.match(line.text)
        if last is not None and verdict is not None:
            last.level = verdict[2]
            last.simulated = last.simulated or find_unnamed_preset(bool(verdict[1]))
            in_report = True
        if not in_report:
            above.append(line.text)
    if block is not None:
        if not cleaned.endswith("\n"):
            block.lines.pop()  # its last figure may be cut
        yield block
    else:
        below += above


def _begin_block(line: int, subject: Subject, above: Sequence[str]) -> _Pasted:
    """Make a block, with what the lines above it have: a command, or the head of a report of ours."""
    pasted = _Pasted(line, subject, read_command(above), read_surroundings(above, subject))
    for text in above:
        if (simulated := _SIMULATED.match(text)) is not None:
            pasted.simulated = simulated[1] or find_unnamed_preset(True)
        elif (server := _SERVER.match(text)) is not None:
            pasted.engine = server[1]
            pasted.asked.setdefault("model", server[2])
    return pasted


def strip_colours(text: str) -> str:
    """Remove a terminal's commands, as colours and links, from a text."""
    return _COLOUR.sub("", text)


def split_lines(text: str) -> list[str]:
    """Split a text into lines as an editor counts them; a progress bar's rewritten line is one."""
    plain = text.replace("\r\n", "\n")
    return (plain if "\n" in plain else plain.replace("\r", "\n")).split("\n")


def _strip_comments(lines: Sequence[str]) -> list[str]:
    plain, sign = list(lines), ""
    for at, line in enumerate(lines):
        begins = pasted_blocks.HEADER.search(line) if "=" in line else None
        if begins is not None:
            marked = _COMMENT.fullmatch(line[: begins.start()]) if begins.start() < _MOST_INDENT else None
            sign = marked[1] if marked is not None else ""
            above = at - 1
            while sign and above >= 0 and _is_command(bare := _strip_comment(lines[above], sign)):
                plain[above], above = bare, above - 1
        if sign and line.lstrip().startswith(sign):
            plain[at] = _strip_comment(line, sign)
            sign = "" if begins is None and pasted_blocks.RULE.search(line) else sign
        else:
            sign = ""
    return plain


def _strip_comment(line: str, sign: str) -> str:
    return line.lstrip().removeprefix(sign).removeprefix(" ")


def split_pieces(lines: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the pieces of a page's lines, after each one's line number; HTML is parted at its elements.

    Lines of a heading that goes on are one piece, at most five of them.
    """
    numbers, pieces = list[int](), list[str]()
    for number, line in enumerate(lines, 1):
        for piece in _ELEMENT.split(line) if "<" in line or line.count("Result =") > 1 else [line]:
            if pieces and number - numbers[-1] <= _MOST_LINES and _OPEN_HEADING.fullmatch(pieces[-1]):
                pieces[-1] = f"{pieces[-1].rstrip()} {piece.strip()}"
            elif piece or not line:
                numbers.append(number)
                pieces.append(piece)
    return numbers, pieces


def _make_run(pasted: _Pasted, unread: Mapping[str, str], path: Path) -> Reported:
    figures, remarks = pasted_blocks.parse_block(pasted.lines, pasted.closed)
    subject = pasted.subject
    asked = headings.add_storage(shorten_name(pasted.asked.get("model", "")), subject.quantization)
    model = subject.model or asked
    name = subject.name or model or subject.heading or path.stem
    return Reported(
        name=name if " " in name else shorten_name(name),
        model=model if model != name else "",
        figures=figures,
        load=_make_load(pasted, figures),
        unread=unread,
        source=f"{path}:{pasted.line}",
        told_by=PAGE,
        simulated=pasted.simulated,
        level=pasted.level,
        engine=pasted.engine or _ENGINES.get(str(figures.get("backend", "")).partition("-")[0], ""),
        remarks=(
            *filter(None, [pasted.simulated and describe_simulation(pasted.simulated)]),
            *([LAST_LINE] if "backend" in figures else []),
            *remarks,
        ),
    )


def _make_load(pasted: _Pasted, figures: Mapping[str, Any]) -> Load:
    """Make the load of a block, by its figures, else by the command above and the heading."""

    counts = {name: json_fields.parse_count(value) for name, value in pasted.asked.items()}
    limit, rate = counts.get("max_concurrency"), pasted.asked.get("request_rate")
    named = headings.find_concurrency(pasted.subject.load) if limit is None else limit
    if figures.get("max_concurrency", limit) != limit:
        counts, rate = {}, None  # of another block
    return Load(
        name=pasted.subject.load,
        requests=counts.get("requests"),
        asked_output_len=counts.get("output_len"),
        max_concurrency=figures.get("max_concurrency", named),
        request_rate_per_s=json_fields.read_rate(
            json_fields.parse_number(str(figures.get("request_rate", rate)))
        ),
        asked_input_len=counts.get("input_len"),
        seed=counts.get("seed"),
    )


_BENCHMARK = re.compile(
    r"(?:vllm\s+bench\s+serve|benchmark_serving(?:\.py)?|sglang[.\s]bench[._]serving|sglang\.benchmark\.serving"
    r"|vllm-bench|loadgen\s+bench)\b"
)
_SERVER_COMMAND = re.compile(
    r"(?:vllm\s+serve|vllm\.entrypoints\S{0,40}api_server|sglang\S{0,20}launch_server|sglang\s+serve|llama-server"
    r"|trtllm-serve|lmdeploy\s+serve)\b"
)
_VARIABLE = re.compile(r"(?:^|\s)([A-Z][A-Z0-9_]{2,40})=([^\s;]{1,100})")
# A member of a JSON object, on its line.
_MEMBER = re.compile(r"""^\s*["'][^"']{1,60}["']\s*:\s*["'](.*?)["']?\s*,?\s*$""")
_REDIRECTION = re.compile(r"\s(?:[12&]?>{1,2}|\|).*")
_NAMESPACE = "Namespace("
_PAIR = re.compile(r"(?<!\w)(\w+)=('[^']*'|\"[^\"]*\"|[^,]+)")
_PROMPT = re.compile(r"[\w.@:~/()\[\] -]*+[$#%>]\s+")
_LONGEST = 64_000  # characters of a command with all its lines
# A flag's names in the clients' many versions, and ours.
_FLAGS = {
    "model": ("model", "model_id", "model_path"),
    "input_len": ("random_input_len", "random_input", "input_len"),
    "output_len": ("random_output_len", "random_output", "output_len"),
    "requests": ("num_prompts", "num_prompt"),
    "max_concurrency": ("max_concurrency",),
    "request_rate": ("request_rate",),
    "seed": ("seed",),
}


def read_command(lines: Sequence[str]) -> dict[str, str]:
    """Read the load that the last benchmark command in these lines requests, by our names; {} without one.

    Python's argparse shows a command as a Namespace.
    """
    requested: dict[str, str] = {}
    remaining = iter(lines)
    for line in remaining:
        if len(line) > _LONGEST:
            continue
        _, marker, inside = line.rstrip().partition(_NAMESPACE)
        if marker and inside.endswith(")"):
            pairs = _PAIR.findall(inside.removesuffix(")"))
            requested = _name_flags({name: value.strip("'\"") for name, value in pairs})
        elif _BENCHMARK.search(line) is not None:
            flags = labels.split_flags(_strip_prompt(_join_lines(line, remaining)))
            requested = _name_flags({name: value for name, value in flags if value is not None}) or requested
    return requested


def read_surroundings(lines: Sequence[str], subject: Subject) -> Surroundings:
    """Return what the lines above a result say: the labels of the last commands, and the lines' words.

    Labels are flags of the last benchmark command, but for those of `read_command`, and of the last server's
    (named `server.…`), and variables of both or of `export`. Flags are left out of the words.
    """
    bench: dict[str, str] | None = None
    server: dict[str, str] | None = None
    exported, words = dict[str, str](), list[str]()
    remaining = iter(lines)
    for line in remaining:
        if len(line) > _LONGEST:
            continue
        command = _MEMBER.sub(r"\1", line)
        is_bench = _BENCHMARK.search(command) is not None
        if _NAMESPACE in line:
            bench = dict(_read_flag_labels(_PAIR.findall(line.partition(_NAMESPACE)[2])))
        elif is_bench or _SERVER_COMMAND.search(command) is not None:
            command = _join_lines(command, remaining)
            given = _read_variables(command)
            command = _VARIABLE.sub(" ", _REDIRECTION.sub("", _strip_prompt(command)))
            flags = labels.read_flag_labels(command)
            words.append(labels.strip_flags(command))
            if is_bench:
                bench = given | dict(_read_flag_labels(flags.items()))
            else:
                server = given | {f"server.{flag}": value for flag, value in flags.items()}
        elif line.lstrip().startswith("export "):
            exported |= _read_variables(line)
        else:
            words.append(line)
    return Surroundings(replace(subject, load=""), words, (exported or None, server, bench))


def _read_flag_labels(flags: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the flags that are labels: none that is read, that is of its run, or whose value is an object."""
    read = {name for names in _FLAGS.values() for name in names}
    for name, value in flags:
        given = value.strip("'\"")
        if (
            name not in read
            and "0x" not in given
            and not name.endswith("_prefix")
            and labels.is_label(name, [given])
        ):
            yield name, given


def _read_variables(command: str) -> dict[str, str]:
    found = _VARIABLE.findall(command)
    return {name: value for name, value in found if labels.is_label(name, [value])}


def _is_command(line: str) -> bool:
    plain = line.strip()
    return len(line) <= _LONGEST and (_BENCHMARK.search(plain) is not None or plain.startswith("--"))


def _join_lines(line: str, rest: Iterator[str]) -> str:
    """Join to a command the lines that it goes on in, which are taken out of `rest`; cut at 64,000."""
    words, length = [], 0
    while True:
        plain = line.rstrip()
        length += len(plain)
        if length <= _LONGEST:
            words.append(plain.removesuffix("\\"))
        if not plain.endswith("\\") or (line := next(rest, "")) == "":
            return " ".join(words)


def _strip_prompt(command: str) -> str:
    prompt = _PROMPT.match(plain := command.lstrip())
    return plain if prompt is None else plain[prompt.end() :]


def _name_flags(given: Mapping[str, str]) -> dict[str, str]:
    """Return a client's flags by our names; one of several spellings, the first of `_FLAGS`, counts.

    Those of random prompts say nothing of a run with another data set: a Namespace has their defaults.
    """
    if not given.get("dataset_name", "random").startswith(("random", "None")):
        given = {flag: value for flag, value in given.items() if not flag.startswith("random")}
    every = [(name, flag) for name, flags in _FLAGS.items() for flag in reversed(flags)]  # the first one wins
    return {name: given[flag] for name, flag in every if given.get(flag, "None") != "None"}
