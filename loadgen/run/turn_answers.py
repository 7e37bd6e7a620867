"""Turn answers: how the answer to a session's turn is judged, and what of it the next turn sends back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from loadgen.base.errors import UsageError
from loadgen.figures import live_answer
from loadgen.figures.decode import Decoder
from loadgen.plan.plan import Plan
from loadgen.plan.turns import Turns
from loadgen.transport.capture import Capture
from loadgen.transport.session_job import Answer, SessionJob

if TYPE_CHECKING:
    from loadgen.wire.openai import Dialect


def of_plan(plan: Plan, turns: Turns, headers: Iterable[tuple[str, str]]) -> SessionJob:
    """What a transport needs to send the turns of a plan; raises UsageError of a header with two values."""
    profile = plan.profile
    if profile.session_header.lower() in {name.lower() for name, _ in headers}:
        raise UsageError(
            f"--session-header {profile.session_header} and --header give it two values: leave one out"
        )
    live = profile.assistant == "live"
    # Of its own, since the run's counts what it decodes; by the same lengths, so that both judge alike.
    planned = (plan.requests.input_lens, plan.requests.output_lens)
    decoder = Decoder(plan.dialect, profile.stream, planned=planned)
    return SessionJob(
        turns,
        answer_of=_live(decoder, plan.dialect) if live else _judged(decoder),
        body_after=plan.body_after if live else None,
        header=profile.session_header,
        users=profile.users or 0,
        user_rate_per_s=profile.user_rate or 0.0,
    )


def _judged(decoder: Decoder) -> Callable[[Capture], Answer | None]:
    """Whether a turn succeeded: its answer is not sent back."""
    return lambda capture: None if decoder.decode(capture).failure is not None else {}


def _live(decoder: Decoder, dialect: Dialect) -> Callable[[Capture], Answer | None]:
    judged = _judged(decoder)

    def answer_of(capture: Capture) -> Answer | None:
        if judged(capture) is None:
            return None
        lines = live_answer.lines_of(capture, decoder.streamed)
        return live_answer.message_of(dialect.messages(lines))

    return answer_of
