"""Text probabilities: APIs that report log-probabilities with texts of tokens and no ids, as hosted ones do.

Such a server samples, and the one that scores tokenizes: a token's text alone has the id of that token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from loadgen.base.text import REPLACEMENT
from loadgen.features.quality.probability_apis import (
    NEUTRAL,
    ApiRequest,
    NoProbabilities,
    make_answer,
    read_logprob,
)
from loadgen.features.quality.quality_record import SampledAnswer

_TEXT_SAMPLING = {name: value for name, value in NEUTRAL.items() if name != "min_p"}  # what OpenAI's API has
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")  # how it writes a token that is no text


class _Top(msgspec.Struct):
    """A token of a chat answer that might have been sampled."""

    logprob: float | None = None


class _ChatToken(msgspec.Struct):
    """A sampled token of a chat answer."""

    token: str
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[_Top] | None = None


class _Logprobs(msgspec.Struct):
    """The log-probabilities of either API: columns of a completion, rows of a chat."""

    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_ChatToken] | None = None


class _Choice(msgspec.Struct):
    """An answer of either API."""

    logprobs: _Logprobs | None = None


class _Response(msgspec.Struct):
    """The response of either API to one prompt."""

    choices: list[_Choice]


_RESPONSE = msgspec.json.Decoder(_Response)


class TextAnswer(NamedTuple):
    """A sampled answer as texts of tokens, with the columns of a SampledAnswer; None for what is no text."""

    texts: tuple[str | None, ...]
    logprobs: tuple[float, ...]
    tops: tuple[tuple[float, ...], ...]

    def with_ids(self, prompt: Sequence[int], ids: Sequence[int | None], most: int) -> SampledAnswer | None:
        """Return the answer up to the first token without an id; None if that is the first of all."""
        known = ids.index(None) if None in ids else len(ids)
        if not known:
            return None
        whole = [token for token in ids[:known] if token is not None]
        return make_answer(prompt, whole, self.logprobs[:known], self.tops[:known], most)


def make_text_request(
    model: str, prompt: str, tokens: int, top: int, chat: bool, tokens_field: str = ""
) -> ApiRequest:
    """Make a request for the answer to a text, or to a `chat` with it, with `top` alternatives."""
    body = {"model": model, tokens_field or "max_tokens": tokens, **_TEXT_SAMPLING}
    if chat:
        message = {"role": "user", "content": prompt}
        body |= {"messages": [message], "logprobs": True, "top_logprobs": top}
        return ApiRequest("/chat/completions", body, versioned=True)
    return ApiRequest("/completions", {**body, "prompt": prompt, "logprobs": top}, versioned=True)


def read_text_answer(body: bytes) -> TextAnswer:
    """Read an answer; raises NoProbabilities if it has no log-probabilities, else msgspec.DecodeError."""
    choices = _RESPONSE.decode(body).choices
    found = choices[0].logprobs if choices else None
    if found is not None and found.content:
        rows = found.content
        texts = [_decode_text(row.token, row.bytes) for row in rows]
        logprobs = [read_logprob(row.logprob) for row in rows]
        tops = [tuple(read_logprob(each.logprob) for each in row.top_logprobs or ()) for row in rows]
        return TextAnswer(tuple(texts), tuple(logprobs), tuple(tops))
    if found is None or not found.tokens or len(found.token_logprobs or ()) != len(found.tokens):
        raise NoProbabilities("it returns no log-probabilities of sampled tokens")
    texts = [_decode_text(token, None) for token in found.tokens]
    listed = found.top_logprobs or [None] * len(texts)
    tops = [tuple(map(read_logprob, (each or {}).values())) for each in listed]
    return TextAnswer(tuple(texts), tuple(map(read_logprob, found.token_logprobs or ())), tuple(tops))


def _decode_text(token: str, raw: list[int] | None) -> str | None:
    """Return a token's text, of its bytes where they are given; None for bytes that are no text."""
    if raw is None and (written := _BYTES.fullmatch(token)):
        raw = list(bytes.fromhex(written[1].replace("\\x", "")))
    try:
        text = token if raw is None else bytes(raw).decode()
    except ValueError:
        return None
    return None if not text or REPLACEMENT in text else text
