"""What makes runs go wrong on purpose: servers, what happens beside a run, and what is played."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest

from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
    PATIENCE_S,
    Answer,
    Asked,
    End,
    ScriptedServer,
    api,
    chunk,
    stream,
    token,
    whole,
)
from loadgen import cli
from loadgen.base import clock
from loadgen.figures.record import Records
from loadgen.host import cpu_use, throttling
from loadgen.host.environment import describe
from loadgen.plan.prompts.random_ids import TokenIds
from loadgen.report.run_directory import Result
from loadgen.report.sample_file import KeptSamples
from loadgen.transport.source_ports import SourcePorts
from loadgen.verdict import calibration, client_checks
from loadgen.verdict.calibration import Calibration, Error
from loadgen.verdict.run_facts import Facts
from loadgen_servers.process.embedded import NULL, Embedded

Script = Callable[[Asked], Answer]
Server = Callable[[], AbstractContextManager[str]]
Beside = Callable[[str], AbstractContextManager[object]]

# Servers; each yields its base URL. Their tokens are 20 ms apart or more, which a busy client can follow.


def engine(*flags: str, preset: str = "bench/1024x50") -> Server:
    """The embedded engine, 20 ms a step unless the preset says otherwise."""
    return lambda: _process(["--preset", preset, *flags])


def null(*flags: str, ttft_ms: float = 20, interval_ms: float = 20) -> Server:
    """The null server, which has no /metrics."""
    return lambda: _process(["--ttft-ms", f"{ttft_ms:g}", "--interval-ms", f"{interval_ms:g}", *flags], NULL)


@contextmanager
def _process(words: list[str], *module: str) -> Iterator[str]:
    with Embedded(words, *module) as process:
        yield process.start().base_url


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """A server that plays a script."""
    with ScriptedServer(script) as server:
        yield server.base_url


def failing(every: int) -> Server:
    """Every so many requests get a 500; five tokens to the others."""

    def server() -> AbstractContextManager[str]:
        number = count(1)  # next() is one step for threads
        fails = Answer([whole(b"{}", "500 Internal Server Error")])
        return scripted(api(lambda _: stream(5, 0.02) if next(number) % every else fails))

    return server


def closing(every: int) -> Server:
    """Every so many requests are taken on a connection that the server then closes without a byte."""

    def server() -> AbstractContextManager[str]:
        number, closed = count(1), Answer([], End.CLOSE)
        return scripted(api(lambda _: stream(5, 0.02) if next(number) % every else closed))

    return server


def hanging() -> AbstractContextManager[str]:
    """Twelve requests are answered; each other one gets one token and no end."""
    number, endless = count(1), Answer([HEAD, chunk(token())], End.HANG)
    return scripted(api(lambda _: stream(3, 0.02) if next(number) <= 12 else endless))


def answering(*writes: bytes) -> Server:
    """A server that answers every request with these events, 20 ms before each write of them."""
    pieces = [piece for events in (*writes, DONE) for piece in (0.02, chunk(events))]
    return lambda: scripted(api(lambda _: Answer([HEAD, *pieces, LAST])))


def ten(text: str, reason: str | None = "length") -> list[bytes]:
    """Messages with ten such texts, the last one with a finish reason."""
    return [*[token(text)] * 9, token(text, reason)]


uncounted = answering(*[token("one two three")] * 4, token("four", "stop"))


def metered(metrics: Callable[[int, int], bytes]) -> Server:
    """Answers of 5 tokens to prompts of 5; /metrics by how many answers and how many looks there were."""

    def server() -> AbstractContextManager[str]:
        begun, looks = list[int](), count()

        def answer(asked: Asked) -> Answer:
            begun.append(asked.number)
            return stream(5, 0.02)

        plain = api(answer, owner="vllm")

        def script(asked: Asked) -> Answer:
            if asked.head.startswith("GET /metrics "):
                return Answer([whole(metrics(len(begun), next(looks)))])
            return plain(asked)

        return scripted(script)

    return server


def exposed(answers: int, generated: int, model: str = "m") -> bytes:
    """The /metrics of a vLLM that gave so many answers and generated so many tokens."""
    label = f'model_name="{model}"'
    return (
        f'vllm:request_success_total{{finished_reason="length",{label}}} {answers}\n'
        f"vllm:prompt_tokens_total{{{label}}} {5 * answers}\n"
        f"vllm:generation_tokens_total{{{label}}} {generated}\n"
        f"vllm:num_requests_running{{{label}}} 0\n"
        f"vllm:num_requests_waiting{{{label}}} 0\n"
    ).encode()


# What happens beside a run; each takes the server's base URL.


def nothing(_: str) -> AbstractContextManager[object]:
    """The server is there for the run alone."""
    return contextlib.nullcontext()


@contextmanager
def another_client(base_url: str) -> Iterator[None]:
    """Somebody's long answer is under way before the run and ends in it."""
    body = {"model": "bench", "prompt": [1] * 8, "max_tokens": 40, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{base_url}/v1/completions", json=body, trust_env=False) as answer:
        messages = answer.iter_raw()
        next(messages)  # it has begun
        reading = threading.Thread(target=lambda: list(messages), daemon=True)
        reading.start()
        yield
        reading.join(PATIENCE_S)


SAME_PROMPTS = "--random-input-len 256 --random-output-len 2 --seed 1 --num-warmups wave"
HIGH, LOW = "--num-prompts 32 --max-concurrency 8", "--num-prompts 10 --max-concurrency 1"


@contextmanager
def high_load_before(base_url: str) -> Iterator[None]:
    """The mistake of the published pages: a high load just before, with the same prompts."""
    words = f"--quiet --base-url {base_url} --run-dir before {SAME_PROMPTS} {HIGH}"
    assert cli.main(["bench", *words.split()]) == 0
    yield


def stalled(_: str) -> AbstractContextManager[object]:
    """The capturing process hardly gets to run."""
    return _acting(partial(_stall, stopped_s=0.047, running_s=0.017))


def stalled_now_and_then(_: str) -> AbstractContextManager[object]:
    """The capturing process is kept from running once an answer or so, for a few messages."""
    return _acting(partial(_stall, stopped_s=0.107, running_s=0.236))


def killed(_: str) -> AbstractContextManager[object]:
    """The capturing process dies."""
    return _acting(lambda pid, over: os.kill(pid, signal.SIGKILL))


def interrupted(_: str) -> AbstractContextManager[object]:
    """Somebody presses Ctrl-C."""
    return _acting(lambda pid, over: os.kill(os.getpid(), signal.SIGINT))


@contextmanager
def _acting(act: Callable[[int, threading.Event], None]) -> Iterator[None]:
    """Act on the capturing process when it has been there for a while."""
    over = threading.Event()

    def wait() -> None:
        while not _forks() and not over.wait(0.02):
            pass
        # What was there first may have been a short-lived child, before it became another program.
        while not over.wait(0.4):
            if found := _forks():
                act(found[0], over)
                return

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def _stall(pid: int, over: threading.Event, stopped_s: float, running_s: float) -> None:
    """Stop it and let it go on, in no step with the server's 20 ms."""
    with contextlib.suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(stopped_s)
            os.kill(pid, signal.SIGCONT)
            over.wait(running_s)


def _forks() -> list[int]:
    """The children of this process with its own command line: a run forks one."""
    own, found = Path("/proc/self/cmdline").read_bytes(), []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and (place / "cmdline").read_bytes() == own:
                found.append(int(place.name))
    return found


# What a test cannot make the machine do, played in the place where it would be read.

Played = Callable[[pytest.MonkeyPatch], None]


def as_it_is(patch: pytest.MonkeyPatch) -> None:
    """Nothing is played."""


def a_bad_machine(patch: pytest.MonkeyPatch) -> None:
    """The wall clock steps by 5 ms in the run, and the processor throttles for heat."""
    real, began_ns = clock.realtime_offset_ns, clock.now_ns()
    later_ns = began_ns + 600_000_000
    patch.setattr(clock, "realtime_offset_ns", lambda *_: real() + 5_000_000 * (clock.now_ns() > later_ns))
    times, counter = count(), "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    patch.setattr(throttling, "snapshot", lambda: throttling.HostState(counters={counter: next(times)}))


def known(told: Callable[[Facts], dict[str, object]]) -> Played:
    """What is known of the run besides its records is changed by this."""

    def play(patch: pytest.MonkeyPatch) -> None:
        made = Result.__init__

        def init(self: Result, facts: Facts, records: Records, *rest: KeptSamples) -> None:
            made(self, facts.model_copy(update=told(facts)), records, *rest)

        patch.setattr(Result, "__init__", init)

    return play


def of_the_client(**fields: object) -> Played:
    """The capturing process said this of itself."""
    return known(lambda facts: {"client": facts.client.model_copy(update=fields)})


def with_strangers(patch: pytest.MonkeyPatch) -> None:
    """Thirteen other processes took the CPUs of a long run."""
    use = cpu_use.CpuUse(duration_s=30, cpus=2, server=0.7, client=0.1, others=1.2, waiting=0.99)
    patch.setattr(cpu_use, "used", lambda *_: use)


def set_back(patch: pytest.MonkeyPatch) -> None:
    """One answer of a run lies five seconds before it came, as after a step that nobody saw."""
    made = Result.__init__

    def init(self: Result, facts: Facts, records: Records, *rest: KeptSamples) -> None:
        begin, end = records.start[0], records.start[1]
        if records.arrival_ns[begin] > records.sent_ns[0]:  # not where the same run is read again
            records.arrival_ns[begin:end] -= 5_000_000_000
        made(self, facts, records, *rest)

    patch.setattr(Result, "__init__", init)


def lossy(every: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Of every so many answers the kernel counted segments out of order."""
    made = Result.__init__

    def init(self: Result, facts: Facts, records: Records, *rest: KeptSamples) -> None:
        records.out_of_order[::every] = 2
        made(self, facts, records, *rest)

    return lambda patch: patch.setattr(Result, "__init__", init)


def a_share_of_a_core(patch: pytest.MonkeyPatch) -> None:
    """A busy machine gives no test a whole core, so less of one is called busy."""
    patch.setattr(client_checks, "CORES", 0.2)


def another_prompt(patch: pytest.MonkeyPatch) -> None:
    """Requests carry two ids, whatever was planned, as behind a proxy that cuts prompts."""
    patch.setattr(TokenIds, "prompt", lambda self, i: [1001, 1002])


def slow_drawing(patch: pytest.MonkeyPatch) -> None:
    """A prompt takes 5 ms to build, as long ones do."""
    drawn = TokenIds.prompt

    def prompt(self: TokenIds, i: int) -> list[int]:
        time.sleep(0.005)
        return drawn(self, i)

    patch.setattr(TokenIds, "prompt", prompt)


def scattered(patch: pytest.MonkeyPatch) -> None:
    """A ring that half of the connections get no source port for."""
    taken, number = SourcePorts.take, count()
    patch.setattr(SourcePorts, "take", lambda ports: taken(ports) if next(number) % 2 else None)


def remember(capacity_per_s: float) -> None:
    """A self-test that found this client so fast."""
    error = Error(median_us=10, p99_us=50, max_us=90, p99_percent=0.5)
    known = Calibration(
        measured=datetime.now(UTC),
        environment=calibration.environment_digest(describe()),
        transport="wire",
        streams=4,
        interval_ms=20,
        ttft=error,
        gap=error,
        e2e=error,
        events_per_read=1,
        capacity_tokens_per_s=capacity_per_s,
        capacity_streams=4,
        cpu_us_per_token=10,
    )
    assert calibration.remember([known, known.model_copy(update={"transport": "ring"})])


@dataclass(frozen=True)
class Provocation:
    """A run, the doubts that it must raise, those that it may, and what else there is to it."""

    server: Server
    words: str
    found: set[str]
    may: frozenset[str] = frozenset()
    beside: Beside = nothing
    played: Played = as_it_is
    capacity_per_s: float = 0.0  # of a remembered self-test
    code: int = 0
    also: Server | None = None  # another --base-url
