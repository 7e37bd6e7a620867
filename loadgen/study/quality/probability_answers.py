"""Probability answers: what servers' answers hold of log-probabilities, read into sampled answers and scores.

Sources: vLLM 0.32 `entrypoints/openai`, SGLang 0.5.23 `io_struct.GenerateReqInput`, llama.cpp
`tools/server/README.md`, and recorded answers of each. A reader raises NoProbabilities where
log-probabilities or token ids are missing, and msgspec.DecodeError for any other answer that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from loadgen.base.errors import MeasureError
from loadgen.base.text import REPLACEMENT
from loadgen.study.quality.quality_record import SampledAnswer, TokenScores
from loadgen.wire.openai import Count

NO_SCORES = "it returns no log-probabilities of a prompt's tokens"
_NO_SAMPLES = "it returns no log-probabilities of sampled tokens"
_HIDDEN = 0  # what SGLang writes for the last id of a vocabulary, which it takes for a picture's
_LEAST = -9999.0  # what vLLM writes for a log-probability of −∞


class NoProbabilities(MeasureError):
    """A server's answer is well-formed and has no log-probabilities, or no token ids."""


class TokenSequence(NamedTuple):
    """Token ids of which those from index `start` on, 1 at least, are to be scored."""

    token_ids: tuple[int, ...]
    start: int


class _TokenIds(msgspec.Struct):
    tokens: list[Count]


class _Token(msgspec.Struct):
    """A token of a chat answer, or of llama.cpp's own API; `id` is llama.cpp's."""

    token: str = ""
    logprob: float | None = None
    id: Count | None = None
    bytes: list[int] | None = None
    top_logprobs: list[_Token] | None = None


class _Logprobs(msgspec.Struct):
    """The columns of a completion, or the tokens of a chat's answer."""

    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_Token] | None = None


class _PromptEntry(msgspec.Struct):
    logprob: float | None = None
    rank: Count | None = None


class _Choice(msgspec.Struct):
    """An answer; of a chat SGLang has its ids as `response_token_ids`, with those of the prompt."""

    index: Count = 0
    token_ids: list[Count] | None = None
    response_token_ids: list[Count] | None = None
    prompt_token_ids: list[Count] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, _PromptEntry] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    prompt_token_ids: list[Count] | None = None


_Column = list[tuple[float | None, Count, Any]]  # a log-probability, its token's id and text


class _GenerateMeta(msgspec.Struct):
    """SGLang's `meta_info`; the first token of a prompt has no log-probability."""

    output_token_logprobs: _Column | None = None
    output_top_logprobs: list[_Column | None] | None = None
    input_token_logprobs: _Column | None = None
    input_top_logprobs: list[_Column | None] | None = None


class _Generated(msgspec.Struct):
    meta_info: _GenerateMeta


class _Sampled(msgspec.Struct):
    """An answer of llama.cpp's /completion; a token that ends within a character has no probability."""

    completion_probabilities: list[_Token] | None = None
    tokens: list[Count] | None = None


_TOKENS = msgspec.json.Decoder(_TokenIds)
_COMPLETION = msgspec.json.Decoder(_Completion)
_GENERATED = msgspec.json.Decoder(list[_Generated])
_SAMPLED = msgspec.json.Decoder(_Sampled)


def read_token_ids(body: bytes) -> tuple[int, ...]:
    """Read the token ids in the answer of a /tokenize."""
    return tuple(_TOKENS.decode(body).tokens)


def read_completions(body: bytes, prompts: Sequence[tuple[int, ...]], top: int) -> list[SampledAnswer]:
    """Read vLLM's answers to prompts, in their order, with `top` alternatives of each token at most."""
    answers = []
    for prompt, choice in zip(prompts, _read_choices(body, len(prompts)), strict=True):
        found = choice.logprobs or _Logprobs()
        # The sampled token is there too, one more, where it is none of the most probable.
        tops = [(each or {}).values() for each in found.top_logprobs or []]
        answers.append(_make_answer(prompt, choice.token_ids, found.token_logprobs, tops, top))
    return answers


