"""Prompt settings: what text prompts are, how long they and answers are, and which prefixes they share."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, get_args

from loadgen.base import parsing
from loadgen.base.parsing import integer_between, number_between
from loadgen.settings.conflicts import find_data, reads_data
from loadgen.settings.setting import (
    LENGTHS,
    NO_KEYWORD,
    OF_A_PROFILE,
    Conflict,
    Given,
    Identity,
    KeyRows,
    Makes,
    OptionRows,
    Values,
    setting,
)

PromptFormat = Literal["auto", "ids", "text-vllm", "text-vllm-0.9", "corpus", "words"]
Compat = Literal["vllm", "vllm-0.9", "sglang", "inferencex"]
_N = {"read": integer_between(1, parsing.MOST_TOKENS), "metavar": "N"}
_LEN = {"read": int, "metavar": "N", "least": 1, "most": parsing.MOST_TOKENS}
_NO_RANGE = ("0.0", "0", "")


def _has_prefix(values: Values) -> bool:
    return values["prefix_len"] > 0 or reads_data(values)


def _has_texts(values: Values) -> bool:
    return find_data(values)[0] not in ("random", "trace")  # a trace has the form of its prompts to choose


def _varies_lengths(values: Values) -> bool:
    return values["range_ratio"] not in _NO_RANGE


OF_ITS_OWN = "{flag} is of random prompts, and {data} has prompts of its own: leave out one of them"
_MADE = Conflict(reads_data, OF_ITS_OWN, Given.WRITTEN)
_TEXTS = Conflict(_has_texts, OF_ITS_OWN, Given.WRITTEN)
_RANGE = Conflict(
    _varies_lengths,
    "{flag} and --random-range-ratio {range_ratio} both vary the lengths: leave one "
    "out (a profile's by --random-range-ratio 0)",
)
_PREFIX = Conflict(_has_prefix, "{flag} needs prefixes: pass --random-prefix-len N")
_IN_CLASSES = "{flag} and --class both give lengths: write them into each class, as input_len=500"
_CLASSES = Conflict("classes", _IN_CLASSES, Given.TYPED)
_RANDOM: dict[str, Any] = {"data_sets": ("random",), "not_with": (_CLASSES,)}

# fmt: off
_made = partial(setting, Makes.LOAD, group=LENGTHS, not_with=(_MADE,))
_dist = partial(setting, Makes.LOAD, group=LENGTHS, metavar="DIST", rank=3,
    not_with=(_RANGE, _MADE, Conflict("classes", _IN_CLASSES, Given.WRITTEN)))
_length = partial(setting, Makes.LOAD, group=LENGTHS)


class TextKeys(KeyRows, frozen=True):
    """The settings of the text of generated prompts."""

    prompt_format: PromptFormat = setting(Makes.REQUEST, "auto",
        "form of random prompts. ids: exactly N random token ids (default where the API takes them); corpus: "
        "text cut to N tokens; words: sized by the server's own count", group=LENGTHS, rank=6,
        choices=get_args(PromptFormat), not_with=(_TEXTS,))
    prompt_corpus: str = setting(Makes.LOAD, "", "text of --prompt-format corpus (default: the one that is "
        "shipped)",
        group=LENGTHS, metavar="FILE", rank=6, compared=Identity.AS_READ, not_with=(_TEXTS,))


class VariationKeys(KeyRows, frozen=True):
    """The settings of how the lengths of generated prompts vary, and of the prefixes that prompts share."""

    compat: Compat = _made("vllm", "client whose meaning --random-range-ratio has (default vllm)", rank=3,
        choices=get_args(Compat))
    # As lognormal:mean=1024,sd=512,min=16,max=8192; "": by input_len, range_ratio.
    input_dist: str = _dist("", "distribution of prompt tokens: fixed, uniform, normal, lognormal, zipf, "
        "histogram:FILE; as lognormal:mean=1024,sd=512,min=16,max=8192")
    output_dist: str = _dist("", "distribution of output tokens, as of --input-dist")
    # Prefixes of `prefix_len` tokens, of which each prompt begins with one.
    prefix_groups: int = _made(1, "number of different prefixes, of --random-prefix-len each (default 1)",
        rank=5, needs=(_PREFIX,), **_N)
    prefix_zipf: float = _made(0.0, "Zipf exponent of the prefixes' popularity (default 0: all alike)",
        read=number_between(0, 10), metavar="S", rank=5, needs=(_PREFIX,))


class LengthKeys(KeyRows, frozen=True):
    """The settings of how long prompts and answers are."""

    input_len: int = _length(1024, "prompt tokens (default 1024)", flag="--random-input-len", **_LEN,
        **_RANDOM, compared=Identity.AS_PLANNED, common=True)
    output_len: int = _length(128, "output tokens (default 128)", flag="--random-output-len", **_LEN,
        not_with=(_CLASSES,), compared=Identity.AS_PLANNED, common=True)
    # One number, or {"input": R, "output": R} as JSON.
    range_ratio: str = _length("0.0", "vary lengths by ± R, 0 to 1", flag="--random-range-ratio",
        metavar="R", rank=2, keyword="str | float", compared=Identity.AS_SPREAD, **_RANDOM, common=True)
    prefix_len: int = _length(0, "tokens of the prefix that prompts share (default 0)",
        flag="--random-prefix-len", rank=4,
        **_LEN | {"least": 0}, compared=Identity.AS_SPREAD, data_sets=("random",))


class LengthFlags(OptionRows, frozen=True):
    """The flags --input-len and --output-len, which set the lengths of whichever data set is used."""

    every_input_len: int | None = _length(None, "prompt tokens, as --random-input-len",
        flag="--input-len", read=int, metavar="N", rank=1, keyword=NO_KEYWORD, campaign=OF_A_PROFILE)
    every_output_len: int | None = _length(None, "output tokens of every data set, instead of its own",
        flag="--output-len", read=int, metavar="N", rank=1,
        keyword=NO_KEYWORD, campaign=OF_A_PROFILE)
# fmt: on
