"""Trace replay: a trace's requests as a plan's: lengths, shared prefixes and times as they were recorded.

Which of its requests are sent, and when: window, caps, speed, jitter, idle cap.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import parsing
from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value
from loadgen.features.traces import otel_spans, trace_formats
from loadgen.features.traces.call_order import reorder_waits
from loadgen.features.traces.otel_spans import SpanMessages
from loadgen.features.traces.trace_blocks import (
    BlockContent,
    IdTexts,
    PrefixReuse,
    find_growth_reuse,
    find_prefix_reuse,
    scope_hashes,
)
from loadgen.features.traces.trace_rows import NO_SAMPLING, Hashes, TraceRows
from loadgen.figures.workloads import find_grid_ns
from loadgen.plan.model_files import find_vocabulary
from loadgen.plan.planned_requests import (
    CAPS,
    RECORDED,
    UNKNOWN_LEN,
    DataFacts,
    PromptRequests,
    Requests,
    ScheduleFacts,
    TurnRequests,
    Turns,
    Waits,
    fingerprint,
    make_waits,
)
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import (
    FIRST_WORD,
    WORDS,
    ModelTarget,
    PlanInputs,
    SourcedRequests,
    WordCounts,
    count_sessions,
    make_arrival_rng,
)
from loadgen.plan.trace_heads import CLOSED
from loadgen.wire.openai import Dialect

_BITS = 2**64
IDS = "ids"
_NO_LENGTHS = (
    "--trace {file}: has calls whose prompts are recorded as messages, without their tokens, and requests go "
    "to {path}: use --backend openai-chat"
)
_NOT_SENT = (
    "the recorded messages are not sent, but prompts of their lengths: --backend openai-chat sends them"
)
_NOT_LIVE = (
    "--assistant live sends the server's outputs back, and the prompts of {file} are made of lengths alone, "
    "without messages: leave it out"
)
_NO_SESSIONS = "--trace-replay closed: the format of {file} has no sessions whose requests wait: leave it out"


class MadeRequests(msgspec.Struct, frozen=True):
    """The requests made of a trace's selected rows, and what to report of their prompts."""

    requests: Requests
    hashes: Hashes | None = None  # of which equal ones are equal prompts in a prefix cache; None: not known
    ids_source: str = ""
    text: str = ""
    notes: tuple[str, ...] = ()


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of a profile's trace; raises UsageError if trace, profile and server do not fit."""
    profile = inputs.profile
    window = parse_window(profile.trace_window)
    name, trace = trace_formats.read_trace(profile.trace_format, profile.trace, window, inputs.stream)
    return replay(inputs, trace, ("trace", name), partial(_make_replayed, inputs, trace))


def replay(
    inputs: PlanInputs,
    trace: TraceRows,
    named: tuple[str, str],
    make: Callable[[TraceSelection, int, Turns | None], MadeRequests],
) -> SourcedRequests:
    """Make requests of the trace's rows that a profile selects, with their times or sessions.

    `named` are the kind of source and the trace's format. `make` is given the selected rows, how many they
    were before --duration cut them, and their turns, if any. Due times are None unless the profile has the
    trace's own times. Raises UsageError.
    """
    profile, (kind, name) = inputs.profile, named
    window, closed = parse_window(profile.trace_window), profile.trace_replay == CLOSED
    picked = TraceSelection.select(trace, profile, window, None if closed else inputs.most)
    turns, offsets_ns, schedule, notes = None, None, None, [*trace.notes]
    if closed:
        picked, turns, more = _choose_sessions(trace, picked, profile, inputs.most)
        notes += more
    else:
        notes += trace.timed_notes
    held = len(picked.places)
    if profile.timed:
        rng = make_arrival_rng(inputs.stream)
        offsets_ns, schedule, more = make_schedule(trace, picked.places, profile, window, name, rng)
        notes += more
        picked = picked.take(slice(len(offsets_ns)))
    recorded = trace.recorded
    if recorded is not None:
        most = profile.trace_max_output_len or parsing.MOST_TOKENS
        lens = recorded.lengthen(picked.places, (picked.input_lens, picked.output_lens), most)
        picked = replace(picked, output_lens=lens)
    made = make(picked, held, turns)
    if profile.assistant == "live" and not hasattr(made.requests, "request_after"):
        raise UsageError(_NOT_LIVE.format(file=trace.file))
    reuse = _find_reuse(trace, picked, made)
    return SourcedRequests(
        made.requests,
        DataFacts(
            kind=kind,
            file=trace.file,
            file_digest=trace.digest,
            rows=trace.file_rows,
            sent=len(picked.places),
            repeated=0 if reuse is None else reuse.repeated,
            skipped={**trace.skipped, **picked.skipped},
            clipped=picked.clipped,
            text=made.text,
            reusable_tokens=None if reuse is None else int(reuse.tokens.sum()),
            schedule=schedule,
        ),
        offsets_ns,
        ids_source=made.ids_source,
        notes=(*notes, *made.notes),
        sessions=None if trace.sessions is None else trace.sessions[picked.places],
        turns=turns,
        cancellations=None if recorded is None else recorded.make_cancellations(picked.places),
    )


