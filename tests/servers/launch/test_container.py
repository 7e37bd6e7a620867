"""The command line of an engine in a container, and a fake docker that obeys it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, read_tables
from fakes.container_engine import put_container_engine
from loadgen_servers.launch.container import Container
from loadgen_servers.launch.spec import Command, LaunchError, ServerSpec, shown
from loadgen_servers.process.running import start

TABLES = read_tables("container")

SPEC = ServerSpec(model="Qwen/Qwen3-8B", port=8123)
IMAGE = "vllm/vllm-openai:v0.32.0"
SERVE = ["serve", "Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port", "8123"]
VLLM = ["-e", "VLLM_NO_USAGE_STATS=1", "-e", "DO_NOT_TRACK=1", "-e", "VLLM_SERVER_DEV_MODE=1"]
RUN = ["run", "--rm", "--name", "loadgen-1", "--network", "host", "--ipc", "host"]


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts programs of these names on a PATH that has no others."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in list(os.environ):
        if name.startswith(("HF_TOKEN", "HF_HUB", "HF_END", "HUGGING", "TRANSFORMERS", "CUDA_VISIBLE")):
            monkeypatch.delenv(name)

    def put(*names: str) -> Path:
        for name in names:
            put_container_engine(directory / name)
        return directory

    return put


def container(*there: str, image: str = IMAGE, **settings: Any) -> Container:
    """A container on a machine that has these files."""
    return Container(image, exists=there.__contains__, new_name=lambda: "loadgen-1", **settings)


@pytest.mark.parametrize(("engines", "there", "gpu"), TABLES["machines"])
def test_the_whole_command_on_each_kind_of_machine(
    tmp_path: Path, on_path: Callable[..., Path], engines: list[str], there: list[str], gpu: list[str]
) -> None:
    engine = str(on_path(*engines) / engines[0])
    found = container(*there).command(SPEC)
    volumes, home = ["-v", f"{tmp_path}/hf:{tmp_path}/hf"], ["-e", f"HF_HOME={tmp_path}/hf"]
    inside = [*volumes, *home, *VLLM, "--entrypoint", "vllm", IMAGE, *SERVE]
    assert list(found.argv) == [engine, *RUN, *gpu, *inside]
    at_once = ["--time", "0"] if engines == ["podman"] else []
    assert list(found.end) == [engine, "stop", "--time", "10", "loadgen-1"]
    assert list(found.kill) == [engine, "rm", "-f", *at_once, "loadgen-1"]
    assert list(found.root_pid) == [engine, "inspect", "-f", "{{.State.Pid}}", "loadgen-1"]
    assert found.environment == {}
    assert found.directories == (f"{tmp_path}/hf",)  # made at the start, or docker would make it, as root


@loop_over(("settings", "end"), TABLES["inside"])
def test_what_runs_inside(on_path: Callable[..., Path], settings: dict[str, Any], end: list[str]) -> None:
    on_path("docker")
    argv = list(container(**settings).command(SPEC).argv)
    at = len(argv) - 1 - argv[::-1].index(IMAGE)
    start = at - end.index(IMAGE)
    assert argv[start : start + len(end)] == end
    assert ("--entrypoint" in argv) is ("--entrypoint" in end)


def test_the_order_reaches_the_engine_inside(on_path: Callable[..., Path]) -> None:
    on_path("docker")
    spec = replace(SPEC, context_len=4096, prefix_caching=False, arguments=("--enforce-eager",))
    argv = list(container().command(spec).argv)
    told = ["--max-model-len", "4096", "--no-enable-prefix-caching", "--enforce-eager"]
    assert argv[argv.index(IMAGE) :] == [IMAGE, *SERVE, *told]


def test_a_secret_is_handed_on_by_name_alone(
    on_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("docker")
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    spec = replace(SPEC, environment={"VLLM_API_KEY": "sk-1", "OMP_NUM_THREADS": "4"})
    found = container().command(spec)
    given = [found.argv[at + 1] for at, word in enumerate(found.argv) if word == "-e"]
    assert given[-4:] == ["VLLM_API_KEY", "OMP_NUM_THREADS=4", "HF_TOKEN", "CUDA_VISIBLE_DEVICES"]
    assert found.environment == {"VLLM_API_KEY": "sk-1"}
    assert not any(secret in word for word in found.argv for secret in ("hf_abc", "sk-1"))
    assert shown(found).startswith("VLLM_API_KEY='***' ")


def test_a_local_model_is_mounted_where_it_is_and_only_read(
    tmp_path: Path, on_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("docker")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").touch()
    monkeypatch.chdir(tmp_path)
    argv = container().command(replace(SPEC, model="m", trace_directory="traces")).argv
    mounted = [argv[at + 1] for at, word in enumerate(argv) if word == "-v"]
    assert mounted == [f"{tmp_path}/m:{tmp_path}/m:ro", f"{tmp_path}/traces:{tmp_path}/traces"]
    assert argv[argv.index(IMAGE) + 2] == f"{tmp_path}/m"
    assert f'"torch_profiler_dir": "{tmp_path}/traces"' in argv[-1]
    assert not (tmp_path / "traces").exists()  # before it is started


def test_what_a_models_files_are_links_to_is_mounted_too(
    tmp_path: Path, on_path: Callable[..., Path]
) -> None:
    """The hub's cache, which many a machine keeps behind another link."""
    on_path("docker")
    (tmp_path / "disk/snapshots/1").mkdir(parents=True)
    (tmp_path / "disk/blobs").mkdir()
    (tmp_path / "disk/blobs/abc").touch()
    (tmp_path / "disk/snapshots/1/config.json").symlink_to("../../blobs/abc")
    (tmp_path / "cache").symlink_to("disk")
    argv = container().command(replace(SPEC, model=f"{tmp_path}/cache/snapshots/1")).argv
    mounted = [argv[at + 1].split(":")[0] for at, word in enumerate(argv) if word == "-v"]
    assert mounted == [f"{tmp_path}/cache/snapshots/1", f"{tmp_path}/cache/blobs"]


