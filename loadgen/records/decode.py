"""Decode: from a Capture to a Record, after the response is over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.base.untrusted import NOT_JSON, Hide, hide_nothing, read_error_text, read_line
from loadgen.engines.refusals import is_past_context
from loadgen.records import decoded_stream
from loadgen.records.decoded_stream import (
    DecodedStream,
    count_stream,
    explain_excess,
    has_many_objects,
    is_one_body,
    read_content_type,
)
from loadgen.records.path_delays import PathDelays, ReadDelays
from loadgen.records.record import UNKNOWN, Record
from loadgen.records.text_tokens import join_written, needs_text
from loadgen.transport.capture import Capture, find_arrivals
from loadgen.transport.failure import CUT_SHORT, Failure, FailureKind
from loadgen.wire import sse
from loadgen.wire.http1 import HttpBody
from loadgen.wire.openai import MOST, TOKEN, Dialect, Message, TypicalMessages, Usage, summarize

_ONE_BODY = "one JSON body where a stream was requested"
_OBJECTS = "JSON objects in lines, not server-sent events: is it another API?"
_FOREIGN = "no chunk has choices: is it another API? the first"
_USUAL_REASONS = {"", "stop", "length", "tool_calls"}  # which no secret is
LONGEST_REASON = 32  # characters of a finish reason; real ones have up to 28
_LONGEST_WAIT = 60  # characters of a Retry-After: a date has 29
_LONGEST_TIME_MS = 1e9  # eleven days: what a server reports beyond it is not the time of a request
# The server's own report explains more than how its connection then ended.
_OUTRANKED = (FailureKind.TRUNCATED, FailureKind.CONNECT, FailureKind.USER_CANCELLED)
_LONGEST_PLACE = 200  # characters, of where a redirect leads
_TELLING = (FailureKind.HTTP_STATUS, FailureKind.RATE_LIMITED, FailureKind.IN_BAND, FailureKind.ABORTED)
_MAY_BE_LONG = (FailureKind.HTTP_STATUS, FailureKind.IN_BAND)
EXAMINED = 64  # answers of a run: their texts are parsed a second time
MORE_TOKENS = 1.25  # than messages with text, in an answer that is examined
_GAP = re.compile(r"(?<=\S)\s+(?=\S)")
NEVER = -1  # no message of an answer was visible


class Reasoning(msgspec.Struct):
    """Counts of answers so far whose reasoning a user saw none of, or that hid reasoning tokens."""

    shown: int = 0  # that began with reasoning
    hidden: int = 0  # whose usage counts reasoning, and whose first token was none


class Decoder(msgspec.Struct, eq=False):
    """Decodes the captures of one run, all of one API and all streamed or none.

    `hide` masks the secrets in every text that is kept of what a server wrote; `planned` are the lengths of
    each prompt and answer of the plan, int64[requests] each. `keep_uncounted` keeps the text of answers whose
    tokens the server did not count, for a tokenizer to count them.
    """

    dialect: Dialect
    streamed: bool
    keep_text: bool = False
    hide: Hide = hide_nothing
    planned: tuple[Int64, Int64] | None = None
    keep_uncounted: bool = False
    uncounted: int = 0  # answers whose text was kept for that
    examined: int = 0  # answers whose words were counted
    reasoning: Reasoning = msgspec.field(default_factory=Reasoning)
    paths: PathDelays = msgspec.field(default_factory=PathDelays)

    def decode(self, capture: Capture) -> Record:
        """Decode a capture to a Record; one too large or nested too deep to a failed one without reads."""
        try:
            return self._read_capture(capture)
        except MemoryError:
            why = f"no memory was left to decode its {len(capture.raw) / (1 << 20):.1f} MiB"
            failure = Failure(FailureKind.MEMORY, why)
        except RecursionError:
            failure = Failure(FailureKind.MALFORMED, "a chunk is nested too deep to be read")
        nothing = replace(capture, raw=b"", read_lengths=b"", seen_ns=b"", kernel=b"")
        nothing.failure = failure
        return self._read_capture(nothing)

    def _read_capture(self, capture: Capture) -> Record:
        """Decode a capture to a Record.

        `end_ns` is the arrival of the last read, or, where the transport ended the request, when it did. A
        connection that broke after the last event was whole is not a failure.
        """
        record, reads = _time_reads(capture)
        if capture.times is not None and not record.unstamped_reads:
            reads.delays = self.paths.measure(capture, reads.arrival_ns)
        if self.planned is not None:
            input_lens, output_lens = self.planned
            record.planned_input = int(input_lens[record.index])
            record.planned_output = int(output_lens[record.index])
        stream = decoded_stream.read_plain(self.dialect, capture, self.keep_text) if self.streamed else None
        if stream is not None:
            record.http_status = 200
            failure, whole = self._fill_stream(record, stream, reads)
        else:
            failure, whole = self._fill_answer(record, capture, reads)
        settled = capture.failure  # the decoded one counts if it says more or is the only one
        telling = failure is not None and failure.kind in _TELLING
        if settled is None or (telling and settled.kind in _OUTRANKED):
            settled = failure
        elif failure is None and whole and settled.kind in CUT_SHORT:
            settled = None  # only the end of the framing is missing: nothing of the answer is
        given_up = settled is not None and settled is capture.failure
        if len(reads.arrival_ns) and not given_up:
            record.end_ns = int(reads.arrival_ns[-1])
        if settled is not None:
            # Masked before it is cut: half a secret would no longer be found.
            detail = read_line(self.hide(settled.detail)) or f"{settled.kind}: unknown cause"
            past = settled.kind in _MAY_BE_LONG and is_past_context(detail)
            record.failure = Failure(FailureKind.CONTEXT_LIMIT if past else settled.kind, detail)
        return record

    def _fill_answer(self, record: Record, capture: Capture, reads: _Reads) -> tuple[Failure | None, bool]:
        """Fill a record from an answer of any form; return its failure, and whether its last event came."""
        answer = decoded_stream.unframe(capture)
        record.http_status = answer.status or UNKNOWN  # 0: there was no head
        if answer.status != 200:
            return _fail_without_answer(answer, capture.retry_after), False
        if not self.streamed:
            return self._fill_whole(record, answer)
        if is_one_body(answer):
            failure, _ = self._fill_whole(record, answer)
            if failure is None or failure.kind is not FailureKind.IN_BAND:
                why = _OBJECTS if has_many_objects(answer.body) else _ONE_BODY
                failure = Failure(FailureKind.NOT_STREAMED, why)
            return failure, False
        return self._fill_stream(record, decoded_stream.take_apart(self.dialect, answer), reads)

    def _fill_stream(
        self, record: Record, stream: DecodedStream, reads: _Reads
    ) -> tuple[Failure | None, bool]:
        """Fill a record from a stream; return its failure, and whether its last event came.

        The failure is the first of: an error event, malformed bytes, a finish reason that is an error,
        messages of another API, a missing end, no token; None without any.
        """
        messages = stream.messages
        summary, counted, excess = count_stream(stream)
        malformed = stream.malformed or excess
        _note_usage(record, summary.usage)
        _note_timing(record, messages)
        record.output_tokens, record.usage = counted.total, counted.usage
        record.exact_tokens, record.tokens = counted.exact, counted.tokens
        record.finish_reason = self._clean_reason(summary.finish_reason)
        reads.date_messages(record, stream, counted.messages)
        visible = find_first_visible(messages, counted.messages)
        if visible >= 0:
            record.visible_ns = int(record.arrival_ns[visible])
        record.text_ns = _find_first_text_ns(record.arrival_ns, counted.messages, summary.kinds)
        if self._keeps(record):
            texts = decoded_stream.read_texts(self.dialect, stream, len(summary.kinds))
            record.text = None if texts is None else self.hide(join_written(texts))
        if not counted.exact and self.examined < EXAMINED and may_hide_tokens(record):
            self.examined += 1
            texts = decoded_stream.read_texts(self.dialect, stream, len(summary.kinds)) or ()
            record.word_gaps, record.inner_gaps = count_gaps(join_written([message]) for message in texts)
        finished = bool(summary.finish_reason)
        ended = finished and (stream.complete or summary.usage is not None)
        # A usage that runs along is not an end: what is cut has one too.
        ended = ended or (stream.done and (finished or summary.own_usage))
        # Nothing is missing of what has as many tokens as were asked for (Gemini sends no finish reason).
        ended = ended or ((stream.done or stream.complete) and 0 < record.planned_output <= counted.total)
        fault = summary.fault
        if not fault and stream.fault is not None:
            fault = read_error_text(stream.fault).strip() or "an error event without data"
        if fault:
            return Failure(FailureKind.IN_BAND, fault), ended
        if malformed:
            return Failure(FailureKind.MALFORMED, malformed), False
        if summary.failed_end:
            return Failure(FailureKind.ABORTED, summary.failed_end), ended
        if not ended and stream.done | stream.complete and len(summary.remarks) == len(messages) > 0:
            line = bytes(stream.lines).partition(b"\n")[0].decode("utf-8", "replace").strip()
            return Failure(FailureKind.MALFORMED, f"{_FOREIGN}: {line}"), False
        if not ended and (messages or not (stream.complete or stream.done)):
            return Failure(FailureKind.TRUNCATED, _explain_truncation(stream)), False
        if not len(counted.tokens):
            return Failure(FailureKind.EMPTY, _explain_emptiness(stream, counted.total)), ended
        self.reasoning.shown += visible != 0
        self.reasoning.hidden += visible == 0 < record.thought_tokens
        return self._find_missing_state(stream.lines), ended

    def _keeps(self, record: Record) -> bool:
        """Whether to keep an answer's text, on request or, noted in `uncounted`, to count tokens later."""
        to_count = self.keep_uncounted and needs_text(record)
        self.uncounted += to_count
        return to_count or self.keep_text

    def _clean_reason(self, reason: str) -> str:
        return reason if reason in _USUAL_REASONS else read_line(self.hide(reason), LONGEST_REASON)

    def _fill_whole(self, record: Record, answer: HttpBody) -> tuple[Failure | None, bool]:
        """Fill a record from an answer in one piece; return its failure, and whether it was complete."""
        if answer.malformed:
            return Failure(FailureKind.MALFORMED, answer.malformed), False
        if has_many_objects(answer.body):
            return Failure(FailureKind.MALFORMED, _OBJECTS), False
        json = sse.join_lines(answer.body)
        try:
            messages = self.dialect.read_messages(json)
        except NOT_JSON as error:
            if not answer.complete:
                return Failure(FailureKind.TRUNCATED, "the connection ended inside the response"), False
            return Failure(FailureKind.MALFORMED, f"{error}: {answer.body.decode('utf-8', 'replace')}"), False
        summary = summarize(messages, json)
        counted = summary.usage.completion_tokens if summary.usage else None
        malformed = explain_excess(counted or 0, len(answer.body))
        if malformed:
            summary = summary.drop_usage()
        _note_usage(record, summary.usage)
        _note_timing(record, messages)
        total = summary.usage.completion_tokens if summary.usage else None
        record.output_tokens, record.usage = UNKNOWN if total is None else total, total is not None
        record.finish_reason = self._clean_reason(summary.finish_reason)
        if self._keeps(record):
            record.text = self.hide(join_written(messages))
        if summary.fault is not None:
            return Failure(FailureKind.IN_BAND, summary.fault), True
        if malformed:
            return Failure(FailureKind.MALFORMED, malformed), True
        if summary.failed_end:
            return Failure(FailureKind.ABORTED, summary.failed_end), True
        if not total and TOKEN not in summary.kinds:
            return Failure(FailureKind.EMPTY, "a complete response without a token"), True
        return self._find_missing_state(json), True

    def _find_missing_state(self, lines: bytes | bytearray) -> Failure | None:
        """Return a failure if the server keeps the history and the answer lacks its id; None otherwise."""
        if not self.dialect.keeps_history or self.dialect.read_state(lines) is not None:
            return None
        return Failure(FailureKind.UNNAMED, "the response has no id, by which the next turn would name it")


