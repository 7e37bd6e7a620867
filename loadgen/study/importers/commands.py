"""Commands: the load that the command line above a block requests: lengths, seed, concurrency."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from loadgen.report import labels
from loadgen.study.importers import json_fields

_BENCHMARK = re.compile(
    r"(?:vllm\s+bench\s+serve|benchmark_serving(?:\.py)?|sglang[.\s]bench[._]serving|sglang\.benchmark\.serving"
    r"|vllm-bench|loadgen\s+bench)\b"
)
_SERVER = re.compile(
    r"(?:vllm\s+serve|vllm\.entrypoints\S{0,40}api_server|sglang\S{0,20}launch_server|sglang\s+serve|llama-server"
    r"|trtllm-serve|lmdeploy\s+serve)\b"
)
_VARIABLE = re.compile(r"(?:^|\s)([A-Z][A-Z0-9_]{2,40})=([^\s;]{1,100})")
_WORDS = re.compile(r"[>*_\s-]{0,8}([A-Za-z][\w ,.+@/()-]{1,48}?)[*_\s:]{0,6}")
_NUMBERED = re.compile(r"(.+?)[\s#:._-]{0,3}(\d{1,6})")
_MOST_WORDS = 5  # of a line that names the block below it
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


def labels_above(lines: Sequence[str]) -> dict[str, str]:
    """What these lines above a block have that `asked` does not read, and that tells it from other blocks.

    The flags of the last benchmark command and of the last server's, the environment of either, and the words
    of the nearest line, as Before: or concurrency 8.
    """
    bench = server = ""
    found: dict[str, str] = {}
    remaining = iter(lines)
    for line in remaining:
        if len(line) > _LONGEST:
            continue
        is_bench = _BENCHMARK.search(line) is not None
        if is_bench or _SERVER.search(line) is not None:
            command = _joined(line, remaining)
            bench, server = (command, server) if is_bench else (bench, command)
            found |= _environment(command)
        elif line.lstrip().startswith("export "):
            found |= _environment(line)
    read = {name for names in _FLAGS.values() for name in names}
    found |= {flag: value for flag, value in labels.flags(bench).items() if flag not in read}
    found |= {f"server.{flag}": value for flag, value in labels.flags(server).items()}
    return found | ({"above": words} if (words := _nearest(lines)) else {})


def _environment(command: str) -> dict[str, str]:
    """The variables that a command line sets, but for what is another in every run."""
    found = _VARIABLE.findall(command)
    return {name: value for name, value in found if labels.is_label(name, [value])}


def _nearest(lines: Sequence[str]) -> str:
    """The words of the nearest line above, where these are few and no number of a run; "" of any other."""
    plain = (line.strip() for line in reversed(lines))
    near = next((line for line in plain if line and not line.startswith(("```", "~~~"))), "")
    is_text = not is_command(near) and _SERVER.search(near) is None and " --" not in near
    match = _WORDS.fullmatch(near) if is_text else None
    if match is None or len(match[0].split()) > _MOST_WORDS:
        return ""
    words = match[1].strip()
    numbered = _NUMBERED.fullmatch(words)
    if numbered is not None and not labels.is_label(numbered[1], [numbered[2]]):
        return ""
    return words


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
