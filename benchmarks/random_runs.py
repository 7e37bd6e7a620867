"""Random runs: whether what a run counts is what the server's own log counts, whatever went wrong.

Run by hand: `python -m benchmarks.random_runs [--runs 200] [--seed 0] [--only K]`. Each run has an API, a
transport, workers, a load, a shape of answers, faults and options of its own, drawn from the seed and its
number. Its records, result, rows and exit code are compared with the log. A run that differs has a line for
each difference, and its command.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.faulty_server import FAULTS, Behaviour, FaultyServer, Logged
from benchmarks.harness.process import checkout_env
from benchmarks.harness.self_signed import certified
from loadgen.features.sessions.session_figures import summarize_sessions
from loadgen.records.record import Record, Records
from loadgen.report import request_rows, run_directory
from loadgen.report.run_directory import Result
from loadgen.transport.failure import CUT_OFF, FailureKind

_LIMIT_S = 150.0  # of a run
_CLOSED_S = 3.0  # in which the server has seen the ends of all connections
_STALL_S = 4
_KEEPS_HISTORY = "openai-responses"
_CHATS = ("openai-chat", _KEEPS_HISTORY)
_FORMATS = {"openai": ("ids", "words"), **dict.fromkeys(_CHATS, ("words",)), "sglang": ("ids",)}
_ENDED = frozenset(kind for kind in (*CUT_OFF, FailureKind.USER_CANCELLED) if kind is not FailureKind.LOST)


@dataclass(frozen=True)
class Drawn:
    """One run: what the server does, and the client's flags."""

    number: int
    behaviour: Behaviour
    flags: tuple[str, ...]
    tls: bool
    targets: int
    planned: int  # requests; 0: as many as the time allows
    sessions: bool
    signal_after_s: float  # after the first request; 0: none is sent


@dataclass
class Seen:
    """What a run left."""

    code: int
    output: str
    run: Result | None
    directory: Path | None
    rows: list[Logged]
    left: list[str]  # what still runs, or is still connected


def drawn(seed: int, number: int) -> Drawn:
    """The run of a seed and a number."""
    draw = random.Random(f"{seed} {number}")
    load, planned, sessions = _load(draw)
    api = draw.choice(_CHATS if sessions else list(_FORMATS))
    if sessions and api == _KEEPS_HISTORY and "--assistant" not in load and _chance(draw, 0.5):
        load += ["--assistant", "server"]
    prefix, targets = f"random{number}-", 2 if _chance(draw, 0.1) else 1
    flags = ["--backend", api, "--request-id-prefix", prefix, "--seed", str(draw.randrange(1 << 30))]
    flags += ["--transport", draw.choice(["wire", "ring", "httpx", "auto"])]
    flags += ["--workers", str(max(targets, draw.choice([1, 1, 2, 4]))), "--save-requests", "--quiet"]
    flags += ["--stall-timeout", str(_STALL_S)] + ["--no-observe"] * draw.choice([0, 1])
    flags += load + _lengths(draw, api, sessions) + _options(draw, api, sessions)
    if _chance(draw, 0.08) and not {"3tok", "--prefill-concurrency"} & {*flags}:
        flags += ["--disable-stream", "--request-timeout", str(_STALL_S)]
    stops = _stops(draw)
    return Drawn(
        number=number,
        behaviour=_behaviour(draw, prefix, seed),
        flags=(*flags, *stops),
        tls=_chance(draw, 0.15),
        targets=targets,
        planned=planned,
        sessions=sessions,
        signal_after_s=draw.uniform(0.05, 1.0) if _chance(draw, 0.06) else 0.0,
    )


def _chance(draw: random.Random, share: float) -> bool:
    return draw.random() < share