class _Reads(msgspec.Struct):
    """When each read of a response arrived, and how much later the client read it, ns."""

    arrival_ns: Int64
    lag_ns: Int64
    delays: ReadDelays | None = None

    def date_messages(self, record: Record, stream: DecodedStream, carrying: Int64) -> None:
        """Set a record's arrivals, delays and coalesced reads, of the messages at positions `carrying`."""
        ends = stream.ends[carrying]
        at = together = stream.read_ends.searchsorted(ends)
        record.arrival_ns = self.arrival_ns[at]
        if (delays := self.delays) is not None:
            record.delay_us, record.delay_cause = delays.pick(at, ends, stream.read_ends)
            together = at if delays.together is None else delays.together[at]
        met = together[1:] == together[:-1]
        if np.count_nonzero(met):
            coalesced = at[1:][met]
            record.shared_reads, record.shared_lag_ns = len(coalesced), int(self.lag_ns[coalesced].sum())


def _time_reads(capture: Capture) -> tuple[Record, _Reads]:
    """Make a record from a capture's timestamps; return it, and the times of the reads."""
    arrival_ns, lag_ns, unstamped, impossible = find_arrivals(capture)
    reads = len(arrival_ns)
    record = Record(
        index=capture.index,
        slot=capture.slot,
        intended_ns=capture.intended_ns,
        sent_ns=capture.sent_ns,
        end_ns=capture.end_ns,
        out_of_order=capture.out_of_order,
        retransmitted=capture.retransmitted,
        rtt_ns=capture.rtt_ns,
        request_delay_ns=capture.request_delay_ns,
        connect_ns=capture.connect_ns,
        resends=capture.resends,
        first_byte_ns=int(arrival_ns[0]) if reads else 0,
        reads=reads,
        unstamped_reads=unstamped,
        impossible_stamps=impossible,
        lag_sum_ns=int(np.add.reduce(lag_ns)),
        lag_max_ns=int(np.maximum.reduce(lag_ns)) if reads else 0,
    )
    return record, _Reads(arrival_ns, lag_ns)


