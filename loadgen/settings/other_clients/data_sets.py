"""Data sets of other clients that are not read here, each with the nearest way to send the same."""

from __future__ import annotations

from collections.abc import Iterable

ROWS = 'rows of JSON, {"prompt": "…", "output_tokens": N}, and pass --dataset-path FILE'
HUB = f"nothing is downloaded: download it, write its prompts as {ROWS} (docs/datasets.md)"
IMAGES = (
    "images are not made here: write whole chat bodies with images as data URLs, one a line, and pass "
    "--dataset-path FILE"
)
AUDIO = (
    "audio is not made here: write whole chat bodies with `input_audio` parts, one a line, and pass "
    "--dataset-path FILE"
)
TOOLS = (
    "nothing is downloaded: write whole chat bodies with their `tools`, one a line, and pass "
    "--dataset-path FILE"
)
SONNET = (
    "the poem is not read: --random-prefix-len, --random-input-len and --random-output-len with "
    "--prompt-format corpus are the same lengths of real text"
)
GROUPS = (
    "--prefix-groups N with --random-prefix-len, --random-input-len and --random-output-len are N shared "
    "prefixes and their questions"
)
TURNS = (
    "recorded conversations are sent as sessions: write a row for each message, as MLPerf's schema has it, "
    "and pass --dataset-path FILE (docs/sessions.md)"
)
SAME_TURNS = (
    "conversations that are made here all have --turns N; those of --dataset-path FILE have as many as were "
    "recorded"
)
LORA = (
    "adapters take no turns: pass an adapter's name as --model, or --dataset-path FILE with whole bodies, "
    "each with its own `model`"
)
NO_RANKING = "nothing is ranked: only text generation is measured"
# The name in other clients' --dataset-name (aiperf's --public-dataset and --custom-dataset-type too), and
# what to do instead.
NEAREST = {
    "hf": HUB,
    "huggingface": HUB,
    "burstgpt": "pass --trace FILE --trace-format burstgpt, and no --dataset-name",
    "sonnet": SONNET,
    "random-mm": IMAGES,
    "custom_image": IMAGES,
    "custom_mm": IMAGES,
    "custom_audio": AUDIO,
    "random-rerank": NO_RANKING,
    "spec_bench": HUB,
    "speed_bench": HUB,
    "speed-bench": HUB,
    "longbench_v2": HUB,
    "bfcl": TOOLS,
    "generated-shared-prefix": GROUPS,
    "mooncake": "pass --trace FILE --trace-format mooncake, and no --dataset-name",
    "openai": "whole bodies are known by their keys: pass --dataset-path FILE without --dataset-name",
    "image": IMAGES,
    "mmmu": IMAGES,
    "agentic-trace": TURNS,
}


def refusal(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is none of those `known`: the nearest way where it is another client's."""
    if name in NEAREST:
        return f"is not read here: {NEAREST[name]}"
    return (
        f"is not a valid data set: choose from {', '.join(known)}, or leave it out and pass --dataset-path "
        "FILE (prompts, whole bodies, conversations) or --trace FILE"
    )
