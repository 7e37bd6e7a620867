"""Greedy prompts: the answer check's prompts sent to a server, one after another, over the control plane.

Greedy, and nothing else of the workload: `ignore_eos` is not sent, nor its sampling. Where a server takes no
text, the prompts go as the token ids of a local tokenizer.
"""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.errors import UsageError
from loadgen.base.text import describe_install
from loadgen.base.untrusted import NOT_JSON, Hide, hide_nothing
from loadgen.engines.refusals import Adaptation
from loadgen.facts.run_facts import Fingerprint, GreedyAnswer
from loadgen.features.fingerprint import answer_check
from loadgen.features.fingerprint.answer_check import make_empty_fingerprint
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import merge_fields
from loadgen.plan.request_sources import ModelTarget
from loadgen.plan.tokenizers import Tokenizer, load_tokenizer
from loadgen.records.decode import Decoder
from loadgen.records.record import Record
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome
from loadgen.server.exchange import ControlAnswer, ServerAddress, ask_server
from loadgen.transport.capture import NO_STAMP, Capture
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire import sse
from loadgen.wire.openai import Chat, Completions, Count, Dialect

LIMIT_S = 60.0  # for all prompts together: each gets its share of the time left
LONGEST_BYTES = 1 << 24  # of an answer; about a thousand times the size of 48 tokens with all their details
_REFUSED = (FailureKind.HTTP_STATUS, FailureKind.IN_BAND, FailureKind.CONTEXT_LIMIT)
_ANSWERED = (FailureKind.NOT_STREAMED, FailureKind.EMPTY)


def take_fingerprint(
    server: tuple[ServerAddress, ModelTarget],
    learned: dict[str, Any],
    made: Plan,
    outcome: Outcome,
    display: Display,
) -> Fingerprint:
    """Send the greedy prompts once per API path, cache their answers in `learned`, and return them.

    After a run that was interrupted or failed throughout, there are none, and the reason.
    """
    (access, subject), key = server, f"fingerprint {made.path}"
    if key not in learned:
        if outcome.interrupted or not outcome.records.ok.any():
            stopped = outcome.signal and f"{signals.explain_stop(outcome.signal)} before it was taken"
            return make_empty_fingerprint(stopped or "every request failed")
        with display.waiting("outputs for the greedy prompts", LIMIT_S):
            learned[key] = ask_prompts(access, subject, made, hide=access.secrets.hide)
    answers: Fingerprint = learned[key]
    return answers


def ask_prompts(
    access: ServerAddress,
    subject: ModelTarget,
    plan: Plan,
    limit_s: float = LIMIT_S,
    hide: Hide = hide_nothing,
) -> Fingerprint:
    """Send the answer check's prompts to a server, with a plan's API, within `limit_s` seconds in all.

    Server errors are not raised: a missing or malformed answer is a GreedyAnswer with its failure. `hide`
    masks the secrets in what the server writes.
    """
    if subject.engine.simulated:
        return make_empty_fingerprint("the embedded engine's outputs are made up")
    api = GreedyApi(subject, plan.dialect, plan.path, plan.profile.stream, plan.adaptation, hide)
    return access.loop.run(_ask_all(access, api, limit_s))


async def _ask_all(access: ServerAddress, api: GreedyApi, limit_s: float) -> Fingerprint:
    """Send all prompts in turn, each in its share of the time left.

    Return the answers, or why there are none. If the first prompt is refused as text, all go as token ids
    where the engine takes them. An unreachable server ends it.
    """
    loop, prompts = asyncio.get_running_loop(), answer_check.PROMPTS
    deadline_s = loop.time() + limit_s
    answers: list[GreedyAnswer] = []
    async with access.client(limit_s) as client:

        async def ask_prompt(text: str) -> tuple[GreedyAnswer, FailureKind | None]:
            share_s = max(deadline_s - loop.time(), 0.0) / (len(prompts) - len(answers))
            body = api.make_body(text, answer_check.ANSWER_TOKENS)
            return api.read(text, await ask_server(client, "POST", api.path, share_s, LONGEST_BYTES, body))

        for prompt in prompts:
            answer, kind = await ask_prompt(prompt.text)
            if kind in _REFUSED and not answers and api.subject.takes_ids(api.dialect):
                try:
                    api = replace(api, tokenizer=_load_tokenizer(api.subject))
                except UsageError as error:
                    return make_empty_fingerprint(f"{answer.failure}; {error}")
                answer, kind = await ask_prompt(prompt.text)
            answers.append(answer)
            if kind is FailureKind.CONNECT:
                return make_empty_fingerprint(f"the server is gone: {answer.failure}")
    return Fingerprint(version=answer_check.VERSION, answers=tuple(answers), form=api.form)


