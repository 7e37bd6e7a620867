"""Quality settings: what `loadgen quality` holds a server to, on which text, and how many tokens it takes."""

from __future__ import annotations

from functools import partial

from loadgen.base.parsing import MOST_TOKENS, integer_between, number_between
from loadgen.features.quality.quality_text import ANSWER_TOKENS, TOKENS
from loadgen.features.quality.quality_verdict import MARGIN
from loadgen.settings.setting import NO_KEYWORD, Makes, OptionRows, setting

QUALITY = "the quality (docs/quality.md)"
_MOST_NATS = 100.0

# fmt: off
_quality = partial(setting, Makes.NOTHING, group=QUALITY, keyword=NO_KEYWORD)


class QualityOptions(OptionRows, frozen=True):
    """The settings of a measurement of quality."""

    reference_url: str | None = _quality(None, "the reference is a server that is up too, and gets the "
        "same key and headers", metavar="URL")
    reference_model: str | None = _quality(None, "its model (default: the first in /v1/models)",
        metavar="NAME")
    reference: str | None = _quality(None, "the reference is what --save kept in this file", metavar="FILE")
    save: str | None = _quality(None, "keep the answers and scores of a reference in this file; a file that "
        "is there goes on (with --reference-url: of that server)", metavar="FILE")
    text: str | None = _quality(None, "text to score, in UTF-8 (default: the one that is shipped)",
        metavar="FILE")
    tokens: int = _quality(TOKENS, f"of all answers that are sampled (default {TOKENS})",
        read=integer_between(1, MOST_TOKENS), metavar="N")
    answer_tokens: int = _quality(ANSWER_TOKENS, f"of an answer, at most (default {ANSWER_TOKENS})",
        read=integer_between(1, MOST_TOKENS), metavar="N")
    precision: float | None = _quality(None, "stop once KL is within ± NATS a token",
        read=number_between(1e-6, _MOST_NATS), metavar="NATS")
    margin: float = _quality(MARGIN, f"KL up to NATS a token counts as the same (default {MARGIN})",
        read=number_between(1e-6, _MOST_NATS), metavar="NATS")
    chat: bool = _quality(False, "sample answers to chats with one message", action="store_true")
# fmt: on
