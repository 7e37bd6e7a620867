"""Decode: from a Capture to a Record, after the response is over."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen import plain, sse
from loadgen.arrays import Int64
from loadgen.capture import Capture
from loadgen.counting import Weighed, count, weigh
from loadgen.dialect import TOKEN, Dialect, Message, Usage
from loadgen.failure import Failure, FailureKind
from loadgen.http1 import Unframed, unframe
from loadgen.record import UNKNOWN, Record

_LONGEST_DETAIL = 300
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
# What the server itself said tells more than how its connection then ended.
_OUTRANKED = (FailureKind.TRUNCATED, FailureKind.CONNECT)
_TELLING = (FailureKind.HTTP_STATUS, FailureKind.IN_BAND, FailureKind.ABORTED)


class Stream(msgspec.Struct, frozen=True):
    """A streamed answer taken apart."""

    answer: Unframed
    events: sse.Events
    messages: Sequence[Message]  # of the events, up to the first malformed one
    malformed: str = ""


class Decoder:
    """Decodes the captures of one run, which share a dialect and whether they were streamed."""

    def __init__(self, dialect: Dialect, streamed: bool, keep_text: bool = False) -> None:
        self.dialect = dialect
        self.streamed = streamed
        self.keep_text = keep_text

    def decode(self, capture: Capture) -> Record:
        """The capture's Record.

        `end_ns` is the arrival of the last read, or, where the transport ended the request, when it
        did. A connection that broke after the last event was whole is not a failure.
        """
        record, arrival_ns, lag_ns = _timed(capture)
        stream = self._plain(capture)
        answer = stream.answer if stream else _unframed(capture)
        if answer.status != 200:
            failure: Failure | None = _no_answer(answer, capture.retry_after)
            whole = False
        elif not self.streamed:
            failure, whole = self._whole(record, answer)
        elif _in_one_piece(answer):
            failure, whole = self._not_streamed(record, answer), False
        else:
            failure, whole = self._stream(record, stream or self._taken_apart(answer), arrival_ns, lag_ns)
        record.failure = _settle(capture.failure, failure, whole)
        given_up = record.failure is not None and record.failure is capture.failure
        if len(arrival_ns) and not given_up:
            record.end_ns = int(arrival_ns[-1])
        return record

    def _stream(
        self, record: Record, stream: Stream, arrival_ns: Int64, lag_ns: Int64
    ) -> tuple[Failure | None, bool]:
        """Fill in what a stream says; why it failed, and whether its last event was seen."""
        answer, events, messages = stream.answer, stream.events, stream.messages
        weighed = weigh(messages)
        counted = count(messages, weighed)
        _note_usage(record, weighed.usage)
        _note_timing(record, messages)
        record.output_tokens, record.usage = counted.total, counted.usage
        record.exact_tokens, record.tokens = counted.exact, counted.tokens
        record.finish_reason = weighed.finish_reason
        reads = answer.body_ends.searchsorted(events.ends[counted.messages])
        record.arrival_ns = arrival_ns[reads]
        met = reads[1:][reads[1:] == reads[:-1]]
        if len(met):
            record.shared_reads, record.shared_lag_ns = len(met), int(lag_ns[met].sum())
        if self.keep_text:
            record.text = _text(messages[: len(weighed.kinds)])
        finished = bool(weighed.finish_reason)
        ended = events.done or (finished and (answer.complete or weighed.usage is not None))
        if weighed.fault is not None:
            return Failure(FailureKind.IN_BAND, _shorten(weighed.fault)), ended
        if stream.malformed:
            return Failure(FailureKind.MALFORMED, stream.malformed), False
        if weighed.finish_reason == "abort":
            return _aborted(weighed), ended
        if not ended and (messages or not answer.complete):
            return Failure(FailureKind.TRUNCATED, _truncation(answer, len(messages))), False
        if not len(counted.tokens):
            return Failure(FailureKind.EMPTY, _emptiness(_kind(answer), counted.total, len(messages))), ended
        return None, ended

    def _plain(self, capture: Capture) -> Stream | None:
        """A stream in the form that servers send; None for any other answer."""
        if not (self.streamed and capture.framed and capture.failure is None):
            return None
        found = plain.read(capture.raw, capture.read_ends())
        if found is None:
            return None
        answer, events = found
        messages = self._messages(events)
        return None if messages is None else Stream(answer, events, messages)

    def _messages(self, events: sse.Events) -> Sequence[Message] | None:
        """One message an event; None where some event is no JSON."""
        try:
            messages = self.dialect.messages(events.lines)
        except _NOT_JSON:
            return None
        return messages if len(messages) == len(events.ends) else None

    def _taken_apart(self, answer: Unframed) -> Stream:
        """Any stream, up to the first malformed message."""
        events = sse.read(answer.body, answer.complete)
        messages = self._messages(events)
        if messages is not None:
            return Stream(answer, events, messages, answer.malformed or "")
        datas, ends, done = sse.split(answer.body, answer.complete)
        good: list[bytes] = []
        malformed = ""
        for data in map(sse.one_line, datas):
            try:
                (_,) = self.dialect.messages(data)
            except (*_NOT_JSON, ValueError) as error:
                malformed = _shorten(f"event {len(good) + 1}: {error}: {_readable(data)}")
                break
            good.append(data)
        events = sse.Events(b"\n".join(good), np.array(ends, np.int64), done)
        return Stream(answer, events, self.dialect.messages(events.lines), answer.malformed or malformed)

    def _not_streamed(self, record: Record, answer: Unframed) -> Failure:
        """Fill in an answer in one piece where a stream was asked for; the server's fault in it, or that."""
        failure, _ = self._whole(record, answer)
        if failure is not None and failure.kind is FailureKind.IN_BAND:
            return failure
        return Failure(FailureKind.NOT_STREAMED, "one JSON body, where a stream was asked for")

    def _whole(self, record: Record, answer: Unframed) -> tuple[Failure | None, bool]:
        """Fill in what an answer in one piece says; why it failed, and whether it was all there."""
        if answer.malformed:
            return Failure(FailureKind.MALFORMED, answer.malformed), False
        try:
            messages = self.dialect.messages(sse.one_line(answer.body))
        except _NOT_JSON as error:
            if not answer.complete:
                return Failure(FailureKind.TRUNCATED, "the connection ended inside the answer"), False
            return Failure(FailureKind.MALFORMED, _shorten(f"{error}: {_readable(answer.body)}")), False
        weighed = weigh(messages)
        _note_usage(record, weighed.usage)
        _note_timing(record, messages)
        total = weighed.usage.completion_tokens if weighed.usage else None
        record.output_tokens, record.usage = UNKNOWN if total is None else total, total is not None
        record.finish_reason = weighed.finish_reason
        if self.keep_text:
            record.text = _text(messages)
        if weighed.fault is not None:
            return Failure(FailureKind.IN_BAND, _shorten(weighed.fault)), True
        if weighed.finish_reason == "abort":
            return _aborted(weighed), True
        if not total and TOKEN not in weighed.kinds:
            return Failure(FailureKind.EMPTY, "a complete answer without a token"), True
        return None, True


