"""Synthetic turns: conversations that are made here: a shared system prompt, messages and answers of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.base.errors import UsageError
from loadgen.base.parsing import MOST_REQUESTS
from loadgen.base.text import format_count
from loadgen.plan import lengths, prompt_texts, random_prompts
from loadgen.plan.planned_requests import (
    DIGESTED_PROMPTS,
    DataFacts,
    PromptRequests,
    TurnRequests,
    fingerprint,
    make_turns,
)
from loadgen.plan.profile import Profile
from loadgen.plan.random_prompts import PrefixGroups, PromptShape, draw_lens
from loadgen.plan.request_sources import (
    WORDS,
    ModelTarget,
    PlanInputs,
    SourcedRequests,
    WordCounts,
)
from loadgen.wire.openai import Dialect

CORPUS = "corpus"
_MOST_TEXTS = 4096  # of messages, in memory


# Texts of user messages and of outputs by the index of their request, and of system prompts by the number of
# the prefix group; None: there are none.
_Texts = tuple[PromptRequests, PromptRequests, PromptRequests | None]


class SyntheticTurns(TurnRequests):
    """Requests of generated conversations with equally many turns, the last one's maybe fewer.

    A request has the messages of its session up to its own. The answers among them are made here, of the
    lengths that are asked for, so that every server has the same prompts; or they are the server's own.
    """

    def __init__(
        self, texts: _Texts, turns: int, lens: tuple[Int64, Int64], groups: PrefixGroups[int]
    ) -> None:
        self._messages, self._answers, self._systems = texts
        systems = self._systems
        self.format = f"turns-{self._messages.format}"
        own_lens, self.output_lens = lens
        self._turns, self._groups = turns, groups
        self._kept: dict[int, str] = {}
        first = np.arange(len(own_lens), dtype=np.int64) // turns * turns
        until = np.concatenate(([0], np.cumsum(own_lens + self.output_lens)))
        system_lens = 0 if systems is None else systems.input_lens[groups.of[first // turns]]
        before = until[np.arange(len(own_lens))] - until[first]
        self.input_lens: Int64 = system_lens + before + own_lens
        # An earlier session had the same system prompt.
        system_len = 0 if systems is None else int(systems.input_lens[0])
        self.shared_tokens = groups.count_reusable(system_len)

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """Make the chat body of request i, with the server's `answers` in place of generated ones."""
        messages = [*self._history(i, answers), {"role": "user", "content": self.message(i)}]
        body = {"model": model, "messages": messages, dialect.limit_field: int(self.output_lens[i])}
        return dialect.convert_chat(body)

    def digest(self) -> str:
        """Return a hash of all lengths and of the messages of the first 64 requests."""
        first = range(min(len(self.input_lens), DIGESTED_PROMPTS))
        contents = (msgspec.json.encode([*self._history(i, ()), self.message(i)]) for i in first)
        return self._groups.digest(fingerprint(self.format, (self.input_lens, self.output_lens), contents))

    def _history(self, i: int, answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages before that of request i; answers are the given ones, then generated ones."""
        session, turn = divmod(i, self._turns)
        system, history = self.system(session), list[dict[str, Any]]()
        if system:
            history.append({"role": "system", "content": system})
        for number, before in enumerate(range(i - turn, i)):
            made = number >= len(answers)
            answer = {"role": "assistant", "content": self.answer(before)} if made else answers[number]
            history += [{"role": "user", "content": self.message(before)}, answer]
        return history

    def system(self, session: int) -> str:
        """Return the system prompt of a session; "" if it has none."""
        systems = self._systems
        return "" if systems is None else str(systems.prompt(int(self._groups.of[session])))

    def answer(self, i: int) -> str:
        """Return the generated answer to request i."""
        return str(self._answers.prompt(i))

    def message(self, i: int) -> str:
        """Return the user's message of request i, cached for later turns."""
        if i not in self._kept:
            if len(self._kept) >= _MOST_TEXTS:
                self._kept.clear()
            self._kept[i] = str(self._messages.prompt(i))
        return self._kept[i]


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the conversations of a profile with `turns`, of equally many turns but for the last one's.

    Raises UsageError for another API than chat, too many requests, or a form of text that turns do not have.
    """
    profile, stream = inputs.profile, inputs.stream
    turns = profile.turns or 1
    if not inputs.dialect.chat:
        raise UsageError(
            f"--turns makes conversations of the chat API, and requests go to {inputs.dialect.path}: use "
            "--backend openai-chat"
        )
    count = profile.most_prompts if inputs.most is None else inputs.most
    if profile.num_sessions is not None:  # all of their turns
        every = profile.num_sessions * turns
        if every > MOST_REQUESTS:
            raise UsageError(
                f"--num-sessions {profile.num_sessions} of {turns} turns are more than {MOST_REQUESTS}"
            )
        count = every if inputs.most is None else min(every, inputs.most)
    shape, notes = random_prompts.make_shape(replace(inputs, most=count))
    lens = draw_lens(replace(shape, prefix_len=0), stream.rng("lengths"))
    texts, text, how = _make_texts(choose_form(profile, inputs.subject, inputs.dialect), shape, lens, inputs)
    sessions = -(-count // turns)
    groups = PrefixGroups(sessions, shape.prefix_groups, shape.prefix_zipf, stream, lambda _: 0)
    made = SyntheticTurns(texts, turns, lens, groups)
    counts = np.full(sessions, turns, dtype=np.int64)
    counts[-1] = count - (sessions - 1) * turns
    delays_ns = np.zeros(count, dtype=np.int64)
    if profile.think_time:
        pauses = lengths.parse_pauses_ms(profile.think_time, "--think-time")
        if remark := pauses.remark():
            notes.append(f"--think-time {profile.think_time}: {remark}")
        delays_ns = pauses.draw(stream.rng("think time"), count) * MS_NS
        delays_ns[::turns] = 0
    planned = make_turns(counts, delays_ns)
    reusable = None
    if random_prompts.is_count_known(shape, profile):  # what the turn before had sent, or received if live
        follows = np.ones(count, dtype=np.bool_)
        follows[planned.begins[:-1]] = False
        before = np.flatnonzero(follows) - 1
        live_len = 0 if profile.assistant == "recorded" else int(made.output_lens[before].sum())
        reusable = made.shared_tokens + int(made.input_lens[before].sum()) + live_len
    facts = DataFacts(kind="random_turns", sent=count, text=text, reusable_tokens=reusable)
    sent = f"{format_count(len(planned), 'session')} with {format_count(count, 'turn')}"
    return SourcedRequests(made, facts, notes=(*notes, *how, f"made: {sent}"), turns=planned)


def choose_form(profile: Profile, subject: ModelTarget, dialect: Dialect) -> str:
    """Return the form of texts, WORDS, or CORPUS if a text is named; raises UsageError for any other."""
    wanted, text = profile.prompt_format, profile.prompt_corpus
    if wanted not in ("auto", WORDS, CORPUS):
        raise UsageError(
            f"--prompt-format {wanted}: the messages of --turns are words, or corpus: leave it out"
        )
    if text and wanted == WORDS:
        raise UsageError("--prompt-corpus and --prompt-format words are two texts: leave out one of them")
    return CORPUS if text or wanted == CORPUS else WORDS


def _make_texts(
    form: str, shape: PromptShape, lens: tuple[Int64, Int64], inputs: PlanInputs
) -> tuple[_Texts, str, list[str]]:
    """Return texts of a form for messages, answers and system prompts, their source, and notes on them."""
    counts = inputs.subject.word_counts or WordCounts()
    # The chat template's overhead is counted with the user's messages.
    bare = replace(inputs.subject, word_counts=replace(counts, overhead=0.0))
    messages, others = (
        prompt_texts.open_source(form, replace(inputs, subject=subject)) for subject in (inputs.subject, bare)
    )
    system = np.full(shape.prefix_groups, shape.prefix_len, dtype=np.int64)

    def make(part: str, tokens: Int64) -> PromptRequests:
        """Make texts of these lengths, which have nothing in common with the messages."""
        stream = replace(inputs.stream, profile=f"{inputs.stream.profile} {part}")
        return others.make(_make_own_shape(shape, tokens), stream)

    texts = (
        messages.make(_make_own_shape(shape, lens[0]), inputs.stream),
        make("answers", lens[1]),
        make("systems", system) if shape.prefix_len else None,
    )
    notes = [f"messages of words: {counts.explanation}"] if form == WORDS else []
    return texts, messages.facts.text, notes


def _make_own_shape(shape: PromptShape, tokens: Int64) -> PromptShape:
    return replace(
        shape,
        num_prompts=len(tokens),
        input_len=int(tokens.max()),
        prefix_len=0,
        prefix_groups=1,
        class_lens=(tokens, tokens),
    )
