"""Reasoning: in how many answers it came first, and the first token of each that a user sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loadgen.base.arrays import Int64
from loadgen.wire.openai import Message, Usage
from loadgen.wire.typical import TypicalMessages

NEVER = -1  # no message of an answer was visible


class Reasoning(msgspec.Struct):
    """Counts of the answers so far."""

    shown: int = 0  # that began with reasoning
    hidden: int = 0  # whose usage counts reasoning, and whose first token was none

    def note(self, visible: int, usage: Usage | None) -> None:
        """Count a stream that carried a token, of which `first_visible` is known."""
        if visible:
            self.shown += 1
        elif usage is not None and usage.thought_tokens:
            self.hidden += 1


def first_visible(messages: Sequence[Message], carrying: Int64) -> int:
    """Which of the messages that carried tokens is the first one that a user sees; NEVER where none is.

    `carrying` are their positions, int64[messages that carried tokens]. Visible are the answer's text and
    tool calls. Without reasoning before them it is the first message, even if its token has no text.
    """
    if not len(carrying):
        return NEVER
    if _shows(messages[int(carrying[0])]):
        return 0
    candidates: Iterable[tuple[int, Message]]
    if isinstance(messages, TypicalMessages) and not _shows(messages.typical):
        # Thousands of messages that are all of reasoning need not be gone through.
        reasoned, candidates = _reasons(messages.typical), messages.parsed.items()
    else:
        places = carrying.tolist()
        reasoned, candidates = False, zip(places, map(messages.__getitem__, places), strict=True)
    for at, message in candidates:
        if _shows(message):
            place = int(carrying.searchsorted(at))
            if place < len(carrying) and carrying[place] == at:
                return place if reasoned else 0
        reasoned = reasoned or _reasons(message)
    return NEVER if reasoned else 0


def _shows(message: Message) -> bool:
    return True in [choice.shows() for choice in message.choices or ()]  # quicker than any()


def _reasons(message: Message) -> bool:
    return any(choice.reasons() for choice in message.choices or ())
