"""Probability server: a server that is up, and the requests to it that sample, score and tokenize."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import httpx
import msgspec
from msgspec.structs import replace

from loadgen.base.errors import MeasureError
from loadgen.base.untrusted import NOT_JSON
from loadgen.plan import tokenizers
from loadgen.plan.model_files import find_tokenizer, find_vocab_size
from loadgen.plan.tokenizers import FullTokenizer
from loadgen.server import exchange
from loadgen.server.exchange import DENIED, ServerAddress
from loadgen.study.quality.probability_apis import (
    PROBABILITY_APIS,
    TOP,
    ApiRequest,
    CompletionsApi,
    NoProbabilities,
    ProbabilityApi,
    TextAnswer,
    TokenSequence,
    make_text_request,
    read_text_answer,
    read_token_ids,
)
from loadgen.study.quality.quality_record import SampledAnswer, TokenScores

if TYPE_CHECKING:
    from loadgen.run.session import Session

_WAITS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)  # before a request is sent again, all of which may be
_ANSWER_S = 1800.0  # for a batch of prompts, behind others in the server's queue
_MOST_BYTES = 256 << 20  # of an answer: 16 prompts, each token with 20 others
_FEWER = (TOP, 5, 1, 0)  # alternatives of a token, where a server refuses more
_REFUSED = (400, 422)
_NO_PATH = (404, 405)
_BATCHES = 4  # requests at once
_PROBE = "The"
COMPLETION, CHAT = "completion", "chat"
_INSTEAD = "`loadgen bench --fingerprint` compares greedy answers instead"
T = TypeVar("T")


class RefusedRequest(MeasureError):
    """A server answered 400 or 422: it does not take the request as it is."""


class ProbabilityServer(msgspec.Struct, frozen=True):
    """A server that is up, and what it can report of its tokens' probabilities."""

    access: ServerAddress
    model: str
    engine: str  # its name, as "vLLM"
    api: ProbabilityApi
    version: str = ""
    tokenizer: str = ""  # a directory or name, for what the server does not tokenize; "": none
    vocab_size: int = 0  # ids of its model; 0: unknown
    top: int = TOP  # alternatives that it reports of each sampled token
    requests_at_once: int = _BATCHES
    scores: bool = True  # token ids that it did not sample
    texts: str = ""  # CHAT or COMPLETION: it only reports texts of tokens, by this API; "": ids
    tokens_field: str = ""  # of a chat request; "": max_tokens
    sent_again: list[str] = []  # why a request was, each time

    @property
    def prompts_at_once(self) -> int:
        """The prompts that are sent to it at once, at most."""
        return self.api.prompts_each * self.requests_at_once

    @classmethod
    def of_session(cls, session: Session) -> ProbabilityServer:
        """Make the server of a session; raises NoProbabilities for an engine that is known to have none.

        One that was not recognised, as behind a gateway, is asked as vLLM is.
        """
        served, engine = session.served, session.served.engine
        api = PROBABILITY_APIS.get(engine.name, CompletionsApi() if engine.unproven else None)
        if api is None:
            raise NoProbabilities(f"{engine.name} has no log-probabilities of token ids: {_INSTEAD}")
        subject = session.subject
        own = find_tokenizer(subject.model_root, subject.model)
        return cls(
            access=session.access,
            model=served.model,
            engine=engine.name,
            api=api,
            version=served.version,
            tokenizer=subject.tokenizer or str(own or ""),
            vocab_size=subject.vocab_size or find_vocab_size(subject.model_root),
            scores=api.scores_prompts,
            tokens_field=engine.max_tokens_field,
            requests_at_once=_BATCHES if api.prompts_each > 1 else max(served.slots, 1),
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ProbabilityClient]:
        """Open a client of the server; its requests raise MeasureError."""
        async with self.access.client(_ANSWER_S) as client:
            yield ProbabilityClient(self, client)


