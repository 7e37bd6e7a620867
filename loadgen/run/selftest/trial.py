"""One trial of the self-test: requests of a load, against null servers of their own."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from loadgen.base.errors import MeasureError
from loadgen.plan.plan import Plan
from loadgen.run import signals
from loadgen.run.measure import Outcome, TransportOptions, Watch, measure
from loadgen.run.progress import Display
from loadgen.run.selftest.load import SelftestClient, SelftestLoad, planned
from loadgen.run.selftest.null_servers import null_servers
from loadgen.server.discovery import ServerAddress
from loadgen.transport.sending.job import Health
from loadgen.verdict.calibration import Seen, compare

TTFT_MS = 50.0


def fire(made: Plan, client: SelftestClient, base_urls: Sequence[str], prefix: str) -> Outcome:
    """The outcome of a plan against a null server a worker; raises MeasureError where it was cut short."""
    targets = tuple(
        replace(ServerAddress(base_url).target(made.path, None), delay_acks=True) for base_url in base_urls
    )
    options = TransportOptions(targets[0], client.transport, request_id_prefix=prefix)
    if client.workers > 1:
        from loadgen.run.workers.workers import Workers  # no run of one worker pays for it

        options = replace(options, workers=client.workers, begin=Workers, targets=targets)
    outcome = measure(made, options, Watch(Display(), "self-test"))
    if outcome.signal:
        raise signals.Stopped(outcome.signal)
    if outcome.cut_short or outcome.lost:
        why = outcome.cut_short or "; ".join(outcome.lost)
        raise MeasureError(f"the self-test of {client.words} was cut short: {why}")
    return outcome


def trial(load: SelftestLoad, client: SelftestClient, waves: int, messages: int) -> tuple[Seen, Health]:
    """Waves of requests with `messages` messages each, against null servers of their own."""
    tokens, prefix = messages * load.tokens_per_message, f"{client.transport}-"
    shape = ("--tokens-per-message", str(load.tokens_per_message))
    with null_servers(client.workers, TTFT_MS, load.interval_ms, *shape) as nulls:
        made = planned(load, waves * load.streams, tokens)
        outcome = fire(made, client, [null.base_url for null in nulls], prefix)
        sent = {index: row for null in nulls for index, row in null.sent(prefix).items()}
        return compare(outcome.records, sent), outcome.health
