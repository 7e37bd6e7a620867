"""Reasoning: in how many answers the first token was of reasoning, not of the answer itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.metrics.token_counts import TokenCounts
from loadgen.protocol.openai import Message, Usage


class Reasoning(msgspec.Struct):
    """Counts of the answers so far."""

    shown: int = 0  # that began with reasoning
    hidden: int = 0  # whose usage counts reasoning, and whose first token was none

    def note(self, messages: Sequence[Message], counted: TokenCounts, usage: Usage | None) -> None:
        """Count a stream that carried a token."""
        first = messages[int(counted.messages[0])]
        if any(choice.reasons() for choice in first.choices or ()):
            self.shown += 1
        elif usage is not None and usage.reasoned:
            self.hidden += 1
