"""Stalled runs: `loadgen bench` against an engine that stalls on purpose, and the log of what really was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness.process import CouldNotRun, checkout_env
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen_servers.engine.request import BYTES_PER_TOKEN
from loadgen_servers.engine.stalling import RequestRow, StallRow

_SHORT, _LONG = 64, 4096  # tokens of a prompt
_LIMIT_S = 180.0
_OF_STEPS = ("slow_step", "prefill")


@dataclass(frozen=True)
class Truth:
    """What the server's log says, and what was done to the client: `stalls` of both, requests by id."""

    stalls: Sequence[StallRow]
    requests: Mapping[str, RequestRow]
    step_ms: float

    @property
    def slow_steps(self) -> Sequence[StallRow]:
        """When a step took longer than it does, on purpose or not."""
        return [*self.late, *(stall for stall in self.stalls if stall.kind in _OF_STEPS)]

    @cached_property
    def late(self) -> Sequence[StallRow]:
        """When the machine itself was late with a step, beyond what was asked for: no one's doing."""
        ends = sorted({at_ns for row in self.requests.values() for at_ns in row.wrote_ns})
        follows = dict(pairwise(ends))
        steps = {
            (a, b) for row in self.requests.values() for a, b in pairwise(row.wrote_ns) if follows[a] == b
        }
        longer = [stall for stall in self.stalls if stall.kind in _OF_STEPS]
        rows = []
        for from_ns, to_ns in sorted(steps):
            asked_ns = sum(stall.to_ns - stall.from_ns for stall in longer if from_ns < stall.to_ns <= to_ns)
            late_ns = to_ns - from_ns - asked_ns - round(1e6 * self.step_ms)
            if late_ns > 0:
                rows.append(StallRow("late", to_ns - late_ns, to_ns, []))
        return rows


@dataclass(frozen=True)
class StalledRun:
    """A run as it was stored, and the truth of it."""

    result: Result
    truth: Truth


@dataclass(frozen=True)
class Load:
    """What is sent: requests at random times, answers of a fixed length, and more flags of loadgen's.

    All prompts have 64 tokens, but those of the requests in `long`: they have 4096.
    """

    requests: int = 100
    rate: float = 10.0  # a second; infinite: as fast as others end, with --max-concurrency
    tokens: int = 100
    long: Sequence[int] = ()
    step_ms: float = 10.0
    flags: Sequence[str] = ()

    @property
    def preset(self) -> str:
        """The engine's preset: a step takes the same time, whatever is in it."""
        return json.dumps(
            {
                "name": "steady",
                "model": "steady",
                "source": f"made up: {self.step_ms:g} ms a step whatever is in it",
                "max_model_len": 131_072,
                "max_num_batched_tokens": 8192,
                "kv_cache_tokens": 1_000_000,
                "timing": {"overhead_ms": self.step_ms},
            }
        )

    def write_prompts(self, path: Path, seed: int) -> list[str]:
        """Write the prompts to a file, no two with a prefix in common; returns loadgen's flags."""
        with path.open("w") as file:
            for number in range(self.requests):
                size = BYTES_PER_TOKEN * (_LONG if number in self.long else _SHORT)
                prompt = f"{number} of {self.requests} prompts ".ljust(size, ".")
                file.write(json.dumps({"prompt": prompt, "output_tokens": self.tokens}) + "\n")
        flags = ["--dataset-path", str(path), "--disable-shuffle", "--skip-chat-template"]
        flags += ["--num-prompts", str(self.requests), "--request-rate", str(self.rate)]
        return [*flags, "--seed", str(seed), *self.flags]


Process = subprocess.Popen[bytes]
Disturb = Callable[[Process], list[StallRow]]  # the client, while it runs


@dataclass(frozen=True)
class Ends:
    """Where the engine and the client run: what starts them, and the engine's address."""

    start_server: Callable[..., Process] = subprocess.Popen
    start_client: Callable[..., Process] = subprocess.Popen
    host: str = "127.0.0.1"


