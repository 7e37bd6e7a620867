"""Generate API: SGLang's own, `/generate`, whose messages repeat the whole answer so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from loadgen.wire.openai import (
    CLOSING,
    MAYBE,
    MOST,
    NOTHING,
    TOKEN,
    Choice,
    Count,
    CountOrNone,
    Dialect,
    DraftTally,
    Error,
    Message,
    OwnCounts,
    PromptDetails,
    Timing,
    Usage,
)


class Finish(msgspec.Struct, gc=False):
    """The finish reason in SGLang's `meta_info`."""

    type: str = ""  # length, stop, abort
    message: str | None = None  # of an abort


class MetaInfo(msgspec.Struct, gc=False):
    """SGLang's `meta_info`; its counts are of the whole answer so far."""

    prompt_tokens: Count | None = None
    completion_tokens: Count = 0
    cached_tokens: CountOrNone | None = None
    finish_reason: Finish | str | None = None  # text in early versions
    spec_verify_ct: Any = None  # steps after the first, of a server that drafts; unread in another type
    spec_num_correct_drafts: Any = None  # draft tokens that they accepted
    # These are in seconds; the last two come with a request that has ended. Another type is not read.
    queue_time: Any = None  # until it was first scheduled
    forward_entry_time: Any = None  # first scheduled, by the wall clock
    prefill_finished_time: Any = None
    first_token_latency: Any = None  # its arrival → first token
    e2e_latency: Any = None  # its arrival → end

    def read_own_counts(self) -> OwnCounts:
        """Return (times by the server's clock, None, drafts of the answer so far, None without steps)."""
        timing = Timing(
            _subtract_ms(self.queue_time, 0.0),
            _subtract_ms(self.prefill_finished_time, self.forward_entry_time),
            _subtract_ms(self.e2e_latency, self.first_token_latency),
            _subtract_ms(self.first_token_latency, 0.0),
        )
        counts = (self.spec_verify_ct, self.spec_num_correct_drafts)
        steps, accepted = (n if isinstance(n, int) and 0 <= n <= MOST else None for n in counts)
        return timing, None, DraftTally(steps, accepted) if steps else None


def _subtract_ms(end_s: Any, begin_s: Any) -> float | None:
    """Subtract two times (s), in ms; None if one is no number."""
    numbers = isinstance(end_s, int | float) and isinstance(begin_s, int | float)
    return (end_s - begin_s) * 1e3 if numbers else None


class RawMessage(msgspec.Struct, gc=False):
    """A message as it comes: with --skip-tokenizer-init there is no text, only the ids."""

    text: str | None = None
    output_ids: msgspec.Raw = msgspec.Raw()  # unread: all of a stream's are the square of its length
    meta_info: MetaInfo | None = None
    index: Count = 0
    error: Error = None


class GenerateChoice(Choice, gc=False):
    """The answer of a `/generate` message: the whole so far, or only what the message adds."""

    tokens: int = 0  # more than in the message before
    text: str | None = None  # None: only ids are sent
    repeated: int = 0  # of the text, characters

    def classify(self) -> int:
        """Return TOKEN if the message adds text, or tokens without text; MAYBE if tokens add no text.

        Without more tokens it is CLOSING if it has a finish reason, else NOTHING.
        """
        if self.read_content():
            return TOKEN
        if self.tokens > 0:
            return TOKEN if self.text is None else MAYBE
        return NOTHING if self.finish_reason is None else CLOSING

    def read_content(self) -> str:
        return "" if self.text is None else self.text[self.repeated :]


class GenerateMessage(Message, gc=False):
    """A message of `/generate`."""

    choices: list[GenerateChoice] | None = None
    abort: str = ""
    meta: MetaInfo | None = None

    def read_own_counts(self) -> OwnCounts:
        return (None, None, None) if self.meta is None else self.meta.read_own_counts()

    def read_abort_reason(self) -> str:
        return self.abort


_NAMES = {"min_tokens": "min_new_tokens"}  # of vLLM's sampling parameters


class Generate(Dialect, frozen=True):
    """`/generate`: token ids or text in; text, ids and running counts out."""

    path: str = "/generate"
    cumulative: ClassVar[bool] = True
    prompt_count: ClassVar[str] = "meta_info.prompt_tokens"
    _answers: ClassVar = msgspec.json.Decoder(RawMessage)

    def make_request(self, model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        """Make a request's own fields, prompt and length of the answer, no `model`: SGLang serves one."""
        field = "text" if isinstance(prompt, str) else "input_ids"
        return {field: prompt, "sampling_params": {"max_new_tokens": output_tokens}}

    def make_fields(self, sampling: dict[str, Any], stream: bool, running_usage: bool) -> dict[str, Any]:
        """Make the shared fields: vLLM's sampling names but for two; usage always comes with each message."""
        parameters = {_NAMES.get(name, name): value for name, value in sampling.items()}
        top = parameters.pop("logprobs", None)
        logprobs = {} if top is None else {"return_logprob": True, "top_logprobs_num": top}
        return {"sampling_params": parameters, "stream": stream, **logprobs}

    def read_messages(self, lines: bytes | bytearray) -> Sequence[Message]:
        """Decode the lines to messages, each with the number of tokens and the text it adds to its choice.

        Text counts as repeated in each message unless the listed ids show that it is not. Raises msgspec's
        DecodeError.
        """
        answers: list[RawMessage] = self._answers.decode_lines(lines)
        # Under --incremental-streaming-output the messages together list at most as many ids as there are
        # tokens. Servers that list none repeat.
        lists = filter(None, (bytes(answer.output_ids).strip(b"[] ") for answer in answers))
        listed = sum(ids.count(b",") + 1 for ids in lists)
        counts = {answer.index: answer.meta_info.completion_tokens for answer in answers if answer.meta_info}
        repeating = listed == 0 or listed > sum(counts.values())
        before: dict[int, tuple[int, int]] = {}  # of each choice: tokens, and characters that are repeated
        messages = []
        for answer in answers:
            messages.append(_make_message(*before.get(answer.index, (0, 0)), answer))
            counted, characters = before.get(answer.index, (0, 0))
            if answer.meta_info is not None:
                counted = answer.meta_info.completion_tokens
            if answer.text is not None:
                characters = len(answer.text) if repeating else 0
            before[answer.index] = counted, characters
        return messages


def _make_message(tokens: int, characters: int, answer: RawMessage) -> Message:
    """Make the message of an answer, before which `tokens` came, and `characters` that its text repeats.

    It has usage only if the answer has counts, and then a choice always, else only if there is text.
    """
    meta = answer.meta_info
    if meta is None:
        text = GenerateChoice(index=answer.index, text=answer.text, repeated=characters)
        return GenerateMessage(choices=[text] if answer.text else None, error=answer.error)
    finish = meta.finish_reason or Finish()
    if isinstance(finish, str):
        finish = Finish(finish)
    choice = GenerateChoice(
        index=answer.index,
        finish_reason=finish.type or None,
        tokens=meta.completion_tokens - tokens,
        text=answer.text,
        repeated=characters,
    )
    usage = Usage(meta.prompt_tokens, meta.completion_tokens, PromptDetails(meta.cached_tokens))
    abort = finish.message or ""
    return GenerateMessage(choices=[choice], usage=usage, error=answer.error, abort=abort, meta=meta)
