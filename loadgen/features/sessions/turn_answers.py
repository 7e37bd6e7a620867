"""Turn answers: how the answer to a session's turn is judged, and what of it the next turn sends back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.features.sessions.turn_queue import TurnAnswer
from loadgen.features.sessions.turn_sending import SessionJob, TurnOrder
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import Turns
from loadgen.records import decoded_stream
from loadgen.records.decode import Decoder
from loadgen.transport.capture import Capture
from loadgen.transport.failure import FailureKind
from loadgen.wire import sse
from loadgen.wire.openai import REASONING_FIELDS, TOKEN, ChatChoice, Delta, Dialect, Message
from loadgen.wire.written import read_written


def make_turns(
    plan: Plan, turns: Turns, sessions: Sequence[int], headers: Iterable[tuple[str, str]]
) -> tuple[TurnOrder, SessionJob]:
    """Make the order of these sessions, and what judges answers and sends turns; raises UsageError.

    It raises where `--session-header` names one of the `headers`, which would have two values, and for
    results of tools in sessions whose history the server keeps.
    """
    profile = plan.profile
    if profile.session_header.lower() in {name.lower() for name, _ in headers}:
        raise UsageError(
            f"--session-header {profile.session_header} and --header give it two values: leave one out"
        )
    if plan.dialect.keeps_history and getattr(plan.requests, "held", {}).get("tool"):
        raise UsageError(
            "--assistant server: the conversations have results of tools, which the server's own answers did "
            "not call: pass --assistant live or recorded"
        )
    answered = profile.assistant != "recorded"
    # Of its own, since the run's counts what it decodes; by the same lengths, so that both judge alike.
    planned = (plan.requests.input_lens, plan.requests.output_lens)
    decoder = Decoder(plan.dialect, profile.stream, planned=planned)
    goes_on = plan.cancellations is not None and bool(plan.cancellations.own)
    job = SessionJob(
        turns,
        answer_of=_make_live_judge(decoder, plan.dialect) if answered else _make_judge(decoder, goes_on),
        body_after=plan.body_after if answered else None,
        header=profile.session_header,
        users=profile.users or 0,
        user_rate_per_s=profile.user_rate or 0.0,
    )
    return TurnOrder(turns, sessions), job


def _make_judge(decoder: Decoder, goes_on: bool = False) -> Callable[[Capture], TurnAnswer | None]:
    """Make the judge of turns whose answers are not sent back: it returns {} for success, else None.

    With `goes_on` a turn that is cancelled as planned counts as one: its client went on when recorded.
    """

    def answer_of(capture: Capture) -> TurnAnswer | None:
        failure = decoder.decode(capture).failure
        went_on = goes_on and failure is not None and failure.kind is FailureKind.USER_CANCELLED
        return {} if failure is None or went_on else None

    return answer_of


def _make_live_judge(decoder: Decoder, dialect: Dialect) -> Callable[[Capture], TurnAnswer | None]:
    """Make the judge of turns whose answers the next one needs: it returns the message, or the state.

    It returns None for a failure.
    """
    judged = _make_judge(decoder)

    def answer_of(capture: Capture) -> TurnAnswer | None:
        if judged(capture) is None:
            return None
        lines = _read_lines(capture, decoder.streamed)
        return (
            dialect.read_state(lines)
            if dialect.keeps_history
            else _make_message(dialect.read_messages(lines))
        )

    return answer_of


def _make_message(messages: Iterable[Message]) -> dict[str, Any]:
    """Make the assistant's message from a chat answer: content, and reasoning under the server's key.

    Its tool calls are left out: there are results for those of the recorded answer alone.
    """
    content, reasoning = "", dict.fromkeys(REASONING_FIELDS, "")
    for delta in _list_deltas(messages):
        content += read_written(delta.content).answer
        for key in REASONING_FIELDS:
            reasoning[key] += read_written(getattr(delta, key), True).reasoning
    given = {key: text for key, text in reasoning.items() if text}
    return {"role": "assistant", "content": content, **given}


def _read_lines(capture: Capture, streamed: bool) -> bytes | bytearray:
    """Return the JSON of an answer, one line per event, or one line if it was not streamed."""
    answer = decoded_stream.unframe(capture)
    if not streamed:
        return sse.join_lines(answer.body)
    return sse.read_events(answer.body, answer.complete).lines


def _list_deltas(messages: Iterable[Message]) -> Iterator[Delta]:
    """Yield the deltas of a chat answer's first choice, without repeats once tokens have begun."""
    begun = False
    for choice in (choice for message in messages for choice in message.choices or ()):
        if begun and choice.is_repeat():
            continue
        begun = begun or choice.classify() == TOKEN
        delta = choice.delta or choice.message if isinstance(choice, ChatChoice) else None
        if choice.index == 0 and delta is not None:
            yield delta