class ProbabilityClient:
    """Sends a server's requests for probabilities; all raise MeasureError where the answer is no use."""

    def __init__(self, server: ProbabilityServer, client: httpx.AsyncClient) -> None:
        self.server, self._client = server, client
        self._tokenizer: FullTokenizer | None = None
        self._ids: dict[str, int | None] = {}  # of texts that are one token

    async def tokenize(self, text: str, alone: bool = False) -> tuple[int, ...]:
        """Tokenize a text as a prompt, or `alone`, by the server, else by its --tokenizer.

        Raises UsageError too.
        """
        server = self.server
        if self._tokenizer is None:
            request = server.api.make_tokenizing(server.model, text, alone)
            answer = await self._ask(request)
            if answer.status not in _NO_PATH:
                return self._read(request, answer, read_token_ids)
            self._tokenizer = self._load_tokenizer()
        return tuple(self._tokenizer.encode(text, add_special_tokens=not alone))

    async def make_chat_prompt(self, message: str) -> tuple[int, ...]:
        """Return the ids of a chat with one user's message, by the server, else by its --tokenizer.

        Raises UsageError too.
        """
        request = self.server.api.make_chat_tokenizing(self.server.model, message)
        if self._tokenizer is None and request is not None:
            answer = await self._ask(request)
            if answer.status not in (*_NO_PATH, *_REFUSED):
                return self._read(request, answer, read_token_ids)
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        chat = [{"role": "user", "content": message}]
        text = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _load_tokenizer(self) -> FullTokenizer:
        server = self.server
        if not server.tokenizer:
            raise MeasureError(
                f"{server.access.shown_url} ({server.engine}) has no way to tokenize this: pass --tokenizer "
                "with the directory or the name of the model's tokenizer"
            )
        return tokenizers.load_tokenizer(server.tokenizer, "ids")

    async def sample(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> list[SampledAnswer]:
        """Sample one answer to each prompt, of `tokens` at most, at temperature 1 and untruncated."""
        server = self.server
        request = server.api.make_sampling(server.model, prompts, tokens, server.top)
        return await self._fetch(request, lambda raw: server.api.read_samples(raw, prompts, server.top))

    async def chat(self, message: str, tokens: int) -> SampledAnswer:
        """Sample the answer to a user's message, of `tokens` at most, at temperature 1 and untruncated."""
        server = self.server
        request = server.api.make_chat(server.model, message, tokens, server.top)
        return await self._fetch(request, lambda raw: server.api.read_chat(raw, server.top))

    async def sample_text(self, prompt: str, tokens: int) -> TextAnswer:
        """Sample the answer to a text, of `tokens` at most, as the texts of its tokens."""
        server = self.server
        is_chat = server.texts == CHAT
        request = make_text_request(server.model, prompt, tokens, server.top, is_chat, server.tokens_field)
        return await self._fetch(request, read_text_answer)

    async def find_ids(self, prompt: str, answer: TextAnswer, chat: bool, most: int) -> SampledAnswer | None:
        """Find the ids of another server's answer by this one's tokenizer: those of each token's text alone.

        The answer ends before a token that has none; None if that is the first.
        """
        asked = await (self.make_chat_prompt(prompt) if chat else self.tokenize(prompt))
        for text in {text for text in answer.texts if text is not None} - self._ids.keys():
            ids = await self.tokenize(text, alone=True)
            self._ids[text] = ids[0] if len(ids) == 1 else None
        found = [None if text is None else self._ids[text] for text in answer.texts]
        return answer.with_ids(asked, found, most)

    async def score(self, sequences: Sequence[TokenSequence]) -> list[TokenScores]:
        """Score the tokens of each sequence from its start on.

        An id beyond the vocabulary is not sent, since it ends some servers.
        """
        server = self.server
        most = max((max(sequence.token_ids) for sequence in sequences), default=0)
        if server.vocab_size and most >= server.vocab_size:
            raise MeasureError(
                f"token {most} is beyond the {server.vocab_size} of {server.model}: the vocabularies differ, "
                "and no KL divergence is defined"
            )
        request = server.api.make_scoring(server.model, sequences)
        return await self._fetch(request, lambda raw: server.api.read_scores(raw, sequences))

    async def _fetch(self, request: ApiRequest, read: Callable[[bytes], T]) -> T:
        return self._read(request, await self._ask(request), read)

    async def _ask(self, request: ApiRequest) -> exchange.ControlAnswer:
        path = self._find_path(request) + (self.server.access.query if request.versioned else "")
        repeats = exchange.Repeats(_WAITS_S, self.server.sent_again.append)
        return await exchange.ask_again(
            self._client, "POST", path, _ANSWER_S, _MOST_BYTES, request.body, repeats
        )

    def _find_path(self, request: ApiRequest) -> str:
        return f"{self.server.access.prefix * request.versioned}{request.path}"

    def _read(self, request: ApiRequest, answer: exchange.ControlAnswer, read: Callable[[bytes], T]) -> T:
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
            raise NoProbabilities(f"{access.shown_url} ({server.engine}): {error}: {_INSTEAD}") from None
        except NOT_JSON as error:
            raise MeasureError(
                f"{access.shown_url}{self._find_path(request)} answers with what is no list of "
                f"log-probabilities: {error}"
            ) from None


def probe_server(server: ProbabilityServer) -> ProbabilityServer:
    """Sample and score a token, and return the server with what it takes: alternatives, scoring.

    Raises NoProbabilities where it reports none of sampled tokens, MeasureError where it does not answer.
    """
    return server.access.loop.run(_probe(server))


async def _probe(server: ProbabilityServer) -> ProbabilityServer:
    try:
        return await _probe_ids(server)
    except MeasureError as error:
        if server.engine in PROBABILITY_APIS:
            raise
        for texts in (COMPLETION, CHAT):
            for top in _FEWER:
                there = replace(server, texts=texts, top=top, scores=False, requests_at_once=_BATCHES)
                async with there.open() as client:
                    with suppress(MeasureError):
                        await client.sample_text(_PROBE, 1)
                        return there
        raise error


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
                    raise NoProbabilities(f"{error}: {_INSTEAD}") from None
    if not server.api.scores_prompts:
        return replace(server, scores=False)
    scored = TokenSequence((*prompt, *answers[0].token_ids), len(prompt))
    for api in filter(None, (server.api, server.api.simpler)):
        async with replace(server, api=api).open() as client:
            try:
                await client.score([scored])
                return replace(server, api=api)
            except (RefusedRequest, NoProbabilities):
                pass  # it takes fewer alternatives, or scores no prompt
    return replace(server, scores=False)