def _load_tokenizer(subject: ModelTarget) -> Tokenizer:
    """Load --tokenizer, else that of the model's local directory."""
    root = subject.model_root
    place = subject.tokenizer or (root if os.path.isdir(root) else None)
    if place is None:
        raise UsageError("token ids instead of text need --tokenizer")
    if find_spec("transformers") is None:
        raise UsageError(f"token ids instead of text need transformers: {describe_install('tokenizer')}")
    return load_tokenizer(place, "ids")


class GreedyApi(msgspec.Struct, frozen=True):
    """The API by which a server is asked for greedy answers, and how its answers are read."""

    subject: ModelTarget
    dialect: Dialect
    path: str
    stream: bool = False
    adaptation: Adaptation = Adaptation()  # to what the server refuses
    hide: Hide = hide_nothing  # masks the secrets in what the server writes
    tokenizer: Tokenizer | None = None  # its ids are sent in place of text

    @property
    def form(self) -> str:
        """Whether prompts are completed or are messages of a chat."""
        return answer_check.CHAT if self.dialect.chat else answer_check.COMPLETION

    def make_body(self, text: str, tokens: int) -> dict[str, Any]:
        """Make the request for the greedy answer to a text, of `tokens` at most, with its ids if possible."""
        dialect, engine = self.dialect, self.subject.engine
        openai = isinstance(dialect, Chat | Completions)
        sampling: dict[str, Any] = {"temperature": 0, **({"seed": 0} if openai else {})}
        if engine.vllm_fields and "repetition_penalty" not in dialect.lacks:
            # Without it the checkpoint's own generation_config.json counts, and a quantized one's may differ.
            sampling["repetition_penalty"] = 1.0
        more = {"return_token_ids": True} if engine.vllm_fields and openai else {}
        prompt = text if self.tokenizer is None else self.tokenizer.encode(text, add_special_tokens=True)
        fields = dialect.make_fields(sampling, self.stream, False)
        request = dialect.make_request(self.subject.model, prompt, tokens)
        return self.adaptation.apply_to({**merge_fields(request, fields), **more})

    def read(self, text: str, reply: ControlAnswer) -> tuple[GreedyAnswer, FailureKind | None]:
        """Read the answer to a text, with ids and text, and the kind of its failure, None if it has none.

        An answer that was not streamed, was cut off or is empty counts as one.
        """
        capture = Capture(index=0, slot=0, intended_ns=0, sent_ns=0, end_ns=0, framed=False)
        cut = reply.why if reply.timed_out else ""
        capture.status = 200 if cut and reply.body else reply.status
        if reply.error:
            kind = FailureKind.CONNECT if reply.broken else FailureKind.MALFORMED
            capture.failure = Failure(FailureKind.TIMEOUT if cut else kind, reply.why)
        capture.fill((reply.body, NO_STAMP, 0))
        record = Decoder(self.dialect, self.stream, keep_text=True, hide=self.hide).decode(capture)
        failure = record.failure
        # A measurement that failed may be an answer: it was not streamed, or is empty.
        answered = record.finish_reason and failure and failure.kind in _ANSWERED
        if failure is not None and not cut and not answered:
            return GreedyAnswer(prompt=text, failure=f"{failure.kind}: {failure.detail}"), failure.kind
        ids, answer = _read_token_ids(reply.body, record), record.text or ""
        if ids is None and not cut:
            return GreedyAnswer(prompt=text, failure="malformed: invalid token ids"), FailureKind.MALFORMED
        ids = ids or []
        if not answer and self.tokenizer is not None:
            try:
                answer = self.tokenizer.decode(ids)
            except (LookupError, TypeError, ValueError, OverflowError):
                unknown = "malformed: token ids that the tokenizer does not know"
                return GreedyAnswer(prompt=text, failure=unknown), FailureKind.MALFORMED
        return GreedyAnswer(prompt=text, text=answer, token_ids=tuple(ids), cut=cut), None


class _ChoiceIds(msgspec.Struct):
    token_ids: list[Count] | None = None


class _MessageIds(msgspec.Struct):
    choices: list[_ChoiceIds] | None = None
    output_ids: list[Count] | None = None  # of /generate: all so far, or one message's part of them


_MESSAGE_IDS = msgspec.json.Decoder(_MessageIds)


def _read_token_ids(body: bytes, record: Record) -> list[int] | None:
    """Return an answer's token ids, from JSON or events; [] if there are none, None if they are malformed."""
    lines = sse.join_lines(body) if body.lstrip()[:1] == b"{" else sse.read_events(body, whole=False).lines
    try:
        messages = _MESSAGE_IDS.decode_lines(lines)
    except NOT_JSON:
        return None
    running = [message.output_ids for message in messages if message.output_ids]
    if running and len(running[-1]) >= record.output_tokens:
        return running[-1]
    listed = [
        choice.token_ids for message in messages for choice in message.choices or () if choice.token_ids
    ]
    return [token for ids in running or listed for token in ids]
