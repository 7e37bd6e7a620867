"""Quality run: a candidate's quality from servers that are up, or from what a reference file has.

`record_reference` keeps what a reference samples and scores; a `QualityRun` measures a candidate against a
reference that is up, or was kept. Both can be stopped by KeyboardInterrupt: what is noted until then stays.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.signals import SIGNALS, defer_stop, stop
from loadgen.base.text import WIDTH
from loadgen.study.quality.divergence import (
    QualityEvidence,
    check_sampling,
    estimate_divergence,
    judge_evidence,
)
from loadgen.study.quality.probability_apis import TokenSequence
from loadgen.study.quality.probability_server import CHAT, ProbabilityClient, ProbabilityServer
from loadgen.study.quality.quality_record import (
    CANDIDATE,
    REFERENCE,
    MeanInterval,
    Quality,
    SampledAnswer,
    TextSegment,
    TokenScores,
)
from loadgen.study.quality.quality_text import PROMPT_TOKENS, QualityPlan, TokenizedText
from loadgen.study.quality.reference_file import (
    AnswerLine,
    ReferenceContents,
    ReferenceFile,
    ReferenceHeader,
    SegmentLine,
)

T = TypeVar("T")
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

    return _run(server, tokenize())


def score_text(
    server: ProbabilityServer, text: TokenizedText, show: Show, file: ReferenceFile | None = None
) -> list[TextSegment]:
    """Score the segments of a text by a server, in their order; raises MeasureError.

    Those that a file has are not scored again, and others are appended to it, as many at a time as are sent
    at once.
    """
    each, begin_ns = server.api.prompts_each, clock.now_ns()
    segments = [] if file is None or file.contents is None else list(file.contents.segments)

    async def score() -> None:
        async with server.open() as client:
            while rest := text.segments[len(segments) :][: server.prompts_at_once]:
                batches = [rest[first : first + each] for first in range(0, len(rest), each)]
                asked = ([TokenSequence(ids, 1) for ids in batch] for batch in batches)
                scores = chain.from_iterable(await _gather(*map(client.score, asked)))
                sizes = text.scored_bytes[len(segments) :]
                more = [TextSegment(*row) for row in zip(rest, scores, sizes, strict=False)]
                if file is not None:
                    file.append(map(SegmentLine, more))
                segments.extend(more)
                what, total = f"text by {server.model}", len(text.segments)
                show(QualityProgress(what, len(segments), total, "segment", begin_ns))

    _run(server, score())
    return segments


def score_answers(
    server: ProbabilityServer,
    lines: Sequence[AnswerLine],
    measure: AnswerMeasure,
    file: ReferenceFile | None = None,
) -> None:
    """Score sampled answers by a server, in batches, until `measure`, which gets each, wants no more.

    Those whose scores a file has are not scored again, and others' are appended to it. Raises MeasureError.
    """
    measure.begin_ns = clock.now_ns()
    kept = () if file is None or file.contents is None else file.contents.answers
    known = {line.answer: line.own for line in kept if line.own is not None}
    before = [line for line in lines if line.answer in known]
    measure.note(before, [known[line.answer] for line in before])
    rest = iter([line for line in lines if line.answer not in known])

    async def score_next(client: ProbabilityClient) -> None:
        while measure.wants_more() and (batch := list(islice(rest, server.api.prompts_each))):
            scores = await client.score([find_sequence(line.answer) for line in batch])
            if file is not None:
                pairs = zip(batch, scores, strict=True)
                file.append(AnswerLine(line.answer, own) for line, own in pairs)
            measure.note(batch, scores)

    async def score() -> None:
        async with server.open() as client:
            await _gather(*(score_next(client) for _ in range(server.requests_at_once)))

    _run(server, score())


def sample_answers(
    sampler: ProbabilityServer, scorer: ProbabilityServer | None, plan: QualityPlan, measure: AnswerMeasure
) -> None:
    """Sample answers by one server, and score each batch by it, where it can, and by the other, if any.

    It goes on until `measure`, which gets each batch, wants no more. Prompts that it has answers of already
    are left out. Raises MeasureError.
    """

    measure.begin_ns = clock.now_ns()

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

            await _gather(*(sample_next() for _ in range(sampler.requests_at_once)))

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
    """The answers measured so far, with their scores by the other server, and how many more are wanted."""

    plan: QualityPlan
    what: str = "answers"  # of the progress
    show: Show = show_nothing
    keep: Callable[[Sequence[AnswerLine]], None] | None = None  # gets each batch, as soon as it is there
    known: Counter[tuple[int, ...]] = field(default_factory=Counter)  # prompts of earlier answers
    numbered: int = 0  # prompts that were taken
    tokens: int = 0
    lines: list[AnswerLine] = field(default_factory=list)
    scores: list[TokenScores | None] = field(default_factory=list)
    kl: MeanInterval | None = None  # as of the last estimate
    begin_ns: int = 0  # of the measuring
    _begun: int = 0  # answers that are under way
    _next: int = 2  # answers at which KL is estimated again
    _next_check: int = 2  # answers at which their sampling is checked again
    _doubted: bool = False  # whether the sampling was doubted then: there is no KL

    def wants_more(self) -> bool:
        """Whether there are fewer tokens than wanted, and from 20 answers on a wider interval of KL."""
        if self.plan.precision is None or self.kl is None or len(self.lines) < _FEWEST:
            return self.tokens < self.plan.tokens
        return self.tokens < self.plan.tokens and self.kl.half > self.plan.precision

    def begin_batch(self, most: int) -> range:
        """Begin a batch of `most` prompts, fewer if fewer will do; return their numbers, empty to stop."""
        left = self.plan.tokens - self.tokens - self._begun * self.plan.answer_tokens
        size = max(min(most, -(-left // self.plan.answer_tokens)), 0) if self.wants_more() else 0
        self._begun += size
        self.numbered += size
        return range(self.numbered - size, self.numbered)

    def end_batch(self, size: int) -> None:
        """Count `size` answers as no longer under way."""
        self._begun -= size

    def note(self, lines: Sequence[AnswerLine], scores: Sequence[TokenScores | None]) -> None:
        """Add a batch of answers, pass it on, and show the progress, with KL estimated after 5 % more."""
        if self.keep is not None:
            self.keep(lines)
        self.lines += lines
        self.scores += scores
        self.tokens += sum(len(line.answer.token_ids) for line in lines)
        if len(self.lines) >= self._next:
            answers = [line.answer for line in self.lines]
            if len(answers) >= self._next_check:  # it costs twenty times an estimate
                self._doubted = bool(check_sampling(answers, [line.own for line in self.lines]))
                self._next_check = 2 * len(answers)
            self.kl = None if self._doubted else estimate_divergence(answers, self.scores)
            self._next = int(_GROWTH * len(self.lines)) + 1
        self.show(QualityProgress(self.what, self.tokens, self.plan.tokens, "token", self.begin_ns, self.kl))


async def _return(value: Any) -> Any:
    return value


async def _gather(*requests: Coroutine[Any, Any, Any]) -> list[Any]:
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
        nonlocal came
        task, loop = asyncio.ensure_future(requests), asyncio.get_running_loop()
        with defer_stop(SIGNALS, lambda _: loop.call_soon_threadsafe(task.cancel)) as came:
            return await task

    try:
        return server.access.loop.run(run())
    except asyncio.CancelledError:
        if came:
            stop(came[0])
        raise


VOCABULARIES_DIFFER = dict.fromkeys(
    ("kl", "noise_floor"),
    "the vocabularies differ: the same text has other tokens; bits per byte compare them",
)  # why these are None
UNSCORED_REFERENCE = "the reference's file has no scores of the text"


def explain_no_text(engine: str, model: str) -> str:
    """Explain why figures of the text are None where a server cannot score it."""
    return f"{engine} ({model}) scores no text"


def make_header(server: ProbabilityServer, plan: QualityPlan, text: TokenizedText) -> ReferenceHeader:
    """Make the header of a server's reference file."""
    return ReferenceHeader(
        model=server.model,
        engine=server.engine,
        engine_version=server.version,
        settings=plan.list_settings(),
        text_digest=plan.text_digest,
        text_ids=text.segments,
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
    text = tokenize_text(server, plan)
    with closing(ReferenceFile(path, make_header(server, plan, text))) as file:
        kept = () if file.contents is None else file.contents.answers
        if server.scores:
            score_text(server, text, show, file)
        measure = AnswerMeasure(plan, f"answers of {server.model}", show)
        measure.note(kept, [None] * len(kept))
        measure.keep = file.append
        if plan.chat and server.api.answers_chats:  # which has no ids of a prompt before its answer
            measure.numbered = len(kept)
        else:
            measure.known = Counter(line.answer.prompt_ids for line in kept)
        sample_answers(server, None, plan, measure)


def describe_origin(
    settings: Mapping[str, Any],
    text_digest: str,
    engines: Mapping[str, str],
    reference: ReferenceContents | None,
) -> dict[str, Any]:
    """Describe what figures are of: `settings` with each side's engine, and `digests` of text and reference.

    `engines` are by "reference" and "candidate"; that of a file is the file's.
    """
    known = dict(engines) if reference is None else {**engines, REFERENCE: reference.header.engine}
    digests = {"text": text_digest, **({} if reference is None else {"reference": reference.digest})}
    named = {f"{side}_engine": engine for side, engine in known.items()}
    return {"settings": {**settings, **named}, "digests": digests}


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
    texts: dict[str, Sequence[TextSegment]] = field(default_factory=dict)  # by side
    why: dict[str, str] = field(default_factory=dict)
    answers: AnswerMeasure = field(init=False)

    def __post_init__(self) -> None:
        """Raise UsageError for a file of another text, and where no server scores what is sampled."""
        model = self._kept.header.model if self.reference is None else self.reference.model
        what = f"answers of {self.candidate.model if self.backward else model}"
        most = self.plan.tokens if self.kept is None else min(self.plan.tokens, self.kept.tokens)
        self.answers = AnswerMeasure(replace(self.plan, tokens=most), what, self.show)
        if self.kept is None:
            if self.reference is not None and not (self.reference.scores or self.candidate.scores):
                raise UsageError(
                    f"neither {self.reference.engine} nor {self.candidate.engine} scores what the other "
                    "samples: serve one of them by an engine that does, as vLLM"
                )
            return
        header = self.kept.header
        if header.text_digest != self.plan.text_digest:
            raise UsageError(
                "--reference: it was measured on another text: pass that one with --text, or keep the "
                "reference again with --save"
            )
        if not (self.kept.answers or self.kept.segments):
            raise UsageError(
                "--reference: it has no answers yet: go on with it by --save while its server is up"
            )
        if not self.candidate.scores:
            raise UsageError(
                f"{self.candidate.engine} cannot score what a reference has sampled: it samples, and the "
                "reference scores, where that is up: pass its --reference-url and no file"
            )

    @property
    def backward(self) -> bool:
        """Whether the candidate samples and the reference scores."""
        return not self.candidate.scores

    def measure(self) -> None:
        """Score the text by both, then answers until there are enough; raises MeasureError, UsageError."""
        theirs = tokenize_text(self.reference, self.plan) if self.reference is not None else self._kept.text
        own = theirs if self.candidate.texts else tokenize_text(self.candidate, self.plan)
        same = own.take_ids(theirs)
        with ExitStack() as stack:
            file = None
            if self.scores_path is not None:
                header = make_header(self.candidate, self.plan, same or own)
                file = stack.enter_context(closing(ReferenceFile(self.scores_path, header)))
            self._score_texts(theirs, same or own, file)
            if same is None:
                self.why |= VOCABULARIES_DIFFER
            elif self.reference is None:
                score_answers(self.candidate, self._kept.answers, self.answers, file)
            else:
                pair = (self.reference, self.candidate)
                sampler, scorer = pair[::-1] if self.backward else pair
                sample_answers(sampler, scorer, self.plan, self.answers)

    @property
    def _kept(self) -> ReferenceContents:
        assert self.kept is not None
        return self.kept

    def _score_texts(self, theirs: TokenizedText, own: TokenizedText, file: ReferenceFile | None) -> None:
        if self.reference is None and not self._kept.segments:
            self.why["text"] = UNSCORED_REFERENCE
        for server in (self.reference, self.candidate):
            if server is not None and not server.scores:
                self.why["text"] = explain_no_text(server.engine, server.model)
        if "text" not in self.why:
            self.texts[REFERENCE] = (
                self._kept.segments
                if self.reference is None
                else score_text(self.reference, theirs, self.show)
            )
            self.texts[CANDIDATE] = score_text(self.candidate, own, self.show, file)

    @property
    def is_begun(self) -> bool:
        """Whether any figure can be computed."""
        return len(self.answers.lines) > 1 or all(self.texts.get(side) for side in (REFERENCE, CANDIDATE))

    def note_end(self, reason: str) -> None:
        """Note why it ended before there were answers enough for a divergence, if it did."""
        if len(self.answers.lines) < 2:
            for name in ("kl", "noise_floor"):
                self.why.setdefault(name, reason)

    def judge(self) -> Quality:
        """Compute the figures of what is measured so far."""
        engines = {CANDIDATE: self.candidate.engine}
        if self.reference is not None:
            engines[REFERENCE] = self.reference.engine
        return judge_evidence(
            QualityEvidence(
                reference=self._kept.header.model if self.reference is None else self.reference.model,
                candidate=self.candidate.model,
                answers=[line.answer for line in self.answers.lines],
                own=[line.own for line in self.answers.lines],
                other=self.answers.scores,
                candidate_sampled=self.backward,
                reference_text=self.texts.get(REFERENCE, ()),
                candidate_text=self.texts.get(CANDIDATE, ()),
                why=self.why,
                **describe_origin(self.plan.list_settings(), self.plan.text_digest, engines, self.kept),
            )
        )
