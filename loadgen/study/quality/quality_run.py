"""Quality run: a candidate's quality from servers that are up, or from what a reference file has.

`record_reference` keeps what a reference samples and scores; a `QualityRun` measures a candidate against a
reference that is up, or was kept. Both can be stopped by KeyboardInterrupt: what is noted until then stays.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import WIDTH
from loadgen.study.quality.divergence import (
    check_sampling,
    estimate_divergence,
    explain_no_text,
    judge_contents,
)
from loadgen.study.quality.probability_server import CHAT, ProbabilityClient, ProbabilityServer, TokenSequence
from loadgen.study.quality.quality_record import (
    MeanInterval,
    Quality,
    SampledAnswer,
    TextSegment,
    TokenScores,
)
from loadgen.study.quality.quality_text import PROMPT_TOKENS, QualityPlan, TokenizedText
from loadgen.study.quality.reference_file import (
    GREEDY,
    AnswerLine,
    GreedyLine,
    PairedAnswers,
    ReferenceContents,
    ReferenceFile,
    ReferenceHeader,
    SegmentLine,
)

_HEAD = "\n"  # before each segment: what follows nothing has no score, and this is it
_GROWTH = 1.05  # of the answers between two estimates, so that many answers are not read again and again
_FEWEST = 20  # answers before an interval's width means something


class QualityProgress(msgspec.Struct, frozen=True):
    """How far a measurement of quality is, for a display."""

    what: str  # as "answers of bf16"
    done: int
    total: int
    unit: str
    begin_ns: int  # of these
    kl: MeanInterval | None = None  # so far

    @property
    def share(self) -> float:
        """The share that is done, 0 to 1."""
        return min(self.done / max(self.total, 1), 1.0)

    def line(self, columns: int = WIDTH) -> str:
        """Return the progress in one line: what, how much, the interval so far, and the seconds left."""
        parts = [f"{self.what}: {self.done:,} of {self.total:,} {self.unit}s"]
        if self.kl is not None:
            parts.append(f"KL {self.kl.mean:.4f} ± {self.kl.half:.4f}")
        if self.begin_ns and self.share:
            elapsed_s = (clock.now_ns() - self.begin_ns) / 1e9
            parts.append(f"{elapsed_s * (1 / self.share - 1):.0f} s left")
        return " · ".join(parts)


Show = Callable[[QualityProgress], None]


def show_nothing(progress: QualityProgress) -> None:
    """Show no progress."""


def tokenize_text(server: ProbabilityServer, plan: QualityPlan) -> TokenizedText:
    """Tokenize the segments of a plan's text by a server; raises MeasureError or UsageError if it cannot."""
    texts = [_HEAD + text for text in plan.cut_segments()]

    async def tokenize() -> TokenizedText:
        room = asyncio.Semaphore(server.prompts_at_once)
        async with server.open() as client:
            head = await client.tokenize(_HEAD)

            async def tokenize_one(text: str) -> tuple[int, ...]:
                async with room:
                    return await client.tokenize(text)

            segments = await _gather(*map(tokenize_one, texts))
        # The first token has no score: one that begins a prompt, else the line end.
        sizes = [len(text.encode()) - (len(head) == 1) for text in texts]
        return TokenizedText(tuple(segments), tuple(sizes))

    return server.access.loop.run(tokenize())


def score_text(server: ProbabilityServer, text: TokenizedText, scores: ReferenceContents, show: Show) -> None:
    """Score the segments of a text by a server, in their order; raises MeasureError.

    Those that `scores` has are not scored again, and others are appended to it, as many at a time as are sent
    at once.
    """
    each, begin_ns = server.api.prompts_each, clock.now_ns()

    async def score() -> None:
        async with server.open() as client:
            while rest := text.segments[len(scores.segments) :][: server.prompts_at_once]:
                batches = [rest[first : first + each] for first in range(0, len(rest), each)]
                asked = ([TokenSequence(ids, 1) for ids in batch] for batch in batches)
                found = chain.from_iterable(await _gather(*map(client.score, asked)))
                sizes = text.scored_bytes[len(scores.segments) :]
                rows = zip(rest, found, sizes, strict=False)
                scores.append(SegmentLine(TextSegment(*row)) for row in rows)
                what, done, total = f"text by {server.model}", len(scores.segments), len(text.segments)
                show(QualityProgress(what, done, total, "segment", begin_ns))

    server.access.loop.run(score())


