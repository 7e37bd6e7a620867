"""Pasted pages: the blocks of any text, each with its heading and the command above it."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from loadgen.base import secrecy
from loadgen.base.errors import UsageError
from loadgen.base.text import cut_end
from loadgen.report.load_identity import Load
from loadgen.study import labels
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import headings, pasted_blocks
from loadgen.study.importers.pasted.headings import Outline, PageLine, Subject
from loadgen.study.importers.pasted.page_reader import LANGUAGE, Grid, PastedBlock, read_parts
from loadgen.study.importers.pasted.pasted_blocks import LAST_LINE
from loadgen.study.run_summary import Reported, describe_simulation, find_unnamed_preset, shorten_name

PAGE = "page"
ENGINES = ("Transformers", "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "LMDeploy", "TGI", "Ollama", "MLX")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
# What a report of ours has above its block, and below it.
_SIMULATED = re.compile(r"[\s>#*]{0,20}SIMULATED\b(?:.{0,100}?with the timing of ([\w./-]{1,60}))?")
_SERVER = re.compile(r"[\s>#*]{0,20}server: ([^,]{1,60}), model (\S{1,200}?),(?:\s|$)")
_VERDICT = re.compile(r"[\s>#*]{0,20}verdict: (SIMULATED, )?(VALID|SUSPECT|INVALID)\b")
_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{8,}+;?")  # no character has such a number
Found = TypeVar("Found", PastedBlock, Grid)
_ENGINES = {"sglang": "SGLang", "vllm": "vLLM", "lmdeploy": "LMDeploy", "trt": "TensorRT-LLM"}


class Surroundings(msgspec.Struct, frozen=True):
    """What stands between a result and the one above it."""

    subject: Subject = Subject()  # a result has nothing of those above it below other headings
    lines: Sequence[str] = ()  # without what is read from them
    commands: dict[str, dict[str, str]] = {}  # the labels of each kind of command
    asked: dict[str, str] = {}  # what the benchmark's command requests, by our names
    heading: str = ""  # the nearest, whatever it names
    engine: str = ""  # in a heading


def read_page(page: str, path: Path) -> list[Reported]:
    """Read every block of a page as a run, what is unreadable as a remark; UsageError of over 10,000."""
    json_fields.check_results(path, len(pasted_blocks.HEADER.findall(page)))
    found, below = find_results(page, path, PastedBlock)
    unread = describe_surroundings([around for _, around in found], below)
    return [_make_run(*each, own, path) for each, own in zip(found, unread, strict=True)]


def find_results(
    page: str, path: Path, kind: type[Found]
) -> tuple[list[tuple[Found, Surroundings]], list[str]]:
    """Find blocks or tables with what is above each, and lines below the last; UsageError of huge tables."""
    try:
        parts = read_parts(page)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    outline, above, found = Outline(), list[str](), list[tuple[Found, Surroundings]]()
    last: PastedBlock | None = None  # whose verdict may still follow
    in_report = False  # whether a line is of the report whose verdict stands below its block
    for part in parts:
        if isinstance(part, kind):
            last = part if isinstance(part, PastedBlock) else None
            found.append((part, _read_surroundings(last.cell if last and last.cell else above, outline)))
            above = []
        elif not isinstance(part, PageLine):
            continue
        elif not part.text:
            in_report = False
            above += [""] if above and above[-1] else []  # a command does not continue after it
        else:
            verdict = _VERDICT.match(part.text) if last is not None and not part.is_heading else None
            in_report &= not (part.level or _SIMULATED.match(part.text) or _SERVER.match(part.text))
            named = outline.enter(part) if part.level else False
            last = None if part.is_heading else last
            if last is not None and verdict is not None and not last.level:
                last.level, last.simulated = verdict[2], find_unnamed_preset(bool(verdict[1]))
                in_report = True
            if part.is_heading and named:
                above = []
            elif not in_report:
                above.append(part.text)
    return found, above


def _make_run(block: PastedBlock, around: Surroundings, unread: Mapping[str, str], path: Path) -> Reported:
    """Make a block's run; name, load and engine are else of what stands around; `unread` are its labels."""
    engine, simulated, subject, asked = "", block.simulated, around.subject, around.asked
    for text in around.lines:  # the head of a report of ours
        if (named_preset := _SIMULATED.match(text)) is not None:
            simulated = named_preset[1] or find_unnamed_preset(True)
        elif (server := _SERVER.match(text)) is not None:
            engine, asked = server[1], {"model": server[2]} | asked
    lines = [html.unescape(_REFERENCE.sub("\ufffd", _TAG.sub(" ", line))) for line in block.lines]
    figures, remarks = pasted_blocks.parse_block(lines, block.closed)
    if "backend" in figures:
        remarks.insert(0, LAST_LINE)
    if simulated:
        remarks.insert(0, describe_simulation(simulated))
    model = subject.model or headings.add_storage(shorten_name(asked.get("model", "")), subject.quantization)
    name = subject.name or model or subject.heading or path.stem
    counts = {key: json_fields.parse_count(asked.get(key, "")) for key in _COUNTS}
    limit, rate = counts.pop("max_concurrency"), asked.get("request_rate")
    named = headings.find_concurrency(subject.load) if limit is None else limit
    if figures.get("max_concurrency", limit) != limit:
        counts, rate = {}, None  # of another block
    rate_read = json_fields.parse_number(str(figures.get("request_rate", rate)))
    load = Load(
        name=subject.load,
        max_concurrency=figures.get("max_concurrency", named),
        request_rate_per_s=json_fields.read_rate(rate_read),
    )
    return Reported(
        name=name if " " in name else shorten_name(name),
        model=model if model != name else "",
        figures=figures,
        load=replace(load, **counts),
        unread=unread,
        source=f"{path}:{block.number}",
        told_by=PAGE,
        simulated=simulated,
        level=block.level,
        engine=engine or _ENGINES.get(str(figures.get("backend", "")).partition("-")[0], ""),
        remarks=tuple(remarks),
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
_PROMPT = re.compile(r"\A[\w.@:~/()\[\] -]*+[$#%>]\s+")
_LONGEST = 64_000  # characters of a command with all its lines
# What a flag sets of a load, in the clients' many versions; of several the last one here counts.
_FLAGS = {
    flag: name
    for name, flags in (
        ("model", "model_path model_id model"),
        ("asked_input_len", "input_len random_input random_input_len"),
        ("asked_output_len", "output_len random_output random_output_len"),
        ("requests", "num_prompt num_prompts"),
        ("max_concurrency", "max_concurrency"),
        ("request_rate", "request_rate"),
        ("seed", "seed"),
    )
    for flag in flags.split()
}
_COUNTS = {*_FLAGS.values()} - {"model", "request_rate"}


def _read_surroundings(lines: Sequence[str], outline: Outline) -> Surroundings:
    """Read what stands above a result: its headings, what its commands request, their labels, the words.

    Requested is what the last benchmark command has under our names. Labels are its other flags, those of the
    last server's command (named `server.…`), and variables of both or of `export`. Flags are left out of the
    words. Python's argparse shows a command as a Namespace.
    """
    asked, words, commands = dict[str, str](), list[str](), dict[str, dict[str, str]]()
    remaining = iter(lines)
    for line in remaining:
        command = _MEMBER.sub(r"\1", line) if len(line) <= _LONGEST else ""
        is_bench = _BENCHMARK.search(command) is not None
        if _NAMESPACE in command:
            pairs = _PAIR.findall(line.partition(_NAMESPACE)[2].rstrip().removesuffix(")"))
            flags = {name: value.strip("'\"") for name, value in pairs}
            asked, commands["bench"] = _name_flags(flags), _choose_labels(flags)
        elif is_bench or _SERVER_COMMAND.search(command) is not None:
            command = _join_lines(command, remaining)
            given = _read_variables(command)
            command = _PROMPT.sub("", command.lstrip(), count=1)
            command = _VARIABLE.sub(" ", _REDIRECTION.sub("", command))
            words.append(labels.strip_flags(command))
            flags = labels.read_flag_labels(command)
            if is_bench:
                valued = {name: value for name, value in labels.split_flags(command) if value is not None}
                asked = _name_flags(valued) or asked
                commands["bench"] = given | _choose_labels(flags)
            else:
                commands["server"] = given | {f"server.{flag}": value for flag, value in flags.items()}
        elif command.lstrip().startswith("export "):
            commands["export"] = commands.get("export", {}) | _read_variables(command)
        elif len(line) <= _LONGEST:
            words.append(line)
    names = outline.names
    engines = (engine for name in names for engine in ENGINES if engine.lower() in name.lower())
    return Surroundings(outline.subject, words, commands, asked, next(iter(names), ""), next(engines, ""))


def _choose_labels(flags: Mapping[str, str]) -> dict[str, str]:
    """Return flags that are labels; not those of a load, a prefix of names, or one with an address."""
    return {
        name: value
        for name, value in flags.items()
        if name not in _FLAGS and "0x" not in value and not name.endswith("_prefix")
        if labels.is_label(name, [value])
    }


def _read_variables(command: str) -> dict[str, str]:
    found = _VARIABLE.findall(command)
    return {name: value for name, value in found if labels.is_label(name, [value])}


def _join_lines(line: str, rest: Iterator[str]) -> str:
    """Join to a command the lines that it goes on in, which are taken out of `rest`; cut at 64,000."""
    words, length = list[str](), 0
    while line:
        plain = line.rstrip()
        length += len(plain)
        words += [plain.removesuffix("\\")] if length <= _LONGEST else []
        line = next(rest, "") if plain.endswith("\\") else ""
    return " ".join(words)


def _name_flags(given: Mapping[str, str]) -> dict[str, str]:
    """Return a client's flags by our names; one of several spellings, the last of `_FLAGS`, counts.

    Those of random prompts say nothing of a run with another data set: a Namespace has their defaults.
    """
    is_random = given.get("dataset_name", "random").startswith(("random", "None"))
    return {
        name: given[flag]
        for flag, name in _FLAGS.items()
        if given.get(flag, "None") != "None" and (is_random or not flag.startswith("random"))
    }


# What stands between two results distinguishes them: they are repeats only if the page says so (Run 2), or if
# nothing between them differs. So every line counts, in whatever form, but for what is read from it: the
# flags of commands, a heading's checkpoint and load.
_LONGEST_COMPARED = 2000  # characters of a line
_SHOWN = 60  # of the words in a row's name
_MOST_BETWEEN = 200  # lines between two results, the nearest
_MARKS = re.compile(
    r"\s{0,20}(?:>\s?)*(?:#{1,6}\s|\d{1,3}[.)]\s|\.\.\s(?:[\w-]+::\s)?|//+|;+|={3,}\s|:::+|%+\s?)*"
)
_FENCE = re.compile(r"\s{0,20}[`~]{3,}\s*")
_CAPTION = re.compile(
    r"\W{0,3}(?:table|tab|figure|fig|listing|tabelle|tableau|tabla|表|图|図)\W{0,3}\d", re.IGNORECASE
)


def describe_surroundings(found: Sequence[Surroundings], below: Sequence[str]) -> list[dict[str, str]]:
    """Return the labels of each of a page's results: of commands, and as `above` the words that are its own.

    What is said of all distinguishes none. A result of which nothing else is said has the labels of the one
    above it: it is a second run of the same. Of several lines the nearest is the result's, and those before
    it are of the results below, too, until others take their place. Where the lines `below` the last
    result begin with a caption, captions stand below.
    """
    texts = [[*_read_own(each.lines)] for each in found]
    captions = [*texts[1:], [*_read_own(below)]]
    if texts and not texts[0] and all(own and _CAPTION.match(own[0][0]) for own in captions):
        texts = [own[:1] for own in captions]
    common = Counter(key for own in texts for key in {key for key, _ in own})
    shown: dict[str, str] = {}
    paths, commands = list[tuple[str, ...]](), list[dict[str, dict[str, str]]]()
    for at, (each, every) in enumerate(zip(found, texts, strict=True)):
        own = [key for key, text in every if common[key] < len(found) and shown.setdefault(key, text)]
        goes_on = at > 0 and replace(found[at - 1].subject, load="") == replace(each.subject, load="")
        above = paths[-1] if goes_on else ()
        is_same = not own or (own[-1:] == [*above[-1:]] and set(own) <= set(above))
        paths.append(above if is_same else (*(own[:-1] or above[:-1]), own[-1]))
        commands.append((commands[-1] if goes_on and is_same else {}) | each.commands)
    words = _choose_words(paths, shown)
    return [
        {key: value for kind in ("export", "server", "bench") for key, value in own.get(kind, {}).items()}
        | ({"above": words[path]} if path else {})
        for own, path in zip(commands, paths, strict=True)
    ]


def _read_own(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is compared of each line, and how it is shown; nothing of one that any run may have."""
    for line in lines[-_MOST_BETWEEN:]:
        cut = line[:_LONGEST_COMPARED]
        if (fence := _FENCE.match(cut)) is not None:  # in code whose own fence is not closed
            cut = LANGUAGE.sub("", cut[fence.end() :], count=1)
        plain = " ".join(headings.strip_marks(_MARKS.sub("", cut, count=1)).split())
        if key := labels.strip_run(plain):
            yield key, secrecy.hide_secrets(plain.strip("-+*_:\uff1a. "))


def _choose_words(paths: Iterable[tuple[str, ...]], shown: dict[str, str]) -> dict[tuple[str, ...], str]:
    """Choose the words that each path is shown with: its last line if no other ends so, else all of them."""
    every = dict.fromkeys(path for path in paths if path)
    last = Counter(path[-1] for path in every)
    texts = (" ".join(shown[key] for key in (path if last[path[-1]] > 1 else path[-1:])) for path in every)
    cut = {path: cut_end(text, _SHOWN) for path, text in zip(every, texts, strict=True)}
    twice = Counter(cut.values())
    return {
        path: text if twice[text] == 1 else f"{at}. {text}" for at, (path, text) in enumerate(cut.items(), 1)
    }
