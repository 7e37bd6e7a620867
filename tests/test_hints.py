"""The hints: every flag and command that a message names can be typed, for the verb that it is of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from builders.lint import CLIENT, ROOT, SERVERS, Source, of_each
from test_docs_commands import PARSERS

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w*{-])")
_VERB = re.compile(r"\bloadgen ([a-z]+)\b")


def texts(source: Source) -> Iterator[tuple[int, str]]:
    """The texts of a module, those with values in them whole, and their lines."""
    joined = [node for node in source.nodes if isinstance(node, ast.JoinedStr)]
    left_out = source.docstrings | {id(node) for each in joined for node in ast.walk(each)}
    for each in joined:
        pieces = [str(piece.value) if isinstance(piece, ast.Constant) else "{}" for piece in each.values]
        yield each.lineno, "".join(pieces)
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


@cache
def flags(*verbs: str) -> set[str]:
    return {flag for verb in verbs for action in PARSERS[verb]()._actions for flag in action.option_strings}


# Which verbs a module's messages speak of, by the begin of its path: the first that fits.
VERBS_OF = {
    "loadgen/study/compare/": ("compare", "bench"),
    "loadgen/study/audit/": ("audit", "bench"),
    "loadgen/study/pages/": ("report", "bench"),
    "loadgen/study/series/limit/": ("limit",),
    "loadgen/study/limit_record": ("limit",),
    "loadgen/study/series/sweep_command": ("sweep",),
    "loadgen/study/series/grid": ("sweep",),
    "loadgen/study/series/ladder_command": ("ladder",),
    "loadgen/study/series/point_runs": ("sweep", "limit"),
    "loadgen/study/series/": ("campaign", "bench", "limit", "sweep"),  # whose flags are a campaign's keys
    "loadgen/study/bundle": ("bundle", "verify", "export"),
    "loadgen/study/describe_command": ("data describe",),
    "loadgen/study/verify/": ("verify", "bundle"),
    "loadgen/study/gate/": ("gate", "history", "compare", "bench"),
    "loadgen/study/history/": ("history", "gate", "bench"),
    "loadgen/base/printing": ("compare",),
    "loadgen/study/quality/": ("quality", "bench"),
    "loadgen/study/": ("compare", "audit", "bench"),
    "loadgen/features/shards/merge": ("merge",),
    "loadgen/features/export/": ("export", "bench"),
    "loadgen/report/request_rows": ("export", "bench"),
    "loadgen/run/session": ("campaign", "bench"),
    "loadgen/features/shards/": ("shards", "bench"),
    "loadgen/features/selftest/": ("selftest", "bench"),
    "loadgen/features/data/data_": ("data", "bench"),
    "loadgen/features/traces/learn/": ("data learn", "bench"),
    "loadgen/fleet/": ("shards", "bench"),
    "loadgen/run/embedded_engine": ("bench", "engine"),
    "loadgen/cli": ("bench", "campaign", "sweep", "limit", "report", "compare"),
    "loadgen/": ("bench",),
    "servers/loadgen_servers/engine/": ("engine",),
    "servers/loadgen_servers/process/": ("bench",),
    "servers/": ("engine",),
}
# Flags of other programs, and the words one of which names the program in a message that advises them.
FOREIGN = {
    "vLLM": "--max-num-seqs --max-model-len --no-enable-prefix-caching --enable-prompt-tokens-details "
    "--enable-auto-tool-choice --tool-call-parser --limit-mm-per-prompt --structured-outputs-config "
    "--enable-per-request-metrics --profiler-config --dtype --chat-template --stream-interval "
    "--reasoning-parser --logprobs-mode --generation-config --per-request-spec-decode-metrics "
    "--enable-log-requests --mm-processor-cache-gb --max-num-batched-tokens --long-prefill-token-threshold "
    "--gpu-memory-utilization --otlp-traces-endpoint",
    "SGLang": "--enable-metrics --disable-radix-cache --max-running-requests --grammar-backend "
    "--enable-response-store --enable-cache-report --enable-trace --otlp-traces-endpoint "
    "--mem-fraction-static --sampling-defaults --chunked-prefill-size",
    "llama": "--metrics --parallel --ctx-size --jinja --override-kv --chat-template-file --batch-size",
    "uvicorn": "--timeout-keep-alive",
    "--server-args": "--dtype",
    "container|docker|podman": "--cap-add --shm-size",
    "Ray": "--head",
    "null server": "--ttft-ms --log",
}
# What is no message: commands of other programs that are run or written here, patterns, and style sheets.
COMMANDS = (
    "loadgen/settings/vllm_flags.py",  # whose tables tests/settings/test_vllm_flags.py holds
    "loadgen/study/importers/",
    "loadgen/features/selftest/selftest_command.py",
    "loadgen/fleet/shards_command.py",
    "loadgen/host/",
    "loadgen/engines/refusals.py",
    "servers/loadgen_servers/launch/",
    "servers/loadgen_servers/null/",
    "servers/loadgen_servers/process/embedded.py",
)
MODULES = [path for path in [*CLIENT, *SERVERS] if not path.relative_to(ROOT).as_posix().startswith(COMMANDS)]


def wrong(text: str, verbs: tuple[str, ...]) -> list[str]:
    """The flags and verbs of a text that no one can type."""
    found = list[str]()
    own = flags(*verbs) | {"--help", "--version"}
    for verb in _VERB.finditer(text):
        if verb[1] in PARSERS:
            command = re.split(r"[`;:,()]| and | or ", text[verb.end() :])[0]
            found += [f"{verb[0]} {flag}" for flag in _FLAG.findall(command) if flag not in flags(verb[1])]
            own |= flags(verb[1])
    for flag in _FLAG.findall(text):
        owners = [who for who, theirs in FOREIGN.items() if flag in theirs.split()]
        is_named = text == flag or any(re.search(who, text, re.IGNORECASE) for who in owners)
        if flag not in own and not (owners and is_named):
            found.append(flag)
    return found


@of_each(MODULES)
def test_every_flag_that_a_message_names_can_be_typed(source: Source) -> Iterator[str]:
    verbs = next(verbs for begin, verbs in VERBS_OF.items() if source.name.startswith(begin))
    for line, text in texts(source):
        yield from (f"line {line}: {fault}" for fault in wrong(text, verbs))


@pytest.mark.parametrize(("text", "faults"), [
    ("pass --tokenizer DIR", []),
    ("pass --tokeniser DIR", ["--tokeniser"]),
    ("raise the context (--max-model-len)", ["--max-model-len"]),
    ("raise the context (vLLM: --max-model-len)", []),
    ("`loadgen merge --output DIR` joins them", []),
    ("`loadgen merge --seed 1` joins them", ["loadgen merge --seed"]),
    ("run `loadgen compare A`, or pass --seed", []),
])  # fmt: skip
def test_what_cannot_be_typed_is_found(text: str, faults: list[str]) -> None:
    assert wrong(text, ("bench",)) == faults