_STEADY, _HERE = Load(), Ends()


def run_stalled(
    place: Path,
    injections: Sequence[Mapping[str, Any]],
    load: Load = _STEADY,
    disturb: Disturb | None = None,
    own_metrics: bool = True,
    seed: int = 1,
    ends: Ends = _HERE,
) -> StalledRun:
    """Run a load against an engine with these injections, in an empty directory.

    `disturb` runs next to the client and returns what it did. Raises CouldNotRun.
    """
    asked, log = place / "inject.json", place / "truth.jsonl"
    asked.write_text(json.dumps({"seed": seed, "injections": list(injections)}))
    flags = ["--preset-json", load.preset, "--inject", str(asked), "--log", str(log)]
    flags += ["--enable-per-request-metrics"] * own_metrics
    with _engine([*flags, "--host", ends.host], ends.start_server) as url:
        runs = place / "runs"
        argv = [sys.executable, "-m", "loadgen", "bench", "--base-url", url, "--run-dir", str(runs)]
        argv += load.write_prompts(place / "prompts.jsonl", seed)
        done = _run_client(argv, disturb, ends.start_client)
    (directory,) = runs.iterdir()
    return StalledRun(run_directory.load(directory), read_truth(log, load, done))


def read_truth(log: Path, load: Load, more: Sequence[StallRow] = ()) -> Truth:
    """Read the log of an engine; `more` stalls were made elsewhere."""
    rows = [(msgspec.json.decode(line)["kind"], line) for line in log.read_bytes().splitlines()]
    requests = [msgspec.json.decode(line, type=RequestRow) for kind, line in rows if kind == "request"]
    stalls = [msgspec.json.decode(line, type=StallRow) for kind, line in rows if kind != "request"]
    return Truth([*stalls, *more], {row.request_id: row for row in requests}, load.step_ms)


def stop_client(at_s: Sequence[float], for_s: float) -> Disturb:
    """Stop all of the client's processes for a while, at these times after the first one has started."""

    def disturb(client: Process) -> list[StallRow]:
        begun, done = time.monotonic(), []
        for at in at_s:
            time.sleep(max(begun + at - time.monotonic(), 0))
            os.killpg(client.pid, signal.SIGSTOP)
            from_ns = time.monotonic_ns()
            time.sleep(for_s)
            to_ns = time.monotonic_ns()
            os.killpg(client.pid, signal.SIGCONT)
            done.append(StallRow("sent_late", from_ns, to_ns, []))
        return done

    return disturb


def burn(cores: int, for_s: float) -> Disturb:
    """Run a loop on each of as many cores for a while: client and server get what is left."""

    def disturb(client: Process) -> list[StallRow]:
        with ExitStack() as stack:
            for _ in range(cores):
                loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                stack.callback(loop.kill)
            time.sleep(for_s)
        return []

    return disturb


@contextmanager
def _engine(flags: Sequence[str], start: Callable[..., Process]) -> Iterator[str]:
    argv = [sys.executable, "-m", "loadgen_servers.engine", *flags]
    with start(argv, env={**os.environ, **checkout_env()}, stdout=subprocess.PIPE) as engine:
        try:
            assert engine.stdout is not None
            if not (line := engine.stdout.readline()):
                raise CouldNotRun("the engine did not start")
            yield str(json.loads(line)["base_url"])
        finally:
            engine.terminate()
            engine.wait()


def _run_client(
    argv: Sequence[str], disturb: Disturb | None, start: Callable[..., Process]
) -> list[StallRow]:
    env = {**os.environ, **checkout_env()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with start(list(argv), env=env, start_new_session=True, **pipes) as client:
        try:
            done = disturb(client) if disturb else []
            output, _ = client.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise CouldNotRun(f"loadgen took longer than {_LIMIT_S:g} s") from None
        finally:
            client.kill()
    if client.returncode:
        raise CouldNotRun(f"loadgen: exit code {client.returncode}: {output.decode()[-500:]}")
    return done
