"""Engines: the table of the engines that are known, and those that are not."""

from __future__ import annotations

from loadgen.engines.engine import Engine
from loadgen.engines.llamacpp_engine import LLAMACPP
from loadgen.engines.lmdeploy_engine import LMDEPLOY
from loadgen.engines.router_metrics import OTHERS, PRODUCTION_STACK
from loadgen.engines.sglang_engine import SGLANG
from loadgen.engines.trtllm_engine import TRTLLM
from loadgen.engines.vllm_engine import VLLM

# `max_tokens` is taken by all, or refused in words; some ignore `max_completion_tokens`, silently.
UNKNOWN = Engine("unknown", checks_model=False, max_tokens_field="max_tokens", unproven=True)
# A public https address whose models are not signed by a known engine.
HOSTED = Engine("hosted API", checks_model=False, max_tokens_field="max_tokens", unproven=True, hosted=True)
TRANSFORMERS = Engine(
    "transformers serve",
    own_path="/load_model",
    sends_at_once=True,
    takes_ids=False,
    takes_ignore_eos=False,
    # Generating begins by taking the first end of sequence for padding where the model names none.
    forces_length='{"eos_token_id":[],"pad_token_id":0}',
    max_tokens_field="max_tokens",
    lists_its_model=False,
    published_as="Transformers",
    launch_name="transformers",
)
_OWN = (
    Engine(
        "loadgen engine",
        owned_by="loadgen-engine",
        sends_at_once=True,
        ours=True,
        simulated=True,
        reset_path="/reset_prefix_cache",
        own_times="start it by `loadgen engine --enable-per-request-metrics`",
    ),
    Engine("loadgen null server", owned_by="loadgen-null", sends_at_once=True, ours=True, checks_model=False),
    Engine("loadgen null server with Nagle's algorithm", owned_by="loadgen-null-nagle", checks_model=False),
)
OLLAMA = Engine(
    "Ollama",
    owned_by="library",  # the namespace of a model: one of another's namespace is not recognised
    checks_model=False,
    max_tokens_field="max_tokens",
    version_path="/api/version",
    unproven=True,
    no_metrics="Ollama has no /metrics in any release",
)
# Where two rows could read one log or answer, the later one's value counts.
ENGINES = (VLLM, SGLANG, *_OWN, TRANSFORMERS, LLAMACPP, TRTLLM, LMDEPLOY, OLLAMA)
LAUNCHED = tuple(engine.launch_name for engine in ENGINES if engine.launch_name)
# An exposition may have the names of two rows, as a Dynamo worker's has its engine's. The earlier row's are
# read: an engine comes before what wraps it, so that its own figures win. Production-stack's router begins
# its names as vLLM does, which has none of its marks.
_ENGINES_METRICS = tuple(engine.metrics for engine in ENGINES if engine.metrics is not None)
METRICS = {row.name: row for row in (PRODUCTION_STACK, *_ENGINES_METRICS, *OTHERS)}


def find_by_name(name: str) -> Engine:
    """Find the engine of this name, in any case; UNKNOWN if there is none."""
    sought = name.lower()
    return next((engine for engine in (*ENGINES, HOSTED) if engine.name.lower() == sought), UNKNOWN)


def find_by_owner(owned_by: str) -> Engine | None:
    """Find the engine whose /v1/models reports this `owned_by`; None if there is none."""
    return next((engine for engine in ENGINES if engine.owned_by and engine.owned_by == owned_by), None)
