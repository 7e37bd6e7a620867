"""Attach: the server that is meant, found, known for what it is, and what of it is on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, stream, whole
from loadgen.base.errors import LoadgenError, UsageError
from loadgen.plan import profile
from loadgen.run import embedded_engine
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command.options import parse
from loadgen.run.launched_server import check_first_token
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings, validate_table
from loadgen_servers.engine import presets
from loadgen_servers.engine.step_times import Age, Work

TABLES = read_tables("attach")

WORKLOAD = profile.build({"input_len": 8, "output_len": 3, "num_prompts": 1})


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(stack: ExitStack) -> ScriptedServer:
    return stack.enter_context(ScriptedServer(api(lambda _: stream(), owner="vllm")))


def attached(stack: ExitStack, *words: str) -> Session:
    options = parse(words)
    return attach(options, collect_settings(options, [WORKLOAD]), WORKLOAD, stack)


def at(server: ScriptedServer, stack: ExitStack, *words: str) -> Session:
    return attached(stack, "--base-url", server.base_url, *words)


def test_the_processes_of_a_server_on_this_machine_are_known(
    server: ScriptedServer, stack: ExitStack
) -> None:
    session = at(server, stack)
    assert os.getpid() in require(session.local).pids()


@pytest.mark.whole
@pytest.mark.parametrize("words", [[], ["--preset", "h20/qwen3-8b-fp8"]])
def test_without_a_server_the_embedded_engine_starts_and_ends(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    before = set(psutil.Process().children(recursive=True))
    with ExitStack() as stack:
        session = attached(stack, *words)
        assert session.served.engine.simulated
        assert session.access.headers == {}  # a key never goes to a server of our own
        assert require(session.local).pids() == []  # its memory is nobody's model
        assert set(psutil.Process().children(recursive=True)) > before
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.whole
def test_the_embedded_engine_serves_by_the_name_that_is_asked_for(stack: ExitStack) -> None:
    session = attached(stack, "--preset", "instant", "--model", "dir/m", "--served-model-name", "n")
    assert session.served.model == "n"


def checkpoint_directory(path: Path) -> Path:
    path.mkdir()
    config = {"max_position_embeddings": 512, "torch_dtype": "bfloat16", "vocab_size": 100}
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    return path


def card(**changes: Any) -> Answer:
    listing = {"data": [{"id": "m", "owned_by": "vllm", **changes}]}
    return Answer([whole(json.dumps(listing).encode())])


@pytest.mark.parametrize("told_by", ["server", "flag", "flag, SGLang"])
def test_the_models_files_are_read_where_they_are_on_this_machine(
    told_by: str, tmp_path: Path, stack: ExitStack
) -> None:
    directory = str(checkpoint_directory(tmp_path / "Qwen3-8B"))
    roots = {"server": {"root": directory}, "flag": {}, "flag, SGLang": {"root": "m"}}
    listed = card(**roots[told_by])

    def script(asked: Asked) -> Answer:
        return listed if " /v1/models " in asked.head else api(lambda _: stream())(asked)

    words = [] if told_by == "server" else ["--model", directory, "--served-model-name", "m"]
    with ScriptedServer(script) as server:
        session = at(server, stack, *words)
    assert require(session.checkpoint).path == directory
    assert session.context_limit == 512  # the server did not say
    assert session.subject.model_root == session.served.model_root == directory


@loop_over(
    ("tables", "flags", "expected"),
    TABLES["flags"],
)
def test_flags_go_over_the_tables_of_the_profiles(
    tables: list[dict[str, Any] | None], flags: str, expected: dict[str, Any]
) -> None:
    options = parse(["--launch", "vllm", *flags.split()])
    found = collect_settings(options, [profile.build({"server": table}) for table in tables])
    assert found == validate_table(ServerSettings, expected, "the test")


@loop_over("other", [{"context_len": 2}, {}])
def test_profiles_that_want_different_servers_are_refused(other: dict[str, Any]) -> None:
    profiles = [profile.build({"server": table}) for table in ({"context_len": 1}, other)]
    with pytest.raises(UsageError, match="tables differ: run them one by one"):
        collect_settings(parse(["--launch", "vllm"]), profiles)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (stream(1), None),
        (Answer([whole(b"{}", "500 Internal Server Error")]), "generates no token: http-status: 500"),
        (Answer([whole(b"{}", "404 Not Found")]), "generates no token: http-status: 404"),
        (Answer([whole(b'{"choices":[{"text":"x"}]}')]), "generates no token: not-streamed"),
    ],
)
def test_a_first_token_is_one_short_request_in_the_workloads_own_way(
    answer: Answer, says: str | None, stack: ExitStack
) -> None:
    with ScriptedServer(api(lambda _: answer, owner="vllm")) as server:
        session = at(server, stack)
        workload = WORKLOAD.model_copy(update={"input_len": 3000, "output_len": 900, "prefix_len": 50})
        if says is None:
            assert 0 < check_first_token(session, workload) < 60
        else:
            with pytest.raises(LoadgenError, match=says):
                check_first_token(session, workload)
        (body,) = [json.loads(asked.body) for asked in server.asked if asked.body]
    assert (len(body["prompt"]), body["max_tokens"], body["stream"]) == (8, 1, True)


def test_an_estimate_takes_the_embedded_engines_own_step_times() -> None:
    name = "jetson-thor/qwen3-8b-bf16"
    steps, timing = embedded_engine.find_preset_steps(parse(["--preset", name])), presets.preset(name).timing
    assert steps is not None
    assert steps.prefill_ms(64) == timing.step_ns(Work(0, 64, 0, 64 * 32), Age(0, 0)) / 1e6
    assert steps.tpot_ms(4.0, 100.0) == timing.step_ns(Work(4, 0, 400, 0), Age(0, 0)) / 1e6
    assert embedded_engine.find_preset_steps(parse(["--preset", "nonesuch"])) is None


@loop_over_named(("workloads", "expected"), TABLES["llama.cpp"])
def test_llamacpp_gets_slots_and_room_for_what_is_sent(
    workloads: list[dict[str, Any]], expected: list[int | None]
) -> None:
    """Requests at once, and tokens of each."""
    options = parse(["--launch", "llamacpp", "--model", "m.gguf"])
    found = collect_settings(options, [profile.build(keys) for keys in workloads])
    assert [found.max_running, found.context_len] == expected
