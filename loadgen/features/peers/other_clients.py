"""Other clients: the flags and data sets of vLLM, aiperf, guidellm and SGLang, read when one is met.

`other_clients.toml` has a row for each flag, with what it is here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from loadgen.base.text import quote_value
from loadgen.settings import vllm_flags
from loadgen.settings.vllm_flags import VLLM, OtherClient, explain_vllm_flag

_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_WORDS: dict[str, str] = {**vllm_flags.WORDS, **_TABLE["words"]}
_KINDS = ("same", "differs", "renamed", "no_effect", "refused")


def _fill_in(rows: Mapping[str, str]) -> dict[str, str]:
    """Return the explanation, its $WORDS filled in, of each flag or name, several of which a row may have."""
    return {
        each: Template(words).substitute(_WORDS) for names, words in rows.items() for each in names.split()
    }


# By the name in their --dataset-name, and what to do instead.
NEAREST = _fill_in(_TABLE["data_sets"])
OTHERS = tuple(
    OtherClient(
        client["name"],
        client["command"],
        client["versions"],
        *(_fill_in(client.get(kind, {})) for kind in _KINDS),
    )
    for client in _TABLE["clients"]
)
CLIENTS = (VLLM, *OTHERS)


def explain_other_flags(flags: Sequence[str]) -> list[str | None]:
    """Explain, for each flag of one command line, which of ours replaces it, or why none does.

    A flag that several clients have is explained by the one that has most of these flags, and by each where
    that decides nothing. None if no client has it, or it is accepted here.
    """
    explained = [[client.explain_flag(flag) for flag in flags] for client in OTHERS]
    explained.insert(0, [explain_vllm_flag(flag) for flag in flags])
    counts = [sum(words is not None for words in row) for row in explained]
    return [_join_explanations(counts, column) for column in zip(*explained, strict=True)]


def _join_explanations(counts: Sequence[int], words: Sequence[str | None]) -> str | None:
    """Join what the clients with the most flags of the line say of one flag, once where they say the same."""
    known = [(count, text) for count, text in zip(counts, words, strict=True) if text is not None]
    most = max((count for count, _ in known), default=0)
    by_reason = {text.partition("` is ")[2]: text for count, text in reversed(known) if count == most}
    return "; ".join(reversed(by_reason.values())) or None


def explain_load(kind: str) -> str:
    """Explain which flags here give a kind of load that guidellm's --profile takes."""
    return f"--profile {quote_value(kind)} of `guidellm run`: {_WORDS['GUIDELLM_PROFILE']}"


def refuse_data_set(name: str, known: Iterable[str]) -> str:
    """Explain that a data set's name is not one of `known`, with what to use for another client's name."""
    if name in NEAREST:
        return f"is not read here: {NEAREST[name]}"
    return (
        f"is not a valid data set: choose from {', '.join(known)}, or leave it out and pass --dataset-path "
        "FILE (prompts, whole bodies, conversations) or --trace FILE"
    )
