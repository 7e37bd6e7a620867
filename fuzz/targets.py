"""Targets: what is fuzzed, each a function of bytes by its dotted name, imported when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent


class Target(NamedTuple):
    """One row: the function, where its seeds are below tests/data, and what is instrumented."""

    function: str  # module:function, which takes bytes and raises nothing
    seeds: tuple[str, ...]
    instrumented: tuple[str, ...] = ("loadgen",)


_READERS, _DECODE, _CONTROL = "fuzz_targets_readers", "fuzz_targets_decode", "fuzz_targets_control"
TARGETS = {
    "page": Target(f"{_READERS}:page", ("results/*.txt", "published/*.md")),
    "results": Target(f"{_READERS}:results", ("results/*.json*", "published/*.csv")),
    "profile": Target(f"{_READERS}:profile", ("../../profiles/*.toml",)),
    "campaign": Target(f"{_READERS}:campaign", ("../../profiles/campaigns/*.toml",)),
    "compare": Target(f"{_READERS}:compare", ("results/*.txt", "results/*.json*")),
    "audit": Target(f"{_READERS}:audit", ("results/*.txt", "published/*.md")),
    "text": Target(f"{_READERS}:text", ("results/*.txt",)),
    "hide": Target(f"{_READERS}:hide", ("server_logs/*.log",)),
    "exposition": Target(f"{_READERS}:exposition", ("metrics/*.txt",)),
    "http": Target(f"{_READERS}:http", ("responses/vllm-0.32/*",)),
    "sse": Target(f"{_READERS}:sse", ("responses/vllm-0.32/*",)),
    "logs": Target(f"{_READERS}:logs", ("server_logs_as_run/*.log",)),
    "server_info": Target(f"{_READERS}:server_info", ("server_logs_as_run/*.json",)),
    "decode": Target(f"{_DECODE}:decode", ("responses/*/*",)),
    "records": Target(f"{_DECODE}:records", ()),
    "run_directory": Target(f"{_DECODE}:run_directory", ()),
    "journal": Target(f"{_DECODE}:journal", ()),
    "checkpoint": Target(f"{_CONTROL}:checkpoint", ("configs/*.json",)),
    "control": Target(f"{_CONTROL}:control", ()),
}


def corpus(name: str) -> Path:
    """Where inputs of a target are kept: crashers that were found among them."""
    return HERE / "corpus" / name
