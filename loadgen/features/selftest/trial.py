"""One trial of the self-test: requests of a load, against null servers of their own."""

from __future__ import annotations

import select
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.arrays import Int64
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import format_count
from loadgen.engines import engines
from loadgen.facts.calibration import HELD_PERCENT, Error
from loadgen.figures.peaks import peak_concurrency
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records.record import Records
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import measure
from loadgen.server.exchange import ServerAddress
from loadgen.transport.capture import Health
from loadgen_servers.process.embedded import NULL, Embedded, EngineFailed

TTFT_MS = 50.0
USUAL_STREAMS = 256
_PATIENCE_S = 60.0


class Sent(msgspec.Struct):
    """One request in the null server's log; `wrote_ns` is of each message with a token."""

    request_id: str
    received_ns: int
    wrote_ns: list[int]


class Seen(msgspec.Struct, frozen=True):
    """A self-test's run as the client measured it next to the null server's log; (measured, true) in ns."""

    requests: int
    failed: int
    unlike: int  # answers with more or fewer messages than were written
    tokens: int  # of the answers that are alike, as these all
    messages: int
    shared_reads: int
    tokens_per_s: float  # first write → last write
    streams: int  # most in the server at once
    ttft: tuple[Int64, Int64]
    gap: tuple[Int64, Int64]
    later_gap: tuple[Int64, Int64]  # without each answer's first
    e2e: tuple[Int64, Int64]
    first_error: str = ""  # of the first request that failed

    @property
    def events_per_read(self) -> float:
        """Messages with a token per read: 1 if each had a read of its own."""
        return self.messages / max(1, self.messages - self.shared_reads)

    def is_held(self, streams: int) -> bool:
        """Whether all `streams` ran at once, arrived whole, and had a P99 error of gaps that counts as held.

        An answer's first gap is left out: in an answer of a hundred messages it is beyond P99, and in the
        short ones of a self-test it would be most of what P99 sees.
        """
        whole = not (self.failed or self.unlike) and self.streams >= streams and len(self.later_gap[0])
        return bool(whole) and Error.from_pairs(*self.later_gap).p99_percent < HELD_PERCENT


def compare(records: Records, sent: Mapping[int, Sent]) -> Seen:
    """Compare a self-test's records with the null server's log, which is by plan index.

    Times are those of successful answers with as many messages as were written.
    """
    ok, alike, rows = records.ok, [], []
    for i, index in enumerate(records.index.tolist()):
        row = sent.get(index)
        if ok[i] and row is not None and len(row.wrote_ns) == records.start[i + 1] - records.start[i]:
            alike.append(i)
            rows.append(row)
    measured = [records.arrival_ns[records.start[i] : records.start[i + 1]] for i in alike]
    wrote = [np.array(row.wrote_ns, np.int64) for row in rows]
    received_ns = np.array([row.received_ns for row in rows], np.int64)
    first_ns, last_ns = (np.array([times[at] for times in wrote], np.int64) for at in (0, -1))
    sent_ns, tokens = records.sent_ns[alike], int(records.output_tokens[alike].sum())
    span_s = (int(last_ns.max()) - int(first_ns.min())) / 1e9 if alike else 0.0
    failures = records.failed
    return Seen(
        requests=len(records),
        failed=len(failures),
        unlike=int(ok.sum()) - len(alike),
        tokens=tokens,
        messages=sum(map(len, measured)),
        shared_reads=int(records.shared_reads[alike].sum()),
        tokens_per_s=tokens / span_s if span_s else 0.0,
        streams=peak_concurrency(received_ns, last_ns),
        ttft=(np.array([times[0] for times in measured], np.int64) - sent_ns, first_ns - received_ns),
        gap=(_compute_gaps(measured), _compute_gaps(wrote)),
        later_gap=(
            _compute_gaps([times[1:] for times in measured]),
            _compute_gaps([times[1:] for times in wrote]),
        ),
        e2e=(np.array([times[-1] for times in measured], np.int64) - sent_ns, last_ns - received_ns),
        first_error=f"{failures[0].kind}: {failures[0].detail}" if failures else "",
    )


def _compute_gaps(streams: Sequence[Int64]) -> Int64:
    return np.concatenate([np.zeros(0, np.int64), *(np.diff(times) for times in streams)])


def fire(made: Plan, client: SelftestClient, base_urls: Sequence[str], prefix: str) -> Outcome:
    """Send a plan to one null server per worker, and return the outcome.

    Raises MeasureError if it was cut short, and Stopped on a signal.
    """
    targets = tuple(
        replace(ServerAddress(base_url).target(made.path), delay_acks=True) for base_url in base_urls
    )
    options = TransportOptions(targets[0], client.transport, request_id_prefix=prefix)
    if client.workers > 1:
        options = replace(options, workers=client.workers, targets=targets)
    outcome = measure(made, options, Watch(Display(), "self-test"))
    if outcome.signal:
        raise signals.Stopped(outcome.signal)
    if outcome.cut_short or outcome.lost:
        why = outcome.cut_short or "; ".join(outcome.lost)
        raise MeasureError(f"the self-test of {client.words} was cut short: {why}")
    return outcome