def _fail_without_answer(answer: HttpBody, retry_after: str) -> Failure:
    """Make the failure of a response without status 200, or without a head, with its Retry-After if any."""
    if answer.status:
        why = read_error_text(answer.body).strip()
        wait = " ".join(answer.headers.get("retry-after", retry_after).split())[:_LONGEST_WAIT]
        status = f"{answer.status} (Retry-After: {wait})" if wait else str(answer.status)
        if 300 <= answer.status < 400 and (place := answer.headers.get("location", "")):
            place = read_line(place.partition("?")[0], _LONGEST_PLACE)
            status = f"{answer.status} to {place}, which is not followed: give that address"
        kind = FailureKind.RATE_LIMITED if answer.status == 429 else FailureKind.HTTP_STATUS
        return Failure(kind, f"{status}: {why}" if why else status)
    if answer.malformed:
        return Failure(FailureKind.MALFORMED, answer.malformed)
    return Failure(FailureKind.TRUNCATED, "the connection ended before the response's head")


def _note_usage(record: Record, usage: Usage | None) -> None:
    """Set a record's prompt, cached, hidden and reasoning tokens by a usage; impossible ones stay unknown."""
    if usage is None:
        return
    # The total beyond prompt and output is reasoning counted apart; other types do not count.
    total, prompt, answer = usage.total_tokens, usage.prompt_tokens, usage.completion_tokens
    known = isinstance(total, int) and prompt is not None and answer is not None and total <= MOST
    record.hidden_tokens = max(total - prompt - answer, 0) if known else 0
    of_answer = usage.completion_tokens_details
    thought = usage.reasoning_tokens if of_answer is None else of_answer.reasoning_tokens
    record.thought_tokens = max(thought, 0) if isinstance(thought, int) and thought <= MOST else 0
    if not usage.prompt_tokens:  # no prompt is empty: a count of 0 is none
        return
    record.input_tokens, details = usage.prompt_tokens, usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else None
    # More than the prompt cannot have been found: what is optional and cannot be true is not known.
    if cached is not None and cached <= record.input_tokens:
        record.cached_tokens = cached
    if details is not None:
        kinds = details.multimodal_tokens
        tokens = kinds.get("image") if isinstance(kinds, dict) else details.image_tokens
        record.image_tokens = UNKNOWN
        if type(tokens) is int and 0 <= tokens <= record.input_tokens:
            record.image_tokens = tokens


