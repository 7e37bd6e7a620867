"""Other client: the flags and data sets of another benchmark client, each with what it is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

Words = Mapping[str, str]
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


class OtherClient(msgspec.Struct, frozen=True):
    """Another client's flags, each in the table of how far it is supported here.

    `command` is how the client is started, `versions` are those whose flags these are.
    """

    name: str
    command: str
    versions: str
    same: Words  # spelled and meant as here
    differs: Words  # spelled as here, with another meaning
    renamed: Words  # the flag of ours that means it
    no_effect: Words  # accepted, and why nothing changes by it
    refused: Words  # why, and the nearest way

    def rows(self) -> list[tuple[str, str, str]]:
        """List (flag, `same`/`differs`/`no effect`/…, explanation) of every flag, sorted by flag."""
        tables = {
            "same": self.same,
            "differs": self.differs,
            "another name": self.renamed,
            "no effect": self.no_effect,
            "refused": self.refused,
        }
        rows = [(flag, what, words) for what, table in tables.items() for flag, words in table.items()]
        return sorted(rows, key=lambda row: row[0].lstrip("-").lower())

    def explain_flag(self, flag: str) -> str | None:
        """Explain a flag that is not accepted: our flag for it, or why there is none; None: unknown."""
        if flag in self.renamed:
            return f"{flag} of `{self.command}` is {self.renamed[flag]} here"
        if flag in self.refused:
            return f"{flag} of `{self.command}` is not supported: {self.refused[flag]}"
        return None


def map_flags(flags_by_words: Words) -> dict[str, str]:
    """Invert a table of explanation → space-separated flags into flag → explanation."""
    return {flag: words for words, flags in flags_by_words.items() for flag in flags.split()}


def refuse_data_set(name: str, known: Iterable[str]) -> str:
    """Explain that a data set's name is not one of `known`, with what to use for another client's name."""
    if name in NEAREST:
        return f"is not read here: {NEAREST[name]}"
    return (
        f"is not a valid data set: choose from {', '.join(known)}, or leave it out and pass --dataset-path "
        "FILE (prompts, whole bodies, conversations) or --trace FILE"
    )
