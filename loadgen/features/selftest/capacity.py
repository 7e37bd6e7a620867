"""Capacity: trials against null servers, the errors they show, and the most that the client holds."""

from __future__ import annotations

import math
import select
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import clock, signals
from loadgen.base.arrays import Int64
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.passages import Passage, print_passages
from loadgen.base.tables import make_table
from loadgen.base.text import format_count
from loadgen.engines import engines
from loadgen.facts.run_facts import HELD_PERCENT, Calibration, Error
from loadgen.features.selftest import kept_selftests
from loadgen.figures.metrics import compute_metrics, peak_concurrency
from loadgen.figures.objectives import make_metric_options
from loadgen.host.environment import describe_machine
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
_BUDGET_S = 5.0  # of a self-test before a run


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
def null_servers(count: int, ttft_ms: float, interval_ms: float, *shape: str) -> Iterator[list[Null]]:
    """Start null servers that write logs, yield them, and end them; raises UsageError or MeasureError."""
    if not hasattr(select, "epoll"):
        raise UsageError("the self-test needs Linux: its null server waits on epoll")
    pace = ("--ttft-ms", f"{ttft_ms:g}", "--interval-ms", f"{interval_ms:g}")
    with ExitStack() as stack:
        place, nulls = stack.enter_context(tempfile.TemporaryDirectory(prefix="loadgen-selftest-")), []
        for number in range(count):
            log = Path(place) / f"log-{number}.jsonl"
            process = stack.enter_context(Embedded([*pace, "--log", str(log), *shape], NULL))
            try:
                nulls.append(Null(process.start().base_url, log, process))
            except EngineFailed as error:
                raise MeasureError(f"the null server did not start: {error}") from None
        yield nulls


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
        each = f", {self.tokens_per_message} tokens a chunk" if self.tokens_per_message > 1 else ""
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


_REQUEST_S = 0.5  # how long a request shall last: short ones give more first tokens
_STEP_S = 0.4  # how long one of the capacity search shall
_SLOW = 1.2  # beyond this share of the interval the null server is at its end, not the client
_MARGIN = 1.3  # a step with twice the streams takes longer
_LEAST_MESSAGES = 4
_LEAST_CPU_US = 0.1  # of a message: no clock of CPU time is finer
_LEAST_INTERVAL_MS = 0.5  # at the pace of a warm-up: one process writes all messages


class Capacity(msgspec.Struct, frozen=True):
    """The highest load held in a self-test; `bounded` if a higher one was tried and not held."""

    streams: int
    tokens_per_s: float
    bounded: bool
    ended: str = ""  # why nothing more was tried, where it was not bounded


