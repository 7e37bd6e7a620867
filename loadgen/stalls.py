"""Stalls: which streams have had no token for too long, whatever else they sent."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.job import Job
from loadgen.slot import Slot, State


class Stalls:
    """Looks for tokens only in streams whose time is up."""

    def __init__(self, job: Job, slots: Sequence[Slot]) -> None:
        self.limit_ns, self.token_seen = job.limits.stall_timeout_ns, job.token_seen
        self.slots = slots
        self.token_ns = 0  # when a stream last got a token, as far as is known
        self._looked_ns = 0

    def stalled(self, slot: Slot, now_ns: int) -> bool:
        """Whether a busy slot that seems to have waited too long for its next token has.

        One without its first token may be waiting in the server's queue: it is stalled only when
        nobody else got a token either.
        """
        self._look(slot)
        if not slot.begun:
            slot.progress_ns = max(slot.progress_ns, self._last_token_ns(now_ns))
        return now_ns - slot.progress_ns > self.limit_ns

    def _look(self, slot: Slot) -> None:
        read = slot.last_token_read(self.token_seen)
        if read is not None:
            slot.begun, slot.progress_ns, slot.scanned = True, slot.intake.seen_ns[read], read

    def _last_token_ns(self, now_ns: int) -> int:
        """When any stream last got a token; looked for once a sweep."""
        if self._looked_ns != now_ns:
            self._looked_ns = now_ns
            for slot in self.slots:
                if slot.state is State.BUSY:
                    self._look(slot)
                    self.token_ns = max(self.token_ns, slot.progress_ns if slot.begun else 0)
        return self.token_ns
