"""What makes runs go wrong on purpose, in virtual time: servers, and what happens to the client."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, End, api, chunk, stream, token, whole
from fakes.virtual_network import LATENCY_NS, Connection, VirtualServer
from fakes.virtual_run import BASE_URL
from fakes.virtual_servers import MS
from fakes.virtual_time import START_NS
from loadgen import cli
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Calibration, Error, Facts
from loadgen.features.selftest import kept_selftests
from loadgen.host import environment
from loadgen.host.environment import describe_machine
from loadgen.plan.random_prompts import TokenIds
from loadgen.report.run_directory import Result

Server = Callable[[], VirtualServer]
Prepare = Callable[[VirtualServer], object]  # what was done before the run
Play = Callable[[pytest.MonkeyPatch, VirtualServer], None]
SECOND = 1000 * MS

# Servers; their tokens are 20 ms apart.


def failing(every: int) -> Server:
    """Every so many requests get a 500; five tokens to the others."""
    return _now_and_then(every, Answer([whole(b"{}", "500 Internal Server Error")]))


def closing(every: int) -> Server:
    """Every so many requests are taken on a connection that the server then closes without a byte."""
    return _now_and_then(every, Answer([], End.CLOSE))


def _now_and_then(every: int, other: Answer) -> Server:
    def server() -> VirtualServer:
        number = count(1)
        return VirtualServer(api(lambda _: stream(5, 0.02) if next(number) % every else other))

    return server


def answering(*writes: bytes) -> Server:
    """A server that answers every request with these events, 20 ms before each write of them."""
    pieces = [piece for events in (*writes, DONE) for piece in (0.02, chunk(events))]
    return lambda: VirtualServer(api(lambda _: Answer([HEAD, *pieces, LAST])))


def ten(text: str, reason: str | None = "length") -> list[bytes]:
    """Messages with ten such texts, the last one with a finish reason."""
    return [*[token(text)] * 9, token(text, reason)]


uncounted = answering(*[token("one two three")] * 4, token("four", "stop"))


def metered(metrics: Callable[[int, int], bytes]) -> Server:
    """Answers of 5 tokens to prompts of 5; /metrics by how many answers and how many scrapes there were."""

    def server() -> VirtualServer:
        begun, scrapes = list[int](), count()

        def answer(asked: Asked) -> Answer:
            begun.append(asked.number)
            return stream(5, 0.02)

        plain = api(answer, owner="vllm")

        def script(asked: Asked) -> Answer:
            if asked.head.startswith("GET /metrics "):
                return Answer([whole(metrics(len(begun), next(scrapes)))])
            return plain(asked)

        return VirtualServer(script)

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


@dataclass
class NagleServer(VirtualServer):
    """A server that writes nothing more until the client has read what it wrote: Nagle's algorithm."""

    _waiting: dict[int, list[bytes]] = field(default_factory=dict)

    def write(self, connection: Connection, data: bytes) -> None:
        waiting = self._waiting.setdefault(connection.number, [])
        waiting.append(data)
        if len(waiting) == 1:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        super().write(connection, self._waiting[connection.number][0])
        self.time.after(2 * LATENCY_NS, partial(self._acknowledged, connection))

    def _acknowledged(self, connection: Connection) -> None:
        if connection.unread:
            self.time.after(LATENCY_NS, partial(self._acknowledged, connection))
            return
        waiting = self._waiting[connection.number]
        del waiting[0]
        if waiting:
            self._send(connection)


@dataclass
class BackdatingServer(VirtualServer):
    """A server one of whose segments gets a kernel timestamp five seconds too early, unnoticed."""

    segment: int = 100
    _written: int = 0

    def write(self, connection: Connection, data: bytes) -> None:
        self._written += 1
        super().write(connection, data) if self._written != self.segment else self._backdate(connection, data)

    def _backdate(self, connection: Connection, data: bytes) -> None:
        self.time.after(LATENCY_NS, partial(self._step, -5 * SECOND))
        super().write(connection, data)
        self.time.after(LATENCY_NS, partial(self._step, 5 * SECOND))

    def _step(self, ns: int) -> None:
        self.time.wall_offset_ns += ns


# What was done before a run.


def no_preparation(_: VirtualServer) -> None:
    """The server is there for the run alone."""


def another_client(server: VirtualServer) -> None:
    """Begin someone's long answer, which ends in the run."""
    asked = {"model": "bench", "prompt": [1] * 8, "max_tokens": 40, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)

    def read(connection: Connection) -> None:
        while connection.unread:
            connection.read(1 << 20)

    def connected(connection: Connection) -> None:
        connection.on_change = partial(read, connection)
        connection.write(head + body)

    server.connect(connected)
    server.time.pass_by(100 * MS)