def search(held: Capacity, start: int, refused: float, attempt: Callable[[int], Seen | str]) -> Capacity:
    """Search the most streams that are held, doubling from `start` while held, else a quarter of the refused.

    `held` and `refused` are known already: the most held, and the least not held (else infinite). `attempt`
    runs a trial, or returns why there is no time or room for one, which ends the search.
    """
    streams, ended = start, ""
    while held.streams < streams < refused:
        seen = attempt(streams)
        if isinstance(seen, str):
            ended = seen
            break
        if seen.is_held(streams):
            held = Capacity(streams, max(held.tokens_per_s, seen.tokens_per_s), False)
        else:
            refused = streams
        streams = 2 * held.streams or max(1, int(refused) // 4)
    bounded = math.isfinite(refused)
    return replace(held, bounded=bounded, ended="" if bounded else ended)


def _find_capacity(
    load: SelftestLoad, client: SelftestClient, first: Seen, cpu_us_per_token: float, deadline_ns: int
) -> Capacity:
    """Find the capacity by trials of other numbers of streams after a `first` one, until the deadline.

    The search also ends where files or connections run out, or the null servers are too slow.
    """
    took_ns = 0

    def try_streams(streams: int) -> Seen | str:
        """Run a trial of one wave, about 0.4 s of messages each; return why it cannot or could not count."""
        nonlocal took_ns
        begin_ns = clock.now_ns()
        if begin_ns + _MARGIN * took_ns > deadline_ns:
            return "no time was left: give more --seconds"
        messages = max(_LEAST_MESSAGES, round(_STEP_S * 1e3 / load.interval_ms))
        try:
            seen, _ = run_trial(replace(load, streams=streams), client, 1, messages)
        except UsageError as error:  # more connections than files may be open
            return str(error)
        took_ns = clock.now_ns() - begin_ns
        served_ms = float(np.median(seen.gap[1])) / 1e6 if len(seen.gap[1]) else 0.0
        slow = served_ms > _SLOW * load.interval_ms
        return f"at {streams:,} streams the null servers were at their end" if slow else seen

    # The search begins at the streams that should take half a core each, rounded down to a power of two.
    messages_per_s = 0.5e6 * client.workers / max(cpu_us_per_token * load.tokens_per_message, _LEAST_CPU_US)
    guess = 1 << (max(1, int(messages_per_s * load.interval_ms / 1e3)).bit_length() - 1)
    if first.is_held(load.streams):
        held = Capacity(load.streams, first.tokens_per_s, False)
        return search(held, max(2 * load.streams, guess), math.inf, try_streams)
    return search(Capacity(0, 0.0, False), min(max(1, load.streams // 4), guess), load.streams, try_streams)


def calibrate(load: SelftestLoad, client: SelftestClient, budget_s: float) -> tuple[Calibration, Capacity]:
    """Measure a client's errors in 40 % of `budget_s` and its capacity in the rest, and return both.

    Raises MeasureError if no response came whole.
    """
    begin_ns = clock.now_ns()
    messages = max(_LEAST_MESSAGES, round(_REQUEST_S * 1e3 / load.interval_ms))
    wave_s = (TTFT_MS + messages * load.interval_ms) / 1e3
    seen, health = run_trial(load, client, max(1, round(0.4 * budget_s / wave_s)), messages)
    if not len(seen.gap[0]):
        raise MeasureError(
            f"no response came whole over {client.words} at {load.words} ({seen.failed} of {seen.requests} "
            f"failed{'; ' * bool(seen.first_error)}{seen.first_error}): give fewer --streams"
        )
    cpu_us_per_token = health.cpu_ns / 1e3 / max(seen.tokens, 1)
    capacity = _find_capacity(load, client, seen, cpu_us_per_token, begin_ns + int(budget_s * 1e9))
    found = Calibration(
        measured=datetime.now(UTC),
        environment=kept_selftests.environment_digest(describe_machine()),
        transport=client.transport,
        workers=client.workers,
        streams=load.streams,
        interval_ms=load.interval_ms,
        tokens_per_message=load.tokens_per_message,
        ttft=Error.from_pairs(*seen.ttft),
        gap=Error.from_pairs(*seen.gap),
        e2e=Error.from_pairs(*seen.e2e),
        events_per_read=seen.events_per_read,
        capacity_tokens_per_s=capacity.tokens_per_s,
        capacity_streams=capacity.streams,
        capacity_bounded=capacity.bounded,
        cpu_us_per_token=cpu_us_per_token,
    )
    return found, capacity


def measure_at_pace(workload: Profile, transport: str, warmed: Records, workers: int = 1) -> None:
    """Run the self-test at the load to come, with the warm-up's pace; print the result and cache it."""
    load = _add_pace(workload, warmed)
    measured = _measure_and_keep(load, transport, workers)
    print_passages([make_transport_passage(measured, f"self-test of {transport} at {load.words}")])


def measure_one_worker(workload: Profile, transport: str, warmed: Records) -> Calibration:
    """Return the self-test of one worker of a transport here, from the cache, or measured now and cached."""
    kept = kept_selftests.read_remembered(transport, kept_selftests.environment_digest(describe_machine()))
    return kept or _measure_and_keep(_add_pace(workload, warmed), transport, 1)


def _add_pace(workload: Profile, warmed: Records) -> SelftestLoad:
    """Return the self-test's load for a workload, with the gap and tokens per message of the warm-up.

    Without message gaps in the warm-up the usual pace stays.
    """
    pace, load = compute_metrics(warmed, make_metric_options(workload)), SelftestLoad.from_profile(workload)
    if not pace.itl.n:
        return load
    tokens = round(pace.total_output_tokens / pace.health.messages)
    interval_ms = max(pace.itl.mean_ms, _LEAST_INTERVAL_MS)
    return replace(load, interval_ms=interval_ms, tokens_per_message=max(tokens, 1))


def _measure_and_keep(load: SelftestLoad, transport: str, workers: int) -> Calibration:
    """Run the self-test of a transport, write it to the cache, and return it."""
    measured, _ = calibrate(load, SelftestClient(transport, workers), _BUDGET_S)
    kept_selftests.remember([measured])
    return measured


def make_transport_passage(measured: Calibration, title: str) -> Passage:
    """Make the passage of a transport's self-test: capacity, reads and CPU, and a table of errors."""
    capacity = "no load that was tried was held"
    if measured.capacity_streams:
        least = "" if measured.capacity_bounded else "at least "
        capacity = (
            f"{least}{measured.capacity_tokens_per_s:,.0f} tok/s, on {measured.capacity_streams:,} streams"
        )
    errors = {"TTFT": measured.ttft, "chunk gap": measured.gap, "E2E": measured.e2e}
    body = [
        (name, *(_format_error(error, us) for us in (error.median_us, error.p99_us, error.max_us)))
        for name, error in errors.items()
    ]
    reads, cpu_us = measured.events_per_read, measured.cpu_us_per_token
    facts = (
        ("capacity", capacity),
        ("chunks per read", f"{reads:.4f}"),
        ("CPU per token", f"{cpu_us:.1f} µs"),
    )
    return Passage(title, facts=facts, table=make_table(("error", "median", "P99", "max"), body))


def make_workers_passage(measured: Sequence[Calibration], ended: Sequence[str], title: str) -> Passage:
    """Make the passage of a transport's self-tests with growing workers, a row each, × the first.

    `ended` has why no higher load was tried for each, "" if one was: remarks have these.
    """
    one, body = measured[0].capacity_tokens_per_s, []
    for each in measured:
        least = "" if each.capacity_bounded or not each.capacity_streams else "≥ "
        cells = [str(each.workers), f"{each.capacity_streams:,}", f"{least}{each.capacity_tokens_per_s:,.0f}"]
        cells.append(f"{each.capacity_tokens_per_s / one:.2f}" if one else "–")
        cells += [f"{us:,.1f}" for us in (each.gap.median_us, each.gap.p99_us, each.cpu_us_per_token)]
        body.append(cells)
    titles = ("workers", "streams", "tok/s", "× one", "gap error µs", "P99 µs", "CPU µs/token")
    remarks = (
        f"{format_count(each.workers, 'worker')}: no higher load was tried: {why}"
        for each, why in zip(measured, ended, strict=True)
        if why
    )
    return Passage(title, table=make_table(titles, body), remarks=tuple(remarks))


def _format_error(error: Error, us: float) -> str:
    percent = error.percent(us)
    return f"{us:,.{1 * (us < 100)}f} µs, {percent:.{2 * (percent < 100)}f} %"