def _find_reuse(trace: TraceRows, picked: TraceSelection, made: MadeRequests) -> PrefixReuse | None:
    """Find what a prefix cache could reuse, each repetition by itself; None if it is not known."""
    sent = made.requests
    if made.hashes is None or not isinstance(sent, ReplayedRequests):
        return None
    rounds = np.zeros(len(picked.places), np.int64) if picked.rounds is None else picked.rounds
    if trace.growth is not None:
        return find_growth_reuse(trace.growth, picked.places, sent.input_lens, rounds)
    tokens, repeated = np.zeros(len(rounds), np.int64), 0
    for number in range(int(rounds.max()) + 1):  # of which none has a prompt of another
        own = rounds == number
        lens = sent.input_lens[own]
        found = find_prefix_reuse(made.hashes, sent.begins[own], sent.hash_counts[own], lens, trace.block)
        tokens[own], repeated = found.tokens, repeated + found.repeated
    return PrefixReuse(tokens, repeated)


def _make_replayed(
    inputs: PlanInputs, trace: TraceRows, picked: TraceSelection, held: int, turns: Turns | None
) -> MadeRequests:
    """Make the requests of selected rows, as messages where they are recorded, else as ids or words.

    A note says if `held`, how many there were, is below the most wanted. Raises UsageError for messages
    without lengths in an API that takes none.
    """
    subject, most, notes = inputs.subject, inputs.most, list[str]()
    if most is not None and held < most:
        notes.append(f"the trace has {held} of the {most} requests that were asked for")
    if trace.messages is not None and inputs.dialect.chat:
        chats = MessageRequests(trace, trace.messages, picked, turns)
        return MadeRequests(chats, text="the recorded messages", notes=tuple(notes))
    if (picked.input_lens <= 0).any():
        raise UsageError(_NO_LENGTHS.format(file=trace.file, path=inputs.dialect.path))
    if trace.messages is not None:
        notes.append(_NOT_SENT)
    form = choose_form(inputs.profile, subject, inputs.dialect)
    # Of two traces without hashes, sent to one server with one seed, row 1 is not the same prompt.
    seed, own_seed = (inputs.stream.key(part) % _BITS for part in ("blocks", f"own {trace.digest}"))
    vocabulary = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
    content = BlockContent(trace.block, seed, own_seed, vocabulary.allowed, trace.growth)
    counts = subject.word_counts or WordCounts()
    made, source, text = ReplayedRequests(trace, picked, content), vocabulary.source, ""
    if form == WORDS:
        made, source, text = ReplayedWords(trace, picked, content, counts), "", "common words"
    unsent = {*inputs.profile.sampling, *inputs.dialect.lacks}
    if sampling := [name for name in made.features if name not in unsent]:
        notes.append(f"outputs are sampled as each was recorded: {', '.join(sampling)}")
    if form == WORDS:
        notes.append(f"prompts of words: {counts.explanation}")
    return MadeRequests(made, trace.hashes, ids_source=source, text=text, notes=tuple(notes))


def choose_form(profile: Profile, subject: ModelTarget, dialect: Dialect) -> str:
    """Return IDS if the API takes them and words are not requested, else WORDS.

    Raises UsageError if ids are requested and the API takes none, or another form is.
    """
    takes_ids = subject.takes_ids(dialect)
    wanted = profile.prompt_format
    if wanted == IDS and not takes_ids:
        raise UsageError(
            f"{subject.name_text_api(dialect)} takes text, not token ids: use --backend openai "
            "(/v1/completions), or leave out --prompt-format for a trace of words"
        )
    if wanted not in ("auto", IDS, WORDS):
        raise UsageError(
            f"--prompt-format {wanted}: the prompts of a trace are token ids, or words where the API takes "
            "text: leave it out"
        )
    return WORDS if wanted == WORDS or not takes_ids else IDS


