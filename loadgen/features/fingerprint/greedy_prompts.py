"""Greedy prompts: the answer check's prompts sent to a server, one after another, over the control plane.

Greedy, and nothing else of the workload: `ignore_eos` is not sent, nor its sampling. Where a server takes no
text, the prompts go as the token ids of a local tokenizer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import httpx
import msgspec

from loadgen.base import signals
from loadgen.base.errors import UsageError
from loadgen.base.text import WIDTH, describe_install
from loadgen.base.untrusted import NOT_JSON, Hide, hide_nothing
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
from loadgen.server.exchange import ServerAddress
from loadgen.transport.capture import NO_STAMP, Capture
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire import sse
from loadgen.wire.openai import Chat, Completions, Count

LIMIT_S = 60.0  # for all prompts together: each gets its share of the time left
LONGEST_BYTES = 1 << 24  # of an answer; about a thousand times the size of 48 tokens with all their details
_REFUSED = (FailureKind.HTTP_STATUS, FailureKind.IN_BAND, FailureKind.CONTEXT_LIMIT)
_ANSWERED = (FailureKind.NOT_STREAMED, FailureKind.EMPTY)


class PromptProgress(msgspec.Struct, frozen=True):
    """How many prompts are answered, for a display."""

    done: int
    total: int = len(answer_check.PROMPTS)

    @property
    def share(self) -> float:
        """The share that is done, 0 to 1."""
        return self.done / self.total

    def line(self, columns: int = WIDTH) -> str:
        """Return the progress in one line."""
        return f"fingerprint: {self.done}/{self.total} prompts answered"


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
        learned[key] = ask_prompts(access, subject, made, display.draw, hide=access.secrets.hide)
    answers: Fingerprint = learned[key]
    return answers


def ask_prompts(
    access: ServerAddress,
    subject: ModelTarget,
    plan: Plan,
    show: Callable[[PromptProgress], None],
    limit_s: float = LIMIT_S,
    hide: Hide = hide_nothing,
) -> Fingerprint:
    """Send the answer check's prompts to a server, with a plan's API, within `limit_s` seconds in all.

    Server errors are not raised: a missing or malformed answer is a GreedyAnswer with its failure. `hide`
    masks the secrets in what the server writes.
    """
    if subject.engine.simulated:
        return make_empty_fingerprint("the embedded engine's answers are made up")
    decoder = Decoder(plan.dialect, plan.profile.stream, keep_text=True, hide=hide)
    return access.loop.run(_PromptRun(access, subject, plan, decoder).ask_all(show, limit_s))


@dataclass
class _PromptRun:
    access: ServerAddress
    subject: ModelTarget
    plan: Plan
    decoder: Decoder
    tokenizer: Tokenizer | None = None

    async def ask_all(self, show: Callable[[PromptProgress], None], limit_s: float) -> Fingerprint:
        """Send all prompts in turn, each in its share of the time left.

        Return the answers, or why there are none. If the first prompt is refused as text, all go as token
        ids where the engine takes them. An unreachable server ends it.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        answers: list[GreedyAnswer] = []
        async with self.access.client(limit_s) as control:
            for prompt in answer_check.PROMPTS:
                show(PromptProgress(len(answers)))
                share_s = max(deadline_s - loop.time(), 0.0) / (len(answer_check.PROMPTS) - len(answers))
                answer, kind = await self._ask_prompt(control, prompt.text, share_s)
                takes_ids = self.subject.engine.takes_ids and not self.plan.dialect.chat
                if kind in _REFUSED and not answers and takes_ids:
                    try:
                        self.tokenizer = self._load_tokenizer()
                    except UsageError as error:
                        return make_empty_fingerprint(f"{answer.failure}; {error}")
                    answer, kind = await self._ask_prompt(control, prompt.text, share_s)
                answers.append(answer)
                if kind is FailureKind.CONNECT:
                    return make_empty_fingerprint(f"the server is gone: {answer.failure}")
        form = answer_check.CHAT if self.plan.dialect.chat else answer_check.COMPLETION
        return Fingerprint(version=answer_check.VERSION, answers=tuple(answers), form=form)

    def _load_tokenizer(self) -> Tokenizer:
        """Load --tokenizer, else that of the model's local directory."""
        root = self.subject.model_root
        place = self.subject.tokenizer or (root if os.path.isdir(root) else None)
        if place is None:
            raise UsageError("token ids instead of text need --tokenizer")
        if find_spec("transformers") is None:
            raise UsageError(f"token ids instead of text need transformers: {describe_install('tokenizer')}")
        return load_tokenizer(place, "ids")

    def _make_body(self, text: str) -> bytes:
        dialect, engine = self.plan.dialect, self.subject.engine
        openai = isinstance(dialect, Chat | Completions)
        sampling: dict[str, Any] = {"temperature": 0, **({"seed": 0} if openai else {})}
        if engine.vllm_fields and "repetition_penalty" not in dialect.lacks:
            # Else the checkpoint's own generation_config.json counts, and a quantized one may differ.
            sampling["repetition_penalty"] = 1.0
        more = {"return_token_ids": True} if engine.vllm_fields and openai else {}
        prompt = text if self.tokenizer is None else self.tokenizer.encode(text, add_special_tokens=True)
        request = dialect.make_request(self.subject.model, prompt, answer_check.ANSWER_TOKENS)
        fields = dialect.make_fields(sampling, self.plan.profile.stream, False)
        body = {**merge_fields(request, fields), **more}
        return msgspec.json.encode(self.plan.adaptation.apply_to(body))

    async def _ask_prompt(
        self, client: httpx.AsyncClient, text: str, limit_s: float
    ) -> tuple[GreedyAnswer, FailureKind | None]:
        """Send one prompt; return its answer, with ids and text, and the kind of its failure, None if none.

        An answer that was not streamed, was cut off or is empty counts as one.
        """
        reply, cut = await self._send_body(client, self._make_body(text), limit_s)
        record = self.decoder.decode(reply)
        failure = record.failure
        # A measurement that failed may be an answer: it was not streamed, or is empty.
        answered = record.finish_reason and failure and failure.kind in _ANSWERED
        if failure is not None and not cut and not answered:
            return GreedyAnswer(prompt=text, failure=f"{failure.kind}: {failure.detail}"), failure.kind
        ids, answer_text = _read_token_ids(reply.raw, record), record.text or ""
        if ids is None and not cut:
            return GreedyAnswer(prompt=text, failure="malformed: invalid token ids"), FailureKind.MALFORMED
        ids = ids or []
        if not answer_text and self.tokenizer is not None:
            try:
                answer_text = self.tokenizer.decode(ids)
            except (LookupError, TypeError, ValueError, OverflowError):
                unknown = "malformed: token ids that the tokenizer does not know"
                return GreedyAnswer(prompt=text, failure=unknown), FailureKind.MALFORMED
        return GreedyAnswer(prompt=text, text=answer_text, token_ids=tuple(ids), cut=cut), None

    async def _send_body(self, client: httpx.AsyncClient, body: bytes, limit_s: float) -> tuple[Capture, str]:
        """Send one request; return the response as one read, and why it was cut off at `limit_s`, or ""."""
        reply = Capture(index=0, slot=0, intended_ns=0, sent_ns=0, end_ns=0, framed=False)
        data, cut = bytearray(), ""
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        try:
            async with (
                asyncio.timeout(limit_s),
                client.stream("POST", self.plan.path, content=body, headers=headers) as response,
            ):
                reply.status = response.status_code
                async for piece in response.aiter_raw():
                    data += piece
                    if len(data) > LONGEST_BYTES:
                        detail = f"an answer of more than {LONGEST_BYTES >> 20} MiB"
                        reply.failure = Failure(FailureKind.MALFORMED, detail)
                        data.clear()
                        break
        except TimeoutError:
            cut = f"no more than {limit_s:.0f} s were left for it"
            reply.failure = Failure(FailureKind.TIMEOUT, cut)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            reply.failure = Failure(FailureKind.CONNECT, str(error) or type(error).__name__)
        except (httpx.HTTPError, OSError) as error:
            reply.failure = Failure(FailureKind.TRUNCATED, str(error) or type(error).__name__)
        reply.fill((bytes(data), NO_STAMP, 0))
        return reply, cut


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