def answer_prompts(
    server: ProbabilityServer,
    plan: QualityPlan,
    prompts: Iterable[str],
    contents: ReferenceContents,
    show: Show,
) -> None:
    """Append a server's greedy answers to prompts that `contents` has none to; raises MeasureError."""
    every, known = list(prompts), {answer.prompt for answer in contents.greedy}
    left, begin_ns = (prompt for prompt in every if prompt not in known), clock.now_ns()

    async def answer_next(client: ProbabilityClient) -> None:
        for prompt in left:
            contents.append([GreedyLine(await client.answer_greedily(prompt, plan.answer_tokens))])
            what, done = f"greedy responses of {server.model}", len(contents.greedy)
            show(QualityProgress(what, done, len(every), "response", begin_ns))

    _work(server, answer_next)


def _work(server: ProbabilityServer, work: Callable[[ProbabilityClient], Coroutine[Any, Any, None]]) -> None:
    """Do a work as often at once as a server takes requests."""

    async def do() -> None:
        async with server.open() as client:
            await _gather(*(work(client) for _ in range(server.requests_at_once)))

    server.access.loop.run(do())


def score_answers(server: ProbabilityServer, measure: AnswerMeasure) -> None:
    """Score sampled answers by a server, in batches, until `measure` wants no more; raises MeasureError.

    Those that have scores are not scored again.
    """
    known = {line.answer for line in measure.scores.answers}
    rest = iter([line.answer for line in measure.sampled.answers if line.answer not in known])

    async def score_next(client: ProbabilityClient) -> None:
        while measure.wants_more() and (batch := list(islice(rest, server.api.prompts_each))):
            measure.scores.append(map(AnswerLine, batch, await _score(client, batch)))
            measure.note(batch)

    _work(server, score_next)


def sample_answers(
    sampler: ProbabilityServer, scorer: ProbabilityServer | None, measure: AnswerMeasure
) -> None:
    """Sample answers by one server, and score each batch by it, where it can, and by the other, if any.

    It goes on until `measure` wants no more. Prompts that `measure` has answers to are left out. Raises
    MeasureError.
    """

    async def sample() -> None:
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(sampler.open())
            other = None if scorer is None else await stack.enter_async_context(scorer.open())

            async def sample_next(numbers: Iterator[int]) -> None:
                while measure.wants_more() and (batch := list(islice(numbers, sampler.api.prompts_each))):
                    if answers := await _sample_batch(ours, other, batch, measure):
                        own, others = await _gather(_score(ours, answers), _score(other, answers))
                        measure.sampled.append(map(AnswerLine, answers, own))
                        if other is not None:
                            measure.scores.append(map(AnswerLine, answers, others))
                        measure.note(answers)

            while measure.wants_more():  # again for answers that are shorter than they may be
                numbers = iter(measure.take_numbers())
                await _gather(*(sample_next(numbers) for _ in range(sampler.requests_at_once)))

    sampler.access.loop.run(sample())


async def _sample_batch(
    client: ProbabilityClient,
    other: ProbabilityClient | None,
    numbers: Sequence[int],
    measure: AnswerMeasure,
) -> list[SampledAnswer]:
    """Sample one answer to each of the numbered prompts of a plan, as chats if the plan has those.

    A prompt of an earlier answer is left out as often as it is there. The ids of a server that reports texts
    are found by the other; an answer without any is left out.
    """
    plan, known = measure.plan, measure.known
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
    left = [prompt for prompt in prompts if not known[prompt]]
    known.subtract(set(prompts) - set(left))
    return await client.sample(left, plan.answer_tokens) if left else []


async def _score(
    client: ProbabilityClient | None, answers: Sequence[SampledAnswer]
) -> Sequence[TokenScores | None]:
    """Score sampled answers by a server, as one sequence each with its prompt; None where it cannot."""
    if client is None or not client.server.scores:
        return [None] * len(answers)
    return await client.score(
        [TokenSequence(answer.prompt_ids + answer.token_ids, len(answer.prompt_ids)) for answer in answers]
    )