class ReplayedRequests(PromptRequests):
    """The requests of a trace, as token ids made of each one's block hashes when needed.

    `rows` is int64[requests], each request's row in the file, from 1.
    """

    format = "ids"

    def __init__(self, trace: TraceRows, picked: TraceSelection, content: BlockContent) -> None:
        self._trace, self._picked, self._content = trace, picked, content
        places = picked.places  # unlike the number of a row, no two are equal
        self.input_lens, self.output_lens = picked.input_lens, picked.output_lens
        self.rows, self.begins = trace.numbers[places], trace.starts[places]
        self.hash_counts = trace.starts[places + 1] - self.begins
        # What not every server has, by the first request that asks for it.
        self.features = {} if trace.recorded is None else trace.recorded.list_features(places)
        self._texts: IdTexts | None = None  # made with the first body

    def name_row(self, i: int) -> str:
        """Name request i by file and row, as `trace.jsonl row 17`."""
        return f"{self._trace.file} row {int(self.rows[i])}"

    def prompt(self, i: int) -> list[int] | str:
        """Return the prompt of request i, `input_lens[i]` token ids."""
        ids: list[int] = self._content.allowed[self.places(i, int(self.input_lens[i]))].tolist()
        return ids

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i, with its prompt as JSON: faster than a list of ids."""
        if self._texts is None:
            self._texts = IdTexts(self._content.allowed)
        written = cast(list[int], self._texts.prompt(self.places(i, int(self.input_lens[i]))))
        fields = dialect.make_request(model, written, int(self.output_lens[i]))
        return self.add_fields(i, dialect, fields)

    def add_fields(self, i: int, dialect: Dialect, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of request i with the sampling that was recorded of it."""
        recorded, row = self._trace.recorded, int(self._picked.places[i])
        return fields if recorded is None else recorded.add_sampling(row, dialect, fields)

    def digest(self) -> str:
        """Return a hash of all that prompts depend on: lengths, hashes, seeds, block size, ids."""
        places, recorded = self._picked.places, self._trace.recorded
        rounds = () if self._picked.rounds is None else (self._picked.rounds,)
        columns = (self.input_lens, self.output_lens, places, self.hash_counts, *rounds)
        spans = zip(self.begins.tolist(), (self.begins + self.hash_counts).tolist(), strict=True)
        pieces = (self._trace.hashes[begin:end].astype("<i8").tobytes() for begin, end in spans)
        own = list[bytes]()
        if recorded is not None and (numbers := recorded.sampling[places]).max() != NO_SAMPLING:
            own = [msgspec.json.encode(recorded.samplings), numbers.astype("<i8").tobytes()]
        return fingerprint(self.format, columns, chain([self._content.digest()], pieces, own))

    def places(self, i: int, length: int) -> Int64:
        """Return the prompt of request i as `length` indices into the content's tokens."""
        begin = int(self.begins[i])
        hashes = self._trace.hashes[begin : begin + int(self.hash_counts[i])].astype(np.int64)
        row, rounds = int(self._picked.places[i]), self._picked.rounds
        if rounds is not None and (number := int(rounds[i])):
            hashes, row = scope_hashes(hashes, number), row + number * len(self._trace)
        return self._content.places(hashes, length, row)


