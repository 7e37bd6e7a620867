"""Until dry: the rates of sessions until the first slot has none left, what is in flight then included."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import total
from loadgen.base.clock import SECOND_NS
from loadgen.figures.metrics import Metrics, good
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.figures.record import Records
from loadgen.figures.steady_state import arrived, shares_of


def rates(ended: Metrics, records: Records, until_ns: int, ask: MetricOptions) -> Metrics:
    """The figures of what had `ended` by then, with the rates of all that was done by then.

    A request in flight at that moment counts by the share of its time that lies before, its tokens by each
    one's arrival: without them throughput is low by half a request for each slot.
    """
    each = PerRequest.of(records, ask)
    begin_ns = int(records.sent_ns[records.sent].min()) - 1  # (begin, end]: nothing is left out at the begin
    shares = np.where(each.ok & records.sent, shares_of(records, begin_ns, until_ns), 0.0)
    inputs = float(shares @ each.input_tokens.clip(0))
    outputs = float(shares @ each.output_tokens)
    if ask.streamed:
        outputs = float(arrived(records, each.ok, begin_ns, until_ns))
    met, duration_s = good(each, ask), ended.duration_s
    sent_ns, end_ns = records.sent_ns[records.sent], records.end_ns[records.sent]
    flown_ns = total(end_ns.clip(max=until_ns) - sent_ns.clip(max=until_ns))
    return replace(
        ended,
        request_throughput_per_s=float(shares.sum()) / duration_s,
        input_throughput_per_s=inputs / duration_s,
        output_throughput_per_s=outputs / duration_s,
        total_throughput_per_s=(inputs + outputs) / duration_s,
        output_throughput_per_gpu_per_s=outputs / duration_s / ask.gpus if ask.gpus else None,
        goodput_per_s=None if met is None else float(shares @ met) / duration_s,
        mean_concurrency=flown_ns / SECOND_NS / duration_s,
    )
