"""Per request: what each request of a run contributes to its figures, as columns."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.records.record import UNKNOWN, Records


class MetricOptions(msgspec.Struct, frozen=True):
    """The settings of which figures to compute, with facts of the run that its records lack."""

    metric_percentiles: tuple[float, ...] = (99.0,)
    # Limits of a good request: ttft, tpot, e2el → the most ms; tps_user → the fewest tokens/s.
    goodput_limits: Mapping[str, float] = msgspec.field(default_factory=dict)
    streamed: bool = True  # False: only whole answers came, so E2EL is all there is
    gpus: int = 0  # that the server runs on; 0: not known
    arrivals_are_tokens: bool = True  # False: what arrived shows when no token came, so E2EL is all there is

    @property
    def times_tokens(self) -> bool:
        """Whether token times were measured, so that TTFT, TPOT and ITL exist."""
        return self.streamed and self.arrivals_are_tokens


class PerRequest(msgspec.Struct, frozen=True):
    """The quantities of each request that figures are computed from, int64[requests], -1 if it has none."""

    ok: Bool
    failed: Bool  # neither succeeded, nor cancelled as planned, nor cut off by this side
    cancelled: Bool  # as planned
    first_ns: Int64  # arrival of the first message that carried a token
    first_tokens: Int64  # tokens of that message
    ttft_ns: Int64  # first_ns - sent_ns, where arrivals are tokens
    last_ns: Int64  # successes: arrival of the last token message; not streamed: the answer's end
    e2el_ns: Int64  # last_ns - sent_ns
    input_tokens: Int64  # usage, else the planned length
    output_tokens: Int64  # usage, else the text's by a tokenizer, else the messages; failures: 0
    ttfvt_ns: Int64  # arrival of the first message with text that is not reasoning - sent_ns
    queue_ns: Int64  # sent_ns - intended_ns: lateness (open loop), turn-around (closed loop)

    @classmethod
    def from_records(cls, records: Records, ask: MetricOptions) -> PerRequest:
        """Compute these columns from a run's records."""
        ok, sent_ns, cancelled = records.ok, records.sent_ns, records.cancelled
        first_ns, first_tokens = np.full((2, len(records)), UNKNOWN, np.int64)
        last_ns = np.where(ok, records.end_ns, UNKNOWN)
        if ask.streamed:
            for block in records.blocks():
                rows = slice(block.first, block.last)
                some = np.diff(block.start) > 0
                firsts = block.start[:-1][some]
                first_ns[rows][some], first_tokens[rows][some] = (
                    block.arrival_ns[firsts],
                    block.tokens[firsts],
                )
                some &= ok[rows]
                last_ns[rows][some] = block.arrival_ns[block.start[1:][some] - 1]
        counted = np.where(ok, records.output_tokens, 0)
        if (unknown := counted < 0).any():
            counted[unknown] = records.sum_message_tokens()[unknown]
        return cls(
            ok=ok,
            failed=~(ok | cancelled | records.cut_off),
            cancelled=cancelled,
            first_ns=first_ns,
            first_tokens=first_tokens,
            ttft_ns=np.where((first_ns == UNKNOWN) | (not ask.times_tokens), UNKNOWN, first_ns - sent_ns),
            last_ns=last_ns,
            e2el_ns=np.where(ok, last_ns - sent_ns, UNKNOWN),
            input_tokens=np.where(records.input_tokens < 0, records.planned_input, records.input_tokens),
            output_tokens=counted,
            ttfvt_ns=np.where(
                (records.visible_ns == UNKNOWN) | (not ask.times_tokens),
                UNKNOWN,
                records.visible_ns - sent_ns,
            ),
            queue_ns=sent_ns - records.intended_ns,
        )

    @property
    def has_ttft(self) -> Bool:
        """Marks the requests that count towards TTFT, bool[requests]."""
        begun: Bool = self.ttft_ns != UNKNOWN
        return self.ok & begun

    @property
    def has_ttfvt(self) -> Bool:
        """Marks the successful requests with a visible token, bool[requests]: some end in their reasoning."""
        visible: Bool = self.ttfvt_ns != UNKNOWN
        return self.ok & visible

    @property
    def has_tpot(self) -> Bool:
        """Marks the requests that count towards TPOT, bool[requests]: those of two tokens or more."""
        return self.has_ttft & (self.output_tokens > 1)

    def tpot_ns(self) -> Float64:
        """Compute (E2EL - TTFT) / (output tokens - 1), float64[requests]; 0 for a request without TPOT."""
        after_first = np.where(self.has_tpot, self.e2el_ns - self.ttft_ns, 0)
        return after_first / np.maximum(self.output_tokens - 1, 1)

    @property
    def has_tokens(self) -> Bool:
        """Marks the successes with a token, bool[requests]."""
        counted: Bool = self.output_tokens > 0
        return self.ok & counted

    def e2el_per_token_ns(self) -> Float64:
        """Compute E2EL / output tokens, float64[requests]; valid where `has_tokens`."""
        return self.e2el_ns / np.maximum(self.output_tokens, 1)

    @property
    def has_prefill(self) -> Bool:
        """Marks the requests that count towards the prefill speed, bool[requests]: prompt tokens known."""
        known: Bool = (self.input_tokens > 0) & (self.ttft_ns > 0)
        return self.has_ttft & known

    def prefill_tok_s(self) -> Float64:
        """Compute input tokens / TTFT in tokens per second, float64[requests]; valid where `has_prefill`."""
        return self.input_tokens * SECOND_NS / np.where(self.has_prefill, self.ttft_ns, 1)

    @property
    def has_user_speed(self) -> Bool:
        """Marks the requests with tokens and time after the first message, bool[requests]."""
        more: Bool = (self.output_tokens > self.first_tokens) & (self.e2el_ns > self.ttft_ns)
        return self.has_ttft & more

    def user_tok_s(self) -> Float64:
        """Compute the tokens per second after the first message, float64[requests].

        (output tokens - those of the first message) / (E2EL - TTFT); valid where `has_user_speed`.
        """
        after_ns = np.where(self.has_user_speed, self.e2el_ns - self.ttft_ns, 1)
        return (self.output_tokens - self.first_tokens) * SECOND_NS / after_ns
