"""Quality measuring: a text scored by servers, and answers sampled by one and scored by another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from typing import Any, TypeVar

import msgspec

from loadgen.base.errors import MeasureError
from loadgen.base.signals import SIGNALS, stop
from loadgen.features.quality.probability_apis import TokenSequence
from loadgen.features.quality.probability_server import CHAT, ProbabilityClient, ProbabilityServer
from loadgen.features.quality.quality_record import SampledAnswer, TextSegment, TokenScores
from loadgen.features.quality.reference_file import AnswerLine
from loadgen.features.quality.text_parts import PROMPT_TOKENS, QualityPlan

T = TypeVar("T")
_HEAD = "\n"  # before each segment: what follows nothing has no score, and this is it
NoteAnswers = Callable[[Sequence[AnswerLine], Sequence[TokenScores | None]], None]
NoteCount = Callable[[int], None]


class TokenizedText(msgspec.Struct, frozen=True):
    """A text's segments as token ids, each after a line end, and how many bytes of each have a score."""

    segments: tuple[tuple[int, ...], ...]
    scored_bytes: tuple[int, ...]

    def has_ids(self, others: Sequence[Sequence[int]]) -> bool:
        """Whether these are the ids of another tokenization, but for a token that begins a prompt."""
        pairs = zip(self.segments, map(tuple, others), strict=False)
        return len(others) == len(self.segments) and all(
            other in (own, own[1:]) or own == other[1:] for own, other in pairs
        )


def tokenize_text(server: ProbabilityServer, plan: QualityPlan) -> TokenizedText:
    """Tokenize the segments of a plan's text by a server; raises MeasureError or UsageError if it cannot."""
    texts = plan.cut_segments()
    found: dict[int, tuple[int, ...]] = {}

    async def tokenize() -> TokenizedText:
        async with server.open() as client:
            head = await client.tokenize(_HEAD)

            async def tokenize_one(number: int) -> None:
                found[number] = await client.tokenize(_HEAD + texts[number])

            await _run_all([tokenize_one(number) for number in range(len(texts))], server.prompts_at_once)
        # The first token has no score: one that begins a prompt, else the line end.
        sizes = [len((_HEAD + text).encode()) - (len(head) == 1) for text in texts]
        return TokenizedText(tuple(found[number] for number in range(len(texts))), tuple(sizes))

    return _run(server, tokenize())


def score_text(server: ProbabilityServer, text: TokenizedText, note: NoteCount) -> list[TextSegment]:
    """Score the segments of a text by a server, in their order; `note` gets the number scored so far.

    Raises MeasureError.
    """
    found: dict[int, TokenScores] = {}
    each = server.api.prompts_each

    async def score() -> None:
        async with server.open() as client:

            async def score_batch(first: int) -> None:
                batch = text.segments[first : first + each]
                scores = await client.score([TokenSequence(ids, 1) for ids in batch])
                found.update(enumerate(scores, first))
                note(len(found))

            batches = [score_batch(first) for first in range(0, len(text.segments), each)]
            await _run_all(batches, server.requests_at_once)

    _run(server, score())
    return [
        TextSegment(ids, found[number], text.scored_bytes[number]) for number, ids in enumerate(text.segments)
    ]


def score_answers(server: ProbabilityServer, lines: Sequence[AnswerLine], measure: AnswerMeasure) -> None:
    """Score sampled answers by a server, in batches, until `measure` wants no more; it gets each batch.

    Raises MeasureError.
    """

    async def score() -> None:
        rest = iter(lines)

        async def score_next(client: ProbabilityClient) -> None:
            while measure.wants_more() and (batch := _take(rest, server.api.prompts_each)):
                scores = await client.score([find_sequence(line.answer) for line in batch])
                measure.note(batch, scores)

        async with server.open() as client:
            await _run_all([score_next(client) for _ in range(server.requests_at_once)])

    _run(server, score())


def sample_answers(
    sampler: ProbabilityServer, scorer: ProbabilityServer | None, plan: QualityPlan, measure: AnswerMeasure
) -> None:
    """Sample answers by one server, and score each batch by it, where it can, and by the other, if any.

    It goes on until `measure`, which gets each batch, wants no more. Prompts that it has answers of already
    are left out. Raises MeasureError.
    """

    async def sample() -> None:
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(sampler.open())
            other = None if scorer is None else await stack.enter_async_context(scorer.open())

            async def sample_next() -> None:
                while numbers := measure.begin_batch(sampler.api.prompts_each):
                    answers = await _sample_batch(ours, other, plan, numbers, measure.known)
                    if not answers:
                        measure.end_batch(len(numbers))
                        continue
                    sequences = [find_sequence(answer) for answer in answers]
                    unknown: list[TokenScores | None] = [None] * len(answers)
                    own, others = await _gather(
                        ours.score(sequences) if sampler.scores else _return(unknown),
                        _return(unknown) if other is None else other.score(sequences),
                    )
                    lines = [AnswerLine(answer, scores) for answer, scores in zip(answers, own, strict=True)]
                    measure.end_batch(len(numbers))
                    measure.note(lines, others)

            await _run_all([sample_next() for _ in range(sampler.requests_at_once)])

    _run(sampler, sample())


