"""Prefix repetition: the texts of `vllm bench serve --dataset-name prefix_repetition`, token for token.

Each of a few prefixes begins as many prompts as the others; the same seed gives the same texts again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from loadgen.base.errors import UsageError
from loadgen.plan.data_facts import DataFacts
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests
from loadgen.plan.profile import Profile
from loadgen.plan.prompts.listed_texts import ListedTexts
from loadgen.plan.prompts.tokenizers import Tokenizer, load_tokenizer, needed_tokenizer
from loadgen.plan.prompts.vllm_random import fitted

KIND = "prefix_repetition"
_SEEDS = 2**32  # that numpy's RandomState takes


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The requests of a profile; raises UsageError where there are fewer than prefixes, or no tokenizer."""
    profile, seed = inputs.profile, inputs.shared_seed
    prefixes, most = profile.prefix_repetition_num_prefixes, inputs.most
    if profile.dataset_path:
        raise UsageError(f"--dataset-path: --dataset-name {KIND} makes its prompts and reads no file")
    if most is None:
        raise UsageError(f"--duration with {KIND} needs --num-prompts: texts are all built beforehand")
    if most < prefixes:
        raise UsageError(
            f"--num-prompts {most} is less than --prefix-repetition-num-prefixes {prefixes}: each prefix "
            "begins as many prompts as the others, at least one"
        )
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"--seed {seed}: {KIND} takes 0 to {_SEEDS - 1}, as numpy's RandomState does")
    tokenizer = needed_tokenizer(inputs.subject, f"--dataset-name {KIND} sends text of exact lengths")
    texts, shared = _texts(profile, most, load_tokenizer(tokenizer, KIND), seed)
    sent = len(texts.input_lens)
    facts = DataFacts(
        kind=KIND, sent=sent, text="random tokens of the vocabulary, decoded", reusable_tokens=shared
    )
    notes = () if sent == most else (f"{sent} of {most} requests: as many for each of {prefixes} prefixes",)
    return SourcedRequests(texts, facts, tokenizer=tokenizer, notes=notes)


def _texts(profile: Profile, most: int, tokenizer: Tokenizer, seed: int) -> tuple[ListedTexts, int]:
    """The texts, and how many tokens of them an earlier prompt begins with too.

    Drawn from the legacy `RandomState(seed)` in this order: a prefix and what fills it up, then its
    suffixes, each with its own; the order of sending is that of `random.Random(seed).shuffle`.
    """
    state = np.random.RandomState(seed)

    def drawn(n: int) -> list[int]:
        ids: list[int] = state.randint(0, tokenizer.vocab_size, n).tolist()
        return ids

    each = most // profile.prefix_repetition_num_prefixes
    made: list[tuple[str, int]] = []
    shared = 0
    for _ in range(profile.prefix_repetition_num_prefixes):
        prefix = _exact(tokenizer, profile.prefix_repetition_prefix_len, drawn)
        shared += len(prefix) * (each - 1)
        for _ in range(each):
            ids = prefix + _exact(tokenizer, profile.prefix_repetition_suffix_len, drawn)
            made.append((tokenizer.decode(ids), len(ids)))
    if not profile.disable_shuffle:
        random.Random(seed).shuffle(made)
    texts, lens = zip(*made, strict=True)
    n = len(made)
    output_lens = np.full(n, profile.prefix_repetition_output_len, np.int64)
    return ListedTexts(list(texts), np.arange(n), np.array(lens, np.int64), output_lens), shared


def _exact(tokenizer: Tokenizer, length: int, drawn: Callable[[int], list[int]]) -> list[int]:
    """Ids whose text encodes to as many tokens again, as far as ten rounds settle it."""
    return fitted(tokenizer, drawn(length), length, drawn)[1]
