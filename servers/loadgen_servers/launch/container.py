"""Containers: an engine inside an image, run by docker or podman.

The engine's own command replaces the image's entry point, so that any image that has the engine serves,
whatever it would start by itself. An `--entrypoint` among the caller's own arguments stays, and is handed
that command whole, as entry points that prepare an image want it; so does the image's own when the
command is a template.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen_servers.launch import custom, sglang, transformers, vllm
from loadgen_servers.launch.installed import Found
from loadgen_servers.launch.order import Command, LaunchError, Order, check_model, is_secret

_ENGINES = ("docker", "podman")
_INSIDE: dict[str, tuple[str, Callable[[Order, Found], Command]]] = {
    "vllm": ("vllm", vllm.spelt),
    "sglang": ("python3", sglang.spelt),
    "transformers": ("transformers", transformers.spelt),
}
# The caller's own that an engine inside must see too, by name: their values are nobody's business.
_HANDED_ON = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "CUDA_VISIBLE_DEVICES",
)
_JETSON = ("/etc/nv_tegra_release", "/dev/nvmap")
_NVIDIA = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # the last is WSL's
_STOP_S = 10


def _new_name() -> str:
    return f"loadgen-{secrets.token_hex(6)}"


class Container(msgspec.Struct, frozen=True):
    """Launches `serves` (an engine's name), or the command line `template`, inside `image`.

    `engine` is docker or podman, or a path to one; None takes the first on PATH. `arguments` are the
    caller's own for its `run`. A container is owned by a name of its own, which no engine gives twice and
    which is known before it has an id.
    """

    image: str
    engine: str | None = None
    serves: str = "vllm"
    arguments: tuple[str, ...] = ()
    template: str | None = None
    exists: Callable[[str], bool] = os.path.exists
    new_name: Callable[[], str] = _new_name

    def command(self, order: Order) -> Command:
        """`docker run` for `order`, and how it is stopped, killed and looked into; raises LaunchError."""
        engine = self._engine()
        name, podman = self.new_name(), os.path.basename(engine).startswith("podman")
        order = _with_whole_paths(order)
        inside = self._inside(order)
        own_entry_point = any(word.split("=")[0] == "--entrypoint" for word in self.arguments)
        replaces = self.template is None and not own_entry_point
        entry_point = ("--entrypoint", inside.argv[0]) if replaces else ()
        hidden = {key: value for key, value in inside.environment.items() if is_secret(key)}
        variables = [key if key in hidden else f"{key}={value}" for key, value in inside.environment.items()]
        variables += [key for key in _HANDED_ON if key in os.environ and key not in inside.environment]
        mounts, at_home = _mounts(order)
        argv = (
            *(engine, "run", "--rm", "--name", name),
            # The port is on this machine's loopback, and workers share memory, as without a container.
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
        )

    def _engine(self) -> str:
        for name in (self.engine,) if self.engine else _ENGINES:
            if path := shutil.which(name):
                return path
        what = f"{self.engine} is not on PATH" if self.engine else "neither docker nor podman is on PATH"
        raise LaunchError(f"{what}: install one, with the NVIDIA Container Toolkit for a GPU")

    def _inside(self, order: Order) -> Command:
        if not self.image or self.image.startswith("-"):
            raise LaunchError(f"'{self.image}' is no image: name one, as vllm/vllm-openai:latest")
        if order.python:
            raise LaunchError("an image brings its own Python: leave out --server-python")
        if self.template is not None:
            return custom.spelt(self.template, order)
        if self.serves not in _INSIDE:
            raise LaunchError(f"no engine is called {self.serves}: {', '.join(_INSIDE)}, or a command line")
        check_model(order.model)
        executable, spelt = _INSIDE[self.serves]
        return spelt(order, Found(executable, None))

    def _gpus(self, podman: bool) -> tuple[str, ...]:
        jetson = any(map(self.exists, _JETSON))
        if not jetson and not any(map(self.exists, _NVIDIA)):
            return ()
        if podman:
            return ("--device", "nvidia.com/gpu=all")
        if jetson:  # --gpus is refused there, and the runtime gives nothing unless it is asked
            return ("--runtime", "nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=all")
        return ("--gpus", "all")


def _with_whole_paths(order: Order) -> Order:
    """Relative paths mean nothing inside."""
    trace = order.trace_directory
    return replace(
        order,
        model=os.path.abspath(order.model) if os.path.exists(order.model) else order.model,
        trace_directory=trace and os.path.abspath(trace),
    )


def _mounts(order: Order) -> tuple[list[str], list[str]]:
    """What is mounted, each at its own path, and the variables that say where the hub's cache is."""
    mounts, variables = [], []
    if os.path.exists(order.model):
        mounts = [f"{directory}:{directory}:ro" for directory in dict.fromkeys(_directories(order.model))]
    elif order.model:
        caches = {"HF_HOME": os.path.expanduser("~/.cache/huggingface")}
        caches |= {name: os.environ[name] for name in ("HF_HOME", "HF_HUB_CACHE") if os.environ.get(name)}
        made = {name: _made(directory) for name, directory in caches.items()}
        mounts = [f"{directory}:{directory}" for directory in made.values()]
        variables = [f"{name}={directory}" for name, directory in made.items()]
    if order.trace_directory:
        trace = _made(order.trace_directory)
        mounts.append(f"{trace}:{trace}")
    return mounts, variables


def _directories(model: str) -> Iterator[str]:
    """The model's directory, and those that its files are links into: the hub's cache is made of links."""
    path = Path(model)
    directory, files = (path, list(path.iterdir())) if path.is_dir() else (path.parent, [path])
    yield str(directory)
    for file in files:
        if file.is_symlink():  # inside, a link is read from where it is mounted, so not resolved here
            yield os.path.dirname(os.path.normpath(directory / file.readlink()))


def _made(directory: str) -> str:
    """Made here: an engine would make it as root, or refuse."""
    path = os.path.abspath(directory)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"{path} cannot be made for the container: {error.strerror}") from None
    return path
