"""Prompt settings: what the text of prompts that are made here is, and how long prompts and answers are."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from loadgen.base import bounds
from loadgen.base.bounds import integer_between, number_between
from loadgen.settings.setting import (
    LENGTHS,
    NO_KEYWORD,
    OF_A_PROFILE,
    Identity,
    KeyRows,
    Makes,
    OptionRows,
    setting,
)

PromptFormat = Literal["auto", "ids", "text-vllm", "text-vllm-0.9", "corpus", "words"]
Compat = Literal["vllm", "vllm-0.9", "sglang", "inferencex"]
_N = {"read": integer_between(1, bounds.MOST_TOKENS), "metavar": "N"}
_LEN = {"read": int, "metavar": "N", "least": 1, "most": bounds.MOST_TOKENS}

# fmt: off
_length = partial(setting, Makes.LOAD, group=LENGTHS)


class TextKeys(KeyRows, frozen=True):
    """What the text of prompts that are made here is, and how their lengths vary."""

    prompt_format: PromptFormat = setting(Makes.REQUEST, "auto",
        "ids: exactly N random token ids (default where the API takes them); corpus: text cut to N "
        "tokens; words: sized by the server's own count", group=LENGTHS, rank=6,
        choices=get_args(PromptFormat))
    prompt_corpus: str = _length("", "text for the format corpus (default: the one shipped)", metavar="FILE",
        rank=6, compared=Identity.AS_READ)
    compat: Compat = _length("vllm", "whose meaning of --random-range-ratio (default vllm)", rank=3,
        choices=get_args(Compat))
    # As lognormal:mean=1024,sd=512,min=16,max=8192; "": by input_len, range_ratio.
    input_dist: str = _length("", "of prompt tokens: fixed, uniform, normal, lognormal, zipf, "
        "histogram:FILE; as lognormal:mean=1024,sd=512,min=16,max=8192", metavar="DIST", rank=3)
    output_dist: str = _length("", "of output tokens", metavar="DIST", rank=3)
    # Prefixes of `prefix_len` tokens, of which each prompt begins with one.
    prefix_groups: int = _length(1, "different prefixes of that length (default 1)", rank=5, **_N)
    prefix_zipf: float = _length(0.0, "exponent of their popularity (default 0: all alike)",
        read=number_between(0, 10), metavar="S", rank=5)


class LengthKeys(KeyRows, frozen=True):
    """How long prompts and answers are."""

    input_len: int = _length(1024, "prompt tokens (default 1024)", flag="--random-input-len", **_LEN,
        compared=Identity.AS_PLANNED)
    output_len: int = _length(128, "output tokens (default 128)", flag="--random-output-len", **_LEN,
        compared=Identity.AS_PLANNED)
    # One number, or {"input": R, "output": R} as JSON.
    range_ratio: str = _length("0.0", "vary lengths by ± R, 0 to 1", flag="--random-range-ratio",
        metavar="R", rank=2, keyword="str | float", compared=Identity.AS_SPREAD)
    prefix_len: int = _length(0, "tokens that all prompts share", flag="--random-prefix-len", rank=4,
        **_LEN | {"least": 0}, compared=Identity.AS_SPREAD)


class LengthFlags(OptionRows, frozen=True):
    """Flags that are laid over several keys: the lengths of whichever data set there is."""

    every_input_len: int | None = _length(None, "as --random-input-len", flag="--input-len", read=int,
        metavar="N", rank=1, keyword=NO_KEYWORD, campaign=OF_A_PROFILE)
    every_output_len: int | None = _length(None, "of every data set, instead of its own",
        flag="--output-len", read=int, metavar="N", rank=1,
        keyword=NO_KEYWORD, campaign=OF_A_PROFILE)
# fmt: on
