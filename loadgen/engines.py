"""What the known engines are recognised by, and what their requests may hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """One serving engine's name and the traits a client must know.

    `owned_by` is what its /v1/models says; `own_path` a path that only its /openapi.json names.
    """

    name: str
    owned_by: str = ""
    own_path: str = ""
    takes_ids: bool = True  # a prompt as token ids
    takes_ignore_eos: bool = True
    max_tokens_field: str = ""  # for chat; "" leaves it to the dialect
    lists_its_model: bool = True  # /v1/models names what it serves
    checks_model: bool = True  # it refuses any other name
    version_path: str = "/version"
    simulated: bool = False  # its `root` names the timing it acts with


UNKNOWN = Engine("unknown", checks_model=False)
ENGINES = (
    Engine("vLLM", owned_by="vllm"),
    Engine("SGLang", owned_by="sglang", checks_model=False, version_path="/server_info"),
    Engine("loadgen engine", owned_by="loadgen-engine", simulated=True),
    Engine("loadgen null server", owned_by="loadgen-null", checks_model=False),
    Engine(
        "transformers serve",
        own_path="/load_model",
        takes_ids=False,
        takes_ignore_eos=False,
        max_tokens_field="max_tokens",
        lists_its_model=False,
    ),
    Engine("llama.cpp server", owned_by="llamacpp"),
)


def by_owner(owned_by: str) -> Engine | None:
    """The engine that signs its models so."""
    return next((engine for engine in ENGINES if engine.owned_by and engine.owned_by == owned_by), None)


def by_paths(paths: set[str]) -> Engine | None:
    """The engine whose API description has a path no other has."""
    return next((engine for engine in ENGINES if engine.own_path in paths), None)