async def _sample_batch(
    client: ProbabilityClient,
    other: ProbabilityClient | None,
    plan: QualityPlan,
    numbers: Sequence[int],
    known: Counter[tuple[int, ...]],
) -> list[SampledAnswer]:
    """Sample one answer to each of the numbered prompts of a plan, as chats if the plan has those.

    A prompt in `known` is left out as often as it is there, and then removed from it.
    The ids of a server that reports texts are found by the other; an answer without any is left out.
    """
    texts = [plan.cut_prompt(number) for number in numbers]
    if client.server.texts:
        assert other is not None
        chat = client.server.texts == CHAT
        top = client.server.top - chat  # some list the sampled token in place of the last one
        answers = await _gather(*(client.sample_text(text, plan.answer_tokens) for text in texts))
        pairs = zip(texts, answers, strict=True)
        found = await _gather(*(other.find_ids(text, answer, chat, top) for text, answer in pairs))
        kept = [answer for answer in found if answer is not None]
        if 2 * sum(len(answer.token_ids) for answer in kept) < sum(len(answer.texts) for answer in answers):
            raise MeasureError(
                f"most tokens that {client.server.model} samples are none of {other.server.model}: the "
                "vocabularies differ, and no KL divergence is defined"
            )
        return kept
    if plan.chat and client.server.api.answers_chats:
        chats = [client.chat(text, plan.answer_tokens) for text in texts]
        return await _gather(*chats)
    if plan.chat:
        prompts = [await client.make_chat_prompt(text) for text in texts]
    else:
        prompts = [ids[:PROMPT_TOKENS] for ids in await _gather(*map(client.tokenize, texts))]
    left = []
    for prompt in prompts:
        if known[prompt] > 0:
            known[prompt] -= 1
        else:
            left.append(prompt)
    return await client.sample(left, plan.answer_tokens) if left else []


def find_sequence(answer: SampledAnswer) -> TokenSequence:
    """Return an answer's prompt and tokens as one sequence, to be scored from the answer's first token on."""
    return TokenSequence(answer.prompt_ids + answer.token_ids, len(answer.prompt_ids))


@dataclass
class AnswerMeasure:
    """The answers measured so far, and how many more are wanted."""

    plan: QualityPlan
    keep: NoteAnswers  # gets each batch, as soon as it is there
    is_precise: Callable[[], bool] = lambda: False
    answers: int = 0
    tokens: int = 0
    known: Counter[tuple[int, ...]] = field(default_factory=Counter)  # prompts of earlier answers
    numbered: int = 0  # prompts that were taken
    begun: int = field(default=0, init=False)  # answers that are under way

    def wants_more(self) -> bool:
        """Whether fewer tokens are there than wanted, and the interval is not as narrow as wanted."""
        return self.tokens < self.plan.tokens and not self.is_precise()

    def begin_batch(self, most: int) -> range:
        """Begin a batch of `most` prompts, fewer if fewer will do; return their numbers, empty to stop."""
        left = self.plan.tokens - self.tokens - self.begun * self.plan.answer_tokens
        size = min(most, -(-left // self.plan.answer_tokens)) if self.wants_more() else 0
        self.begun += max(size, 0)
        self.numbered += max(size, 0)
        return range(self.numbered - max(size, 0), self.numbered)

    def end_batch(self, size: int) -> None:
        """Count `size` answers as no longer under way."""
        self.begun -= size

    def note(self, lines: Sequence[AnswerLine], scores: Sequence[TokenScores | None]) -> None:
        """Count a batch of answers, and pass it on."""
        self.answers += len(lines)
        self.tokens += sum(len(line.answer.token_ids) for line in lines)
        self.keep(lines, scores)


def _take(rest: Iterable[AnswerLine], most: int) -> list[AnswerLine]:
    return [line for _, line in zip(range(most), rest, strict=False)]


async def _return(value: Any) -> Any:
    return value


async def _run_all(requests: Sequence[Coroutine[Any, Any, None]], at_once: int = 0) -> None:
    """Run requests, `at_once` of them at a time (0: all); an exception ends all and is raised."""
    room = asyncio.Semaphore(at_once or len(requests) or 1)

    async def run_one(request: Coroutine[Any, Any, None]) -> None:
        async with room:
            await request

    try:
        await _gather(*map(run_one, requests))
    finally:
        for request in requests:
            request.close()  # one that never began


async def _gather(*requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run requests at once and return their results; an exception ends all and is raised."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _run(server: ProbabilityServer, requests: Coroutine[Any, Any, T]) -> T:
    """Run requests to a server to their result; a signal ends them in order, then is raised as Stopped.

    A second signal is raised at once. In another thread than the main one, no signal comes.
    """
    if current_thread() is not main_thread():
        return server.access.loop.run(requests)
    came: list[int] = []

    async def run() -> T:
        task, loop = asyncio.ensure_future(requests), asyncio.get_running_loop()

        def react(number: int) -> None:
            if came:
                stop(number)
            came.append(number)
            loop.call_soon_threadsafe(task.cancel)

        with SIGNALS.catch(react):
            return await task

    try:
        return server.access.loop.run(run())
    except asyncio.CancelledError:
        if came:
            stop(came[0])
        raise
