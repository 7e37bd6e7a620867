"""Runs that go wrong on purpose: a server, the words of the command, and the doubts that must come of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import httpx

from loadgen_servers.embedded import NULL, Embedded
from scripted_server import HEAD, PATIENCE_S, Answer, Asked, End, ScriptedServer, api, chunk, stream, token, whole

Server = Callable[[], AbstractContextManager[str]]
During = Callable[[str], AbstractContextManager[object]]

SMALL = frozenset({"thin-percentiles", "ramp-and-drain", "few-per-slot"})  # notes of any short run
TOLERATED = SMALL | {"busy-loop"}  # and of a busy machine


# Servers; each yields its base URL.


def engine(*flags: str, preset: str = "bench/1024x50") -> Server:
    """The embedded engine; 20 ms a step unless said otherwise, which a busy client still follows."""
    return lambda: _process(["--preset", preset, *flags])


def null(*flags: str, ttft_ms: float = 20, interval_ms: float = 20) -> Server:
    """The null server."""
    return lambda: _process(["--ttft-ms", f"{ttft_ms:g}", "--interval-ms", f"{interval_ms:g}", *flags], NULL)


@contextmanager
def _process(words: list[str], *module: str) -> Iterator[str]:
    with Embedded(words, *module) as process:
        yield process.start().base_url


def scripted(script: Callable[[], Callable[[Asked], Answer]]) -> Server:
    """A server that plays a script of its own."""

    @contextmanager
    def served() -> Iterator[str]:
        with ScriptedServer(script()) as server:
            yield server.base_url

    return served


def failing(every: int) -> Callable[[Asked], Answer]:
    """Every so many requests get a 500."""
    lock, asked = threading.Lock(), [0]

    def answer(_: Asked) -> Answer:
        with lock:
            asked[0] += 1
            fails = asked[0] % every == 0
        return Answer([whole(b"{}", "500 Oops")]) if fails else stream(3, 0.02)

    return api(answer)


def hanging(answered: int) -> Callable[[Asked], Answer]:
    """So many requests are answered; the others get one token and no end."""
    lock, asked = threading.Lock(), [0]

    def answer(_: Asked) -> Answer:
        with lock:
            asked[0] += 1
            ends = asked[0] <= answered
        return stream(3, 0.02) if ends else Answer([HEAD, chunk(token())], End.HANG)

    return api(answer)


Counts = Callable[[int, int], bytes]  # the answers begun and the looks before this one → /metrics


def metered(counts: Counts, tokens: int = 3) -> Callable[[Asked], Answer]:
    """Answers of so many tokens, five of a prompt, and whatever /metrics."""
    lock, seen = threading.Lock(), {"POST": 0, "/metrics": 0}

    def answer(asked: Asked) -> Answer:
        with lock:
            seen["POST"] += 1
        return stream(tokens, 0.01)

    plain = api(answer, owner="vllm")

    def script(asked: Asked) -> Answer:
        if not asked.head.startswith("GET /metrics "):
            return plain(asked)
        with lock:
            seen["/metrics"] += 1
            return Answer([whole(counts(seen["POST"], seen["/metrics"] - 1))])

    return script


def counted(answers: int, generated: int, model: str = "m") -> bytes:
    """A vLLM that finished so many answers, and generated so many tokens."""
    label = f'model_name="{model}"'
    return (
        f'vllm:request_success_total{{finished_reason="length",{label}}} {answers}\n'
        f"vllm:prompt_tokens_total{{{label}}} {5 * answers}\n"
        f"vllm:generation_tokens_total{{{label}}} {generated}\n"
        f"vllm:num_requests_running{{{label}}} 0\nvllm:num_requests_waiting{{{label}}} 0\n"
    ).encode()


# What happens beside a run; each takes the server's base URL.


def nothing(_: str) -> AbstractContextManager[object]:
    """The run has the machine to itself."""
    return contextlib.nullcontext()


@contextmanager
def foreign(base_url: str) -> Iterator[None]:
    """Another client's long request is under way before the run, and ends in it."""
    body = {"model": "bench", "prompt": [1] * 8, "max_tokens": 60, "ignore_eos": True}
    with httpx.Client(base_url=base_url, trust_env=False, timeout=PATIENCE_S) as client:
        thread = threading.Thread(target=client.post, args=("/v1/completions",), kwargs={"json": body})
        thread.start()
        with httpx.Client(base_url=base_url, trust_env=False) as looking:
            _until(lambda: "vllm:num_requests_running" in (text := looking.get("/metrics").text)
                   and 'requests_running{engine="0",model_name="bench"} 1.0' in text)
        yield
        thread.join(PATIENCE_S)


@contextmanager
def beside(act: Callable[[int, threading.Event], None]) -> Iterator[None]:
    """Do something to the capturing process, once it is there and has begun to send."""
    over = threading.Event()

    def wait() -> None:
        found: list[int] = []
        while not found and not over.wait(0.02):
            found = _forks()
        if found and not over.wait(0.4):
            act(found[0], over)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def stopping(pid: int, over: threading.Event) -> None:
    """The client does not run for a tenth of a second, again and again."""
    with contextlib.suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.047)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.047)


def killing(pid: int, over: threading.Event) -> None:
    """The client dies."""
    os.kill(pid, signal.SIGKILL)


def pressing(pid: int, over: threading.Event) -> None:
    """Somebody presses Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def _forks() -> list[int]:
    """The children of this process that run its own program: a run forks one."""
    ours, own = f" {os.getpid()} ", Path("/proc/self/cmdline").read_bytes()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (place / "stat").read_text().rpartition(")")[2][2:].split(" ")[1]
            if parent == ours.strip() and (place / "cmdline").read_bytes() == own:
                found.append(int(place.name))
    return found


def _until(true: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not true():
        assert monotonic() < deadline
