"""Probability APIs: how each engine is asked to sample with log-probabilities, and to score given token ids.

An API makes requests of token ids and reads what comes back; nothing here sends anything. Each sampling
parameter is in the request, since a server takes what is left out from the checkpoint's own
`generation_config.json`. Sources: vLLM 0.32 `entrypoints/openai`, SGLang 0.5.23 `io_struct.GenerateReqInput`,
llama.cpp `tools/server/README.md`, and recorded answers of each.

Others, as hosted ones do, report texts of tokens and no ids: such a server samples, and the one that scores
tokenizes, since a token's text alone has the id of that token.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import msgspec

from loadgen.base.errors import MeasureError
from loadgen.base.text import REPLACEMENT
from loadgen.study.quality.quality_record import SampledAnswer, TokenScores
from loadgen.wire.openai import Count

TOP = 20  # log-probabilities of a position: the most that vLLM and OpenAI's API give by default
_NO_SCORES = "it returns no log-probabilities of a prompt's tokens"
_NO_CHAT = "it returns no ids of a chat's prompt"
_HIDDEN = 0  # what SGLang writes for the last id of a vocabulary, which it takes for a picture's
_LEAST = -9999.0  # what vLLM writes for a log-probability of −∞
NEUTRAL: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
_VLLM = {**NEUTRAL, "top_k": -1, "repetition_penalty": 1.0, "ignore_eos": False, "min_tokens": 0}
_SGLANG = {**NEUTRAL, "top_k": -1, "repetition_penalty": 1.0, "ignore_eos": False}
_LLAMACPP = {
    **NEUTRAL, "samplers": ["temperature"], "top_k": 0, "typical_p": 1.0, "repeat_penalty": 1.0,
    "dry_multiplier": 0.0, "xtc_probability": 0.0, "mirostat": 0, "post_sampling_probs": False,
}  # fmt: skip


class NoProbabilities(MeasureError):
    """A server's answer is well-formed and has no log-probabilities, or no token ids."""


class ApiRequest(NamedTuple):
    """A request: its path, and its body as JSON; `versioned` paths follow the prefix of OpenAI's API."""

    path: str
    body: dict[str, Any]
    versioned: bool = False


class TokenSequence(NamedTuple):
    """Token ids of which those from index `start` on, 1 at least, are to be scored."""

    token_ids: tuple[int, ...]
    start: int


