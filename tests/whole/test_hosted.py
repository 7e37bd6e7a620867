"""A hosted API, at a public address: only its API is asked, and one command measures it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from builders.only_run import stored
from fakes.hosted_api import KEY, MODEL, HostedApi, openai_error
from fakes.scripted_server import ScriptedServer
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.server import control

TOKENIZER = str(Path(__file__).parents[1] / "data" / "tokenizer")
CHAT = ["--num-prompts", "4", "--max-concurrency", "2", "--random-input-len", "8", "--random-output-len", "3",
        "--backend", "openai-chat", "--tokenizer", TOKENIZER]  # fmt: skip
Server = ScriptedServer | VirtualServing


@pytest.fixture(autouse=True)
def _public(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a server counts as one on the internet."""
    monkeypatch.setattr(control, "is_public", lambda url: True)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def bench(server: Server, path: str = "/v1", *words: str) -> int:
    return cli.main(["bench", "--quiet", "--base-url", f"{server.base_url}{path}", *CHAT, *words])


def paths(server: Server) -> set[str]:
    return {asked.head.split(" ")[1] for asked in server.asked}


@pytest.fixture
def tls() -> ssl.SSLContext:
    """A server's context, whose authority is in ca.pem."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path("ca.pem")
    return context


@pytest.mark.whole
@pytest.mark.parametrize(("owner", "engine"), [("system", "hosted API"), ("vllm", "vLLM")])
def test_only_the_api_is_asked_and_nothing_is_missed(owner: str, engine: str, tls: ssl.SSLContext) -> None:
    """A gateway that passes on what its engine signs is that engine."""
    error = openai_error("Unrecognized request argument supplied: ignore_eos")
    refused = {"ignore_eos": (400, error)} if owner == "system" else {}
    with ScriptedServer(HostedApi(refused, owner=owner), tls=tls) as server:
        assert bench(server, "/v1", "--ca-cert", "ca.pem") == 0
    facts, report = stored()
    assert facts["server"]["engine"] == engine
    assert "Successful requests: 4" in report
    if owner == "system":
        assert paths(server) == {"/v1/models", "/v1/chat/completions"}
        assert facts["window"] is None
        missed = ("/metrics", "not known", "roofline: unknown", "server-reported")
        assert [word for word in missed if word in report] == []


def test_of_several_models_one_is_to_be_named(
    tls: ssl.SSLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(HostedApi(names=("big-1", "small-2")), tls=tls) as server:
        assert bench(server, "/v1", "--ca-cert", "ca.pem") == 1
    error = capsys.readouterr().err
    assert ("serves big-1, small-2: pass --model NAME" in error, error.count("\n")) == (True, 1)


DEPLOYED = "/openai/deployments/d/chat/completions?api-version=2024-10-21"


@pytest.mark.parametrize(("api", "path", "words", "posted"), [
    (HostedApi(), "", [], "/v1/chat/completions"),
    (HostedApi(prefix="/api/v1"), "/api/v1/", [], "/api/v1/chat/completions"),
    (HostedApi(prefix="/openai/deployments/d", models=False), DEPLOYED, ["--model", MODEL], DEPLOYED),
], ids=["an address", "a prefix", "a deployment"])  # fmt: skip
def test_a_base_url_works_as_it_is_pasted(api: HostedApi, path: str, words: list[str], posted: str) -> None:
    with VirtualServing(api) as server:
        assert bench(server, path, *words) == 0
    assert {each for each in paths(server) if "chat" in each} == {posted}


SHOWN = "TTFT: to the first token of any kind; in 4 of 4 responses that is reasoning"
HIDDEN = "TTFT: includes reasoning that is counted in usage and not streamed, in 4 of 4 responses"
LIMITED = (
    "2 × rate-limited, the first: 429 (Retry-After: 20): Rate limit reached for requests",
    "lower --max-concurrency or --request-rate",
)


@pytest.mark.parametrize(("api", "tokens", "reported"), [
    (HostedApi(reasoning=("Hm", " so"), text=("Hi",)), 12, [SHOWN]),
    (HostedApi(reasoning=("Hm", " so"), reasoning_name="reasoning"), 20, [SHOWN]),
    (HostedApi(reasoning=("Hm", " so", " on"), text=()), 12, [SHOWN]),  # the limit was too small for more
    (HostedApi(hidden=2, text=("Hi",)), 12, [HIDDEN]),
    (HostedApi(hidden=3, text=()), 12, [HIDDEN]),
    (HostedApi(text=("Hi", " you")), 8, []),
    (HostedApi(limit=3), 6, LIMITED),
], ids=["shown", "another name", "only reasoning", "hidden", "only hidden", "none", "limited"])  # fmt: skip
def test_reasoning_and_limits_are_named_with_what_they_mean(
    api: HostedApi, tokens: int, reported: list[str]
) -> None:
    with VirtualServing(api) as server:
        assert bench(server) == 0
    report = stored()[1]
    assert f"Failed requests: {2 * (api.limit is not None)} " in report
    assert f"Total generated tokens: {tokens} " in report
    assert [words for words in reported if words not in report] == []
    assert ("TTFT: " in report) == (reported in ([SHOWN], [HIDDEN]))
