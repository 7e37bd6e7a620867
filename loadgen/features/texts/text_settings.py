"""Text settings: what the text of prompts that are made here is."""

from __future__ import annotations

from typing import Literal, get_args

from loadgen.settings.conflicts import find_data
from loadgen.settings.prompt_settings import OF_ITS_OWN, VariationKeys
from loadgen.settings.setting import (
    LENGTHS,
    Conflict,
    Given,
    Identity,
    KeyRows,
    Makes,
    RequestSource,
    Values,
    setting,
)

PromptFormat = Literal["auto", "ids", "text-vllm", "text-vllm-0.9", "corpus", "words"]


def _has_texts(values: Values) -> bool:
    return find_data(values)[0] not in ("random", "trace")  # a trace has the form of its prompts to choose


_TEXTS = Conflict(_has_texts, OF_ITS_OWN, Given.WRITTEN)


# fmt: off
class TextKeys(KeyRows, frozen=True):
    """The settings of the text of generated prompts."""

    prompt_format: PromptFormat = setting(Makes.REQUEST, "auto",
        "ids: exactly N random token ids (default where the API takes them); corpus: text cut to N "
        "tokens; words: sized by the server's own count", group=LENGTHS, rank=6,
        choices=get_args(PromptFormat), not_with=(_TEXTS,))
    prompt_corpus: str = setting(Makes.LOAD, "", "text for the format corpus (default: the one shipped)",
        group=LENGTHS, metavar="FILE", rank=6, compared=Identity.AS_READ, not_with=(_TEXTS,))
# fmt: on


PROFILE_KEYS = {VariationKeys: (TextKeys,)}
SOURCES: dict[str, RequestSource] = {}  # what random prompts are made of is not another source