@dataclass
class AnswerMeasure:
    """The answers measured so far, with their scores by the other server, and how many more are wanted."""

    plan: QualityPlan
    sampled: ReferenceContents
    scores: ReferenceContents  # of these answers by the other server; `sampled` itself where there is none
    what: str = "responses"  # of the progress
    show: Show = show_nothing
    known: Counter[tuple[int, ...]] = field(default_factory=Counter)  # prompts of earlier answers
    numbered: int = 0  # prompts that were taken
    answers: int = 0
    tokens: int = 0
    kl: MeanInterval | None = None  # as of the last estimate
    begin_ns: int = field(default_factory=clock.now_ns)
    _next: int = 2  # answers at which KL is estimated again
    _next_check: int = 2  # answers at which their sampling is checked again
    _doubted: bool = False  # whether the sampling was doubted then: there is no KL

    def __post_init__(self) -> None:
        self.note(PairedAnswers.of(self.sampled, self.scores).answers)

    def wants_more(self) -> bool:
        """Whether there are fewer tokens than wanted, and from 20 answers on a wider interval of KL."""
        if self.plan.precision is None or self.kl is None or self.answers < _FEWEST:
            return self.tokens < self.plan.tokens
        return self.tokens < self.plan.tokens and self.kl.half > self.plan.precision

    def take_numbers(self) -> range:
        """Take the numbers of as many prompts as are enough if no answer ends early."""
        begin, left = self.numbered, self.plan.tokens - self.tokens
        self.numbered += -(-left // self.plan.answer_tokens)
        return range(begin, self.numbered)

    def note(self, answers: Sequence[SampledAnswer]) -> None:
        """Count answers that were appended, and show the progress, with KL estimated after 5 % more."""
        self.answers += len(answers)
        self.tokens += sum(len(answer.token_ids) for answer in answers)
        if self.answers >= self._next and self.scores is not self.sampled:
            sampled, own, other = PairedAnswers.of(self.sampled, self.scores)
            if self.answers >= self._next_check:  # it costs twenty times an estimate
                self._doubted = bool(check_sampling(sampled, own))
                self._next_check = 2 * self.answers
            self.kl = None if self._doubted else estimate_divergence(sampled, other)
            self._next = int(_GROWTH * self.answers) + 1
        self.show(QualityProgress(self.what, self.tokens, self.plan.tokens, "token", self.begin_ns, self.kl))


async def _gather(*requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Await requests at once, results in their order; where one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def make_header(
    server: ProbabilityServer, plan: QualityPlan, text: TokenizedText | None = None
) -> ReferenceHeader:
    """Make the header of what a server samples and scores, or answers greedily."""
    greedy = {} if server.greedy is None else {GREEDY: True, "chat": server.greedy.dialect.chat}
    return ReferenceHeader(
        model=server.model,
        engine=server.engine,
        engine_version=server.version,
        settings=plan.list_settings() | greedy,
        text_digest=plan.text_digest,
        text_ids=() if text is None else text.segments,
    )


def record_reference(
    server: ProbabilityServer, plan: QualityPlan, path: Path, show: Show = show_nothing
) -> None:
    """Keep what a server samples and scores in a file, which goes on where an earlier run of it ended.

    Raises UsageError for a file of another reference, MeasureError.
    """
    if server.texts:
        raise MeasureError(
            f"{server.access.shown_url} reports no token ids, which a file must have: pass --reference-url "
            "with a server of the reference, which finds them"
        )
    text = None if server.greedy is not None else tokenize_text(server, plan)
    with closing(ReferenceFile(path, make_header(server, plan, text))) as file:
        if text is None:
            answer_prompts(server, plan, plan.list_prompts(), file, show)
            return
        if server.scores:
            score_text(server, text, file, show)
        measure = AnswerMeasure(plan, file, file, f"responses of {server.model}", show)
        if plan.chat and server.api.answers_chats:  # which has no ids of a prompt before its answer
            measure.numbered = len(file.answers)
        else:
            measure.known = Counter(line.answer.prompt_ids for line in file.answers)
        sample_answers(server, None, measure)


@dataclass
class QualityRun:
    """A measurement of a candidate: what it is held to, and the evidence so far.

    `reference` is up, or else `kept` is what its file has. The candidate samples where it cannot score.
    """

    candidate: ProbabilityServer
    plan: QualityPlan
    reference: ProbabilityServer | None = None
    kept: ReferenceContents | None = None
    show: Show = show_nothing
    scores_path: Path | None = None  # of a file that keeps the candidate's scores, and goes on with them
    why: dict[str, str] = field(default_factory=dict)
    answers: AnswerMeasure | None = field(init=False, default=None)  # None until the text is scored
    _sides: list[ReferenceContents] = field(init=False, default_factory=list)  # as for `judge_contents`

    def __post_init__(self) -> None:
        """Raise UsageError for a file of another text, and where no server scores what is sampled."""
        if self.kept is not None:
            self._check_kept(self.kept)
        elif self.reference is not None and not (self.reference.scores or self.candidate.scores):
            raise UsageError(
                f"neither {self.reference.engine} nor {self.candidate.engine} scores what the other "
                "samples: serve one of them by an engine that does, as vLLM, or pass --greedy"
            )

    def _check_kept(self, kept: ReferenceContents) -> None:
        """Raise UsageError for a file of another text or API, without answers, or that cannot be scored."""
        if kept.header.text_digest != self.plan.text_digest:
            raise UsageError(
                "--reference: it was measured on another text: pass that one with --text, or keep the "
                "reference again with --save"
            )
        greedy, settings = self.candidate.greedy, kept.header.settings
        if greedy is not None and settings.get(GREEDY) and settings.get("chat") is not greedy.dialect.chat:
            raise UsageError("the reference's responses are of another API: keep it again with --chat")
        if greedy is not None and not settings.get(GREEDY):
            raise UsageError(
                f"the reference was kept without greedy responses, but {self.why['kl']}: keep it again with "
                "--greedy, in a campaign with greedy = true in [quality]"
            )
        if not (kept.answers or kept.segments or kept.greedy):
            raise UsageError(
                "--reference: it has no responses yet: go on with it by --save while its server is up"
            )
        if not self.candidate.scores:
            raise UsageError(
                f"{self.candidate.engine} cannot score what a reference has sampled: it samples, and the "
                "reference scores, where that is up: pass its --reference-url and no file"
            )

    def measure(self) -> None:
        """Score the text by both, then answers until there are enough; raises MeasureError, UsageError."""
        with ExitStack() as stack:
            if self.candidate.greedy is None:
                self._collect_scores(stack)
            else:
                self._collect_answers(stack)

    def _open_scores(self, header: ReferenceHeader, stack: ExitStack) -> ReferenceContents:
        if self.scores_path is None:
            return ReferenceContents(header)
        return stack.enter_context(closing(ReferenceFile(self.scores_path, header)))

    def _collect_answers(self, stack: ExitStack) -> None:
        """Collect greedy answers of both; those of a kept reference are as they are."""
        held_to = self.kept
        scores = self._open_scores(make_header(self.candidate, self.plan), stack)
        if held_to is None:
            assert self.reference is not None
            held_to = ReferenceContents(make_header(self.reference, self.plan))
            answer_prompts(self.reference, self.plan, self.plan.list_prompts(), held_to, self.show)
        self._sides = [held_to, scores]
        prompts = [answer.prompt for answer in held_to.greedy]
        answer_prompts(self.candidate, self.plan, prompts, scores, self.show)

    def _collect_scores(self, stack: ExitStack) -> None:
        """Score the text by both, then sampled answers, unless the vocabularies differ."""
        held_to = self.kept
        if held_to is None:
            assert self.reference is not None
            theirs = tokenize_text(self.reference, self.plan)
            held_to = ReferenceContents(make_header(self.reference, self.plan, theirs))
        else:
            theirs = held_to.text
        own = theirs if self.candidate.texts else tokenize_text(self.candidate, self.plan)
        same = own.take_ids(theirs)
        scores = self._open_scores(make_header(self.candidate, self.plan, same or own), stack)
        self._sides = [held_to, scores]
        self._score_texts(theirs, same or own)
        if self.candidate.scores:
            sampled, scored, what = held_to, scores, held_to.header.model
        else:
            sampled, scored, what = scores, ReferenceContents(held_to.header), self.candidate.model
            self._sides.append(scored)
        most = self.plan.tokens if self.kept is None else min(self.plan.tokens, self.kept.tokens)
        plan = replace(self.plan, tokens=most)
        self.answers = AnswerMeasure(plan, sampled, scored, f"responses of {what}", self.show)
        if same is None:
            return
        if self.reference is None:
            score_answers(self.candidate, self.answers)
        elif self.candidate.scores:
            sample_answers(self.reference, self.candidate, self.answers)
        else:
            sample_answers(self.candidate, self.reference, self.answers)

    def _score_texts(self, theirs: TokenizedText, own: TokenizedText) -> None:
        """Score the text by both; not where a server cannot, which is noted, or a file has no scores."""
        held_to, scores = self._sides
        if self.reference is not None:
            for server, contents in zip((self.reference, self.candidate), self._sides, strict=True):
                if not server.scores:
                    self.why["text"] = explain_no_text(contents.header)
            if "text" not in self.why:
                score_text(self.reference, theirs, held_to, self.show)
        if held_to.segments:
            score_text(self.candidate, own, scores, self.show)

    @property
    def answered(self) -> int:
        """How many answers of both there are."""
        if self.answers is None:
            return min((len(side.greedy) for side in self._sides), default=0)
        return self.answers.answers

    @property
    def is_begun(self) -> bool:
        """Whether any figure can be computed."""
        return self.answered > 1 or (self.answers is not None and bool(self._sides[1].segments))

    def note_end(self, reason: str) -> None:
        """Note why it ended before there were answers enough for a divergence, if it did."""
        if self.answered < 2:
            self.why |= {"kl": reason, "noise_floor": reason}

    def judge(self) -> Quality:
        """Compute the figures of what is measured so far."""
        return judge_contents(*self._sides, why=self.why)
