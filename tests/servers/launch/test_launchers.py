"""Each engine's command line, and one of one's own: what can be asked, and what is refused."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, read_tables
from loadgen_servers.launch import custom
from loadgen_servers.launch.container import Container
from loadgen_servers.launch.launchers import LAUNCHERS
from loadgen_servers.launch.spec import Command, LaunchError, ServerSpec, shown, without_secrets

# Of each engine what is asked, and what is said of it: after the port, before the caller's own arguments.
TABLES = read_tables("launchers")

SPEC = ServerSpec(model="Qwen/Qwen3-8B", port=8123)
VLLM_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1"}
RECENT = {"vllm": "0.32.0+cpu", "sglang": "0.5.23", "transformers": "5.19.0"}

Venv = Callable[..., Path]


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    """Makes venvs, each new, whose interpreter answers what is installed as the real one would print it."""
    number = count()

    def make(
        versions: Mapping[str, str], missing: str = "", name: str = "venv", says: str | None = None
    ) -> Path:
        place = tmp_path / str(next(number)) / name
        binaries = place / "bin"
        binaries.mkdir(parents=True)
        cases = "".join(f"{package}) echo '{version}';;" for package, version in versions.items())
        answer = f'case "$3" in {cases} *) echo;; esac; echo "{missing}"' if says is None else says
        for file in ("python", "python3"):
            _program(binaries / file, f"#!/bin/sh\n{answer}\n")
        for package in versions:
            _program(binaries / package, f"#!{binaries}/python3\n")
        return place

    return make


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither the tests' own environment nor PATH has anything; returns the only directory on PATH."""
    directory = tmp_path / "on-path"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    return directory


def command(engine: str, venv: Path, **asked: Any) -> Command:
    return LAUNCHERS[engine](replace(SPEC, python=str(venv), **asked))


START = {
    "vllm": ["bin/vllm", "serve"],
    "sglang": ["bin/python", "-m", "sglang.launch_server", "--model-path"],
    "transformers": ["bin/transformers", "serve"],
}


@pytest.mark.whole
@loop_over(("engine", "asked", "said"), [(engine, *row) for engine in START for row in TABLES[engine]])
def test_an_engine_is_told_each_thing_in_its_words(
    venv: Venv, engine: str, asked: dict[str, Any], said: list[str]
) -> None:
    place, (program, *words) = venv(RECENT), START[engine]
    where = ["Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port", "8123"]
    assert list(command(engine, place, **asked).argv) == [str(place / program), *words, *where, *said]


@pytest.mark.whole
def test_sglang_is_told_its_name_between_the_model_and_the_port(venv: Venv) -> None:
    argv = command("sglang", venv(RECENT), served_model_name="qwen3").argv
    assert argv[3:7] == ("--model-path", "Qwen/Qwen3-8B", "--served-model-name", "qwen3")


@pytest.mark.whole
@loop_over(("engine", "asked", "own"), TABLES["environments"])
def test_the_environment_has_what_the_engine_needs_and_the_callers_on_top(
    venv: Venv, engine: str, asked: dict[str, Any], own: dict[str, str]
) -> None:
    place = venv(RECENT)
    path = {"PATH": f"{place}/bin{os.pathsep}{os.environ['PATH']}"}
    assert command(engine, place, **asked).environment == {**path, "PYTHONSAFEPATH": "1", **own}


@pytest.mark.whole
def test_a_venv_that_is_on_path_leaves_path_alone(
    alone: Path, venv: Venv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(venv(RECENT) / "bin"))
    safe = {"PYTHONSAFEPATH": "1"}
    assert LAUNCHERS["vllm"](SPEC).environment == {**safe, **VLLM_ENVIRONMENT}


@pytest.mark.whole
@loop_over(
    ("version", "by_variable"), [("0.12.0", True), ("0.13.0", False), ("0.1.dev1+gabc", False), ("", False)]
)
def test_the_trace_is_asked_for_as_the_version_wants_it(venv: Venv, version: str, by_variable: bool) -> None:
    found = command("vllm", venv({"vllm": version}), trace_directory="/traces")
    assert ("VLLM_TORCH_PROFILER_DIR" in found.environment) is by_variable
    assert ("--profiler-config" in found.argv) is not by_variable


