"""The engine as a process: what it prints, how it ends, and the answers that leave its sockets."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from loadgen_servers.engine.cli import main

TABLES = read_tables("engine_server")

ROOT = Path(__file__).parents[3]
FAST, SLOW = "instant", "bench/1024x50"


@contextmanager
def process(*options: str, preset: str = FAST) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The engine and its base URL; its stdin is a pipe."""
    command = [sys.executable, "-m", "loadgen_servers.engine", "--preset", preset, *options]
    pipe = subprocess.PIPE
    environment = {"PYTHONPATH": str(ROOT / "servers"), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as engine:
        try:
            yield engine, msgspec.json.decode(require(engine.stdout).readline())["base_url"]
        finally:
            engine.kill()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with process() as (_, url), httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def gauge(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


@pytest.mark.whole
def test_control_paths(client: httpx.Client) -> None:
    got = {name: client.request(method, path) for name, (method, path, _, _) in TABLES["control"].items()}
    assert {name: (r.status_code, r.text) for name, r in got.items()} == {
        name: (status, text) for name, (_, _, status, text) in TABLES["control"].items()
    }
    model = client.get("/v1/models").json()["data"][0]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("instant", "loadgen-engine", 131072)
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=1.0.0")


@pytest.mark.whole
@pytest.mark.parametrize(("path", "body"), [
    ("/v1/completions", {"prompt": [1, 2, 3]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello there"}]}),
])  # fmt: skip
def test_streamed_and_whole_answers_count_alike(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    whole = client.post(path, json={**body, "max_tokens": 20}).json()
    streamed = {**body, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    lines = [line for line in client.post(path, json=streamed).text.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    messages = [msgspec.json.decode(line[6:]) for line in lines[:-1]]
    counts = whole["usage"]
    assert messages[-1]["usage"].items() <= counts.items()
    assert counts["completion_tokens"] == 20
    # The role message of a chat is no token.
    assert len(messages) == 20 + 1 + ("messages" in body)


@pytest.mark.whole
def test_own_metrics_are_those_that_vllm_reports() -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    with process("--enable-per-request-metrics") as (_, url), httpx.Client(base_url=url) as client:
        text = client.post("/v1/completions", json=body).text
    metrics = msgspec.json.decode(text.split("\n")[-5][6:])["metrics"]
    assert list(metrics) == [  # as recorded of vLLM 0.32
        "time_to_first_token_ms",
        "generation_time_ms",
        "queue_time_ms",
        "mean_itl_ms",
        "tokens_per_second",
    ]
    assert metrics["mean_itl_ms"] == metrics["generation_time_ms"] / 2 > 0
    assert 0 <= metrics["queue_time_ms"] < metrics["time_to_first_token_ms"] + 100


@pytest.mark.whole
@pytest.mark.parametrize(("flags", "cached"), TABLES["cached"])
def test_the_cache_answers_until_it_is_reset(flags: list[str], cached: list[int | None]) -> None:
    body = {"prompt": list(range(100)), "max_tokens": 2}
    told: list[int | None] = []
    with process(*flags) as (_, url), httpx.Client(base_url=url, trust_env=False) as client:
        for change in ({}, {}, {"prompt": list(range(1, 101))}, {}):
            if len(told) == 3:
                reset = client.post("/reset_prefix_cache")
                assert (reset.status_code, reset.json()) == (200, {"success": True})
            details = client.post("/v1/completions", json=body | change).json()["usage"][
                "prompt_tokens_details"
            ]
            told.append(details and details["cached_tokens"])
        hits = gauge(client, "prefix_cache_hits_total")
    assert told == cached
    assert "--enable-prompt-tokens-details" not in flags or hits == sum(n or 0 for n in told)


@pytest.mark.whole
def test_a_full_cache_preempts_and_every_answer_is_whole() -> None:
    body = b'{"prompt":[1,2,3],"max_tokens":90}'
    post = b"POST /v1/completions HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
    flags = ("--preempt", "--kv-cache-tokens", "100", "--cold-ms", "1", "--slowdown-per-s", "0.1")
    with process(*flags) as (_, url), httpx.Client(base_url=url, trust_env=False) as client:
        host, port = client.base_url.host, client.base_url.port or 0
        socks = [socket.create_connection((host, port)) for _ in range(3)]
        for sock in socks:
            sock.sendall(post % (len(body), body))
        answers = [b"".join(iter(lambda sock=sock: sock.recv(65536), b"")) for sock in socks]  # type: ignore[misc]
        for sock in socks:
            sock.close()
        assert [b'"completion_tokens":90' in answer for answer in answers] == [True] * 3
        assert gauge(client, "num_preemptions_total") >= 1
        assert gauge(client, "generation_tokens_total") == 270
        assert gauge(client, "kv_cache_usage_perc") == 0


@pytest.mark.whole
def test_a_refusal_keeps_the_connection_and_its_shape(client: httpx.Client) -> None:
    refused = client.post("/v1/completions", json={"model": "nope", "prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "NotFoundError")
    in_band = client.post("/v1/completions", json={"prompt": [999_999], "stream": True})
    assert in_band.status_code == 200
    assert in_band.text.endswith('"param":null,"code":400}}\n\ndata: [DONE]\n\n')


@pytest.mark.whole
def test_pipelined_requests_are_answered_in_order(client: httpx.Client) -> None:
    body = b'{"prompt":[1],"max_tokens":3}'
    one = b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    last = b"GET /version HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n"
    url = client.base_url
    with socket.create_connection((url.host, url.port or 0)) as sock:
        sock.sendall(one + one + last)
        got = b"".join(iter(lambda: sock.recv(65536), b""))
    assert got.count(b"HTTP/1.1 200 OK") == 3
    assert got.endswith(b'{"version":"0.1.0","engine":"loadgen-engine"}')


@pytest.mark.whole
def test_a_client_that_leaves_frees_its_place() -> None:
    body = {"prompt": [1], "max_tokens": 10_000, "stream": True}
    with process(preset=SLOW) as (_, url), httpx.Client(base_url=url, trust_env=False) as client:
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # kept: dropping it closes the connection
            next(lines)
            with httpx.Client(base_url=url, trust_env=False) as other:
                assert gauge(other, "num_requests_running") == 1
        assert gauge(client, "num_requests_running") == 0
        assert gauge(client, "kv_cache_usage_perc") == 0


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_answers_with_abort_and_the_process_with_zero(number: signal.Signals) -> None:
    body = {"prompt": [1], "max_tokens": 10_000, "stream": True, "stream_options": {"include_usage": True}}
    with process(preset=SLOW) as (engine, url), httpx.Client(base_url=url, trust_env=False) as client:
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            engine.send_signal(number)
            rest = [line for line in lines if line]
        assert '"finish_reason":"abort"' in rest[-3]
        assert '"usage":{' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert engine.wait(10) == 0
        assert require(engine.stderr).read() == b""


@pytest.mark.whole
def test_it_ends_with_its_parents_pipe() -> None:
    with process("--exit-with-stdin") as (engine, _):
        require(engine.stdin).close()
        assert engine.wait(10) == 0


@pytest.mark.whole
def test_a_stdin_that_cannot_be_watched_is_refused() -> None:
    command = [sys.executable, "-m", "loadgen_servers.engine", "--exit-with-stdin"]
    environment = {"PYTHONPATH": str(ROOT / "servers"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"loadgen engine: --exit-with-stdin needs a pipe or a terminal as stdin\n"


def test_a_taken_port_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port), "--preset", FAST]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"loadgen engine: cannot listen on 127.0.0.1:{port}: Address already in use; try --port 0\n",
    )


@loop_over_named(("argv", "message"), TABLES["usage"])
def test_usage_errors_are_one_line_and_exit_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@loop_over("argv", [
    ["--early-eos", "2"], ["--max-num-seqs", "0"], ["--port", "70000"], ["--prest", "x"],
    ["--cold-ms", "nan"], ["--acceptance", "0.8,,0.7"],
])  # fmt: skip
def test_a_bad_flag_exits_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert argv[0] in said
    assert "invalid" not in said


def test_the_list_of_presets_names_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-presets"]) == 0
    out = capsys.readouterr().out
    assert "jetson-thor/qwen3-8b-bf16\n    Qwen/Qwen3-8B: Jetson Thor, vllm bench serve" in out