class ReplayedWords(ReplayedRequests):
    """The requests of a trace as text; of `content` only seeds and block size are used.

    A hash stands for as many words as make its block's tokens by the server's own count, chosen as the tokens
    of a block of ids are. So equal hashes are equal text, and prompts share the tokens that the trace says,
    where each of the words is one token (WordCounts has only such words if it found enough of them).
    """

    format = "words"

    def __init__(
        self, trace: TraceRows, picked: TraceSelection, content: BlockContent, counts: WordCounts
    ) -> None:
        self._words = np.array(counts.choices)
        # A server's template and one word: no prompt is shorter.
        input_lens = np.maximum(picked.input_lens, math.ceil(counts.tokens(1)))
        super().__init__(trace, replace(picked, input_lens=input_lens), content.spell(counts))
        self._counts = counts

    def prompt(self, i: int) -> str:
        """Return the text of request i; all begin with the same word, which has no blank before it."""
        count = self._counts.count_words(int(self.input_lens[i]) - self._counts.overhead) - 1
        return " ".join([FIRST_WORD, *self._words[self.places(i, max(0, count))].tolist()])

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i."""
        return PromptRequests.request(self, i, dialect, model)

    def digest(self) -> str:
        """Return a hash of what the prompts depend on: hashes, lengths, words and their counts."""
        counted = msgspec.json.encode([self._counts.overhead, self._counts.per_word, self._words.tolist()])
        return super().digest() + hashlib.blake2b(counted, digest_size=8).hexdigest()


def _choose_sessions(
    rows: TraceRows, picked: TraceSelection, profile: Profile, most: int | None
) -> tuple[TraceSelection, Turns, list[str]]:
    """Choose --num-sessions of the selected rows' sessions, and `most` requests, with turns and notes.

    They are repeated where the trace has fewer, unless --no-oversample is given. A row that waited for one
    which is left out waits for what that one waited for. Delays are divided by --speed-up, and then capped by
    --trace-idle-cap. Raises UsageError if the trace has no sessions.
    """
    if rows.waits is None or rows.delays_ns is None or rows.sessions is None:
        raise UsageError(_NO_SESSIONS.format(file=rows.file))
    waits, sessions = keep_rows(rows.waits, picked.places), rows.sessions[picked.places]
    order = np.argsort(sessions, kind="stable").astype(np.int64)
    counts = np.unique(sessions, return_counts=True)[1].astype(np.int64)
    begins = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    delays_ns = np.rint(rows.delays_ns[picked.places][order] / profile.speed_up).astype(np.int64)
    delays_ns[begins[:-1]] = 0
    if profile.trace_idle_cap is not None:
        delays_ns = np.minimum(delays_ns, round(profile.trace_idle_cap * SECOND_NS))
    turns = Turns(begins, delays_ns, number_lanes(reorder_waits(waits, order), begins))
    held = len(counts)
    sessions_sent = np.arange(count_sessions(turns, profile, most))
    chosen = turns.list_chosen(sessions_sent % held)
    rounds = np.repeat(sessions_sent // held, counts[sessions_sent % held])
    turns = turns.choose(sessions_sent % held)
    if most is not None and most < int(turns.begins[-1]):
        turns = turns.cut(most)
    count = int(turns.begins[-1])
    selected = replace(picked.take(order[chosen[:count]]), rounds=rounds[:count] if rounds.any() else None)
    notes = list[str]()
    if profile.num_sessions is not None and len(turns) < profile.num_sessions:
        notes.append(f"the trace has {held} of the {profile.num_sessions} sessions that were asked for")
    if len(turns) > held:
        prompts = "each time with prompts of their own"
        if rows.messages is not None:
            prompts = "with the prompts that it recorded"
        notes.append(f"the {held} sessions of the trace are repeated, {prompts}")
    return selected, turns, notes


def keep_rows(waits: Waits, places: Int64) -> Waits:
    """Return the waits of the rows at `places`, ascending, without the others.

    What a row that is left out waited for is waited for in its place.
    """
    count = len(waits.lanes)
    if len(places) == count:
        return waits
    index = np.full(count, -1)
    index[places] = np.arange(len(places))
    stand_ins: list[list[int]] = []
    before = []
    for row, own in enumerate(index.tolist()):
        found = sorted({place for earlier in waits.list_before(row) for place in stand_ins[earlier]})
        stand_ins.append([own] if own >= 0 else found)
        if own >= 0:
            before.append(found)
    tool_ns = None if waits.tool_ns is None else waits.tool_ns[places].tolist()
    lanes, depths, roles = (column[places].tolist() for column in (waits.lanes, waits.depths, waits.roles))
    return make_waits(before, lanes, depths, roles, waits.role_names, tool_ns)


def number_lanes(waits: Waits, begins: Int64) -> Waits:
    """Return waits with each session's lanes numbered from 0, in the order of their first requests."""
    lanes = waits.lanes.copy()
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        numbers: dict[int, int] = {}
        own = lanes[begin:end].tolist()
        lanes[begin:end] = [numbers.setdefault(lane, len(numbers)) for lane in own]
    return replace(waits, lanes=lanes)