@pytest.mark.whole
def test_a_relative_trace_directory_is_made_whole(venv: Venv, monkeypatch: pytest.MonkeyPatch) -> None:
    place = venv(RECENT)
    monkeypatch.chdir(place)
    found = command("sglang", place, trace_directory="traces")
    assert found.environment["SGLANG_TORCH_PROFILER_DIR"] == str(place / "traces")


@loop_over(("engine", "asked", "says"), TABLES["not told"])
def test_what_an_engine_cannot_be_told_is_refused_by_name(
    venv: Venv, engine: str, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        command(engine, venv(RECENT), **asked)


@loop_over("engine", list(RECENT))
@loop_over(("model", "says"), TABLES["no models"])
def test_a_model_that_is_none_is_refused_before_anything_starts(
    venv: Venv, monkeypatch: pytest.MonkeyPatch, engine: str, model: str, says: str
) -> None:
    place = venv(RECENT)
    monkeypatch.chdir(place)
    (place / "empty").mkdir()
    (place / "notes.txt").touch()
    with pytest.raises(LaunchError, match=says):
        command(engine, place, model=model)


@pytest.mark.whole
@loop_over(
    "model", ["dense", "mistral", "weights.gguf", "gpt2", "Qwen/Qwen3-8B", "Qwen/X-GGUF:Q4_K_M", "s3://b/m"]
)
def test_a_directory_a_gguf_file_and_a_hubs_name_pass(
    venv: Venv, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    place = venv(RECENT)
    monkeypatch.chdir(place)
    for file in ("dense/config.json", "mistral/params.json", "weights.gguf"):
        (place / file).parent.mkdir(exist_ok=True)
        (place / file).touch()
    assert command("vllm", place, model=model).argv[2] == model


@pytest.mark.whole
def test_the_named_python_comes_before_path(alone: Path, venv: Venv) -> None:
    named, ours = venv(RECENT, name="named"), venv(RECENT, name="ours")
    _program(alone / "vllm", f"#!{ours}/bin/python3\n")
    launcher = LAUNCHERS["vllm"]
    assert launcher(SPEC).argv[0] == str(alone / "vllm")
    for python in (named, named / "bin/python"):
        assert launcher(replace(SPEC, python=str(python))).argv[0] == str(named / "bin/vllm")


@pytest.mark.whole
def test_our_own_environment_comes_before_path(
    alone: Path, venv: Venv, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = venv(RECENT, name="ours"), venv(RECENT, name="other")
    _program(alone / "vllm", f"#!{other}/bin/python3\n")
    _program(alone / "python3", f'#!/bin/sh\nexec {other}/bin/python3 "$@"\n')
    monkeypatch.setattr(sys, "executable", str(ours / "bin/python"))
    assert LAUNCHERS["vllm"](SPEC).argv[0] == str(ours / "bin/vllm")
    assert LAUNCHERS["sglang"](SPEC).argv[0] == str(ours / "bin/python")


@pytest.mark.whole
def test_sglang_is_found_by_its_own_command_on_path(alone: Path, venv: Venv) -> None:
    place = venv(RECENT)
    (alone / "sglang").symlink_to(place / "bin/sglang")
    assert LAUNCHERS["sglang"](SPEC).argv[0] == str(place / "bin/python3")


@pytest.mark.whole
@loop_over(("engine", "package"), [
    ("vllm", "vllm"), ("sglang", "sglang"), ("transformers", r"'transformers\[serving\]>=5.5'"),
])  # fmt: skip
def test_an_engine_that_is_nowhere_ends_in_its_install_line(
    alone: Path, venv: Venv, monkeypatch: pytest.MonkeyPatch, engine: str, package: str
) -> None:
    """Nor is what the named interpreter lacks taken from elsewhere."""
    why = rf"no {engine} in the environment of .*python or on PATH: pip install -U {package}"
    with pytest.raises(LaunchError, match=why):
        LAUNCHERS[engine](SPEC)
    monkeypatch.setenv("PATH", str(venv(RECENT, name="ours") / "bin"))
    with pytest.raises(LaunchError, match=f"no {engine} for --server-python .*bare: with that one, pip"):
        command(engine, venv({}, name="bare"))


@pytest.mark.whole
@loop_over(("engine", "version", "least"), [
    ("vllm", "0.6.3.post1", "0.8.0"), ("sglang", "0.4.5", "0.4.6"), ("transformers", "4.57.1", "5.5.0"),
])  # fmt: skip
def test_an_engine_that_is_too_old_says_how_old_it_may_be(
    venv: Venv, engine: str, version: str, least: str
) -> None:
    with pytest.raises(LaunchError, match=rf"{engine} {version} \(.*\) is older than {least}: pip"):
        command(engine, venv({engine: version}))


@pytest.mark.whole
@loop_over(("engine", "version", "says"), [
    ("vllm", "0.8.0", None), ("vllm", "0.10.1rc2.dev3+g1", None), ("vllm", "0.1.dev1+g1", None),
    ("vllm", "dev", None), ("sglang", "0.0.0.dev0", None),
    ("vllm", "", "exit 1"), ("vllm", "", "echo one line"), ("vllm", "", "exit 0"),
])  # fmt: skip
def test_a_version_that_may_be_recent_or_is_not_said_is_served(
    venv: Venv, engine: str, version: str, says: str | None
) -> None:
    assert command(engine, venv({engine: version}, says=says)).argv


@pytest.mark.whole
def test_transformers_without_its_serving_extra_says_what_is_missing(venv: Venv) -> None:
    with pytest.raises(LaunchError, match=r"cannot serve without fastapi, uvicorn: pip install -U 'transf"):
        command("transformers", venv(RECENT, missing="fastapi uvicorn"))


@loop_over(("python", "says"), [("nowhere", "is not an interpreter"), (".", r"has no bin/python")])
@loop_over("engine", list(RECENT))
def test_a_server_python_that_is_none_is_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, python: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError, match=f"--server-python {python} {says}"):
        LAUNCHERS[engine](replace(SPEC, python=python))


@pytest.mark.whole
def test_a_real_interpreter_is_asked_and_imports_nothing_of_the_engine(tmp_path: Path) -> None:
    """The question itself, put to this interpreter, about a distribution that would fail if imported."""
    site = tmp_path / "site"
    (site / "vllm-0.7.9.dist-info").mkdir(parents=True)
    (site / "vllm-0.7.9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.7.9\n")
    (site / "vllm.py").write_text("raise SystemExit('imported')\n")
    binaries = tmp_path / "venv/bin"
    binaries.mkdir(parents=True)
    _program(binaries / "python", f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    _program(binaries / "vllm", f"#!{binaries}/python\n")
    with pytest.raises(LaunchError, match=r"vllm 0\.7\.9 .* is older than 0\.8\.0"):
        command("vllm", tmp_path / "venv")


PORT = ["--host", "127.0.0.1", "--port", "8123"]
OWN = ["--metrics", "--slots"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a program, a GGUF file and other things; nothing is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    for name in ("llama-server", "build/bin/llama-server"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("a model, some day")
    for name in ("empty", "inside"):
        (tmp_path / name).mkdir()
    (tmp_path / "inside" / "b.gguf").write_bytes(b"GGUF")
    return tmp_path


def llama_command(
    place: Path, model: str = "m.gguf", python: str | None = "llama-server", **asked: Any
) -> Command:
    return LAUNCHERS["llamacpp"](ServerSpec(model=model, port=8123, python=python, **asked))


@loop_over(("asked", "flags"), TABLES["llama.cpp"])
def test_each_thing_asked_has_its_flag(place: Path, asked: dict[str, Any], flags: list[str]) -> None:
    made = llama_command(place, **asked)
    assert list(made.argv) == [str(place / "llama-server"), "--model", "m.gguf", *flags]
    assert made.environment == {}


def test_a_name_of_the_hub_is_downloaded_by_the_server(place: Path) -> None:
    made = llama_command(place, "Qwen/Qwen3-8B-GGUF:Q4_K_M", environment={"LLAMA_ARG_THREADS": "2"})
    assert list(made.argv[1:3]) == ["--hf-repo", "Qwen/Qwen3-8B-GGUF:Q4_K_M"]
    assert made.environment == {"LLAMA_ARG_THREADS": "2"}


@loop_over(("python", "found"), [
    ("llama-server", "llama-server"),
    (".", "llama-server"),
    ("build", "build/bin/llama-server"),
    ("build/bin", "build/bin/llama-server"),
])  # fmt: skip
def test_its_program_is_found_where_it_is_named(place: Path, python: str, found: str) -> None:
    assert llama_command(place, python=python).argv[0] == str(place / found)


def test_without_a_place_it_is_the_one_on_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match=r"no llama-server on PATH: build llama\.cpp .* --server-python"):
        llama_command(place, python=None)
    monkeypatch.setenv("PATH", str(place / "build" / "bin"))
    assert llama_command(place, python=None).argv[0] == str(place / "build" / "bin" / "llama-server")


@loop_over(("asked", "says"), TABLES["llama.cpp refused"])
def test_what_it_cannot_serve_or_be_asked_is_refused(place: Path, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        llama_command(place, **asked)


def test_its_image_has_the_program_at_a_place_of_its_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = place / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    image = "ghcr.io/ggml-org/llama.cpp:server"
    container = Container(image, str(docker), "llamacpp", exists=lambda path: False, new_name=lambda: "one")
    argv = container.command(ServerSpec(model="m.gguf", port=8123)).argv
    assert argv[argv.index("--entrypoint") + 1] == "/app/llama-server"
    assert argv[argv.index(image) + 1 :] == ("--model", str(place / "m.gguf"), *PORT, *OWN)
    assert f"{place}:{place}:ro" in argv


@loop_over(("template", "argv", "environment"), TABLES["custom"])
def test_a_command_of_ones_own_is_filled_in_and_seen_by_no_shell(
    template: str, argv: str, environment: dict[str, str]
) -> None:
    found = custom.command(template, ServerSpec(model="hub/m", port=8123))
    assert found == Command(tuple(shlex.split(argv)), environment)


def test_a_custom_command_gets_arguments_last_and_the_environment() -> None:
    spec = ServerSpec(model="", port=1, arguments=("--x", "a b"), environment={"A": "2"})
    assert custom.command("A=1 sh {port}", spec) == Command(("sh", "1", "--x", "a b"), {"A": "2"})


@loop_over(("template", "asked", "says"), TABLES["custom refused"])
def test_a_command_of_ones_own_that_cannot_serve_is_refused(
    template: str, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        custom.command(template, replace(ServerSpec(model="", port=8123), **asked))


@pytest.mark.whole
def test_the_shown_line_is_what_a_shell_would_run() -> None:
    wanted = ("sh", "-c", 'printf %s, "$A" "$0" "$1"', "x y", '{"a": "b\'c"}')
    line = shown(Command(wanted, {"A": "1; 2"}))
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert ran.stdout == """1; 2,x y,{"a": "b'c"},"""


def test_what_is_put_before_path_is_shown_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert shown(Command(("x",), {"PATH": "/a b:/usr/bin"})) == """PATH='/a b:'"$PATH" x"""


@loop_over(("argv", "environment", "line"), TABLES["secrets"])
def test_secrets_are_not_shown(argv: list[str], environment: dict[str, str], line: str) -> None:
    assert shown(Command(tuple(argv), environment)) == line


def test_a_command_without_secrets_keeps_how_it_is_ended() -> None:
    command = Command(("x",), {"API_KEY": "k"}, end=("stop",), kill=("rm",), root_pid=("pid",))
    assert without_secrets(command) == replace(command, environment={"API_KEY": "***"})