def _timed(capture: Capture) -> tuple[Record, Int64, Int64]:
    """A record with all that the stamps say; per read its arrival and the client's lag, int64[reads]."""
    user_ns, kernel_ns = capture.user_ns(), capture.kernel_ns()
    reads = len(user_ns)
    unstamped = reads - int(np.count_nonzero(kernel_ns))
    arrival_ns = np.where(kernel_ns, kernel_ns, user_ns) if unstamped else kernel_ns
    lag_ns = user_ns - arrival_ns  # 0 where there is no kernel stamp
    record = Record(
        index=capture.index,
        slot=capture.slot,
        intended_ns=capture.intended_ns,
        sent_ns=capture.sent_ns,
        end_ns=capture.end_ns,
        connect_ns=capture.connect_ns,
        resends=capture.resends,
        first_byte_ns=int(arrival_ns[0]) if reads else 0,
        reads=reads,
        unstamped_reads=unstamped,
        lag_sum_ns=int(lag_ns.sum()),
        lag_max_ns=int(lag_ns.max(initial=0)),
    )
    return record, arrival_ns, lag_ns


def _unframed(capture: Capture) -> Unframed:
    """The body; one that the transport cut short is never complete, whatever its framing."""
    ends = capture.read_ends()
    if not capture.framed:
        return Unframed(capture.status, {}, capture.raw, ends, capture.failure is None, None)
    answer = unframe(capture.raw, ends)
    if answer.complete and capture.failure is not None:
        return Unframed(answer.status, answer.headers, answer.body, answer.body_ends, False, answer.malformed)
    return answer