class MessageRequests(TurnRequests):
    """The requests of selected rows, with the messages that each had when it was recorded."""

    format = RECORDED

    def __init__(
        self, trace: TraceRows, messages: SpanMessages, picked: TraceSelection, turns: Turns | None
    ) -> None:
        self.output_lens = picked.output_lens
        self.input_lens: Int64 = np.full(len(picked.places), UNKNOWN_LEN, np.int64)
        self._trace, self._messages, self._places = trace, messages, picked.places
        self._turns = turns
        # What not every server has, by the first request that asks for it.
        self.features: dict[str, int] = {}
        for i, row in enumerate(picked.places.tolist()):
            for name in messages.features[row]:
                self.features.setdefault(name, i)

    def name_row(self, i: int) -> str:
        """Name request i by file and row, as `trace.jsonl row 17`."""
        return f"{self._trace.file} row {int(self._trace.numbers[self._places[i]])}"

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """Make the chat body with the server's own `answers` to the earlier requests of its lane.

        Each takes the place of the recorded answer where the history has that; tool calls stay.
        """
        row = int(self._places[i])
        attributes = self._messages.read_attributes(row)
        messages = otel_spans.read_prompt(attributes)
        if answers:
            messages = self._replace_answers(i, messages, answers)
        body: dict[str, Any] = {"model": model, "messages": messages}
        if tools := otel_spans.read_tools(attributes):
            body["tools"] = tools
        body[dialect.limit_field] = int(self.output_lens[i])
        return dialect.convert_chat(body)

    def digest(self) -> str:
        """Return a hash of the file's bytes, of the rows that are sent and of their lengths."""
        return fingerprint(self.format, (self._places, self.output_lens), [self._trace.digest.encode()])

    def _replace_answers(
        self, i: int, messages: list[dict[str, Any]], answers: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the messages with the lane's recorded answers replaced by these, in order.

        An answer whose recorded text is not among the messages is left out.
        """
        lane, laid, at = list[int](), list(messages), 0
        if self._turns is not None and self._turns.waits is not None:
            begin = int(self._turns.begins[np.searchsorted(self._turns.begins, i, "right") - 1])
            lanes = self._turns.waits.lanes
            lane = (begin + np.flatnonzero(lanes[begin:i] == lanes[i])).tolist()
        for before, answer in zip(lane, answers, strict=False):
            attributes = self._messages.read_attributes(int(self._places[before]))
            recorded = otel_spans.read_answer(attributes)
            for place in range(at, len(laid)):
                message = laid[place]
                if message["role"] == "assistant" and message["content"] == recorded:
                    kept = {key: message[key] for key in ("tool_calls",) if key in message}
                    laid[place], at = {**answer, **kept}, place + 1
                    break
        return laid


_WINDOW = "--trace-window {}: give START:END in seconds, as 600:1200; either may be left out"


TraceWindow = tuple[float | None, float | None]  # seconds after its begin; None: its first, or last, request


def parse_window(text: str) -> TraceWindow:
    """Parse `--trace-window`, START:END in seconds; "" is the whole trace; raises UsageError."""
    if not text:
        return None, None
    start, colon, end = text.partition(":")
    try:
        start_s, end_s = (float(bound) if bound else None for bound in (start, end))
    except ValueError:
        raise UsageError(_WINDOW.format(quote_value(text))) from None
    last_s = parsing.YEAR_S if end_s is None else end_s
    if not colon or not 0 <= (start_s or 0.0) < last_s <= parsing.YEAR_S:
        raise UsageError(_WINDOW.format(quote_value(text)))
    return start_s, end_s


class TraceSelection(msgspec.Struct, frozen=True):
    """The rows of a trace that are sent: indices of its columns, and lengths; int64[requests]."""

    places: Int64
    input_lens: Int64
    output_lens: Int64
    skipped: dict[str, int] = {}
    clipped: int = 0
    rounds: Int64 | None = None  # int64[requests], how often each one's session was sent before; None: never

    def take(self, which: slice | Int64 | Bool) -> TraceSelection:
        """Return the requests at some places."""
        lens = {"input_lens": self.input_lens[which], "output_lens": self.output_lens[which]}
        return replace(self, places=self.places[which], **lens)

    @classmethod
    def select(
        cls, rows: TraceRows, profile: Profile, window: TraceWindow, most: int | None
    ) -> TraceSelection:
        """Select a window's first `most` rows; raises UsageError if none is left.

        Rows above the longest lengths are skipped and counted (`trace_too_long` is skip), else clipped.
        """
        begin, end = (
            len(rows) if bound_s is None else int(np.searchsorted(rows.at_ns, round(bound_s * SECOND_NS)))
            for bound_s in (window[0] or 0.0, window[1])
        )
        picked = cls(np.arange(begin, end), rows.input_lens[begin:end], rows.output_lens[begin:end])
        most_prompt = profile.trace_max_input_len or parsing.MOST_TOKENS
        most_answer = profile.trace_max_output_len or parsing.MOST_TOKENS
        skipped: dict[str, int] = {}
        if profile.trace_too_long == "skip":
            kept = (picked.input_lens <= most_prompt) & (picked.output_lens <= most_answer)
            if most is not None:  # the rows up to and with the last one that is sent
                wanted = slice(int(np.searchsorted(np.cumsum(kept), most)) + 1)
                picked, kept = picked.take(wanted), kept[wanted]
            long = picked.input_lens > most_prompt
            counts = {CAPS[0]: long.sum(), CAPS[1]: ((picked.output_lens > most_answer) & ~long).sum()}
            skipped = {why: int(count) for why, count in counts.items() if count}
            picked = picked.take(kept)
        picked = picked.take(slice(most))
        if not len(picked.places):
            if begin >= end:
                last_s = rows.at_ns[-1] / SECOND_NS
                raise UsageError(
                    f"--trace-window {profile.trace_window!r}: no request of {rows.file} is in it: its last "
                    f"comes {last_s:.6g} s after the first"
                )
            why = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            raise UsageError(
                f"--trace {rows.file}: no request is left ({why}): raise the limit, or pass --trace-too-long "
                "clip"
            )
        prompts, answers = picked.input_lens, picked.output_lens
        return replace(
            picked,
            input_lens=np.minimum(prompts, most_prompt),
            output_lens=np.minimum(answers, most_answer),
            skipped=skipped,
            clipped=int(((prompts > most_prompt) | (answers > most_answer)).sum()),
        )


def make_schedule(
    rows: TraceRows, places: Int64, profile: Profile, window: TraceWindow, name: str, rng: np.random.Generator
) -> tuple[Int64, ScheduleFacts, list[str]]:
    """Make the due times (ns after the start) of the rows at `places`, with facts and notes on them.

    `name` is the trace's format. In order: window, jitter (all that is drawn from `rng`), speed, idle cap;
    --duration drops later rows. Raises UsageError if no request is left.
    """
    at_ns = rows.at_ns[places]
    grid_ns, notes = find_grid_ns(rows.at_ns), list[str]()
    start_s, end_s = window
    begin_ns = at_ns[0] if start_s is None else round(start_s * SECOND_NS)
    after_ns = at_ns - begin_ns
    spread = profile.trace_jitter == "uniform" and grid_ns > 0
    if spread:
        after_ns = np.sort(after_ns + rng.integers(0, grid_ns, len(after_ns)))
    elif profile.trace_jitter == "uniform":
        notes.append("--trace-jitter has no effect: the trace's times are on no grid")
    offsets_ns = np.rint(after_ns / profile.speed_up).astype(np.int64)
    cut_ns = 0
    if profile.trace_idle_cap is not None:
        gaps_ns = np.diff(offsets_ns, prepend=0)  # also before the first
        capped_ns = np.minimum(gaps_ns, round(profile.trace_idle_cap * SECOND_NS))
        offsets_ns, cut_ns = np.cumsum(capped_ns), int((gaps_ns - capped_ns).sum())
    if profile.duration is not None:
        offsets_ns = offsets_ns[: np.searchsorted(offsets_ns, profile.duration_ns)]
    count = len(offsets_ns)
    if not count:
        raise UsageError(f"--duration {profile.duration:g}: no request of {rows.file} is due before it ends")
    span_s = int(offsets_ns[-1] - offsets_ns[0]) / SECOND_NS
    facts = ScheduleFacts(
        format=name,
        span_s=span_s,
        rate_per_s=(count - 1) / span_s if span_s else 0.0,
        instants=len(np.unique(at_ns[:count])),
        requests=count,
        grid_s=grid_ns / SECOND_NS,
        spread=spread,
        speed_up=profile.speed_up,
        start_s=start_s or 0.0,
        end_s=end_s,
        idle_cap_s=profile.trace_idle_cap,
        idle_cut_s=cut_ns / SECOND_NS,
    )
    return offsets_ns, facts, notes
