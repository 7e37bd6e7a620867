"""Which server a command means: the one on vLLM's port, or the embedded engine where that is meant."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import loadgen
from builders.loops import loop_over, read_tables
from fakes.scripted_server import api, closed_port, stream
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.plan.profile import Profile
from loadgen.run import attach
from loadgen.run.command import options
from loadgen.run.command.options import parse

TABLES = read_tables("default_server")

COPIED = (
    "--model X --dataset-name random --random-input-len 2048 --random-output-len 128 --num-prompts 100 "
    "--max-concurrency 8"
)


@pytest.fixture
def default_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def moved(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Have the default address at a port that is ours: 8000 may be anyone's."""
    monkeypatch.setattr(options, "DEFAULT_URL", url)


@pytest.mark.parametrize("verb", ["bench", "ladder"])
def test_nothing_there_is_one_line_with_both_ways(
    verb: str, default_port: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    moved(default_port, url)
    copied = COPIED if verb == "bench" else "--model X"
    assert cli.main([verb, "--quiet", *copied.split()]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"loadgen: {url} is not ready: ")
    assert said.err.endswith(f"{options.explain_no_server(url)}\n")
    assert "this is vLLM's)" in said.err
    assert said.err.count("\n") == 1
    assert not list(Path().rglob("*.json*"))


def test_a_call_raises_the_same(default_port: pytest.MonkeyPatch) -> None:
    moved(default_port, f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(loadgen.LoadgenError, match=r"--preset NAME"):
        loadgen.bench(model="m")


def test_the_copied_command_measures_the_server_there(
    default_port: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with VirtualServing(api(lambda _: stream(), owner="vllm")) as server:
        moved(default_port, server.base_url)
        small = "--model m --dataset-name random --random-input-len 8 --random-output-len 3 --num-prompts 4"
        assert cli.main(["bench", "--quiet", *small.split(), "--save-result"]) == 0
        assert len([asked for asked in server.asked if asked.head.startswith("POST")]) == 4
        measured = f"{server.base_url}/v1/completions"
    assert measured in " ".join(capsys.readouterr().out.split())
    (result,) = (json.loads(path.read_text("utf-8")) for path in Path().glob("*.json"))
    assert (result["model_id"], "simulated" in result) == ("m", False)


@loop_over(
    ("backend", "line", "port"),
    TABLES["ports"],
)
def test_a_profile_names_the_client_whose_port_is_meant(backend: Any, line: str, port: int) -> None:
    options = attach._set_default_port(parse(shlex.split(line)), Profile(backend=backend))
    assert str(options.base_url).endswith(f":{port}")
