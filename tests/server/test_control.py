"""Control: the cache is empty or it is said why not; a trace is begun and ended, whatever happens between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from signal import SIGTERM

import pytest

from builders.loops import loop_over
from fakes.scripted_server import Answer, Asked, ScriptedServer, closed_port, whole
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.signals import Stopped
from loadgen.engines import engines
from loadgen.engines.engine import Engine
from loadgen.server import control
from loadgen.server.exchange import ServerAddress

VLLM, SGLANG = (engines.find_by_owner(owner) or engines.UNKNOWN for owner in ("vllm", "sglang"))
OK = whole(b"")
NOT_FOUND = whole(b'{"detail":"Not Found"}', "404 Not Found")
DONE = whole(b'{"success":true}')
HELD = whole(b'{"success":false}')
FLUSHED = whole(b"Cache flushed.\nPlease check backend logs for more details.\n", kind="text/plain")
PENDING = whole(b"Flush cache failed.\n", "400 Bad Request", "text/plain")
ACTIVE = whole(b'{"error":{"message":"A profiling session is already active."}}', "409 Conflict")
CRASHED = whole(b"Internal Server Error", "500 Oops", "text/plain")
UNAUTHORIZED = whole(b'{"error":"Unauthorized"}', "401 Unauthorized")


def one_by_one(*answers: bytes) -> Callable[[Asked], Answer]:
    """A script of whole answers; the last one stays."""
    return lambda asked: Answer([answers[min(asked.number, len(answers) - 1)]])


def told(server: ScriptedServer) -> list[tuple[str, str, bytes]]:
    """Method, path and body of every request a server got."""
    return [(*asked.head.split(" ")[:2], asked.body) for asked in server.asked]  # type: ignore[misc]


def reset(base_url: str, engine: Engine, busy_s: float = 0.0) -> str:
    return control.reset_cache(ServerAddress(base_url), engine, busy_s)


@loop_over(
    ("engine", "answer", "said"),
    [
        pytest.param(VLLM, DONE, "", id="vllm"),
        pytest.param(VLLM, OK, "", id="older vllm"),
        pytest.param(VLLM, HELD, "/reset_prefix_cache: requests still hold a part of the cache", id="held"),
        pytest.param(
            VLLM,
            NOT_FOUND,
            "vLLM has no /reset_prefix_cache (404): start it with VLLM_SERVER_DEV_MODE=1",
            id="no dev mode",
        ),
        pytest.param(SGLANG, FLUSHED, "", id="sglang"),
        pytest.param(SGLANG, PENDING, "/flush_cache: Flush cache failed.", id="pending"),
        pytest.param(SGLANG, CRASHED, "/flush_cache answers 500: Internal Server Error", id="500"),
        pytest.param(
            SGLANG,
            UNAUTHORIZED,
            "/flush_cache needs an API key and none was sent (401): set OPENAI_API_KEY, or pass "
            "--api-key-file FILE (--header for other schemes)",
            id="401",
        ),
        pytest.param(engines.UNKNOWN, OK, "unknown has no way to empty its cache", id="no way"),
    ],
)
def test_a_cache_is_empty_or_it_is_said_why_not(engine: Engine, answer: bytes, said: str) -> None:
    with ScriptedServer(one_by_one(answer)) as server:
        assert reset(server.base_url, engine) == said
    assert told(server) == ([("POST", engine.reset_path, b"")] if engine.reset_path else [])


@loop_over(("engine", "busy", "done"), [(VLLM, HELD, DONE), (SGLANG, PENDING, FLUSHED)])
def test_a_busy_server_is_asked_again(
    engine: Engine, busy: bytes, done: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_AGAIN_S", 0.0)
    with ScriptedServer(one_by_one(busy, busy, done)) as server:
        assert reset(server.base_url, engine, busy_s=10.0) == ""
    assert len(server.asked) == 3


def test_a_server_that_is_gone_has_not_emptied_its_cache() -> None:
    assert reset(f"http://127.0.0.1:{closed_port()}", VLLM).startswith(
        "/reset_prefix_cache does not answer: "
    )


@contextlib.contextmanager
def traced(engine: Engine, *answers: bytes) -> Iterator[ScriptedServer]:
    with ScriptedServer(one_by_one(*answers)) as server:
        with control.trace_server(ServerAddress(server.base_url), engine, "/traces"):
            assert [path for _, path, _ in told(server)] == [engine.trace_start_path]
        yield server


@loop_over(("engine", "body"), [(VLLM, b""), (SGLANG, b'{"output_dir":"/traces"}')])
def test_a_trace_is_begun_and_ended(engine: Engine, body: bytes) -> None:
    with traced(engine, OK) as server:
        assert told(server) == [("POST", "/start_profile", body), ("POST", "/stop_profile", b"")]


@loop_over(
    ("engine", "answers", "kind", "said"),
    [
        (
            VLLM,
            [NOT_FOUND],
            UsageError,
            r"vLLM has no /start_profile \(404\): start it with --profiler-config",
        ),
        (
            VLLM,
            [ACTIVE],
            MeasureError,
            r"/start_profile answers 409: A profiling session is already active\.",
        ),
        (SGLANG, [CRASHED], MeasureError, "/start_profile answers 500"),
        (engines.UNKNOWN, [OK], UsageError, "cannot profile itself"),
    ],
)
def test_a_server_that_does_not_trace_is_an_error(
    engine: Engine, answers: list[bytes], kind: type[LoadgenError], said: str
) -> None:
    with pytest.raises(kind, match=said), traced(engine, *answers):
        raise AssertionError("no trace, and nobody said so")


@loop_over(("stop", "said"), [(OK, "/traces"), (CRASHED, "/traces (incomplete: /stop_profile answers 500")])
def test_a_trace_that_is_not_written_is_said_and_costs_no_run(stop: bytes, said: str) -> None:
    with ScriptedServer(one_by_one(OK, stop)) as server:
        with control.trace_server(ServerAddress(server.base_url), SGLANG, "/traces") as trace:
            pass
        assert str(trace).startswith(said)


@loop_over("stop", [OK, CRASHED])
def test_a_trace_ends_with_a_failed_run_whose_error_is_reported(stop: bytes) -> None:
    with ScriptedServer(one_by_one(OK, stop)) as server:
        with (
            pytest.raises(ZeroDivisionError),
            control.trace_server(ServerAddress(server.base_url), VLLM, "/traces"),
        ):
            raise ZeroDivisionError
        assert [path for _, path, _ in told(server)] == ["/start_profile", "/stop_profile"]


@loop_over(
    ("stop", "reason"), [(KeyboardInterrupt(), "stopped by Ctrl-C"), (Stopped(SIGTERM), "stopped by SIGTERM")]
)
def test_a_trace_that_a_signal_ends_names_that_signal(
    stop: KeyboardInterrupt, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise stop

    with ScriptedServer(one_by_one(OK)) as server:
        with control.trace_server(ServerAddress(server.base_url), SGLANG, "/traces") as trace:
            monkeypatch.setattr(control, "_post", stopped)
        assert str(trace) == f"/traces (incomplete: {reason} before it was written)"


def test_a_server_that_is_gone_cannot_be_traced() -> None:
    gone = ServerAddress(f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(MeasureError, match="server's log"), control.trace_server(gone, VLLM, "/traces"):
        raise AssertionError("no trace, and nobody said so")


@loop_over(
    ("engine", "answer", "info"),
    [
        (SGLANG, whole(b'{"tp_size":2}'), {"tp_size": 2}),
        (VLLM, NOT_FOUND, {}),
        (VLLM, whole(b"<html>"), {}),
        (VLLM, whole(b"[1]"), {}),
        (engines.UNKNOWN, whole(b'{"tp_size":2}'), {}),
    ],
)
def test_a_server_says_how_it_runs_or_nothing(engine: Engine, answer: bytes, info: dict[str, int]) -> None:
    with ScriptedServer(one_by_one(answer)) as server:
        assert control.read_server_info(ServerAddress(server.base_url), engine) == info


def test_an_older_server_says_how_it_runs_elsewhere() -> None:
    with ScriptedServer(one_by_one(NOT_FOUND, whole(b'{"tp_size":2}'))) as server:
        assert control.read_server_info(ServerAddress(server.base_url), SGLANG) == {"tp_size": 2}
    assert [path for _, path, _ in told(server)] == ["/server_info", "/get_server_info"]


def test_a_server_that_is_gone_says_nothing() -> None:
    assert control.read_server_info(ServerAddress(f"http://127.0.0.1:{closed_port()}"), VLLM) == {}
