"""Commands: the load that the command line above a block requests: lengths, seed, concurrency."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from loadgen.analysis.importers import json_fields
from loadgen.results import labels

_BENCHMARK = re.compile(
    r"(?:vllm\s+bench\s+serve|benchmark_serving(?:\.py)?|sglang[.\s]bench[._]serving|sglang\.benchmark\.serving"
    r"|vllm-bench|loadgen\s+bench)\b"
)
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


def asked(lines: Sequence[str]) -> dict[str, str]:
    """What the last benchmark command in these lines requests, by our names; empty without a command."""
    requested: dict[str, str] = {}
    remaining = iter(lines)
    for line in remaining:
        if len(line) > _LONGEST:
            continue
        if (namespace := _namespace(line)) is not None:
            requested = _named({name: value.strip("'\"") for name, value in _PAIR.findall(namespace)})
        elif _BENCHMARK.search(line) is not None:
            requested = _named(_given(_joined(line, remaining))) or requested
    return requested


def unread_flags(lines: Sequence[str]) -> dict[str, str]:
    """The labels of the last benchmark command in these lines that `asked` does not read, by flag."""
    command = ""
    remaining = iter(lines)
    for line in remaining:
        if len(line) <= _LONGEST and _BENCHMARK.search(line) is not None:
            command = _joined(line, remaining)
    read = {name for names in _FLAGS.values() for name in names}
    return {flag: value for flag, value in labels.flags(command).items() if flag not in read}


def is_command(line: str) -> bool:
    """Whether a line is a benchmark's command, or goes on with its flags."""
    plain = line.strip()
    return len(line) <= _LONGEST and (_BENCHMARK.search(plain) is not None or plain.startswith("--"))


def whole(requested: Mapping[str, str], name: str) -> int | None:
    """A requested count; None if it is not given or not a count."""
    return json_fields.written_count(requested.get(name, ""))


def _namespace(line: str) -> str | None:
    """What Python's argparse shows of a command line between its parentheses."""
    _, marker, inside = line.rstrip().partition(_NAMESPACE)
    return inside.removesuffix(")") if marker and inside.endswith(")") else None


def _joined(line: str, rest: Iterator[str]) -> str:
    """A command with the lines that it goes on in, which are taken out of the rest."""
    words, length = [], 0
    while True:
        plain = line.rstrip()
        length += len(plain)
        if length <= _LONGEST:
            words.append(plain.removesuffix("\\"))
        if not plain.endswith("\\") or (line := next(rest, "")) == "":
            return " ".join(words)


def _given(command: str) -> dict[str, str]:
    """The flags of a command and their values."""
    given = {}
    for word, following in pairwise([*_split(command), "--"]):
        name, equals, value = word[2:].partition("=")
        if word.startswith("--") and (equals or not following.startswith("--")):
            given[name.replace("-", "_")] = value if equals else following
    return given


def _split(command: str) -> list[str]:
    command = command.lstrip()
    prompt = _PROMPT.match(command)
    try:
        return shlex.split(command[prompt.end() :] if prompt is not None else command, comments=True)
    except ValueError:  # a quote that is not closed
        return command.split()


def _named(given: Mapping[str, str]) -> dict[str, str]:
    every = [(name, flag) for name, flags in _FLAGS.items() for flag in reversed(flags)]  # the first one wins
    return {name: given[flag] for name, flag in every if given.get(flag, "None") != "None"}