def _load(draw: random.Random) -> tuple[list[str], int, bool]:
    """The flags of a load, its number of requests (0: not fixed), and whether it is of sessions."""
    prompts = draw.randint(20, 200)
    number, slots = ["--num-prompts", str(prompts)], str(draw.randint(1, 16))
    rate = ["--request-rate", str(draw.choice([30, 80, 200]))]
    rate += ["--burstiness", draw.choice(["0.5", "1", "4", "inf"])]
    kind = draw.choice(
        ["closed", "closed", "rate", "rate", "at once", "sessions", "sessions", "time", "stages"]
    )
    if kind == "sessions":
        number += ["--turns", str(draw.randint(2, 4))] + ["--think-time", "0.02"] * draw.choice([0, 1])
        number += ["--assistant", "live"] * _chance(draw, 0.2)
        number += ["--max-requests", str(draw.randint(1, 8))] * _chance(draw, 0.3)
        return number + (["--max-concurrency", slots] if _chance(draw, 0.6) else rate), prompts, True
    if kind == "closed":
        return [*number, "--max-concurrency", slots], prompts, False
    if kind == "rate":
        most = ["--max-concurrency", slots] if _chance(draw, 0.3) else []
        return [*number, *rate, *most], prompts, False
    if kind == "time":
        return ["--duration", "1.5", "--max-concurrency", slots], 0, False
    if kind == "stages":
        return ["--schedule", "rate 20 for 1s, 80 for 1s"], 0, False
    return number, prompts, False


def _lengths(draw: random.Random, api: str, sessions: bool) -> list[str]:
    made = "words" if sessions else draw.choice(_FORMATS[api])
    flags = ["--prompt-format", made] if not sessions else []
    flags += ["--vocab-size", "1000"] if made == "ids" or sessions else []
    flags += ["--random-input-len", str(draw.choice([12, 24, 64]))]
    flags += ["--random-output-len", str(draw.choice([1, 2, 7, 20]))]
    return flags + ["--random-range-ratio", "0.4"] * draw.choice([0, 1])


def _options(draw: random.Random, api: str, sessions: bool) -> list[str]:
    flags = ["--num-warmups", str(draw.choice([0, 0, 1, 5]))]
    if _chance(draw, 0.25):
        flags += [
            "--cancel-rate",
            draw.choice(["10%", "40%"]),
            "--cancel-after",
            draw.choice(["0.03s", "3tok"]),
        ]
    if _chance(draw, 0.1) and not sessions:
        flags += ["--prefill-concurrency", "3"]
    counts_along = _chance(draw, 0.15) and api != _KEEPS_HISTORY  # which has no such field
    return flags + ["--continuous-usage"] * counts_along


def _stops(draw: random.Random) -> list[str]:
    flags = []
    if _chance(draw, 0.1):
        flags += ["--max-failures", draw.choice(["3", "10%"])]
    if _chance(draw, 0.1):
        flags += ["--max-duration", "1", "--drain-timeout", draw.choice(["0.5", "5"])]
    if _chance(draw, 0.2):
        flags += ["--max-consecutive-failures", draw.choice(["0", "4"])]
    return flags


def _behaviour(draw: random.Random, prefix: str, seed: int) -> Behaviour:
    return Behaviour(
        seed=seed,
        prefix=prefix,
        fault_rate=draw.choice([0, 0.02, 0.05, 0.1, 0.3, 1.0]),
        faults=tuple(draw.sample(sorted(FAULTS), draw.randint(1, len(FAULTS)))),
        ttft_s=draw.choice([0, 0.005, 0.03]),
        gap_s=draw.choice([0, 0.001, 0.005]),
        tokens_per_message=draw.choice([1, 1, 1, 2, 3]),
        messages_per_write=draw.choice([1, 1, 1, 2, 5]),
        pieces=draw.choice([1, 1, 2, 7]),
        keep_alive=not _chance(draw, 0.1),
        usage=not _chance(draw, 0.1),
    )


# Running.