def read_chat(body: bytes, top: int) -> SampledAnswer:
    """Read vLLM's or SGLang's answer to a chat, with its prompt's ids and at most `top` − 1 alternatives."""
    answer = _COMPLETION.decode(body)
    _check_count(len(answer.choices), 1)
    choice = answer.choices[0]
    prompt = answer.prompt_token_ids or choice.prompt_token_ids
    if not prompt:
        raise NoProbabilities("it returns no ids of a chat's prompt")
    ids = choice.token_ids or choice.response_token_ids
    content = choice.logprobs.content if choice.logprobs is not None else None
    # vLLM lists the sampled token in place of the last one where it is none of the most probable.
    return _read_tokens(prompt, ids, content or [], top - 1)


def read_prompt_scores(body: bytes, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
    """Read vLLM's scores of sequences, from their start on: the entry of each token's id, and of rank 1."""
    scores = []
    for (ids, start), choice in zip(sequences, _read_choices(body, len(sequences)), strict=True):
        if choice.prompt_logprobs is None:
            raise NoProbabilities(NO_SCORES)
        _check_count(len(choice.prompt_logprobs), len(ids), "scores of {} tokens in one prompt")
        logprobs, firsts = list[float](), list[int | None]()
        for token, entries in list(zip(ids, choice.prompt_logprobs, strict=True))[start:]:
            own = (entries or {}).get(str(token))
            if entries is None or own is None:
                raise msgspec.ValidationError(f"a prompt's token {token} has no log-probability")
            logprobs.append(_read_logprob(own.logprob))
            best = next((key for key, entry in entries.items() if entry.rank == 1), None)
            firsts.append(int(best) if best is not None and best.isdecimal() else None)
        scores.append(TokenScores(tuple(logprobs), _keep_whole(firsts)))
    return scores


def read_generated(body: bytes, prompts: Sequence[tuple[int, ...]], top: int) -> list[SampledAnswer]:
    """Read the answers of SGLang's /generate, in order, with at most `top` alternatives of each token."""
    answers = []
    for prompt, found in zip(prompts, _read_generated(body, len(prompts)), strict=True):
        sampled = found.output_token_logprobs or []
        tops = [[each[0] for each in position or []] for position in found.output_top_logprobs or []]
        ids, logprobs = [each[1] for each in sampled], [each[0] for each in sampled]
        answers.append(_make_answer(prompt, ids, logprobs, tops, top))
    return answers


def read_generated_scores(body: bytes, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
    """Read SGLang's scores of sequences, from their start on."""
    scores = []
    for (ids, start), meta in zip(sequences, _read_generated(body, len(sequences)), strict=True):
        wanted = ids[start:]
        found = (meta.input_token_logprobs or [])[-len(wanted) :]
        if not found:
            raise NoProbabilities(NO_SCORES)
        if len(found) < len(wanted) or any(
            token not in (own, _HIDDEN) for own, (_, token, _) in zip(wanted, found, strict=True)
        ):
            raise msgspec.ValidationError("the log-probabilities are of other tokens than the prompt's")
        tops = (meta.input_top_logprobs or [])[-len(wanted) :]
        firsts = _keep_whole([position[0][1] if position else None for position in tops])
        whole = firsts is not None and len(firsts) == len(wanted)
        logprobs = tuple(_read_logprob(each[0]) for each in found)
        scores.append(TokenScores(logprobs, firsts if whole else None))
    return scores


def read_llamacpp(body: bytes, prompts: Sequence[tuple[int, ...]], top: int) -> list[SampledAnswer]:
    """Read llama.cpp's answer to a prompt, up to a token without a probability; [] if that is the first."""
    answer = _SAMPLED.decode(body)
    rows, tokens = answer.completion_probabilities or [], answer.tokens or []
    if tokens:
        same = takewhile(lambda pair: pair[0].id == pair[1], zip(rows, tokens, strict=False))
        if not (rows := [row for row, _ in same]):
            return []
    return [_read_tokens(prompts[0], _keep_whole([row.id for row in rows]), rows, top)]


class TextAnswer(NamedTuple):
    """A sampled answer as texts of tokens, with the columns of a SampledAnswer; None for what is no text."""

    texts: tuple[str | None, ...]
    logprobs: tuple[float, ...]
    tops: tuple[tuple[float, ...], ...]

    def with_ids(self, prompt: Sequence[int], ids: Sequence[int | None], most: int) -> SampledAnswer | None:
        """Return the answer, up to the first token without an id, with `most` alternatives; None if empty."""
        known = list[int]()
        for token in ids:
            if token is None:
                break
            known.append(token)
        if not known:
            return None
        return _make_answer(prompt, known, self.logprobs[: len(known)], self.tops[: len(known)], most)


_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")  # how OpenAI's API writes a token that is no text


def read_text_answer(body: bytes) -> TextAnswer:
    """Read the answer of a server that reports texts of tokens and no ids."""
    choices = _COMPLETION.decode(body).choices
    found = (choices[0].logprobs if choices else None) or _Logprobs()
    if rows := found.content:
        texts = [_decode_text(row.token, row.bytes) for row in rows]
        logprobs = [row.logprob for row in rows]
        tops = [[each.logprob for each in row.top_logprobs or ()] for row in rows]
    else:
        texts = [_decode_text(token, None) for token in found.tokens or ()]
        logprobs = found.token_logprobs or []
        tops = [list((each or {}).values()) for each in found.top_logprobs or [None] * len(texts)]
        if not texts or len(logprobs) != len(texts):
            raise NoProbabilities(_NO_SAMPLES)
    listed = tuple(tuple(map(_read_logprob, each)) for each in tops)
    return TextAnswer(tuple(texts), tuple(map(_read_logprob, logprobs)), listed)


def _decode_text(token: str, raw: list[int] | None) -> str | None:
    """Return a token's text, by its bytes if it has them; None if it is empty or not whole characters."""
    if raw is None and (written := _BYTES.fullmatch(token)):
        raw = list(bytes.fromhex(written[1].replace("\\x", "")))
    try:
        text = token if raw is None else bytes(raw).decode()
    except ValueError:
        return None
    return None if not text or REPLACEMENT in text else text


def _read_choices(body: bytes, count: int) -> list[_Choice]:
    choices = sorted(_COMPLETION.decode(body).choices, key=lambda choice: choice.index)
    _check_count(len(choices), count)
    return choices


def _read_generated(body: bytes, count: int) -> list[_GenerateMeta]:
    answers = _GENERATED.decode(body)
    _check_count(len(answers), count)
    return [answer.meta_info for answer in answers]


def _check_count(found: int, wanted: int, what: str = "answers to {} prompts") -> None:
    if found != wanted:
        raise msgspec.ValidationError(f"{found} {what.format(wanted)}")


def _read_tokens(
    prompt: Sequence[int], ids: Sequence[int] | None, rows: Sequence[_Token], most: int
) -> SampledAnswer:
    tops = [[each.logprob for each in row.top_logprobs or []] for row in rows]
    return _make_answer(prompt, ids, [row.logprob for row in rows], tops, most)


def _make_answer(
    prompt: Sequence[int],
    ids: Sequence[int] | None,
    logprobs: Sequence[float | None] | None,
    tops: Sequence[Iterable[float | None]],
    most: int,
) -> SampledAnswer:
    """Make an answer of columns, with the `most` highest of each position's `tops`.

    It has fewer where one position has fewer, and None where one has none.
    """
    if not logprobs:
        raise NoProbabilities(_NO_SAMPLES)
    if not ids:
        raise NoProbabilities("it returns no ids of sampled tokens")
    _check_count(len(ids), len(logprobs), "token ids and {} log-probabilities in one answer")
    highest = [sorted(map(_read_logprob, each), reverse=True)[: max(most, 0)] for each in tops]
    fewest = min(map(len, highest), default=0) if len(tops) == len(logprobs) else 0
    return SampledAnswer(
        prompt_ids=tuple(prompt),
        token_ids=tuple(ids),
        logprobs=tuple(map(_read_logprob, logprobs)),
        top=tuple(tuple(each[:fewest]) for each in highest) if fewest else None,
    )


def _read_logprob(value: float | None) -> float:
    """Return a log-probability, -9999 where a server wrote null or less: JSON has no number for −∞."""
    return _LEAST if value is None else max(value, _LEAST)


def _keep_whole(column: Sequence[int | None]) -> tuple[int, ...] | None:
    kept = tuple(value for value in column if value is not None)
    return kept if len(kept) == len(column) else None
