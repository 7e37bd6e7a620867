"""Workload: the prompts of a well-known seed, recognized by how many tokens they came out as.

vLLM's random texts of 2025 are consecutive ids, decoded; encoded again, some of them come out short, and
which ones follows from the seed alone. So the total of input tokens identifies the seed, the length, and
which prompts they were. `workloads.json` has what each of the first 1000 prompts lacks, by client and
length, for the tokenizer of Qwen 2 to 3 (151643 ids) and seed 0: derived with its ranks, 204169, 408281 and
1021646 among the totals. A prompt's offset does not depend on how many prompts there are (lengths without a
range draw nothing), so a smaller run has the first prompts of a greater one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

PROMPTS = 1000  # derived of each workload
LEAST_MISSING = 20  # tokens: a total that lacks fewer may be of any prompts
_CLIENTS = {
    "mid-2025": "vLLM of May to August 2025 (0.9 to 0.10.1)",
    "september-2025": "vLLM of August and September 2025",
}
SEED, TOKENIZER = 0, "Qwen 2 to 3"

Missing = Mapping[int, int]  # index of a prompt → tokens that it lacks


class Workload(msgspec.Struct, frozen=True):
    """The first prompts of one client's seed at one length."""

    client: str
    input_len: int
    requests: int
    short: int  # prompts that lack tokens
    total_input_tokens: int

    def shares(self, other: Workload) -> int:
        """How many prompts this run and another have in common."""
        alike = (self.client, self.input_len) == (other.client, other.input_len)
        return min(self.requests, other.requests) if alike else 0

    def has_first(self, requests: int, total_input_tokens: int) -> bool:
        """Whether this many requests with this many tokens can be the first of these prompts."""
        missing = _table().get(self.client, {}).get(self.input_len, {})
        return requests <= PROMPTS and _total(missing, self.input_len, requests) == total_input_tokens


def recognise(requests: int, total_input_tokens: int) -> Workload | None:
    """The workload of this many requests with this many tokens in all; None if it is not a known one.

    A total that lacks fewer than 20 tokens of whole lengths identifies nothing.
    """
    if not 0 < requests <= PROMPTS:
        return None
    for client, lengths in _table().items():
        for input_len, missing in lengths.items():
            lacking = requests * input_len - total_input_tokens
            if lacking >= LEAST_MISSING and _total(missing, input_len, requests) == total_input_tokens:
                short = sum(index < requests for index in missing)
                return Workload(client, input_len, requests, short, total_input_tokens)
    return None


def total_input_tokens(client: str, input_len: int, requests: int) -> int:
    """The tokens of the first prompts of a client and length in the table; raises KeyError of another."""
    return _total(_table()[_CLIENTS[client]][input_len], input_len, requests)


def _total(missing: Missing, input_len: int, requests: int) -> int:
    return requests * input_len - sum(lack for index, lack in missing.items() if index < requests)


@cache
def _table() -> dict[str, dict[int, dict[int, int]]]:
    text = resources.files(__package__).joinpath("workloads.json").read_text("utf-8")
    return {
        _CLIENTS[client]: {
            int(length): {int(index): int(lack) for index, lack in missing.items()}
            for length, missing in lengths.items()
        }
        for client, lengths in json.loads(text).items()
    }