def _note_timing(record: Record, messages: Sequence[Message]) -> None:
    """Set a record's `server_` times and counts, where the last message has them."""
    if not messages:
        return
    last = messages[-1]
    timing, timings, drafts = last.read_own_counts()
    if timing is not None:
        record.server_queue_ns = _convert_ms(timing.queue_time_ms)
        record.server_ttft_ns = record.server_prefill_ns = _convert_ms(timing.time_to_first_token_ms)
        record.server_decode_ns = _convert_ms(timing.generation_time_ms)
        record.server_first_token_ns = _convert_ms(timing.arrival_to_first_token_ms)
    if drafts is None and len(messages) > 1 and bytes(messages[-2].sglext):
        *_, drafts = messages[-2].read_own_counts()  # SGLang sends them before the usage
    if drafts is not None:
        record.server_drafts = _or_unknown(drafts.num_spec_steps)
        record.server_accepted_tokens = _or_unknown(drafts.num_accepted_draft_tokens)
    if timings is not None:
        record.server_prompt_tokens = _or_unknown(timings.prompt_n)
        record.server_cached_tokens = _or_unknown(timings.cache_n)
        record.server_output_tokens = _or_unknown(timings.predicted_n)
        record.server_prefill_ns = _convert_ms(timings.prompt_ms)
        record.server_decode_ns = _convert_ms(timings.predicted_ms)
        if timings.draft_n_accepted is not None:
            record.server_accepted_tokens = timings.draft_n_accepted