class ProbabilityApi(ABC):
    """An engine's requests for log-probabilities, and what their answers hold; here, where it cannot score.

    A reader raises NoProbabilities where log-probabilities or token ids are missing, and
    msgspec.DecodeError for any other answer that it cannot read.
    """

    scores_prompts = False  # it gives the log-probabilities of token ids that it did not sample
    prompts_each = 1  # in one request, at most
    answers_chats = False  # its chat API returns token ids with log-probabilities

    @abstractmethod
    def make_sampling(
        self, model: str, prompts: Sequence[tuple[int, ...]], tokens: int, top: int
    ) -> ApiRequest:
        """Make a request for one answer to each prompt, of `tokens` at most, with `top` alternatives."""

    @abstractmethod
    def read_samples(self, body: bytes, prompts: Sequence[tuple[int, ...]], top: int) -> list[SampledAnswer]:
        """Read the answers, in the order of the prompts, with `top` alternatives of each token at most."""

    @abstractmethod
    def make_tokenizing(self, model: str, text: str, alone: bool = False) -> ApiRequest:
        """Make a request for a text's token ids: `alone`, or with those that begin a prompt."""

    def make_chat_tokenizing(self, model: str, message: str) -> ApiRequest | None:
        """Make a request for the token ids of a chat with one user's message; None where it has none."""
        return None

    def make_scoring(self, model: str, sequences: Sequence[TokenSequence]) -> ApiRequest:
        """Make a request for the log-probabilities of given token ids; one token may be sampled in vain."""
        raise NoProbabilities(_NO_SCORES)

    def read_scores(self, body: bytes, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        """Read the scores of each sequence from its start on."""
        raise NoProbabilities(_NO_SCORES)

    @property
    def simpler(self) -> ProbabilityApi | None:
        """The same API that asks less of a scored position, for a server that refuses more; None without."""
        return None

    def make_chat(self, model: str, message: str, tokens: int, top: int) -> ApiRequest:
        """Make a chat request with one user's message, whose answer has log-probabilities and ids."""
        raise NoProbabilities(_NO_CHAT)

    def read_chat(self, body: bytes, top: int) -> SampledAnswer:
        """Read the answer of a chat request."""
        raise NoProbabilities(_NO_CHAT)


class _TokenIds(msgspec.Struct):
    tokens: list[Count]


_TOKENS = msgspec.json.Decoder(_TokenIds)


def read_token_ids(body: bytes) -> tuple[int, ...]:
    """Read the token ids in the answer of a /tokenize; raises msgspec.DecodeError."""
    return tuple(_TOKENS.decode(body).tokens)


class _CompletionLogprobs(msgspec.Struct):
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _PromptEntry(msgspec.Struct):
    logprob: float | None = None
    rank: Count | None = None


class _CompletionChoice(msgspec.Struct):
    index: Count = 0
    token_ids: list[Count] | None = None
    logprobs: _CompletionLogprobs | None = None
    prompt_logprobs: list[dict[str, _PromptEntry] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_CompletionChoice]


class _TopToken(msgspec.Struct):
    """A token of a chat answer, or of llama.cpp's own API; `id` is llama.cpp's."""

    logprob: float | None = None
    id: Count | None = None


class _ChatToken(_TopToken):
    top_logprobs: list[_TopToken] | None = None


class _ChatLogprobs(msgspec.Struct):
    content: list[_ChatToken] | None = None


class _ChatChoice(msgspec.Struct):
    """A chat answer; vLLM has its ids as `token_ids`, SGLang as `response_token_ids`, with the prompt's."""

    logprobs: _ChatLogprobs | None = None
    token_ids: list[Count] | None = None
    response_token_ids: list[Count] | None = None
    prompt_token_ids: list[Count] | None = None


class _ChatCompletion(msgspec.Struct):
    choices: list[_ChatChoice]
    prompt_token_ids: list[Count] | None = None


_COMPLETION = msgspec.json.Decoder(_Completion)
_CHAT = msgspec.json.Decoder(_ChatCompletion)


def read_logprob(value: float | None) -> float:
    """Return a log-probability, -9999 where a server wrote null or less: JSON has no number for −∞."""
    return _LEAST if value is None else max(value, _LEAST)


def make_answer(
    prompt: Sequence[int],
    token_ids: Sequence[int] | None,
    logprobs: Sequence[float | None] | None,
    tops: Sequence[Sequence[float]],
    most: int,
) -> SampledAnswer:
    """Make an answer of columns; raises NoProbabilities where ids or log-probabilities are missing.

    Raises msgspec.ValidationError for columns of different lengths. `top` has the `most` highest of each
    position, fewer where one has fewer, None where it has none.
    """
    if not logprobs:
        raise NoProbabilities("it returns no log-probabilities of sampled tokens")
    if not token_ids:
        raise NoProbabilities("it returns no ids of sampled tokens")
    fewest = min(map(len, tops), default=0) if len(tops) == len(logprobs) else 0
    kept = min(fewest, most)
    highest = tuple(tuple(sorted(each, reverse=True)[:kept]) for each in tops)
    if len(token_ids) != len(logprobs):
        raise msgspec.ValidationError(
            f"{len(token_ids)} token ids and {len(logprobs)} log-probabilities in one answer"
        )
    return SampledAnswer(
        prompt_ids=tuple(prompt),
        token_ids=tuple(token_ids),
        logprobs=tuple(map(read_logprob, logprobs)),
        top=highest if kept > 0 else None,
    )


def _check_count(found: int, wanted: int, what: str = "answers to {} prompts") -> None:
    """Raise msgspec.ValidationError unless as many answers came as prompts were sent, or scores as tokens."""
    if found != wanted:
        raise msgspec.ValidationError(f"{found} {what.format(wanted)}")


class _ChatApi(ProbabilityApi):
    answers_chats = True
    fields: ClassVar[Mapping[str, Any]]  # of a chat request, next to those of OpenAI's API

    def make_tokenizing(self, model: str, text: str, alone: bool = False) -> ApiRequest:
        return ApiRequest("/tokenize", {"model": model, "prompt": text, "add_special_tokens": not alone})

    def make_chat(self, model: str, message: str, tokens: int, top: int) -> ApiRequest:
        body = {"model": model, "messages": [{"role": "user", "content": message}], "max_tokens": tokens}
        body |= {"logprobs": True, "top_logprobs": top, "return_token_ids": True, **self.fields}
        return ApiRequest("/chat/completions", body, versioned=True)

    def read_chat(self, body: bytes, top: int) -> SampledAnswer:
        answer = _CHAT.decode(body)
        _check_count(len(answer.choices), 1)
        choice = answer.choices[0]
        prompt = answer.prompt_token_ids or choice.prompt_token_ids
        if not prompt:
            raise NoProbabilities(_NO_CHAT)
        content = (choice.logprobs.content if choice.logprobs is not None else None) or []
        tops = [[read_logprob(each.logprob) for each in token.top_logprobs or []] for token in content]
        ids = choice.token_ids or choice.response_token_ids
        # vLLM lists the sampled token in place of the last one where it is none of the most probable.
        return make_answer(prompt, ids, [token.logprob for token in content], tops, top - 1)


class CompletionsApi(_ChatApi):
    """vLLM's /v1/completions, with its own fields: token ids, prompt_logprobs and ranks."""

    scores_prompts = True
    prompts_each = 16
    fields = MappingProxyType(_VLLM)

    def __init__(self, alternatives: int = 1) -> None:
        self.alternatives = alternatives  # of a scored position; 0: only the token itself, and its rank

    @property
    def simpler(self) -> ProbabilityApi | None:
        return CompletionsApi(0) if self.alternatives else None

    def make_chat_tokenizing(self, model: str, message: str) -> ApiRequest | None:
        messages = [{"role": "user", "content": message}]
        return ApiRequest("/tokenize", {"model": model, "messages": messages, "add_generation_prompt": True})

    def make_sampling(
        self, model: str, prompts: Sequence[tuple[int, ...]], tokens: int, top: int
    ) -> ApiRequest:
        body = {"model": model, "prompt": prompts, "max_tokens": tokens, "logprobs": top, **_VLLM}
        # Two tokens of one text would be one key otherwise.
        body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        return ApiRequest("/completions", body, versioned=True)

    def read_samples(self, body: bytes, prompts: Sequence[tuple[int, ...]], top: int) -> list[SampledAnswer]:
        choices = self._read_choices(body, len(prompts))
        return [self._read_sample(*pair, top) for pair in zip(prompts, choices, strict=True)]

    @staticmethod
    def _read_choices(body: bytes, count: int) -> list[_CompletionChoice]:
        choices = sorted(_COMPLETION.decode(body).choices, key=lambda choice: choice.index)
        _check_count(len(choices), count)
        return choices

    @staticmethod
    def _read_sample(prompt: tuple[int, ...], choice: _CompletionChoice, top: int) -> SampledAnswer:
        found = choice.logprobs or _CompletionLogprobs()
        sampled = found.token_logprobs or []
        # The sampled token is there too, one more, where it is none of the most probable.
        tops = [list(map(read_logprob, (each or {}).values())) for each in found.top_logprobs or []]
        return make_answer(prompt, choice.token_ids, sampled, tops, top)

    def make_scoring(self, model: str, sequences: Sequence[TokenSequence]) -> ApiRequest:
        prompts = [sequence.token_ids for sequence in sequences]
        body = {"model": model, "prompt": prompts, "max_tokens": 1, "temperature": 0.0}
        body |= {"prompt_logprobs": self.alternatives}
        return ApiRequest("/completions", body, versioned=True)

    def read_scores(self, body: bytes, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        choices = self._read_choices(body, len(sequences))
        return [self._read_scored(*pair) for pair in zip(sequences, choices, strict=True)]

    @staticmethod
    def _read_scored(sequence: TokenSequence, choice: _CompletionChoice) -> TokenScores:
        """Read one sequence's scores: the entry of each token's id, and the entry of rank 1."""
        positions = choice.prompt_logprobs
        if positions is None:
            raise NoProbabilities(_NO_SCORES)
        _check_count(len(positions), len(sequence.token_ids), "scores of {} tokens in one prompt")
        logprobs, ranks, firsts = list[float](), list[int | None](), list[int | None]()
        for token, entries in list(zip(sequence.token_ids, positions, strict=True))[sequence.start :]:
            own = (entries or {}).get(str(token))
            if entries is None or own is None:
                raise msgspec.ValidationError(f"a prompt's token {token} has no log-probability")
            logprobs.append(read_logprob(own.logprob))
            ranks.append(own.rank)
            best = next((key for key, entry in entries.items() if entry.rank == 1), None)
            firsts.append(int(best) if best is not None and best.isdecimal() else None)
        return TokenScores(tuple(logprobs), _keep_whole(ranks), _keep_whole(firsts))


def _keep_whole(column: Sequence[int | None]) -> tuple[int, ...] | None:
    kept = tuple(value for value in column if value is not None)
    return kept if len(kept) == len(column) else None


class _GenerateMeta(msgspec.Struct):
    """SGLang's `meta_info`: for each token its log-probability, id and text; null before the first."""

    output_token_logprobs: list[tuple[float | None, Count, Any]] | None = None
    output_top_logprobs: list[list[tuple[float | None, Count, Any]] | None] | None = None
    input_token_logprobs: list[tuple[float | None, Count, Any]] | None = None
    input_top_logprobs: list[list[tuple[float | None, Count, Any]] | None] | None = None


class _Generated(msgspec.Struct):
    meta_info: _GenerateMeta


_GENERATED = msgspec.json.Decoder(list[_Generated])


class GenerateApi(_ChatApi):
    """SGLang's /generate: token ids in and out, several prompts in a request."""

    scores_prompts = True
    fields = MappingProxyType({**_SGLANG, "return_prompt_token_ids": True})
    prompts_each = 8  # the logits of all prompts of a step are in memory at once

    def make_sampling(
        self, model: str, prompts: Sequence[tuple[int, ...]], tokens: int, top: int
    ) -> ApiRequest:
        sampling = {**_SGLANG, "max_new_tokens": tokens}
        body = {"input_ids": prompts, "sampling_params": sampling, "return_logprob": True}
        return ApiRequest("/generate", {**body, "top_logprobs_num": top})

    def read_samples(self, body: bytes, prompts: Sequence[tuple[int, ...]], top: int) -> list[SampledAnswer]:
        answers = _GENERATED.decode(body)
        _check_count(len(answers), len(prompts))
        return [self._read_sample(*pair, top) for pair in zip(prompts, answers, strict=True)]

    @staticmethod
    def _read_sample(prompt: tuple[int, ...], answer: _Generated, top: int) -> SampledAnswer:
        found = answer.meta_info
        sampled = found.output_token_logprobs or []
        tops = [
            [read_logprob(each[0]) for each in position or []] for position in found.output_top_logprobs or []
        ]
        ids, logprobs = [each[1] for each in sampled], [each[0] for each in sampled]
        return make_answer(prompt, ids, logprobs, tops, top)

    def make_scoring(self, model: str, sequences: Sequence[TokenSequence]) -> ApiRequest:
        body: dict[str, Any] = {
            "input_ids": [sequence.token_ids for sequence in sequences],
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "logprob_start_len": [sequence.start - 1 for sequence in sequences],
        }
        return ApiRequest("/generate", {**body, "return_logprob": True, "top_logprobs_num": 1})

    def read_scores(self, body: bytes, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        answers = _GENERATED.decode(body)
        _check_count(len(answers), len(sequences))
        return [self._read_scored(*pair) for pair in zip(sequences, answers, strict=True)]

    @staticmethod
    def _read_scored(sequence: TokenSequence, answer: _Generated) -> TokenScores:
        wanted = sequence.token_ids[sequence.start :]
        found = (answer.meta_info.input_token_logprobs or [])[-len(wanted) :]
        if not found:
            raise NoProbabilities(_NO_SCORES)
        if len(found) < len(wanted) or any(
            token not in (own, _HIDDEN) for own, (_, token, _) in zip(wanted, found, strict=True)
        ):
            raise msgspec.ValidationError("the log-probabilities are of other tokens than the prompt's")
        tops = (answer.meta_info.input_top_logprobs or [])[-len(wanted) :]
        firsts = _keep_whole([position[0][1] if position else None for position in tops])
        whole = firsts is not None and len(firsts) == len(wanted)
        logprobs = tuple(read_logprob(each[0]) for each in found)
        return TokenScores(logprobs, None, firsts if whole else None)


class _Sampled(msgspec.Struct):
    """An answer of llama.cpp's /completion; a token that ends within a character has no probability."""

    completion_probabilities: list[_ChatToken] | None = None
    tokens: list[Count] | None = None


_SAMPLED = msgspec.json.Decoder(_Sampled)


class LlamaCppApi(ProbabilityApi):
    """llama.cpp's /completion, which samples with log-probabilities and scores nothing.

    Its slots are the requests at once. An answer ends before the first token without a probability, and one
    that begins with such a token is left out.
    """

    def make_sampling(
        self, model: str, prompts: Sequence[tuple[int, ...]], tokens: int, top: int
    ) -> ApiRequest:
        (prompt,) = prompts
        body = {"prompt": prompt, "n_predict": tokens, "n_probs": max(top, 1), "cache_prompt": False}
        body["return_tokens"] = True
        return ApiRequest("/completion", {**body, **_LLAMACPP})

    def read_samples(self, body: bytes, prompts: Sequence[tuple[int, ...]], top: int) -> list[SampledAnswer]:
        answer = _SAMPLED.decode(body)
        rows, tokens = answer.completion_probabilities or [], answer.tokens or []
        if tokens:
            same = takewhile(lambda pair: pair[0].id == pair[1], zip(rows, tokens, strict=False))
            if not (rows := [row for row, _ in same]):
                return []
        ids, logprobs = [row.id for row in rows], [row.logprob for row in rows]
        tops = [[read_logprob(each.logprob) for each in row.top_logprobs or []] for row in rows]
        return [make_answer(prompts[0], _keep_whole(ids), logprobs, tops, top)]

    def make_tokenizing(self, model: str, text: str, alone: bool = False) -> ApiRequest:
        return ApiRequest("/tokenize", {"content": text, "add_special": not alone, "parse_special": alone})


# By the engine's name; others are asked as vLLM is.
PROBABILITY_APIS: dict[str, ProbabilityApi] = {
    "vLLM": CompletionsApi(),
    "SGLang": GenerateApi(),
    "llama.cpp server": LlamaCppApi(),
}


_TEXT_SAMPLING = {name: value for name, value in NEUTRAL.items() if name != "min_p"}  # what OpenAI's API has
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")  # how it writes a token that is no text


class _TextTop(msgspec.Struct):
    logprob: float | None = None


class _TextToken(msgspec.Struct):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[_TextTop] | None = None


class _TextLogprobs(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_TextToken] | None = None


class _TextChoice(msgspec.Struct):
    logprobs: _TextLogprobs | None = None


class _TextCompletion(msgspec.Struct):
    choices: list[_TextChoice]


_TEXT_COMPLETION = msgspec.json.Decoder(_TextCompletion)


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
    choices = _TEXT_COMPLETION.decode(body).choices
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
    if raw is None and (written := _BYTES.fullmatch(token)):
        raw = list(bytes.fromhex(written[1].replace("\\x", "")))
    try:
        text = token if raw is None else bytes(raw).decode()
    except ValueError:
        return None
    return None if not text or REPLACEMENT in text else text
