"""Control: the cache is empty or it is said why not; a trace is begun and ended, whatever happens between."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from signal import SIGTERM

import msgspec
import pytest
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named
from fakes.scripted_server import Answer, Asked, End, ScriptedServer, api, closed_port, stream, whole
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.signals import Stopped
from loadgen.engines import engines
from loadgen.engines.engine import Engine
from loadgen.server import control
from loadgen.server.control import ServerInfo, ServerProbe
from loadgen.server.exchange import ServerAddress

VLLM, SGLANG = (engines.find_by_owner(owner) or engines.UNKNOWN for owner in ("vllm", "sglang"))
RESET = "/reset_prefix_cache"
SET = "set OPENAI_API_KEY, or pass --api-key-file FILE (--header for other schemes)"
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


@loop_over_named(
    ("engine", "answer", "said"),
    {
        "vllm": (VLLM, DONE, ""),
        "older vllm": (VLLM, OK, ""),
        "held": (VLLM, HELD, f"{RESET}: requests still hold a part of the cache"),
        "no dev mode": (VLLM, NOT_FOUND, f"vLLM has no {RESET} (404): start it with VLLM_SERVER_DEV_MODE=1"),
        "sglang": (SGLANG, FLUSHED, ""),
        "pending": (SGLANG, PENDING, "/flush_cache: Flush cache failed."),
        "500": (SGLANG, CRASHED, "/flush_cache answers 500: Internal Server Error"),
        "401": (SGLANG, UNAUTHORIZED, f"/flush_cache needs an API key and none was sent (401): {SET}"),
        "no way": (engines.UNKNOWN, OK, "unknown has no way to empty its cache"),
    },
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


def trace(server: ScriptedServer, engine: Engine) -> contextlib.AbstractContextManager[object]:
    return control.trace_server(ServerAddress(server.base_url), engine, "/traces")


@loop_over(
    ("engine", "answers", "kind", "said"),
    [
        (VLLM, [NOT_FOUND], UsageError, r"no /start_profile \(404\): start it with --profiler-config"),
        (
            VLLM,
            [ACTIVE],
            MeasureError,
            r"answers 409: A profiling session is already active\.",
        ),
        (SGLANG, [CRASHED], MeasureError, "/start_profile answers 500"),
        (engines.UNKNOWN, [OK], UsageError, "cannot profile itself"),
    ],
)
def test_a_server_that_does_not_trace_is_an_error(
    engine: Engine, answers: list[bytes], kind: type[LoadgenError], said: str
) -> None:
    with (
        ScriptedServer(one_by_one(*answers)) as server,
        pytest.raises(kind, match=said),
        trace(server, engine),
    ):
        raise AssertionError("no trace, and nobody said so")


@loop_over(("engine", "body"), [(VLLM, b""), (SGLANG, b'{"output_dir":"/traces"}')])
@loop_over(("stop", "said"), [(OK, "/traces"), (CRASHED, "/traces (incomplete: /stop_profile answers 500")])
@loop_over("fails", [False, True])
def test_a_trace_is_begun_and_ended_and_costs_no_run(
    engine: Engine, body: bytes, stop: bytes, said: str, fails: bool
) -> None:
    """Also with a run that fails, whose error is reported."""
    with ScriptedServer(one_by_one(OK, stop)) as server:
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            with trace(server, engine) as begun:
                assert [path for _, path, _ in told(server)] == ["/start_profile"]
                if fails:
                    raise ZeroDivisionError
            assert str(begun).startswith(said)
        assert told(server) == [("POST", "/start_profile", body), ("POST", "/stop_profile", b"")]


@loop_over(
    ("stop", "reason"), [(KeyboardInterrupt(), "stopped by Ctrl-C"), (Stopped(SIGTERM), "stopped by SIGTERM")]
)
def test_a_trace_that_a_signal_ends_names_that_signal(
    stop: KeyboardInterrupt, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise stop

    with ScriptedServer(one_by_one(OK)) as server:
        with trace(server, SGLANG) as begun:
            monkeypatch.setattr(control, "_post", stopped)
        assert str(begun) == f"/traces (incomplete: {reason} before it was written)"


@loop_over(
    ("engine", "answers", "info"),
    [
        (SGLANG, [whole(b'{"tp_size":2}')], {"tp_size": 2}),
        (SGLANG, [NOT_FOUND, whole(b'{"tp_size":2}')], {"tp_size": 2}),  # an older one, elsewhere
        (VLLM, [NOT_FOUND], {}),
        (VLLM, [whole(b"<html>")], {}),
        (VLLM, [whole(b"[1]")], {}),
        (engines.UNKNOWN, [whole(b'{"tp_size":2}')], {}),
    ],
)
def test_a_server_says_how_it_runs_or_nothing(
    engine: Engine, answers: list[bytes], info: dict[str, int]
) -> None:
    with ScriptedServer(one_by_one(*answers)) as server:
        assert control.read_server_info(ServerAddress(server.base_url), engine) == info
    if len(answers) > 1:
        assert [path for _, path, _ in told(server)] == ["/server_info", "/get_server_info"]


def test_a_server_that_is_gone_does_and_says_nothing() -> None:
    gone = ServerAddress(f"http://127.0.0.1:{closed_port()}")
    assert control.read_server_info(gone, VLLM) == {}
    assert control.reset_cache(gone, VLLM, 0.0).startswith("/reset_prefix_cache does not answer: ")
    with pytest.raises(MeasureError, match="server's log"), control.trace_server(gone, VLLM, "/traces"):
        raise AssertionError("no trace, and nobody said so")


def ask(base_url: str, model: str | None = None, wait_s: float = 0.0, **headers: str) -> ServerInfo:
    access = ServerAddress(base_url, headers)
    return ServerProbe(access).ask(model, wait_s)


def site(**answers: bytes) -> Callable[[Asked], Answer]:
    """A script from paths (with _ for /) to whole responses; anything else is a 404."""

    def script(asked: Asked) -> Answer:
        path = asked.head.split(" ")[1]
        return Answer(
            [answers.get(path.strip("/").replace("/", "_").replace(".", "_"), whole(b"{}", "404 Not Found"))]
        )

    return script


def models(*cards: dict[str, object]) -> bytes:
    return whole(msgspec.json.encode({"object": "list", "data": cards}))


def paths(*names: str) -> bytes:
    return whole(msgspec.json.encode({"paths": {name: {} for name in names}}))


VERSION = whole(b'{"version":"0.32"}')
SGLANGS = models({"id": "a", "owned_by": "sglang"})


@loop_over(
    ("answers", "engine", "version", "model"),
    [
        ({"v1_models": models({"id": "a", "owned_by": "vllm"}), "version": VERSION}, "vLLM", "0.32", "a"),
        ({"v1_models": SGLANGS, "server_info": VERSION}, "SGLang", "0.32", "a"),
        ({"v1_models": models({"id": "a", "owned_by": "me"}), "version": VERSION}, "unknown", "0.32", "a"),
        ({"v1_models": models({"id": "a"}, {"id": "b"})}, "unknown", "", "a"),
        ({"v1_models": models({"id": "a"}), "health": whole(b"", "401 Unauthorized")}, "unknown", "", "a"),
        ({"v1_models": models({"id": "a"}), "version": whole(b"<html>")}, "unknown", "", "a"),
    ],
)
def test_a_server_is_recognised(answers: dict[str, bytes], engine: str, version: str, model: str) -> None:
    with ScriptedServer(site(**answers)) as server:
        served = ask(server.base_url)
    assert (served.engine.name, served.version, served.model) == (engine, version, model)


def test_the_models_card_is_read() -> None:
    card = {"id": "a", "owned_by": "vllm", "root": "/models/a", "max_model_len": 4096}
    with ScriptedServer(site(v1_models=models({"id": "x"}, card))) as server:
        served = ask(server.base_url, "a")
    assert (served.model, served.model_root, served.max_model_len) == ("a", "/models/a", 4096)
    assert served.models == ("x", "a")


def test_transformers_serve_is_detected_and_needs_the_model_named() -> None:
    script = site(v1_models=whole(b'{"detail":"x"}', "500 Oops"), openapi_json=paths("/load_model"))
    with ScriptedServer(script) as server:
        assert ask(server.base_url, "org/m").engine.name == "transformers serve"
        with pytest.raises(MeasureError, match="pass --model"):
            ask(server.base_url)


@loop_over_named(
    ("script", "model", "told"),
    {
        "wrong path": (site(), None, "pass --model, or check --base-url"),
        "no models": (site(v1_models=models()), None, "pass --model"),
        "a list of nothing": (site(v1_models=whole(b"[1]")), None, "pass --model"),
        "no list": (site(v1_models=whole(b'{"data":7}')), None, "pass --model"),
        "401": (site(v1_models=whole(b"", "401 Unauthorized")), "m", "OPENAI_API_KEY"),
        "403": (site(v1_models=whole(b"", "403 Forbidden")), "m", "OPENAI_API_KEY"),
        "not healthy": (site(health=whole(b"", "503 Busy")), "m", "/health answers 503"),
        "model": (site(v1_models=models({"id": "a", "owned_by": "vllm"})), "b", "not serve 'b'; it serves a"),
        "not HTTP": (lambda _: Answer([b"SSH-2.0\r\n"], End.CLOSE), "m", "is not ready"),
        "closes": (lambda _: Answer([], End.CLOSE), "m", "is not ready"),
        "resets": (lambda _: Answer([], End.RESET), "m", "is not ready"),
        "then closes": (
            lambda asked: Answer([], End.CLOSE) if "models" in asked.head else Answer([whole(b"")]),
            "m",
            "stopped answering",
        ),
    },
)
def test_what_cannot_be_measured_is_told(
    script: Callable[[Asked], Answer], model: str | None, told: str
) -> None:
    with ScriptedServer(script) as server, pytest.raises(MeasureError, match=told) as caught:
        ask(server.base_url, model)
    assert "\n" not in str(caught.value)


def test_a_port_where_nobody_listens_is_told_with_its_address() -> None:
    port = closed_port()
    with pytest.raises(
        MeasureError, match=f"http://127.0.0.1:{port} is not ready: .*--ready-check-timeout-sec"
    ):
        ask(f"http://127.0.0.1:{port}")


@pytest.mark.whole
def test_readiness_is_waited_for_and_looked_at_seldom() -> None:
    def script(asked: Asked) -> Answer:
        if asked.number < 2:
            return Answer([whole(b"", "503 Loading")])
        return api(lambda _: stream())(asked)

    with ScriptedServer(script) as server:
        assert ask(server.base_url, wait_s=10).model == "m"
        assert len(server.asked) <= 2 + 5  # two looks in vain, one that is answered, four questions
        with pytest.raises(MeasureError, match=r"after 0\.3 s"):
            ask(f"http://127.0.0.1:{closed_port()}", wait_s=0.3)


def test_what_every_request_carries_is_sent() -> None:
    with ScriptedServer(api(lambda _: stream())) as server:
        ask(server.base_url, Authorization="Bearer x")
        assert all("authorization: bearer x" in asked.head.lower() for asked in server.asked)


@loop_over("wait_s", [float("nan"), float("inf"), -1.0])
def test_a_wait_that_is_none_is_refused(wait_s: float) -> None:
    with pytest.raises(UsageError, match="--ready-check-timeout-sec"):
        ask("http://127.0.0.1:1", wait_s=wait_s)


@loop_over(
    ("base_url", "url", "address"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/x", ("127.0.0.1", 8000)),
        ("http://127.0.0.1/a/", "http://127.0.0.1/a/x", ("127.0.0.1", 80)),
        ("HTTPS://127.0.0.1", "https://127.0.0.1/x", ("127.0.0.1", 443)),
        ("http://[::1]:81", "http://[::1]:81/x", ("::1", 81, 0, 0)),
    ],
)
def test_a_target_is_a_resolved_address_under_the_urls_own_name(
    base_url: str, url: str, address: tuple[str | int, ...]
) -> None:
    access = ServerAddress(base_url)
    target = access.target("/x")
    assert (target.url, target.address[1]) == (url, address)
    assert (target.tls is not None) == (target.scheme == "https")


@loop_over("host", ["nonesuch.invalid", "a..b", "x" * 70 + ".com"])
def test_a_name_that_does_not_resolve_is_told(host: str) -> None:
    with pytest.raises(LoadgenError, match="does not resolve"):
        ServerAddress(f"http://{host}").target("")


def test_of_several_addresses_the_one_that_is_served_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(lambda _: stream()) as server:
        unserved, served = (("127.0.0.1", port) for port in (closed_port(), server.port))
        both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (unserved, served)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        access = ServerAddress(f"http://localhost:{server.port}")
        assert access.target("").address == (socket.AF_INET, served)
    assert access.target("").address == (socket.AF_INET, unserved)
    assert replace(access, headers={"a": "b"}).target("").headers == (("a", "b"),)