def test_a_hub_cache_elsewhere_is_mounted_beside_the_home(
    tmp_path: Path, on_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("docker")
    monkeypatch.setenv("HF_HUB_CACHE", f"{tmp_path}/weights")
    argv = container().command(SPEC).argv
    assert f"{tmp_path}/weights:{tmp_path}/weights" in argv
    assert f"HF_HUB_CACHE={tmp_path}/weights" in argv


def test_no_two_containers_have_one_name(on_path: Callable[..., Path]) -> None:
    on_path("docker")
    launcher = Container(IMAGE)
    first, second = (launcher.command(SPEC).end[-1] for _ in range(2))
    assert first.startswith("loadgen-")
    assert first != second


@loop_over(("engines", "settings", "asked", "says"), TABLES["refused"])
def test_what_cannot_be_run_in_a_container_is_refused(
    on_path: Callable[..., Path],
    engines: list[str],
    settings: dict[str, Any],
    asked: dict[str, Any],
    says: str,
) -> None:
    on_path(*engines)
    with pytest.raises(LaunchError, match=says):
        container(**settings).command(replace(SPEC, **asked))


def test_a_cache_that_cannot_be_made_is_refused(
    tmp_path: Path, on_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("docker")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HOME", f"{tmp_path}/file/hf")
    command = container().command(SPEC)  # that is only shown, it makes nothing
    with pytest.raises(LaunchError, match="file/hf cannot be created for the container: Not a directory"):
        start(command, SPEC.port, tmp_path / "log")


@pytest.fixture
def served(on_path: Callable[..., Path]) -> Command:
    """A fake container that prints its pid, its first words and its variables, then waits to be ended."""
    directory = on_path("docker")
    code = 'echo "$$ $1 $2 $VLLM_API_KEY $VLLM_SERVER_DEV_MODE"; exec /bin/sleep 60'
    (directory / "vllm").write_text(f"#!/bin/sh\n{code}\n")
    (directory / "vllm").chmod(0o755)
    arguments = ("--entrypoint", str(directory / "vllm"))
    spec = replace(SPEC, environment={"VLLM_API_KEY": "sk-1"})
    return container(image="IMAGE", arguments=arguments).command(spec)


@pytest.mark.whole
@pytest.mark.parametrize("way", ["end", "kill"])
def test_an_engine_that_obeys_the_command_is_started_found_and_ended(served: Command, way: str) -> None:
    environment = {**os.environ, **served.environment}
    with subprocess.Popen(served.argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            pid, *said = process.stdout.readline().split()
            assert said == ["vllm", "serve", "sk-1", "1"]
            assert subprocess.check_output(served.root_pid, text=True).strip() == pid
            subprocess.run(getattr(served, way), check=True)
            code = process.wait(20)
        finally:
            subprocess.run(served.kill, capture_output=True)
    assert code == 128 + (signal.SIGTERM if way == "end" else signal.SIGKILL)
    assert subprocess.run(served.root_pid, capture_output=True).returncode != 0
