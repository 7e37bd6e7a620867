"""One trial of the self-test: requests of a load, against a null server of their own."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.endpoint.discovery import ServerAddress
from loadgen.errors import MeasureError
from loadgen.session import signals
from loadgen.session.measure import Outcome, TransportOptions, Watch, measure
from loadgen.session.progress import Display
from loadgen.session.selftest.load import SelftestLoad, planned
from loadgen.session.selftest.null_servers import null_server
from loadgen.transport.job import Health
from loadgen.validity.calibration import Seen, compare
from loadgen.workload.plan import Plan

TTFT_MS = 50.0


def fire(made: Plan, transport: str, base_url: str, prefix: str) -> Outcome:
    """The outcome of a plan against a null server; raises MeasureError where it was cut short."""
    target = replace(ServerAddress(base_url).target(made.path, None), delay_acks=True)
    options = TransportOptions(target, transport, request_id_prefix=prefix)
    outcome = measure(made, options, Watch(Display(), "self-test"))
    if outcome.signal:
        raise signals.Stopped(outcome.signal)
    if outcome.cut_short:
        raise MeasureError(f"the self-test of {transport} was cut short: {outcome.cut_short}")
    return outcome


def trial(load: SelftestLoad, transport: str, waves: int, messages: int) -> tuple[Seen, Health]:
    """Waves of requests with `messages` messages each, against a null server of their own."""
    tokens, prefix = messages * load.tokens_per_message, f"{transport}-"
    shape = ("--tokens-per-message", str(load.tokens_per_message))
    with null_server(TTFT_MS, load.interval_ms, *shape) as null:
        outcome = fire(planned(load, waves * load.streams, tokens), transport, null.base_url, prefix)
        return compare(outcome.records, null.sent(prefix)), outcome.health
