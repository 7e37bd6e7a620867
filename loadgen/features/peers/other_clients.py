"""Other clients: the flags and data sets of vLLM, aiperf, guidellm and SGLang, read when one is met.

`other_clients.toml` has a row for each flag, with what it is here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from loadgen.base.text import quote_value
from loadgen.features.peers import vllm_flags
from loadgen.features.peers.vllm_flags import VLLM, OtherClient, explain_vllm_flag

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


def explain_other_flag(flag: str) -> str | None:
    """Explain which flag of ours replaces another client's flag, or why none does; vLLM's come first.

    None if no client has it, or it is accepted here.
    """
    words = (explain(flag) for explain in (explain_vllm_flag, *(client.explain_flag for client in OTHERS)))
    return next((text for text in words if text is not None), None)


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
