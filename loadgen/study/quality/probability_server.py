"""Probability server: a server that is up, asked to sample with log-probabilities, to score, and to tokenize.

Each sampling parameter is in the request, since a server takes what is left out from the checkpoint's own
`generation_config.json`. Servers that are not recognised are asked as vLLM is. Others, as hosted ones do,
report texts of tokens and no ids: such a server samples, and the one that scores tokenizes, since a token's
text alone has the id of that token.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import httpx
import msgspec
from msgspec.structs import replace

from loadgen.base.errors import MeasureError
from loadgen.base.text import REPLACEMENT
from loadgen.base.untrusted import NOT_JSON
from loadgen.facts.run_facts import GreedyAnswer
from loadgen.features.fingerprint.greedy_prompts import GreedyApi
from loadgen.plan import plan, profile, tokenizers
from loadgen.plan.model_files import find_tokenizer, find_vocab_size
from loadgen.plan.tokenizers import FullTokenizer
from loadgen.run.session import Session
from loadgen.server import exchange
from loadgen.server.exchange import DENIED, ServerAddress
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


def _check_count(found: int, wanted: int, what: str = "responses to {} prompts") -> None:
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
    _check_count(len(ids), len(logprobs), "token ids and {} log-probabilities in one response")
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


_WAITS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)  # before a request is sent again, all of which may be
_ANSWER_S = 1800.0  # for a batch of prompts, behind others in the server's queue
_MOST_BYTES = 256 << 20  # of an answer: 16 prompts, each token with 20 others
TOP = 20  # log-probabilities of a position: the most that vLLM and OpenAI's API give by default
_FEWER = (TOP, 5, 1, 0)  # alternatives of a token, where a server refuses more
_REFUSED = (400, 422)
_NO_PATH = (404, 405)
_BATCHES = 4  # requests at once
_PROBE = "The"
COMPLETION, CHAT = "completion", "chat"
T = TypeVar("T")
_Prompts = Sequence[tuple[int, ...]]

_OPENAI = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_SGLANG = {**_OPENAI, "min_p": 0.0, "top_k": -1, "repetition_penalty": 1.0, "ignore_eos": False}
_LLAMACPP = {
    **_OPENAI, "min_p": 0.0, "samplers": ["temperature"], "top_k": 0, "typical_p": 1.0, "repeat_penalty": 1.0,
    "dry_multiplier": 0.0, "xtc_probability": 0.0, "mirostat": 0, "post_sampling_probs": False,
}  # fmt: skip


class RefusedRequest(MeasureError):
    """A server answered 400 or 422: it does not take the request as it is."""


class ProbabilityServer(msgspec.Struct, frozen=True):
    """A server that is up, and what it can report of its tokens' probabilities."""

    access: ServerAddress
    model: str
    engine: str  # its name, as "vLLM"
    api: type[ProbabilityClient]
    version: str = ""
    tokenizer: str = ""  # a directory or name, for what the server does not tokenize; "": none
    vocab_size: int = 0  # ids of its model; 0: unknown
    top: int = TOP  # alternatives that it reports of each sampled token
    alternatives: int = 1  # of a scored token; 0: only the token itself
    requests_at_once: int = _BATCHES
    scores: bool = True  # token ids that it did not sample
    texts: str = ""  # CHAT or COMPLETION: it only reports texts of tokens, by this API; "": ids
    tokens_field: str = ""  # of a chat request; "": max_tokens
    greedy: GreedyApi | None = None  # by which it answers greedily; None: log-probabilities are compared
    sent_again: list[str] = []  # why a request was, each time

    @property
    def prompts_at_once(self) -> int:
        """The prompts that are sent to it at once, at most."""
        return self.api.prompts_each * self.requests_at_once

    @classmethod
    def of_session(cls, session: Session) -> ProbabilityServer:
        """Make the server of a session, asked as vLLM is where its engine is not known."""
        served, engine, subject = session.served, session.served.engine, session.subject
        api = PROBABILITY_APIS.get(engine.name, VllmClient)
        return cls(
            access=session.access,
            model=served.model,
            engine=engine.name,
            api=api,
            version=served.version,
            tokenizer=subject.tokenizer or str(find_tokenizer(subject.model_root, subject.model) or ""),
            vocab_size=subject.vocab_size or find_vocab_size(subject.model_root),
            scores=api.scores_prompts,
            tokens_field=engine.max_tokens_field,
            requests_at_once=_BATCHES if api.prompts_each > 1 else max(served.slots, 1),
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ProbabilityClient]:
        """Open a client of the server; its requests raise MeasureError."""
        async with self.access.client(_ANSWER_S) as client:
            yield self.api(self, client)