def measured(plan: Drawn, servers: Sequence[FaultyServer], place: Path, more: Sequence[str]) -> Seen:
    """Run the command against the servers, and read what is left."""
    urls = [word for server in servers for word in ("--base-url", server.base_url)]
    before = [len(server.log) for server in servers]
    for server in servers:
        server.behaviour = plan.behaviour
    client = subprocess.Popen(
        [sys.executable, "-m", "loadgen", "bench", *urls, *more, *plan.flags, "--run-dir", str(place)],
        env={**os.environ, **checkout_env()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    end = threading.Timer(_LIMIT_S, os.killpg, (client.pid, signal.SIGKILL))
    end.start()
    if plan.signal_after_s:
        threading.Thread(target=_interrupt, args=(client, plan, servers, before), daemon=True).start()
    try:
        output = client.communicate()[0].decode("utf-8", "replace")
    finally:
        end.cancel()
    left = [f"process {pid} of the client" for pid in _group(client.pid)]
    deadline_s = time.monotonic() + _CLOSED_S
    while any(server.connections for server in servers) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    left += [f"{server.connections} connections are open" for server in servers if server.connections]
    directory = next(iter(place.iterdir()), None) if place.exists() else None
    rows = [row for server, first in zip(servers, before, strict=True) for row in server.log[first:]]
    run = None if directory is None else run_directory.load(directory)
    return Seen(client.returncode, output, run, directory, rows, left)


def _interrupt(
    client: subprocess.Popen[bytes], plan: Drawn, servers: Sequence[FaultyServer], before: Sequence[int]
) -> None:
    """Send Ctrl-C some time after the client's first request of its own."""

    def has_begun() -> bool:
        logs = (server.log[first:] for server, first in zip(servers, before, strict=True))
        return any(row.request_id.startswith(plan.behaviour.prefix) for log in logs for row in log)

    while client.poll() is None and not has_begun():
        time.sleep(0.02)
    time.sleep(plan.signal_after_s)
    if client.poll() is None:
        client.send_signal(signal.SIGINT)


def _group(pid: int) -> list[int]:
    return [
        p.pid for p in psutil.process_iter() if _leader(p.pid) == pid and p.status() != psutil.STATUS_ZOMBIE
    ]


def _leader(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


# Comparing.


def differences(plan: Drawn, seen: Seen) -> Iterator[str]:
    """In words, each thing in which a run is not what the server's log says."""
    yield from seen.left
    if "Traceback" in seen.output:
        yield f"a traceback: {seen.output[-1500:]}"
    if seen.run is None or seen.directory is None:
        stopped = seen.code == 130 and "interrupted by Ctrl-C" in seen.output
        if plan.signal_after_s and stopped:  # in the warm-up: nothing was measured
            return
        if seen.code == 1 and "every warm-up request failed" in seen.output and _refused(plan, seen):
            return
        yield f"no run directory, exit code {seen.code}: {seen.output[-400:]}"
        return
    records = seen.run.records
    sent_ns = records.sent_ns[records.sent]
    begin_ns = int(sent_ns.min()) if len(sent_ns) else 1 << 62
    attempts: dict[int, list[Logged]] = {}
    for row in sorted(seen.rows, key=lambda row: row.at_ns):
        if row.at_ns >= begin_ns and row.request_id.startswith(plan.behaviour.prefix):
            attempts.setdefault(int(row.request_id.removeprefix(plan.behaviour.prefix)), []).append(row)
    of_record = _rows(records)
    for index in sorted(attempts.keys() - of_record.keys()):
        yield f"request {index} was served and is in no record: {attempts[index]}"
    for index, record in of_record.items():
        for why in _request(plan, record, attempts.get(index, [])):
            yield f"request {index} ({_kind(record) or 'ok'}) {why}: {attempts.get(index)}"
    yield from _whole(plan, seen, seen.run, attempts)
    if (seen.directory / run_directory.RESULT).exists():
        yield from _files(seen.run, seen.directory)
    elif not (plan.signal_after_s and "shows them" in seen.output):  # a signal right after the last answer
        yield f"there is no {run_directory.RESULT}, and no line says why: {seen.output[-400:]}"


def _refused(plan: Drawn, seen: Seen) -> bool:
    """Whether all the requests to one of the servers failed, by the log."""
    ports = {row.port for row in seen.rows}
    ours = [row for row in seen.rows if row.request_id.startswith(plan.behaviour.prefix)]
    return any(all(_fails(row) for row in ours if row.port == port) for port in ports)


def _rows(records: Records) -> dict[int, Record]:
    made = {}
    for at, index in enumerate(records.index.tolist()):
        begin, end = records.start[at : at + 2].tolist()
        columns: dict[str, Any] = {name: int(column[at]) for name, column in records.columns.items()}
        made[index] = Record(
            **columns,
            arrival_ns=records.arrival_ns[begin:end],
            tokens=records.tokens[begin:end],
            failure=records.failures[at],
            finish_reason=records.finish_reasons[at],
        )
    return made


def _kind(record: Record) -> FailureKind | None:
    return None if record.failure is None else record.failure.kind


def _fails(row: Logged) -> bool:
    return bool(row.fault) and bool(FAULTS[row.fault].kinds)


def _request(plan: Drawn, record: Record, rows: list[Logged]) -> Iterator[str]:
    """What differs between a record and the attempts at it in the log."""
    kind = _kind(record)
    if not rows:
        closes = not plan.behaviour.keep_alive or {"closed after", "reset after"} & {*plan.behaviour.faults}
        crossed = closes and kind is FailureKind.TRUNCATED  # it crossed the server's end of the connection
        if kind not in _ENDED and not crossed:
            yield "is not in the log"
        return
    row, streamed = rows[-1], "--disable-stream" not in plan.flags
    if not len(rows) - 1 <= record.resends <= len(rows):  # one may meet a connection that is closed already
        yield f"was sent again {record.resends} times, and came {len(rows)} times"
    if kind is None:
        cut = row.ended == "gone" and row.finished  # cancelled as planned, with no token to come
        if (row.ended != "whole" and not cut) or _fails(row):
            yield "succeeded, and the answer was not whole"
        expected = {row.usage, row.tokens} if cut else {row.usage}
        if row.usage is None:
            expected |= {row.messages if streamed else -1}
        if record.output_tokens not in expected:
            yield f"has {record.output_tokens} output tokens, not {expected}"
        if row.usage is not None and record.input_tokens != row.prompt_tokens:
            yield f"has {record.input_tokens} input tokens, not {row.prompt_tokens}"
        if streamed and len(record.arrival_ns) != row.messages:
            yield f"has {len(record.arrival_ns)} messages, not {row.messages}"
        return
    if kind in _ENDED:
        if kind is FailureKind.USER_CANCELLED and "--cancel-rate" not in plan.flags:
            yield "was cancelled without --cancel-rate"
        return
    if not _fails(row):
        yield f"failed though the server did nothing wrong: {record.failure}"
    elif kind not in FAULTS[row.fault].kinds:
        yield f"failed otherwise than the server made it: {record.failure}"
    if len(record.arrival_ns) > row.messages:
        yield f"has {len(record.arrival_ns)} messages of {row.messages}"


def _whole(plan: Drawn, seen: Seen, run: Result, attempts: dict[int, list[Logged]]) -> Iterator[str]:
    """What differs in the sums."""
    metrics, whole, facts, records = run.metrics, run.whole, run.facts, run.records
    kinds = Counter("" if failure is None else failure.kind.value for failure in records.failures)
    sums = {
        "requests": (whole.requests, len(records)),
        "completed": (whole.completed, kinds[""]),
        "cancelled": (whole.cancelled, kinds["user-cancelled"]),
        "cut off": (whole.cut_off, sum(kinds[kind.value] for kind in CUT_OFF)),
        "failures by kind": (
            {kind: tally.count for kind, tally in whole.failures.items()},
            {kind: count for kind, count in kinds.items() if kind not in ("", "user-cancelled")},
        ),
        "in all": (whole.completed + whole.failed + whole.cancelled + whole.cut_off, len(records)),
        "output tokens": (
            metrics.total_output_tokens,
            int(run.counted.output_tokens[run.counted.ok].clip(0).sum()),
        ),
    }
    cut = bool(facts.stop_rule or facts.signal)
    if plan.planned and not cut:
        sessions = run.derive(summarize_sessions)
        unsent = 0 if sessions is None else sessions.figures.turns_not_sent
        sums["records + turns not sent"] = (len(records) + unsent, plan.planned)
    warmed = _warmed(plan, seen, records)
    if warmed is not None:
        sums["warm-ups that failed"] = (facts.warmup_failures, warmed)
    stopped = facts.signal or not (seen.directory and (seen.directory / run_directory.RESULT).exists())
    code = 130 if stopped else 1 if cut or not records.ok.any() else 0
    sums["exit code"] = (seen.code, code)
    for what, (ours, theirs) in sums.items():
        if ours != theirs:
            yield f"{what}: {ours}, not {theirs}"
    if plan.signal_after_s == 0 and not facts.stop_rule and kinds["cancelled"]:
        yield f"{kinds['cancelled']} requests were cut without a rule or a signal"


def _warmed(plan: Drawn, seen: Seen, records: Records) -> int | None:
    """How many warm-ups failed by the log; None: it cannot be known."""
    prefix, sent_ns = plan.behaviour.prefix, records.sent_ns[records.sent]
    if not len(sent_ns) or "--cancel-rate" in plan.flags:
        return None
    begin_ns = int(sent_ns.min())
    warmed = (row for row in seen.rows if row.at_ns < begin_ns and row.request_id.startswith(prefix))
    last = {(row.port, row.request_id): row for row in warmed}
    return sum(map(_fails, last.values()))


def _files(run: Result, directory: Path) -> Iterator[str]:
    """What differs between the files of a run."""
    names = {path.name for path in directory.iterdir()}
    if extra := {name for name in names if name.startswith((".", "tmp", "journal"))}:
        yield f"files are left: {sorted(extra)}"
    stored = json.loads((directory / run_directory.RESULT).read_text("utf-8"))
    metrics = run.metrics
    keys = {"completed": metrics.completed, "failed": metrics.failed}
    keys |= {
        "total_output_tokens": metrics.total_output_tokens,
        "total_input_tokens": metrics.total_input_tokens,
    }
    for key, value in keys.items():
        if stored.get(key) != value:
            yield f"{key} in {run_directory.RESULT}: {stored.get(key)}, not {value}"
    for name in ("completed", "failed", "requests", "cancelled", "total_output_tokens"):
        if stored["loadgen"]["metrics"][name] != getattr(metrics, name):
            yield f"loadgen.metrics.{name} differs in {run_directory.RESULT}"
    rows = [json.loads(line) for line in (directory / "requests.jsonl").read_text("utf-8").splitlines()]
    made = [row for batch in request_rows.list_rows(run) for row in batch]
    if rows != made:
        yield "requests.jsonl is not what the run says"
    if [row["ok"] for row in rows] != run.records.ok.tolist():
        yield "requests.jsonl and arrivals.npz differ"
    report = (directory / run_directory.REPORT).read_text("utf-8")
    line = next(filter(lambda line: line.startswith("Successful requests:"), report.splitlines()), "")
    if line.split()[-1:] != [str(metrics.completed)]:
        yield f"the report says {line!r}, not {metrics.completed}"


@contextmanager
def _servers(place: Path) -> Iterator[dict[bool, list[FaultyServer]]]:
    """Two servers without TLS and two with it."""
    context = certified(place)
    with ExitStack() as stack:
        yield {
            tls: [stack.enter_context(FaultyServer(context if tls else None).serving()) for _ in range(2)]
            for tls in (False, True)
        }


def main() -> int:
    """Run as often as requested; 0 if no run differs from its log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--only", type=int, help="number of the one run to make")
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.runs) if args.only is None else [args.only]
    counts: Counter[str] = Counter()
    differing = []
    with tempfile.TemporaryDirectory() as name, _servers(Path(name)) as servers:
        for number in numbers:
            plan = drawn(args.seed, number)
            place = Path(name) / str(number)
            trusted = ["--ca-cert", str(Path(name) / "ca.pem")] if plan.tls else []
            seen = measured(plan, servers[plan.tls][: plan.targets], place, trusted)
            found = list(differences(plan, seen))
            counts.update(_tally(seen))
            if args.only is not None:
                print(seen.output)
            if found:
                differing.append(number)
                print(f"run {number} differs: {' '.join(plan.flags)}\n  {plan.behaviour}")
                print("\n".join(f"  {line}" for line in found[:8]), flush=True)
    print(f"{len(numbers)} runs from seed {args.seed}, {len(differing)} differ: {differing}")
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return 1 if differing else 0


def _tally(seen: Seen) -> Counter[str]:
    """What a run's log holds, in numbers."""
    tally = Counter({"requests in the log": len(seen.rows)})
    if seen.run is not None:
        kinds = (failure.kind.value if failure else "succeeded" for failure in seen.run.records.failures)
        tally.update(kinds)
        tally["output tokens"] += seen.run.whole.total_output_tokens
    return tally


if __name__ == "__main__":
    sys.exit(main())