def _find_first_text_ns(arrival_ns: Int64, carrying: Int64, kinds: bytearray) -> int:
    """Find when the first text or reasoning arrived (ns); UNKNOWN if no message with tokens has text."""
    if len(carrying) and kinds[carrying[0]] == TOKEN:  # nearly always
        return int(arrival_ns[0])
    texts = (place for place, at in enumerate(carrying.tolist()) if kinds[at] == TOKEN)
    first = next(texts, None)
    return UNKNOWN if first is None else int(arrival_ns[first])


def _or_unknown(count: int | None) -> int:
    return UNKNOWN if count is None else count


def _convert_ms(time_ms: float | None) -> int:
    """Convert a time that a server reports from ms to ns; UNKNOWN if None, below 0 or over 11 days."""
    if time_ms is None or not 0 <= time_ms <= _LONGEST_TIME_MS:
        return UNKNOWN
    return round(time_ms * MS_NS)


def _explain_truncation(stream: DecodedStream) -> str:
    messages = len(stream.messages)
    if stream.done:
        return f"[DONE] without a finish reason or usage, after {messages} chunks"
    where = "the stream ended" if stream.complete else "the connection ended inside the stream,"
    return f"{where} without a finish reason or [DONE], after {messages} chunks"


def _explain_emptiness(stream: DecodedStream, total: int) -> str:
    """Explain why no message of a stream carried a token; `total` is the count by usage, 0 if unknown."""
    kind, messages = read_content_type(stream.headers), len(stream.messages)
    if kind != "text/event-stream":
        return f"no events in a body of {kind}"
    if stream.unread:
        return f"no events in the body: {stream.unread.decode('utf-8', 'replace')}"
    if total:
        return f"usage counts {total} tokens, but none of {messages} chunks can have carried one"
    return f"a complete stream of {messages} chunks without a token"


def find_first_visible(messages: Sequence[Message], carrying: Int64) -> int:
    """Find which of the messages with tokens is the first that a user sees, from 0; NEVER if none is.

    `carrying` are their positions, int64[messages that carried tokens]. Visible are the answer's text and
    tool calls. Without reasoning before them it is the first message, even if its token has no text.
    """
    if not len(carrying):
        return NEVER
    if _has_visible_text(messages[int(carrying[0])]):
        return 0
    candidates: Iterable[tuple[int, Message]]
    if isinstance(messages, TypicalMessages) and not _has_visible_text(messages.typical):
        # Thousands of messages that are all of reasoning need not be gone through.
        reasoned, candidates = _has_reasoning(messages.typical), messages.parsed.items()
    else:
        places = carrying.tolist()
        reasoned, candidates = False, zip(places, map(messages.__getitem__, places), strict=True)
    for at, message in candidates:
        if _has_visible_text(message):
            place = int(carrying.searchsorted(at))
            if place < len(carrying) and carrying[place] == at:
                return place if reasoned else 0
        reasoned = reasoned or _has_reasoning(message)
    return NEVER if reasoned else 0


def _has_visible_text(message: Message) -> bool:
    return True in [choice.has_visible_text() for choice in message.choices or ()]  # quicker than any()


def _has_reasoning(message: Message) -> bool:
    return any(choice.has_reasoning() for choice in message.choices or ())


def may_hide_tokens(record: Record) -> bool:
    """Whether usage counts 1.25 tokens a message or more, and nothing says which message has which."""
    more = record.output_tokens >= MORE_TOKENS * max(len(record.tokens), 2)
    return more and record.usage and not record.exact_tokens


def count_gaps(texts: Iterable[str]) -> tuple[int, int]:
    """Count the blanks between words after the first message, and how many of them lie within a message.

    A token holds no blank between two words, in any tokenizer that cuts a text into words first. So of
    messages of one token each nearly none has one within it; of messages of two, about every third. The first
    one may well hold more tokens than the others.
    """
    later = [text for text in texts if text][1:]
    return len(_GAP.findall("".join(later))), sum(len(_GAP.findall(text)) for text in later)
