"""llama.cpp's server: its flags for each thing that can be asked, where it is looked for, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen_servers.launch.container import Container
from loadgen_servers.launch.launchers import LAUNCHERS
from loadgen_servers.launch.spec import Command, LaunchError, ServerSpec

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


def command(place: Path, model: str = "m.gguf", python: str | None = "llama-server", **asked: Any) -> Command:
    return LAUNCHERS["llamacpp"](ServerSpec(model=model, port=8123, python=python, **asked))


@loop_over(("asked", "flags"), [
    ({}, [*PORT, *OWN]),
    ({"served_model_name": "qwen3"}, ["--alias", "qwen3", *PORT, *OWN]),
    # Slots share one context out: each is to have as much as was asked for.
    ({"max_running": 8, "context_len": 4096}, [*PORT, "--ctx-size", "32768", "--parallel", "8", *OWN]),
    ({"context_len": 4096}, [*PORT, "--ctx-size", "16384", "--parallel", "4", *OWN]),
    ({"max_running": 1}, [*PORT, "--parallel", "1", *OWN]),
    ({"seed": 7}, [*PORT, "--seed", "7", *OWN]),
    ({"prefix_caching": True}, [*PORT, "--cache-prompt", *OWN]),
    ({"prefix_caching": False}, [*PORT, "--no-cache-prompt", *OWN]),
    ({"tensor_parallel": 1}, [*PORT, *OWN]),
    ({"arguments": ("-ngl", "99")}, [*PORT, *OWN, "-ngl", "99"]),
])  # fmt: skip
def test_each_thing_asked_has_its_flag(place: Path, asked: dict[str, Any], flags: list[str]) -> None:
    made = command(place, **asked)
    assert list(made.argv) == [str(place / "llama-server"), "--model", "m.gguf", *flags]
    assert made.environment == {}


def test_a_name_of_the_hub_is_downloaded_by_the_server(place: Path) -> None:
    made = command(place, "Qwen/Qwen3-8B-GGUF:Q4_K_M", environment={"LLAMA_ARG_THREADS": "2"})
    assert list(made.argv[1:3]) == ["--hf-repo", "Qwen/Qwen3-8B-GGUF:Q4_K_M"]
    assert made.environment == {"LLAMA_ARG_THREADS": "2"}


@loop_over(("python", "found"), [
    ("llama-server", "llama-server"),
    (".", "llama-server"),
    ("build", "build/bin/llama-server"),
    ("build/bin", "build/bin/llama-server"),
])  # fmt: skip
def test_its_program_is_found_where_it_is_named(place: Path, python: str, found: str) -> None:
    assert command(place, python=python).argv[0] == str(place / found)


def test_without_a_place_it_is_the_one_on_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match=r"no llama-server on PATH: build llama\.cpp .* --server-python"):
        command(place, python=None)
    monkeypatch.setenv("PATH", str(place / "build" / "bin"))
    assert command(place, python=None).argv[0] == str(place / "build" / "bin" / "llama-server")


@loop_over(("asked", "says"), [
    ({"python": "nowhere"}, "--server-python nowhere is no program: build"),
    ({"python": "empty"}, "--server-python empty has no llama-server in it: build"),
    ({"model": ""}, "no model to serve: pass --model with a .gguf file"),
    ({"model": "missing.gguf"}, "missing.gguf does not exist"),
    ({"model": "./nowhere"}, "does not exist"),
    ({"model": "notes.txt"}, "notes.txt is no .gguf file"),
    ({"model": "empty"}, r"empty is a directory, .* convert_hf_to_gguf.py"),
    ({"model": "inside"}, r"inside is a directory, .* give inside/b.gguf"),
    ({"memory_fraction": 0.9}, r"memory fraction \(0.9\): it takes what the model and --context-len need"),
    ({"quantization": "fp8"}, r"quantization \(fp8\): a GGUF file has its own"),
    ({"skip_tokenizer": True}, "skip tokenizer .* it takes token ids next to text"),
    ({"tensor_parallel": 2}, r"no tensor parallelism \(2\): .* CUDA_VISIBLE_DEVICES"),
    ({"trace_directory": "/t"}, "it has no profiler"),
])  # fmt: skip
def test_what_it_cannot_serve_or_be_asked_is_refused(place: Path, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        command(place, **asked)


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
