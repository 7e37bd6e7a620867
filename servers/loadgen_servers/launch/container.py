"""Containers: an engine inside an image, run by docker or podman.

The engine's command replaces the image's entry point, so that any image that contains the engine serves.
An `--entrypoint` among the caller's own arguments stays and gets the whole command as its arguments, as
entry points that prepare an image expect it; so does the image's own entry point when the command is a
template.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen_servers.launch import custom, llamacpp, sglang, transformers, vllm
from loadgen_servers.launch.installed import Installation
from loadgen_servers.launch.spec import Command, LaunchError, ServerSpec, check_model, is_secret

_ENGINES = ("docker", "podman")
_INSIDE: dict[str, tuple[str, Callable[[ServerSpec, Installation], Command]]] = {
    "vllm": ("vllm", vllm.serve_command),
    "sglang": ("python3", sglang.serve_command),
    "transformers": ("transformers", transformers.serve_command),
    "llamacpp": ("/app/llama-server", llamacpp.serve_command),  # of ghcr.io/ggml-org/llama.cpp:server
}
# Variables of the caller that an engine inside needs too: by name, so that no command line has their values.
_PASSED_ON = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_JETSON = ("/etc/nv_tegra_release", "/dev/nvmap")
_NVIDIA = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # the last is WSL's
_STOP_S = 10


class Container(msgspec.Struct, frozen=True):
    """Launches `serves` (an engine's name), or the command line `template`, inside `image`.

    `engine` is docker or podman, or a path to one; None takes the first on PATH. `arguments` are the
    caller's own for its `run`. A container gets a unique name, which is known before it has an id.
    """

    image: str
    engine: str | None = None
    serves: str = "vllm"
    arguments: tuple[str, ...] = ()
    template: str | None = None
    exists: Callable[[str], bool] = os.path.exists
    new_name: Callable[[], str] = lambda: f"loadgen-{secrets.token_hex(6)}"

    def command(self, spec: ServerSpec) -> Command:
        """`docker run` for `spec`, and the commands that stop, remove and inspect it; raises LaunchError."""
        engine = self._engine(spec.asks)
        name, podman = self.new_name(), os.path.basename(engine).startswith("podman")
        spec = _with_whole_paths(spec)
        inside = self._inside(spec)
        own_entry_point = any(word.split("=")[0] == "--entrypoint" for word in self.arguments)
        replaces = self.template is None and not own_entry_point
        entry_point = ("--entrypoint", inside.argv[0]) if replaces else ()
        hidden = {key: value for key, value in inside.environment.items() if is_secret(key)}
        variables = [key if key in hidden else f"{key}={value}" for key, value in inside.environment.items()]
        variables += [key for key in _PASSED_ON if key in os.environ and key not in inside.environment]
        mounts, at_home, made = _mounts(spec)
        argv = (
            *(engine, "run", "--rm", "--name", name),
            # The port is on this machine's loopback interface, and workers share memory.
            *("--network", "host", "--ipc", "host"),
            *self._gpus(podman),
            *(("--security-opt", "label=disable") if podman else ()),  # or SELinux hides what is mounted
            *(word for mount in mounts for word in ("-v", mount)),
            *(word for variable in (*at_home, *variables) for word in ("-e", variable)),
            *entry_point,
            *self.arguments,
            self.image,
            *(inside.argv[1:] if replaces else inside.argv),
        )
        return Command(
            argv,
            hidden,
            end=(engine, "stop", "--time", str(_STOP_S), name),
            kill=(engine, "rm", "-f", *(("--time", "0") if podman else ()), name),
            root_pid=(engine, "inspect", "-f", "{{.State.Pid}}", name),
            directories=made,
        )

    def _engine(self, asks: bool) -> str:
        names = (self.engine,) if self.engine else _ENGINES
        for name in names:
            if path := shutil.which(name):
                return path
        if not asks:
            return names[0]
        what = f"{self.engine} is not on PATH" if self.engine else "neither docker nor podman is on PATH"
        raise LaunchError(f"{what}: install one, with the NVIDIA Container Toolkit for a GPU")

    def _inside(self, spec: ServerSpec) -> Command:
        if not self.image or self.image.startswith("-"):
            raise LaunchError(f"'{self.image}' is not an image's name: give one, as vllm/vllm-openai:latest")
        if spec.python:
            raise LaunchError("an image has its own Python: leave out --server-python")
        if self.template is not None:
            return custom.serve_command(self.template, spec)
        if self.serves not in _INSIDE:
            raise LaunchError(f"unknown engine {self.serves}: give {', '.join(_INSIDE)}, or a command line")
        check_model(spec.model)
        executable, serve_command = _INSIDE[self.serves]
        return serve_command(spec, Installation(executable, None))

    def _gpus(self, podman: bool) -> tuple[str, ...]:
        jetson = any(map(self.exists, _JETSON))
        if not jetson and not any(map(self.exists, _NVIDIA)):
            return ()
        if podman:
            return ("--device", "nvidia.com/gpu=all")
        if jetson:  # --gpus is refused there, and the runtime passes no GPU without the variable
            return ("--runtime", "nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=all")
        return ("--gpus", "all")


def _with_whole_paths(spec: ServerSpec) -> ServerSpec:
    """The spec with absolute paths: relative ones mean nothing inside."""
    trace = spec.trace_directory
    return replace(
        spec,
        model=os.path.abspath(spec.model) if os.path.exists(spec.model) else spec.model,
        trace_directory=trace and os.path.abspath(trace),
    )


def _mounts(spec: ServerSpec) -> tuple[list[str], list[str], tuple[str, ...]]:
    """What is mounted, each at the path it has outside, the variables that point to the hub's cache, and
    the directories that must be there: a container engine would create them as root, or refuse.
    """
    mounts, variables, needed = [], [], list[str]()
    if os.path.exists(spec.model):
        mounts = [f"{directory}:{directory}:ro" for directory in dict.fromkeys(_directories(spec.model))]
    elif spec.model:
        caches = {"HF_HOME": os.path.expanduser("~/.cache/huggingface")}
        caches |= {name: os.environ[name] for name in ("HF_HOME", "HF_HUB_CACHE") if os.environ.get(name)}
        whole = {name: os.path.abspath(directory) for name, directory in caches.items()}
        needed += whole.values()
        variables = [f"{name}={directory}" for name, directory in whole.items()]
    if spec.trace_directory:
        needed.append(os.path.abspath(spec.trace_directory))
    return [*mounts, *(f"{directory}:{directory}" for directory in needed)], variables, tuple(needed)


def _directories(model: str) -> Iterator[str]:
    """The model's directory, and those that its files link into: the hub's cache consists of links."""
    path = Path(model)
    directory, files = (path, list(path.iterdir())) if path.is_dir() else (path.parent, [path])
    yield str(directory)
    for file in files:
        if file.is_symlink():  # not resolved further: inside, a link is read at the path where it is mounted
            yield os.path.dirname(os.path.normpath(directory / file.readlink()))
