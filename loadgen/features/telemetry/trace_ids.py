"""Trace ids: those of each request's span, which its headers carry and its span gets after it has ended."""

from __future__ import annotations

import hashlib

import msgspec

TRACEPARENT = "traceparent"
KEY_BYTES = 16
TRACE_BYTES, _SPAN_BYTES, _INDEX_BYTES = 16, 8, 8
_SAMPLED = 1


class TraceIds(msgspec.Struct, frozen=True):
    """The ids of a run's spans: BLAKE2b of the plan index under the run's key, the same in any process.

    The key is random: no two runs or shards have the same.
    """

    key: bytes

    def find(self, index: int) -> tuple[int, int]:
        """Return the trace id, of 128 bits, and the span id, of 64, of the request with a plan index."""
        size = TRACE_BYTES + _SPAN_BYTES
        digest = hashlib.blake2b(index.to_bytes(_INDEX_BYTES, "big"), key=self.key, digest_size=size).digest()
        # An id of zeros would be none (W3C Trace Context, 3.2.2).
        return int.from_bytes(digest[:TRACE_BYTES]) or 1, int.from_bytes(digest[TRACE_BYTES:]) or 1

    def make_headers(self, index: int) -> tuple[tuple[str, str], ...]:
        """Make the header by which the server's spans join a request's trace (W3C Trace Context, 3.2)."""
        trace, span = self.find(index)
        return ((TRACEPARENT, f"00-{trace:032x}-{span:016x}-{_SAMPLED:02x}"),)