def run_trial(load: SelftestLoad, client: SelftestClient, waves: int, messages: int) -> tuple[Seen, Health]:
    """Send `waves` of requests with `messages` messages each to null servers, and compare with their logs."""
    tokens, prefix = messages * load.tokens_per_message, f"{client.transport}-"
    shape = ("--tokens-per-message", str(load.tokens_per_message))
    with null_servers(client.workers, TTFT_MS, load.interval_ms, *shape) as nulls:
        made = plan_load(load, waves * load.streams, tokens)
        outcome = fire(made, client, [null.base_url for null in nulls], prefix)
        sent = {index: row for null in nulls for index, row in null.read_sent(prefix).items()}
        return compare(outcome.records, sent), outcome.health


@dataclass
class Null:
    """A running null server."""

    base_url: str
    log: Path
    process: Embedded

    def read_sent(self, prefix: str) -> dict[int, Sent]:
        """Stop the server and read its log of requests with a prefix, by plan index."""
        self.process.stop()
        rows = (msgspec.json.decode(line, type=Sent) for line in self.log.read_bytes().splitlines())
        return {int(row.request_id[len(prefix) :]): row for row in rows if row.request_id.startswith(prefix)}


@contextmanager
def null_server(ttft_ms: float, interval_ms: float, *shape: str) -> Iterator[Null]:
    """Start a null server that writes a log, yield it, and end it; raises UsageError or MeasureError."""
    if not hasattr(select, "epoll"):
        raise UsageError("the self-test needs Linux: its null server waits on epoll")
    with tempfile.TemporaryDirectory(prefix="loadgen-selftest-") as name:
        log = Path(name) / "log.jsonl"
        pace = ["--ttft-ms", f"{ttft_ms:g}", "--interval-ms", f"{interval_ms:g}", "--log", str(log)]
        with Embedded([*pace, *shape], NULL) as process:
            try:
                listening = process.start()
            except EngineFailed as error:
                raise MeasureError(f"the null server did not start: {error}") from None
            yield Null(listening.base_url, log, process)


@contextmanager
def null_servers(count: int, ttft_ms: float, interval_ms: float, *shape: str) -> Iterator[list[Null]]:
    """Start `count` null servers, yield them, and end them; raises UsageError or MeasureError."""
    with ExitStack() as stack:
        yield [stack.enter_context(null_server(ttft_ms, interval_ms, *shape)) for _ in range(count)]


class SelftestClient(msgspec.Struct, frozen=True):
    """The client under test: a transport in N workers, each with a null server of its own."""

    transport: str
    workers: int = 1

    @property
    def words(self) -> str:
        return self.transport + f" in {self.workers} workers" * (self.workers > 1)


class SelftestLoad(msgspec.Struct, frozen=True):
    """The load of a self-test: a message every `interval_ms` on each of `streams`, over all workers."""

    streams: int = USUAL_STREAMS
    interval_ms: float = 20.0
    tokens_per_message: int = 1
    input_tokens: int = 64
    chat: bool = False

    @classmethod
    def from_profile(cls, workload: Profile) -> SelftestLoad:
        """Make the load of a profile's concurrency (else 256), prompts and API; the pace is the default."""
        streams = workload.max_concurrency or USUAL_STREAMS
        return cls(
            streams=min(streams, workload.num_prompts or streams),
            input_tokens=workload.input_len,
            chat=workload.backend == "openai-chat",
        )

    @property
    def words(self) -> str:
        """The load in words: 256 streams × 50 tok/s."""
        pace = f"{1000 * self.tokens_per_message / self.interval_ms:g} tok/s"
        each = f", {self.tokens_per_message} tokens a message" if self.tokens_per_message > 1 else ""
        return f"{format_count(self.streams, 'stream')} × {pace}{each}"


def plan_load(load: SelftestLoad, requests: int, tokens: int) -> Plan:
    """Make a plan of `requests` requests, each with an answer of `tokens` tokens, at a load's concurrency."""
    workload = profile.build(
        {
            "name": "selftest",
            "num_prompts": requests,
            "max_concurrency": load.streams,
            "input_len": load.input_tokens,
            "output_len": tokens,
            "request_timeout": _PATIENCE_S,
            **({"backend": "openai-chat", "prompt_format": "words"} if load.chat else {}),
        }
    )
    engine = engines.find_by_owner("loadgen-null") or engines.UNKNOWN
    return plan.make(workload, ModelTarget(engine, "null"), Seed.draw())
