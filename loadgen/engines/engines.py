"""Engines: how each known engine is recognised, and what its requests may hold."""

from __future__ import annotations

import msgspec


class Engine(msgspec.Struct, frozen=True):
    """One serving engine's name and the traits a client must know.

    `owned_by` is what its /v1/models reports; `own_path` a path that only its /openapi.json names.
    """

    name: str
    owned_by: str = ""
    own_path: str = ""
    takes_ids: bool = True  # a prompt as token ids
    asked_for_ids: bool = False  # builds differ: one request before the run finds out whether it does
    takes_ignore_eos: bool = True
    vllm_fields: bool = False  # takes repetition_penalty and return_token_ids next to OpenAI's own fields
    forces_length: str = ""  # a `generation_config` that does what it does not take ignore_eos for, as JSON
    max_tokens_field: str = ""  # for chat; "" leaves it to the dialect
    lists_its_model: bool = True  # /v1/models names what it serves
    checks_model: bool = True  # it refuses any other name
    version_path: str = "/version"
    sends_at_once: bool = False  # without Nagle's algorithm: what it writes waits for no acknowledgement
    ours: bool = False  # this project's: no gateway that has Nagle's algorithm stands in front of it
    takes_all_memory: bool = False  # at its start, so that what it has taken is not that of a request
    info_path: str = ""  # reports its configuration
    reset_path: str = ""  # empties its prefix cache
    reset_needs: str = ""  # what it must have been started with
    trace_start_path: str = ""  # from here on it records a trace of itself
    trace_stop_path: str = ""
    trace_needs: str = ""
    trace_directory_field: str = ""  # of the start request; "" where the directory is chosen at its launch
    simulated: bool = False  # its `root` names the timing it acts with
    unproven: bool = False  # which of our fields it takes is not known before a request
    hosted: bool = False  # someone else's service: nothing but the API itself is asked of it


# `max_tokens` is taken by all, or refused in words; some ignore `max_completion_tokens`, silently.
UNKNOWN = Engine("unknown", checks_model=False, max_tokens_field="max_tokens", unproven=True)
# A public https address whose models are not signed by a known engine.
HOSTED = Engine("hosted API", checks_model=False, max_tokens_field="max_tokens", unproven=True, hosted=True)
ENGINES = (
    Engine(
        "vLLM",
        owned_by="vllm",
        vllm_fields=True,
        sends_at_once=True,
        takes_all_memory=True,
        info_path="/server_info?config_format=json",
        reset_path="/reset_prefix_cache",
        reset_needs="VLLM_SERVER_DEV_MODE=1",
        trace_start_path="/start_profile",
        trace_stop_path="/stop_profile",
        trace_needs="""--profiler-config '{"profiler": "torch", "torch_profiler_dir": "/DIR"}' """
        "(older vLLM: VLLM_TORCH_PROFILER_DIR=/DIR)",
    ),
    Engine(
        "SGLang",
        owned_by="sglang",
        vllm_fields=True,
        sends_at_once=True,
        takes_all_memory=True,
        checks_model=False,
        version_path="/server_info",
        info_path="/server_info",
        reset_path="/flush_cache",
        trace_start_path="/start_profile",
        trace_stop_path="/stop_profile",
        trace_directory_field="output_dir",
    ),
    Engine("loadgen engine", owned_by="loadgen-engine", sends_at_once=True, ours=True, simulated=True),
    Engine("loadgen null server", owned_by="loadgen-null", sends_at_once=True, ours=True, checks_model=False),
    Engine("loadgen null server with Nagle's algorithm", owned_by="loadgen-null-nagle", checks_model=False),
    Engine(
        "transformers serve",
        own_path="/load_model",
        sends_at_once=True,
        takes_ids=False,
        takes_ignore_eos=False,
        # Generating begins by taking the first end of sequence for padding where the model names none.
        forces_length='{"eos_token_id":[],"pad_token_id":0}',
        max_tokens_field="max_tokens",
        lists_its_model=False,
    ),
    Engine(
        "llama.cpp server",
        owned_by="llamacpp",
        asked_for_ids=True,
        max_tokens_field="max_tokens",
        checks_model=False,
        version_path="/props",
        info_path="/props",
    ),
)


def find_by_name(name: str) -> Engine:
    """Find the engine of this name; UNKNOWN for any other."""
    return next((engine for engine in (*ENGINES, HOSTED) if engine.name == name), UNKNOWN)


def find_by_owner(owned_by: str) -> Engine | None:
    """Find the engine that signs its models so."""
    return next((engine for engine in ENGINES if engine.owned_by and engine.owned_by == owned_by), None)


def find_by_paths(paths: set[str]) -> Engine | None:
    """Find the engine whose API description has a path that no other has."""
    return next((engine for engine in ENGINES if engine.own_path in paths), None)
