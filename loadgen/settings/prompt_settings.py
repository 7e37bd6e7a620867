"""Prompt settings: what text prompts are, how long they and answers are, and which prefixes they share."""

from functools import partial
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from loadgen.base import parsing
from loadgen.base.parsing import integer_between, number_between
from loadgen.settings.conflicts import find_data, reads_data
from loadgen.settings.setting import LENGTHS, Conflict, Given, Makes, Requirement, Setting

PromptFormat = Literal["auto", "ids", "text-vllm", "text-vllm-0.9", "corpus", "words"]
Compat = Literal["vllm", "vllm-0.9", "sglang", "inferencex"]
_NO_RANGE = ("0.0", "0", "")


OF_ITS_OWN = "{flag} is of random prompts, and {data} has prompts of its own: leave out one of them"
_MADE = Conflict(reads_data, OF_ITS_OWN, Given.WRITTEN)
# A trace has the form of its prompts to choose.
_TEXTS = Conflict(lambda values: find_data(values)[0] not in ("random", "trace"), OF_ITS_OWN, Given.WRITTEN)
_RANGE = Conflict(
    lambda values: values["range_ratio"] not in _NO_RANGE,
    "{flag} and --random-range-ratio {range_ratio} both vary the lengths: leave one "
    "out (a profile's by --random-range-ratio 0)",
)
_PREFIX = Requirement(
    lambda values: values["prefix_len"] > 0 or reads_data(values),
    "{flag} needs prefixes: pass --random-prefix-len N",
)
_IN_CLASSES = "{flag} and --class both give lengths: write them into each class, as input_len=500"
_CLASSES = Conflict("classes", _IN_CLASSES, Given.TYPED)

# fmt: off
_made = partial(Setting, Makes.LOAD, group=LENGTHS, rules=(_MADE,))
_dist = partial(Setting, Makes.LOAD, group=LENGTHS, metavar="DIST", rank=3,
    rules=(_RANGE, _MADE, Conflict("classes", _IN_CLASSES, Given.WRITTEN)))
_length = partial(Setting, Makes.LOAD, group=LENGTHS)


class TextKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of the text of generated prompts."""

    prompt_format: Annotated[PromptFormat, Setting(Makes.REQUEST, "form of random prompts. ids: exactly N "
        "random token ids (default where the API takes them); corpus: text cut to N tokens; words: sized "
        "by the server's own count", group=LENGTHS, rank=6, rules=(_TEXTS,))] = "auto"
    prompt_corpus: Annotated[str, Setting(Makes.LOAD, "text of --prompt-format corpus (default: the one "
        "that is shipped)", group=LENGTHS, metavar="FILE", rank=6, rules=(_TEXTS,))] = ""


class VariationKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of how the lengths of generated prompts vary, and of the prefixes that prompts share."""

    compat: Annotated[Compat, _made("client whose meaning --random-range-ratio has (default vllm)",
        rank=3)] = "vllm"
    # As lognormal:mean=1024,sd=512,min=16,max=8192; "": by input_len, range_ratio.
    input_dist: Annotated[str, _dist("distribution of prompt tokens: fixed, uniform, normal, lognormal, "
        "zipf, histogram:FILE; as lognormal:mean=1024,sd=512,min=16,max=8192")] = ""
    output_dist: Annotated[str, _dist("distribution of output tokens, as of --input-dist")] = ""
    # Prefixes of `prefix_len` tokens, of which each prompt begins with one.
    prefix_groups: Annotated[int, _made("number of different prefixes, of --random-prefix-len each "
        "(default 1)", rank=5, read=integer_between(1, parsing.MOST_TOKENS), metavar="N",
        rules=(_PREFIX, _MADE))] = 1
    prefix_zipf: Annotated[float, _made("Zipf exponent of the prefixes' popularity (default 0: all alike)",
        read=number_between(0, 10), metavar="S", rank=5, rules=(_PREFIX, _MADE))] = 0.0


class LengthKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of how long prompts and answers are."""

    input_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS), _length("prompt tokens (default 1024)",
        flag="--random-input-len", metavar="N", rules=(_CLASSES,), common=True)] = 1024
    output_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS), _length("output tokens (default 128)",
        flag="--random-output-len", metavar="N", rules=(_CLASSES,), common=True)] = 128
    # One number, or {"input": R, "output": R} as JSON.
    range_ratio: Annotated[str, _length("vary lengths by ± R, 0 to 1", flag="--random-range-ratio",
        metavar="R", rank=2, rules=(_CLASSES,), common=True)] = "0.0"
    prefix_len: Annotated[int, Field(ge=0, le=parsing.MOST_TOKENS), _length("tokens of the prefix that "
        "prompts share (default 0)", flag="--random-prefix-len", metavar="N", rank=4)] = 0
# fmt: on