def _kind(answer: Unframed) -> str:
    """The content type, without its parameters."""
    return answer.headers.get("content-type", "text/event-stream").partition(";")[0].strip()


def _in_one_piece(answer: Unframed) -> bool:
    """Whether a JSON body came where a stream was asked for."""
    return answer.body[:1] == b"{" or _kind(answer) == "application/json"


def _no_answer(answer: Unframed, retry_after: str) -> Failure:
    if answer.status:
        words = _words(answer.body)
        said = f"{answer.status}: {words}" if words else str(answer.status)
        wait = _shorten(answer.headers.get("retry-after", retry_after))
        return Failure(FailureKind.HTTP_STATUS, f"{said} (Retry-After: {wait})" if wait else said)
    if answer.malformed:
        return Failure(FailureKind.MALFORMED, answer.malformed)
    return Failure(FailureKind.TRUNCATED, "the connection ended before the response's head")


def _settle(transport: Failure | None, found: Failure | None, whole: bool) -> Failure | None:
    """Of what the transport knows and what the bytes say, the one that explains more."""
    if transport is None:
        return found
    if found is not None and found.kind in _TELLING and transport.kind in _OUTRANKED:
        return found
    if found is None and whole and transport.kind is FailureKind.TRUNCATED:
        return None  # only the end of the framing is missing: nothing of the answer is
    return transport


def _note_usage(record: Record, usage: Usage | None) -> None:
    if usage is None:
        return
    if usage.prompt_tokens is not None:
        record.input_tokens = usage.prompt_tokens
    details = usage.prompt_tokens_details
    if details is not None and details.cached_tokens is not None:
        record.cached_tokens = details.cached_tokens


def _note_timing(record: Record, messages: Sequence[Message]) -> None:
    timing = messages[-1].timing() if messages else None
    if timing is None:
        return
    if timing.queue_time_ms is not None:
        record.server_queue_ns = round(timing.queue_time_ms * 1e6)
    if timing.time_to_first_token_ms is not None:
        record.server_ttft_ns = round(timing.time_to_first_token_ms * 1e6)


def _text(messages: Sequence[Message]) -> str:
    return "".join(choice.said() for message in messages for choice in message.choices or ())


def _aborted(weighed: Weighed) -> Failure:
    said = _shorten(weighed.why) or "the server stopped this request"
    return Failure(FailureKind.ABORTED, f"finish_reason abort: {said}")


def _truncation(answer: Unframed, messages: int) -> str:
    where = "the stream ended" if answer.complete else "the connection ended inside the stream,"
    return f"{where} without a finish reason or [DONE], after {messages} messages"


def _emptiness(content_type: str, total: int, messages: int) -> str:
    if content_type != "text/event-stream":
        return f"no events in a body of {content_type}"
    if total:
        return f"usage counts {total} tokens, but none of {messages} messages can have carried one"
    return f"a complete stream of {messages} messages without a token"


def _words(body: bytes) -> str:
    """What the server says of an error, out of whichever JSON it uses, else the text itself."""
    try:
        said = msgspec.json.decode(body)
    except _NOT_JSON:
        return _readable(body)
    while isinstance(said, dict):
        said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), str(said))
    return _shorten(said if isinstance(said, str) else msgspec.json.encode(said).decode())


def _readable(data: bytes) -> str:
    return _shorten(data[: 4 * _LONGEST_DETAIL].decode("utf-8", "replace"))


def _shorten(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_DETAIL]
