"""A hosted API, at a public address behind TLS: only its API is asked, and one command measures it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from builders.only_run import stored
from fakes.hosted_api import KEY, MODEL, HostedApi, openai_error
from fakes.scripted_server import ScriptedServer
from loadgen import cli
from loadgen.server import control

TOKENIZER = str(Path(__file__).parents[1] / "data" / "tokenizer")
LOAD = ["--num-prompts", "4", "--max-concurrency", "2", "--random-input-len", "8", "--random-output-len", "3"]
CHAT = [*LOAD, "--backend", "openai-chat", "--tokenizer", TOKENIZER]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(autouse=True)
def public(tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine stands for one on the internet whose certificate is trusted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(control, "is_public", lambda url: True)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))


@contextmanager
def serving(api: HostedApi, authority: trustme.CA) -> Iterator[ScriptedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ScriptedServer(api, tls=context) as server:
        yield server


def bench(server: ScriptedServer, *words: str, path: str = "/v1") -> int:
    url = f"{server.base_url}{path}"
    return cli.main(["bench", "--quiet", "--base-url", url, "--ca-cert", "ca.pem", *words])


@pytest.mark.whole
def test_only_the_api_is_asked_and_nothing_is_missed(authority: trustme.CA) -> None:
    api = HostedApi({"ignore_eos": (400, openai_error("Unrecognized request argument supplied: ignore_eos"))})
    with serving(api, authority) as server:
        assert bench(server, *CHAT) == 0
        paths = {asked.head.split(" ")[1] for asked in server.asked}
    assert paths == {"/v1/models", "/v1/chat/completions"}
    facts, report = stored()
    assert facts["server"]["engine"] == "hosted API"
    assert facts["window"] is None
    assert [
        word for word in ("/metrics", "not known", "roofline: unknown", "server-reported") if word in report
    ] == []
    assert "Successful requests: 4" in report


@pytest.mark.whole
def test_a_gateway_that_passes_on_what_the_engine_signs_is_that_engine(authority: trustme.CA) -> None:
    with serving(HostedApi(owner="vllm"), authority) as server:
        assert bench(server, *CHAT) == 0
    assert stored()[0]["server"]["engine"] == "vLLM"


@pytest.mark.parametrize(("api", "words", "reported"), [
    (HostedApi(names=("big-1", "small-2")), [], "serves big-1, small-2: pass --model NAME"),
    (HostedApi(models=False), [], "/v1/models lists no served model: pass --model"),
    (HostedApi(key="sk-other"), [], "does not accept the key from OPENAI_API_KEY (401)"),
])  # fmt: skip
def test_what_a_hosted_api_needs_is_said_in_one_line(
    api: HostedApi, words: list[str], reported: str, authority: trustme.CA, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(api, authority) as server:
        assert bench(server, *CHAT, *words) == 1
    error = capsys.readouterr().err
    assert reported in error
    assert error.count("\n") == 1


@pytest.mark.whole
@pytest.mark.parametrize(("api", "path", "words"), [
    (HostedApi(), "", []),
    (HostedApi(prefix="/api/v1"), "/api/v1/", []),
    (HostedApi(prefix="/openai/deployments/d", models=False),
     "/openai/deployments/d/chat/completions?api-version=2024-10-21", ["--model", MODEL]),
])  # fmt: skip
def test_a_base_url_works_as_it_is_pasted(
    api: HostedApi, path: str, words: list[str], authority: trustme.CA
) -> None:
    with serving(api, authority) as server:
        assert bench(server, *CHAT, *words, path=path) == 0
        posts = {asked.head.split(" ")[1] for asked in server.asked if asked.head.startswith("POST")}
    wanted = path if "?" in path else f"{api.prefix}/chat/completions"
    assert posts == {wanted}


SHOWN = "TTFT: to the first token of any kind; in 4 of 4 responses that is reasoning"
HIDDEN = "TTFT: includes reasoning that is counted in usage and not streamed, in 4 of 4 responses"


@pytest.mark.whole
@pytest.mark.parametrize(("api", "tokens", "reported"), [
    (HostedApi(reasoning=("Hm", " so"), text=("Hi",)), 3, SHOWN),
    (HostedApi(reasoning=("Hm", " so"), reasoning_name="reasoning"), 5, SHOWN),
    (HostedApi(reasoning=("Hm", " so", " on"), text=()), 3, SHOWN),  # the limit was too small for more
    (HostedApi(hidden=2, text=("Hi",)), 3, HIDDEN),
    (HostedApi(hidden=3, text=()), 3, HIDDEN),
    (HostedApi(text=("Hi", " you")), 2, ""),
], ids=["shown", "another name", "only reasoning", "hidden", "only hidden", "none"])  # fmt: skip
def test_a_reasoning_model_is_measured_and_the_first_token_named(
    api: HostedApi, tokens: int, reported: str, authority: trustme.CA
) -> None:
    with serving(api, authority) as server:
        assert bench(server, *CHAT) == 0
    report = stored()[1]
    assert "Failed requests: 0" in report
    assert f"Total generated tokens: {4 * tokens} " in report
    assert reported in report
    assert ("TTFT: " in report) == bool(reported)


@pytest.mark.whole
def test_a_rate_limit_is_a_kind_of_failure_with_its_way_out(authority: trustme.CA) -> None:
    with serving(HostedApi(limit=3), authority) as server:
        assert bench(server, *CHAT) == 0
    report = stored()[1]
    assert "2 × rate-limited, the first: 429 (Retry-After: 20): Rate limit reached for requests" in report
    assert "lower --max-concurrency or --request-rate" in report