class ProbabilityClient(ABC):
    """Sends a server's requests for probabilities; all raise MeasureError where the answer is no use."""

    prompts_each = 1  # in one request, at most
    scores_prompts = False  # it gives the log-probabilities of token ids that it did not sample
    answers_chats = False  # its chat API returns token ids with log-probabilities
    tokenizes_chats = False
    sampling: ClassVar[Mapping[str, Any]]  # fields that switch off truncation and penalties

    def __init__(self, server: ProbabilityServer, client: httpx.AsyncClient) -> None:
        self.server, self._client = server, client
        self._tokenizer: FullTokenizer | None = None
        self._ids: dict[str, int | None] = {}  # of texts that are one token

    @abstractmethod
    async def sample(self, prompts: _Prompts, tokens: int) -> list[SampledAnswer]:
        """Sample one answer to each prompt, of `tokens` at most, at temperature 1 and untruncated."""

    async def score(self, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        """Score the tokens of each sequence from its start on; one more may be sampled in vain.

        Raises NoProbabilities, and MeasureError for an id beyond the vocabulary, which ends some servers.
        """
        server = self.server
        most = max((max(sequence.token_ids) for sequence in sequences), default=0)
        if server.vocab_size and most >= server.vocab_size:
            raise MeasureError(
                f"token {most} is beyond the {server.vocab_size} of {server.model}: the vocabularies differ, "
                "and no KL divergence is defined"
            )
        return await self._score(sequences)

    async def _score(self, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        raise NoProbabilities(NO_SCORES)

    async def chat(self, message: str, tokens: int) -> SampledAnswer:
        """Sample the answer to a user's message, of `tokens` at most, at temperature 1 and untruncated."""
        top = self.server.top
        body = {**self._chat(message), "max_tokens": tokens, "logprobs": True, "top_logprobs": top}
        body |= {"return_token_ids": True, **self.sampling}
        read = partial(read_chat, top=top)
        return await self._fetch(self._make_path("/chat/completions"), body, read)

    def _chat(self, message: str) -> dict[str, Any]:
        return {"model": self.server.model, "messages": [{"role": "user", "content": message}]}

    async def answer_greedily(self, prompt: str, tokens: int) -> GreedyAnswer:
        """Answer a prompt by at most `tokens`, by the server's greedy API."""
        api, access = self.server.greedy, self.server.access
        assert api is not None
        reply = await self._send(api.path, api.make_body(prompt, tokens))
        if reply.status in DENIED:
            raise MeasureError(access.explain_denial(reply))
        answer, failed = api.read(prompt, reply)
        if failed or answer.cut:
            raise MeasureError(f"{access.shown_url}{api.path}: {answer.failure or answer.cut}")
        return answer

    async def tokenize(self, text: str, alone: bool = False) -> tuple[int, ...]:
        """Tokenize a text by the server, else --tokenizer (UsageError); `alone`: without special tokens."""
        if self._tokenizer is None:
            answer = await self._send("/tokenize", self._make_tokenize_body(text, alone))
            if answer.status not in _NO_PATH:
                return self._read(answer, read_token_ids)
            self._tokenizer = self._load_tokenizer()
        return tuple(self._tokenizer.encode(text, add_special_tokens=not alone))

    def _make_tokenize_body(self, text: str, alone: bool) -> dict[str, Any]:
        return {"model": self.server.model, "prompt": text, "add_special_tokens": not alone}

    async def make_chat_prompt(self, message: str) -> tuple[int, ...]:
        """Return the ids of a chat with one user's message, by the server, else --tokenizer (UsageError)."""
        chat = self._chat(message)
        if self._tokenizer is None and self.tokenizes_chats:
            answer = await self._send("/tokenize", {**chat, "add_generation_prompt": True})
            if answer.status not in (*_NO_PATH, *_REFUSED):
                return self._read(answer, read_token_ids)
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        text = self._tokenizer.apply_chat_template(
            chat["messages"], add_generation_prompt=True, tokenize=False
        )
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _load_tokenizer(self) -> FullTokenizer:
        """Load the tokenizer of --tokenizer or the model; raises MeasureError where neither is known."""
        server = self.server
        if not server.tokenizer:
            raise MeasureError(
                f"{server.access.shown_url} ({server.engine}) has no way to tokenize this: pass --tokenizer "
                "with the directory or the name of the model's tokenizer"
            )
        return tokenizers.load_tokenizer(server.tokenizer, "ids")

    async def sample_text(self, prompt: str, tokens: int) -> TextAnswer:
        """Sample the answer to a text or chat, of `tokens` at most, as the texts of its tokens."""
        server = self.server
        body = {"model": server.model, server.tokens_field or "max_tokens": tokens, **_OPENAI}
        if server.texts == CHAT:
            path = "/chat/completions"
            body |= {**self._chat(prompt), "logprobs": True, "top_logprobs": server.top}
        else:
            path = "/completions"
            body |= {"prompt": prompt, "logprobs": server.top}
        return await self._fetch(self._make_path(path), body, read_text_answer)

    async def find_ids(self, prompt: str, answer: TextAnswer, chat: bool, most: int) -> SampledAnswer | None:
        """Find the ids of another server's answer by this one's tokenizer: those of each token's text alone.

        The answer ends before a token that has none, None if that is the first; `most` alternatives are kept.
        """
        asked = await (self.make_chat_prompt(prompt) if chat else self.tokenize(prompt))
        for text in {text for text in answer.texts if text is not None} - self._ids.keys():
            ids = await self.tokenize(text, alone=True)
            self._ids[text] = ids[0] if len(ids) == 1 else None
        found = [None if text is None else self._ids[text] for text in answer.texts]
        return answer.with_ids(asked, found, most)

    def _make_path(self, path: str) -> str:
        return f"{self.server.access.prefix}{path}{self.server.access.query}"

    async def _fetch(self, path: str, body: Mapping[str, Any], read: Callable[[bytes], T]) -> T:
        return self._read(await self._send(path, body), read)

    async def _send(self, path: str, body: Mapping[str, Any]) -> exchange.ControlAnswer:
        repeats = exchange.Repeats(_WAITS_S, self.server.sent_again.append)
        return await exchange.ask_again(self._client, "POST", path, _ANSWER_S, _MOST_BYTES, body, repeats)

    def _read(self, answer: exchange.ControlAnswer, read: Callable[[bytes], T]) -> T:
        """Return read(body) of an answer; raises MeasureError, in a line, where it cannot be read."""
        server, access = self.server, self.server.access
        if answer.error:
            raise MeasureError(f"{access.shown_url}{answer.why}")
        if answer.status in DENIED:
            raise MeasureError(access.explain_denial(answer))
        if answer.status != 200:
            kind = RefusedRequest if answer.status in _REFUSED else MeasureError
            raise kind(f"{access.shown_url}{answer.path} answers {answer.status}: {answer.message}")
        try:
            return read(answer.body)
        except NoProbabilities as error:
            raise NoProbabilities(f"{access.shown_url} ({server.engine}): {error}") from None
        except NOT_JSON as error:
            raise MeasureError(
                f"{access.shown_url}{answer.path} answers with what is no list of log-probabilities: {error}"
            ) from None


class VllmClient(ProbabilityClient):
    """Asks vLLM's /v1/completions, with its own fields: token ids and prompt_logprobs."""

    prompts_each = 16
    scores_prompts = answers_chats = tokenizes_chats = True
    sampling = MappingProxyType({**_SGLANG, "min_tokens": 0})

    async def sample(self, prompts: _Prompts, tokens: int) -> list[SampledAnswer]:
        top = self.server.top
        body = {"model": self.server.model, "prompt": prompts, "max_tokens": tokens, "logprobs": top}
        # Two tokens of one text would be one key otherwise.
        body |= {**self.sampling, "return_token_ids": True, "return_tokens_as_token_ids": True}
        read = partial(read_completions, prompts=prompts, top=top)
        return await self._fetch(self._make_path("/completions"), body, read)

    async def _score(self, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        body: dict[str, Any] = {
            "model": self.server.model,
            "prompt": [sequence.token_ids for sequence in sequences],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self.server.alternatives,
        }
        read = partial(read_prompt_scores, sequences=sequences)
        return await self._fetch(self._make_path("/completions"), body, read)


class SglangClient(ProbabilityClient):
    """Asks SGLang's /generate: token ids in and out, several prompts in a request."""

    prompts_each = 8  # the logits of all prompts of a step are in memory at once
    scores_prompts = answers_chats = True
    sampling = MappingProxyType({**_SGLANG, "return_prompt_token_ids": True})

    async def sample(self, prompts: _Prompts, tokens: int) -> list[SampledAnswer]:
        top = self.server.top
        body: dict[str, Any] = {
            "input_ids": prompts,
            "sampling_params": {**_SGLANG, "max_new_tokens": tokens},
            "return_logprob": True,
            "top_logprobs_num": top,
        }
        read = partial(read_generated, prompts=prompts, top=top)
        return await self._fetch("/generate", body, read)

    async def _score(self, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        body: dict[str, Any] = {
            "input_ids": [sequence.token_ids for sequence in sequences],
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "logprob_start_len": [sequence.start - 1 for sequence in sequences],
            "return_logprob": True,
            "top_logprobs_num": self.server.alternatives,
        }
        read = partial(read_generated_scores, sequences=sequences)
        return await self._fetch("/generate", body, read)


class LlamaCppClient(ProbabilityClient):
    """Asks llama.cpp's /completion, which samples and scores nothing; its slots are the requests at once."""

    async def sample(self, prompts: _Prompts, tokens: int) -> list[SampledAnswer]:
        (prompt,), top = prompts, self.server.top
        body = {"prompt": prompt, "n_predict": tokens, "n_probs": max(top, 1), "cache_prompt": False}
        read = partial(read_llamacpp, prompts=prompts, top=top)
        return await self._fetch("/completion", {**body, "return_tokens": True, **_LLAMACPP}, read)

    def _make_tokenize_body(self, text: str, alone: bool) -> dict[str, Any]:
        return {"content": text, "add_special": not alone, "parse_special": alone}


PROBABILITY_APIS: dict[str, type[ProbabilityClient]] = {  # by the engine's name
    "vLLM": VllmClient,
    "SGLang": SglangClient,
    "llama.cpp server": LlamaCppClient,
}


def open_servers(
    sessions: Sequence[Session], chat: bool, greedy: bool = False
) -> tuple[list[ProbabilityServer], str]:
    """Find out what the servers of sessions report, and return them with why they are to answer greedily.

    All of them are with `greedy`, or where one reports no log-probabilities; then prompts are completed, or
    are chats with `chat` or where one server knows only those. Raises MeasureError where one does not answer.
    """
    engines, why = [each.served.engine for each in sessions], "greedy responses are compared"
    lacking = next(
        (each for each in engines if each.name not in PROBABILITY_APIS and not each.unproven), None
    )
    if lacking is not None:
        why += f": {lacking.name} has no log-probabilities of token ids"
    elif not greedy:
        try:
            servers = map(ProbabilityServer.of_session, sessions)
            return [server.access.loop.run(_probe(server)) for server in servers], ""
        except NoProbabilities as error:
            why += f": {error}"
    found = [_find_greedy_server(each, chat) for each in sessions]
    if len({server.greedy and server.greedy.form for server in found}) > 1:
        found = [_find_greedy_server(each, chat=True) for each in sessions]
    return found, why


def _find_greedy_server(session: Session, chat: bool) -> ProbabilityServer:
    """Return a session's server with the API by which it completes texts, else answers chats.

    With `chat` only the latter is tried. Raises MeasureError where none answers.
    """
    failures, server = list[MeasureError](), ProbabilityServer.of_session(session)
    for backend in ("openai-chat",) if chat else ("openai", "openai-chat"):
        dialect, path = plan.choose_dialect(profile.build({"backend": backend}), session.subject)
        api = GreedyApi(session.subject, dialect, path, hide=session.access.secrets.hide)
        server = replace(server, greedy=api, scores=True)
        try:
            server.access.loop.run(_answer_probe(server))
        except MeasureError as error:
            failures.append(error)
        else:
            return server
    raise failures[0]


async def _answer_probe(server: ProbabilityServer) -> None:
    async with server.open() as client:
        await client.answer_greedily(_PROBE, 1)


async def _probe(server: ProbabilityServer) -> ProbabilityServer:
    """Sample and score a token, and return the server with what it takes: alternatives, scoring.

    Raises NoProbabilities where it reports none of sampled tokens, MeasureError where it does not answer.
    """
    try:
        return await _probe_ids(server)
    except MeasureError:
        if server.engine in PROBABILITY_APIS:
            raise
        for texts in (COMPLETION, CHAT):
            for top in _FEWER:
                there = replace(server, texts=texts, top=top, scores=False, requests_at_once=_BATCHES)
                async with there.open() as client:
                    with suppress(MeasureError):
                        await client.sample_text(_PROBE, 1)
                        return there
        raise NoProbabilities(f"{server.access.shown_url} reports no log-probabilities") from None


async def _probe_ids(server: ProbabilityServer) -> ProbabilityServer:
    """Probe a server that reports ids with all alternatives, then with fewer while it refuses them."""
    async with server.open() as client:
        prompt = await client.tokenize(_PROBE)
        if not prompt:
            raise MeasureError(f"{server.access.shown_url} tokenizes {_PROBE!r} to nothing: check --model")
    for top in _FEWER:
        server = replace(server, top=top)
        async with server.open() as client:
            try:
                answers = await client.sample([prompt], 1)
                break
            except RefusedRequest as error:
                if top == _FEWER[-1]:
                    raise NoProbabilities(str(error)) from None
    if not server.api.scores_prompts:
        return replace(server, scores=False)
    scored = TokenSequence((*prompt, *answers[0].token_ids), len(prompt))
    for alternatives in (1, 0):
        async with replace(server, alternatives=alternatives).open() as client:
            with suppress(RefusedRequest, NoProbabilities):  # it takes fewer, or scores no prompt
                await client.score([scored])
                return client.server
    return replace(server, scores=False)
