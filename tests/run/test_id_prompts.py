"""Whether a llama.cpp takes token ids is asked of it, and what it reports of itself is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders.loops import loop_over
from fakes.scripted_server import Answer, Asked, ScriptedServer, whole
from loadgen.run.id_prompts import found_out
from loadgen.server.discovery import ServerAddress, ServerInfo, ServerProbe
from loadgen.server.exchange import ControlLoop

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
        probe = ServerProbe(ServerAddress(server.base_url, loop=loop), None)
        return found_out(probe, probe.ask(None, 0.0)), paths


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


def test_a_server_that_does_not_describe_itself_is_not_asked() -> None:
    served, paths = answered("400 Bad Request", {}, props=False)
    assert (served.engine.takes_ids, served.slots) == (True, 0)
    assert not any(path.startswith("POST") for path in paths)