SAME_PROMPTS = "--random-input-len 256 --random-output-len 2 --seed 1 --num-warmups wave"
HIGH, LOW = "--num-prompts 64 --max-concurrency 8", "--num-prompts 40 --max-concurrency 1"


def high_load_before(_: VirtualServer) -> None:
    """The mistake of the published pages: a high load just before, with the same prompts."""
    words = f"--quiet --base-url {BASE_URL} --run-dir before {SAME_PROMPTS} {HIGH}"
    assert cli.main(["bench", *words.split()]) == 0


# What happens to the client and its machine.


def no_change(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
    """Nothing happens."""


def pauses(for_ms: float, every_ms: float) -> Play:
    """The client does not run for so long, again and again."""

    def play(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
        seen = -1

        def away_ns(now_ns: int) -> int:
            nonlocal seen
            period = int((now_ns - START_NS) / (every_ms * MS))
            came, seen = period > seen, period
            return int(for_ms * MS) if came else 0

        server.away_ns = away_ns

    return play


def one_suspension(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
    """The client does not run for five seconds, once, while it sends."""
    done = False

    def away_ns(now_ns: int) -> int:
        nonlocal done
        if done or len(server.asked) < 20:
            return 0
        done = True
        return 5 * SECOND

    server.away_ns = away_ns


def suspensions(count: int, ms: float) -> Play:
    """The client does not run for so long, so many times, half a second apart."""

    def play(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
        left, next_ns = count, 0

        def away_ns(now_ns: int) -> int:
            nonlocal left, next_ns
            if not left or len(server.asked) < 20 or now_ns < next_ns:
                return 0
            left, next_ns = left - 1, now_ns + round(ms * MS) + SECOND // 2
            return round(ms * MS)

        server.away_ns = away_ns

    return play


def clock_step(ms: float) -> Play:
    """The wall clock steps by so much while the run goes on."""

    def play(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
        def step() -> None:
            server.time.wall_offset_ns += int(ms * MS)

        server.time.after(600 * MS, step)

    return play


def heat_throttling(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
    """The processor throttles for heat in the run."""
    times, counter = count(), "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    patch.setattr(
        environment,
        "read_throttling_state",
        lambda: environment.ThrottlingState(counters={counter: next(times)}),
    )


def busy_core(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
    """The client's loop takes nine tenths of a core."""
    server.cpu_share = 0.9


def lost_segments(every: int) -> Play:
    """In every so many answers the kernel counts two segments out of order."""

    def play(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
        def tcp_info(connection: Connection) -> bytes:
            asked = [each.number for each in server.asked if each.connection == connection.number]
            count = 2 * sum(number % every == 0 for number in asked)
            return bytes(224) + count.to_bytes(4, "little")

        server.tcp_info = tcp_info

    return play


def cut_prompts(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
    """Requests carry two ids, whatever was planned, as behind a proxy that cuts prompts."""
    patch.setattr(TokenIds, "prompt", lambda self, i: [1001, 1002])


def slow_prompts(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
    """A prompt takes 5 ms to build, as long ones do."""
    drawn = TokenIds.prompt

    def prompt(self: TokenIds, i: int) -> list[int]:
        server.sleep(0.005)
        return drawn(self, i)

    patch.setattr(TokenIds, "prompt", prompt)


def changed_facts(change: Callable[[Facts], dict[str, Any]]) -> Play:
    """What is known of the run besides its records is changed by this."""

    def play(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
        made = Result.__init__

        def init(self: Result, facts: Facts, *rest: Any) -> None:
            made(self, replace(facts, **change(facts)), *rest)

        patch.setattr(Result, "__init__", init)

    return play


def self_test(capacity_per_s: float) -> Play:
    """A self-test found this client so fast."""
    return lambda patch, server: remember(capacity_per_s)


def remember(capacity_per_s: float) -> None:
    """Keep a self-test that found this client so fast."""
    error = Error(median_us=10, p99_us=50, max_us=90, p99_percent=0.5)
    measured = Calibration(
        measured=datetime.now(UTC),
        environment=kept_selftests.environment_digest(describe_machine()),
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
    assert kept_selftests.remember([measured, measured.model_copy(update={"transport": "ring"})])


def rows_in(name: str, rows: list[dict[str, Any]]) -> Prepare:
    """A file with these rows lies in the working directory."""
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    return lambda server: Path(name).write_text(text, "utf-8")


@dataclass(frozen=True)
class Provocation:
    """A run in virtual time, exactly the doubts that it raises, and what else there is to it."""

    server: Server
    words: str
    doubts: set[str]
    play: Play = no_change
    prepare: Prepare = no_preparation
    code: int = 0
