"""Cases that nobody measured: a clean run, and what makes each kind of doubt in it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from msgspec.structs import replace

from loadgen.facts.ceiling import Ceiling
from loadgen.facts.run_facts import Calibration, Client, Error, Facts, MergedShard, Server
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.features.roofline.machines import make_machine
from loadgen.figures.metrics import compute_metrics
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.server.server_counters import ServerSample, ServerWindow
from loadgen.transport.failure import Failure, FailureKind
from loadgen.verdict.evidence import RunEvidence

MS = 1_000_000
START_NS = 10**12
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
REQUESTS, SLOTS, INPUT, OUTPUT = 320, 8, 100, 11
TTFT_MS, TPOT_MS, TURN_MS = 50.0, 10.0, 0.2
TARGETS = ("http://a:8000", "http://b:8000")

Rows = list[Record]


def answered(index: int, slot: int, sent_ns: int, ttft_ms: float, tpot_ms: float) -> Record:
    """A request whose answer comes as steadily as this."""
    arrival_ns = sent_ns + np.array([ttft_ms + i * tpot_ms for i in range(OUTPUT)]) * MS
    return Record(
        index, slot, sent_ns, sent_ns, int(arrival_ns[-1]), arrival_ns=arrival_ns.astype(np.int64),
        tokens=np.ones(OUTPUT, np.int64), planned_input=INPUT, planned_output=OUTPUT, input_tokens=INPUT,
        output_tokens=OUTPUT, usage=True, visible_ns=int(arrival_ns[0]), reads=OUTPUT + 2, unstamped_reads=1,
        lag_sum_ns=OUTPUT * MS // 20, lag_max_ns=MS // 10, finish_reason="length",
    )  # fmt: skip


def closed(
    ttft_ms: Callable[[int], float] = lambda i: TTFT_MS,
    tpot_ms: Callable[[int], float] = lambda i: TPOT_MS,
    turn_ms: float = TURN_MS,
    requests: int = REQUESTS,
    after: Callable[[int], float] | None = None,
    slower_ms: Callable[[int], float] = lambda slot: 0.0,
) -> Rows:
    """A closed loop of SLOTS: a slot sends its next request a turn-around after its last answer.

    TTFT is by plan index, or by what `after` says of the time it was sent; `slower_ms` more by slot.
    """
    rows: Rows = []
    free_ns = [START_NS + slot * MS // 5 for slot in range(SLOTS)]
    for index in range(requests):
        slot = int(np.argmin(free_ns))
        sent_ns = free_ns[slot]
        first_ms = (after(sent_ns) if after else ttft_ms(index)) + slower_ms(slot)
        row = answered(index, slot, sent_ns, first_ms, tpot_ms(index))
        row.intended_ns = row.sent_ns - int(turn_ms * MS) * (index >= SLOTS)
        free_ns[slot] = row.end_ns + int(turn_ms * MS)
        rows.append(row)
    return rows


def open_loop(late_ms: float = 0.0, stretch: float = 1.0) -> Rows:
    """Requests due every 10 ms, sent so much later, over a time so much longer."""
    rows = []
    for index in range(REQUESTS):
        due_ns = START_NS + 10 * index * MS
        sent_ns = START_NS + int((10 * index * stretch + late_ms) * MS)
        rows.append(replace(answered(index, index, sent_ns, TTFT_MS, TPOT_MS), intended_ns=due_ns))
    return rows


def rate(per_s: float, limit: int | None = None) -> dict[str, Any]:
    return {"request_rate": per_s, "max_concurrency": limit}


def changed(rows: Rows, every: int = 1, **fields: Any) -> Rows:
    """The rows with these fields on every so many of them."""
    return [replace(row, **fields) if row.index % every == 0 else row for row in rows]


def uncounted(rows: Rows, tokens: int) -> Rows:
    """The rows without usage, each with so many messages of a token."""
    short = [
        replace(row, arrival_ns=row.arrival_ns[:tokens], tokens=row.tokens[:tokens], output_tokens=tokens)
        for row in rows
    ]
    return changed(short, usage=False, exact_tokens=False)


def contradicted(reads: int) -> RunEvidence:
    """A run in which so many reads had a kernel timestamp that cannot be."""
    case = run()
    case.records.impossible_stamps[0] = reads
    return case


def set_back(every: int, by_ms: float) -> Rows:
    """Every so many answers have times that lie so long before they came."""
    rows = closed()
    for row in rows[::every]:
        row.arrival_ns = row.arrival_ns - int(by_ms * MS)
        row.end_ns = int(row.arrival_ns[-1])
    return rows


def failed(every: int, kind: FailureKind = FailureKind.TIMEOUT) -> Rows:
    """A closed loop in which every so many requests fail."""
    return changed(closed(), every, failure=Failure(kind, "no end"))


def observed(**fields: Any) -> ServerWindow:
    """What a server says that did this run and nothing else."""
    sample = ServerSample(at_s=1.0, running=SLOTS, waiting=0, kv_cache_usage=0.1)
    clean: dict[str, Any] = {
        "names": "vllm", "models": ("m",), "prompt_tokens": REQUESTS * INPUT,
        "generation_tokens": REQUESTS * OUTPUT, "requests": {"length": REQUESTS},
        "prefix_queries": REQUESTS * INPUT, "prefix_hits": 0, "preemptions": 0, "running_before": 0,
        "waiting_before": 0, "samples": (sample,) * 6,
    }  # fmt: skip
    return ServerWindow(**{**clean, **fields})


def sampled(*gauges: tuple[float, float]) -> ServerWindow:
    """A window with these running and waiting, one sample each."""
    samples = (ServerSample(at_s=i, running=r, waiting=w) for i, (r, w) in enumerate(gauges))
    return observed(samples=tuple(samples))


def measured(capacity_per_s: float = 1e5, **fields: Any) -> Calibration:
    """A self-test that found the client this fast."""
    error = Error(median_us=10, p99_us=50, max_us=90, p99_percent=0.5)
    figures: dict[str, Any] = {
        "measured": WHEN, "environment": "e", "transport": "wire", "streams": SLOTS, "interval_ms": 10,
        "ttft": error, "gap": error, "e2e": error, "events_per_read": 1,
        "capacity_tokens_per_s": capacity_per_s, "capacity_streams": 1000, "cpu_us_per_token": 10,
    }  # fmt: skip
    return Calibration(**{**figures, **fields})


def bound(gb_per_s: float) -> Ceiling:
    """Qwen3-8B on a memory so fast: 15.2 GB a step."""
    return estimate_ceiling("Qwen3-8B", make_machine(gb_per_s))


def client(**fields: Any) -> Client:
    quiet: dict[str, Any] = {"transport": "wire", "cpu_s": 0.1, "wall_s": 10.0, "clock_step_ms": 0.0}
    return Client(**{**quiet, "late_bodies": 0, "backlog_bytes": 0, **fields})


def shards(*rows: dict[str, Any]) -> tuple[MergedShard, ...]:
    """Of which a run was merged: as many, each with these fields."""
    whole = {"of": len(rows), "requests": REQUESTS // len(rows)}
    return tuple(MergedShard(**{"number": number, **whole, **row}) for number, row in enumerate(rows))


def run(rows: Rows | None = None, workload: dict[str, Any] | None = None, **facts: Any) -> RunEvidence:
    """A run of these rows; without any change, one that nothing speaks against."""
    keys = {"input_len": INPUT, "output_len": OUTPUT, "num_prompts": REQUESTS, "max_concurrency": SLOTS}
    known: dict[str, Any] = {
        "started": WHEN,
        "finished": WHEN,
        "command": ["loadgen", "bench"],
        "profile": profile.build({**keys, **(workload or {})}),
        "seed": 7,
        "seed_chosen": False,
        "plan_digest": "abc",
        "prompt_format": "ids",
        "server": Server(url="http://127.0.0.1:8000/v1/completions", engine="vLLM", model="m"),
        "client": client(),
        "environment": {"cpus": "2", "sched_autogroup": "1"},
        "requests": REQUESTS,
        "window": observed(),
        "calibration": measured(),
        "ceiling": bound(2000),
        **facts,
    }
    told = Facts(**known)
    records = Records.from_records(closed() if rows is None else rows)
    return RunEvidence(told, records, compute_metrics(records, told.ask()))


def shared(lag_ms: float, unstamped: int = 1) -> Rows:
    """Two messages of each response came in one read, which waited so long."""
    lag_ns = int(lag_ms * MS)
    lags = {"lag_max_ns": lag_ns, "lag_sum_ns": lag_ns, "shared_lag_ns": 2 * lag_ns}
    return changed(closed(), shared_reads=2, unstamped_reads=unstamped, **lags)


def firsts_shared(lag_ms: float) -> Rows:
    """Of one answer in twenty the first three messages came in one read, which waited so long."""
    rows = shared(lag_ms)
    for row in rows:
        if row.index % 20 == 0:
            row.arrival_ns[:3] = row.arrival_ns[2]
        else:
            row.shared_reads = row.shared_lag_ns = 0
    return rows


def some_met(lag_ms: float, worst_ms: float) -> Rows:
    """Of one answer in ten the fifth message came in the sixth's read; of one, it was late itself."""
    rows = shared(lag_ms)
    for row in rows:
        if row.index % 10 == 0:
            row.arrival_ns[4] = row.arrival_ns[5]
            row.shared_reads, row.shared_lag_ns = 1, row.shared_lag_ns // 2
            row.lag_max_ns = int(worst_ms * MS)
        else:
            row.shared_reads = row.shared_lag_ns = 0
            row.arrival_ns[4] += 9 * MS * (row.index % 10 == 1)
    return rows


def in_turn(cold_ms: float = 0.0) -> Rows:
    """A closed loop against a server that computes prompts one by one, once it is warm."""
    free_ns = [START_NS + int(cold_ms * MS)]

    def first_token(sent_ns: int) -> float:
        free_ns[0] = max(free_ns[0], sent_ns) + 20 * MS
        return (free_ns[0] - sent_ns) / MS

    return closed(after=first_token)


def drifting(index: int) -> float:
    return TPOT_MS * (1 + 0.3 * index / REQUESTS)
