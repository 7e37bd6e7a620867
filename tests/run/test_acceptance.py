"""Adapting: what a server refuses is left out of every request of the run, before it, and reported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from builders.only_run import stored
from fakes.hosted_api import KEY, HostedApi, openai_error
from fakes.scripted_server import Answer, Asked, ScriptedServer, whole
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.run.acceptance import check_takes_ids
from loadgen.server.control import ServerInfo, ServerProbe
from loadgen.server.exchange import ControlLoop, ServerAddress

pytestmark = [
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
]
TOKENIZER = str(Path(__file__).parents[1] / "data" / "tokenizer")
LOAD = ["--num-prompts", "4", "--max-concurrency", "2", "--random-input-len", "8", "--random-output-len", "3"]
CHAT = [*LOAD, "--backend", "openai-chat", "--tokenizer", TOKENIZER]
NO_EOS = {"ignore_eos": (400, openai_error("Unrecognized request argument supplied: ignore_eos"))}
TABLES = read_tables("acceptance")  # what is refused: by field, the status, the message, the parameter


def refuse(refused: dict[str, Any], **more: Any) -> HostedApi:
    """An API that refuses these fields."""
    errors = {field: (status, openai_error(*words)) for field, (status, *words) in refused.items()}
    return HostedApi(errors, **more)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def bench(api: HostedApi, *words: str) -> int:
    with VirtualServing(api) as server:
        return cli.main(["bench", "--quiet", "--base-url", server.base_url, *words])


@pytest.mark.parametrize(
    ("refused", "words", "sent", "reported"), TABLES["left out"].values(), ids=TABLES["left out"]
)
@pytest.mark.parametrize("warmups", [0, 2])
def test_what_is_refused_is_left_out_of_every_request(
    refused: dict[str, Any], words: list[str], sent: list[str], reported: str, warmups: int
) -> None:
    api = refuse(refused)
    assert bench(api, *CHAT, *words, "--num-warmups", str(warmups)) == 0
    facts, report = stored()
    bodies = [set(body) - {"model", "messages", "stream"} for body in api.served]
    assert bodies == [set(sent)] * (1 + warmups + 4)  # the one that found it out, and the run
    assert reported in report
    assert [field["name"] for field in facts["adapted"]] == list(refused)
    assert facts["ignore_eos_refused"] == ("ignore_eos" in refused)
    assert "http-status" not in report


def test_what_was_refused_is_asked_once_for_all_runs() -> None:
    api = HostedApi(NO_EOS)
    assert bench(api, *CHAT, "--repeat", "2") == 0
    assert api.posted == 2 + 2 * 4


@loop_over("owner", ["vllm", "sglang"])
def test_an_engine_that_is_known_is_sent_no_request_more(owner: str) -> None:
    api = HostedApi(owner=owner)
    assert bench(api, *CHAT) == 0
    assert api.posted == 4


@loop_over(
    ("refused", "words", "reported"),
    TABLES["needed"],
)
def test_what_cannot_be_left_out_ends_the_command_with_its_flag(
    refused: dict[str, Any], words: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = refuse(refused)
    assert bench(api, *CHAT, *words) == 1
    error = capsys.readouterr().err
    assert reported in error
    assert error.count("\n") == 1
    assert api.served == []
    assert not list(Path("runs").glob("*"))


@loop_over("words", [CHAT, [*CHAT, "--num-warmups", "2"]])
@loop_over(
    ("key", "reported"),
    [
        ("sk-bad-987654", "does not accept the key from OPENAI_API_KEY (401): check that it is a key"),
        ("", "needs an API key and none was sent (401): set OPENAI_API_KEY, or pass --api-key-file FILE"),
    ],
)
@loop_over("lists", [True, False])
def test_a_wrong_key_and_no_key_are_two_errors(
    words: list[str],
    key: str,
    reported: str,
    lists: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    api = HostedApi(models=lists, guarded=("/v1/models",) if lists else ("/v1/chat/completions",))
    assert bench(api, *words, "--model", "big-1") == 1
    out = "".join(capsys.readouterr())
    assert reported in out
    assert not key or key not in out


@loop_over("warmups", ["0", "2"])
def test_a_chat_only_api_names_the_backend(warmups: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(HostedApi(), *LOAD, "--num-warmups", warmups) == 1
    assert "pass --backend openai-chat if it has only chat" in capsys.readouterr().err


def test_a_known_engine_that_refuses_the_run_itself_names_the_flag() -> None:
    api = HostedApi(NO_EOS, owner="vllm")
    assert bench(api, *CHAT) == 1
    assert "the request is refused: pass --no-ignore-eos" in stored()[1]


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
OF_FILE = ["--backend", "openai-chat", "--max-concurrency", "1", "--dataset-path"]


@loop_over(
    ("file", "refused", "line"),
    TABLES["of rows"],
)
@loop_over("owner", ["vllm", "system"])
def test_what_rows_ask_for_and_a_server_has_not_ends_the_command(
    file: str, refused: dict[str, Any], line: str, owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = refuse(refused, owner=owner)
    assert bench(api, *OF_FILE, str(EXAMPLES / file)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert line in said.err
    assert "or leave those rows out of the file" in said.err
    assert said.err.count("\n") == 1
    assert not list(Path().rglob("result.json"))


@pytest.mark.parametrize("file", ["bodies_with_tools.jsonl", "images.jsonl"])
def test_no_row_of_a_file_is_sent_before_the_run(file: str) -> None:
    api = HostedApi(owner="vllm")
    assert bench(api, *OF_FILE, str(EXAMPLES / file), "--num-warmups", "1", "--tokenizer", TOKENIZER) == 0
    rows = [json.loads(line)["messages"] for line in (EXAMPLES / file).read_text("utf-8").splitlines()]
    sent = [body["messages"] for body in api.served]
    assert sent[-len(rows) :] == rows
    before = sent[: -len(rows)]
    assert len(before) > 1  # one for each set of features, and the warm-up
    assert [messages for messages in before if messages in rows] == []


RECORDED = Path(__file__).parents[1] / "data" / "llama_server"
OK = "200 OK"


def answered(status: str, body: dict[str, Any], props: bool = True) -> tuple[ServerInfo, list[str]]:
    """What is found out of a server that answers a prompt of three ids so, and which requests it got."""
    paths = []

    def script(asked: Asked) -> Answer:
        method, path = asked.head.split(" ")[:2]
        paths.append(f"{method} {path}")
        if method == "POST":
            return Answer([whole(json.dumps(body).encode(), status)])
        if path == "/v1/models":
            return Answer([whole((RECORDED / "models.json").read_bytes())])
        if path == "/props" and props:
            return Answer([whole((RECORDED / "props.json").read_bytes())])
        return Answer([whole(b"{}", OK if path == "/health" else "404 Not Found")])

    with ScriptedServer(script) as server, ControlLoop() as loop:
        probe = ServerProbe(ServerAddress(server.base_url, loop=loop))
        return check_takes_ids(probe, probe.ask(None, 0.0)), paths


def test_what_a_llamacpp_reports_of_itself_is_known() -> None:
    served, _ = answered(OK, {"usage": {"prompt_tokens": 3}})
    assert (served.engine.name, served.version, served.model) == ("llama.cpp server", "b1-0c1e570", "qwen3")
    assert (served.model_root, served.max_model_len, served.slots) == ("tiny.gguf", 4096, 4)


@loop_over(
    ("status", "body", "takes"),
    [
        (OK, {"usage": {"prompt_tokens": 3}}, True),
        (OK, {"usage": {"prompt_tokens": 9}}, False),  # it took them for a text
        (OK, {"choices": []}, True),  # it does not count: as its engine usually does
        ("400 Bad Request", {"error": {"message": "prompt must be a string"}}, False),
        ("500 Internal Server Error", {}, True),
    ],
)
def test_it_takes_ids_where_it_counts_as_many(status: str, body: dict[str, Any], takes: bool) -> None:
    served, paths = answered(status, body)
    assert served.engine.takes_ids is takes
    assert paths.count("POST /v1/completions") == 1
