"""Chat without a tokenizer: prompts of words whose length only the server knows."""

from __future__ import annotations

import itertools
import ssl
import time
from pathlib import Path

import pytest
import trustme

from builders.only_run import stored
from fakes.counting_api import MODEL, CountingApi
from fakes.scripted_server import Answer, Asked, End, ScriptedServer
from fakes.virtual_run import serving
from loadgen import cli
from loadgen.server import control

pytestmark = pytest.mark.usefixtures("elsewhere")
CHAT = [
    "--backend", "openai-chat", "--random-output-len", "3", "--max-concurrency", "2", "--num-prompts", "20",
]  # fmt: skip
KEY = "sk-good-0123456789"


@pytest.mark.parametrize("tokenize", [True, False], ids=["a server with /tokenize", "usage alone"])
@pytest.mark.parametrize("length", [32, 200, 1024])
def test_prompts_reach_the_length_that_the_server_counts(tokenize: bool, length: int) -> None:
    api = CountingApi(tokenize=tokenize)
    with serving(api) as server:
        words = ["bench", "--quiet", "--base-url", server.base_url, *CHAT, "--random-input-len", str(length)]
        assert cli.main(words) == 0
    counts = api.counts()[-20:]
    assert sum(counts) / 20 == pytest.approx(length, rel=0.01)
    assert len(set(api.served[-20:])) == 20
    facts, _ = stored()
    assert facts["data"]["text"]
    assert facts["metrics"]["total_input_tokens"] == sum(counts)


@pytest.mark.whole
def test_a_hosted_api_with_a_key_and_no_list_of_models_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, api = trustme.CA(), CountingApi(models=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setattr(control, "is_public", lambda url: True)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ScriptedServer(api, tls=context) as server:
        words = ["bench", "--quiet", "--base-url", server.base_url, "--ca-cert", "ca.pem", "--model", MODEL]
        assert cli.main([*words, *CHAT, "--random-input-len", "300"]) == 0
        paths = {asked.head.split(" ")[1] for asked in server.asked}
        keys = {"bearer " + KEY in asked.head.lower() for asked in server.asked}
    assert paths <= {"/v1/models", "/v1/chat/completions"}
    assert keys == {True}
    assert sum(api.counts()[-20:]) / 20 == pytest.approx(300, rel=0.01)
    assert stored()[0]["server"]["engine"] == "hosted API"


@pytest.mark.parametrize(
    ("tokenize", "answered", "path"),
    [(False, 0, "/v1/chat/completions"), (False, 3, "/v1/chat/completions"), (True, 3, "/tokenize")],
    ids=["never", "only at first", "only at first, by /tokenize"],
)
@pytest.mark.parametrize("flag", ["--request-timeout", "--stall-timeout"])
def test_a_server_that_stops_counting_costs_one_timeout_and_a_line(
    tokenize: bool, answered: int, path: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api, posts = CountingApi(tokenize=tokenize), itertools.count()

    def script(asked: Asked) -> Answer:
        counts = asked.head.startswith("POST ") and (tokenize or "/tokenize" not in asked.head)
        return Answer([], End.HANG) if counts and next(posts) >= answered else api(asked)

    with serving(script) as server:
        url = f"{server.base_url}{path}"
        words = ["bench", "--quiet", "--base-url", server.base_url, *CHAT, "--turns", "2", flag, "0.5"]
        begin_s = time.monotonic()
        assert cli.main(words) == 1
        assert time.monotonic() - begin_s < 5.0
    fault = f"{url}, asked how many tokens it counts in a prompt, does not answer within 0.5 s"
    assert (
        capsys.readouterr().err == f"loadgen: {fault}: pass --tokenizer to need no answer, or raise {flag}\n"
    )
