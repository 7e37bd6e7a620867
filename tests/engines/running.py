"""Running: a real engine as a group of processes, of which none is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from loadgen_servers.process.running import free_port

_START_S = 300.0
_STOP_S = 20.0
_LOOK_S = 0.2
_TAIL = 3000

# No engine may look for anything outside: hub, usage statistics, newer versions.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
# So small a model gains nothing by a second thread, and where another process wants the core, two of OpenMP's
# spin until both have one: a token takes ten times as long.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Without VLLM_HOST_IP vLLM's processes talk over the machine's own address instead of loopback.
VLLM_ON_CPU = {
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "auto",
    # Its engine runs the model itself: a worker is one more process to start, and spins between steps.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
VLLM_WITH_WORKER = {**VLLM_ON_CPU, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
SGLANG_ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
# Kills the group should whoever started it die first, by whatever signal.
_GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"


class EngineFailed(Exception):
    """The engine did not become ready; the message ends with its last words."""


@dataclass
class Engine:
    """Starts a server that answers /health, and stops every process of it."""

    argv: Sequence[str]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    place: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="engine-")))  # gone with it
    process: subprocess.Popen[bytes] = field(init=False)
    guard: subprocess.Popen[bytes] = field(init=False)

    @property
    def log(self) -> Path:
        """What it and its processes print."""
        return self.place / "log"

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self.env),
                # A group, but no session: Linux weighs sessions, not processes, against each other, and
                # where vLLM's processes spin in sched_yield the kernel (6.18) let nobody else run at all.
                process_group=0,
            )
        self.guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(self.process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise EngineFailed(f"ended with {self.process.returncode} at start-up\n{self.tail()}")
            try:
                if httpx.get(f"{self.base_url}/health", trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(_LOOK_S)
        raise EngineFailed(f"not ready within {_START_S:g} s\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text("utf-8", "replace")[-_TAIL:]

    def stop(self) -> None:
        """SIGTERM, then SIGKILL, to the whole group: vLLM's engine survives its own API server."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group, and wait until it is gone; raises EngineFailed when it is not."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + _STOP_S
        while left := members(self.process.pid):
            if time.monotonic() > deadline:
                raise EngineFailed(f"processes {left} are still there")
            time.sleep(_LOOK_S)
        self.guard.kill()
        self.guard.communicate()
        shutil.rmtree(self.place, ignore_errors=True)


def members(group: int) -> list[int]:
    """The living processes of a process group (Linux, the only system these engines run on)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has just ended
        if int(its_group) == group and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This environment without proxies, nothing looked up outside, one thread a model, and `more`."""
    own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    own.pop("PYTHONPATH", None)
    return {**own, **OFFLINE, **ONE_THREAD, **more}


def vllm(python: Path, model: Path, more: Sequence[str] = ()) -> Engine:
    """vLLM on the CPU, serving the tiny model as `qwen3`; eager is the faster way for so small a one."""
    port = free_port()
    argv = [str(python.with_name("vllm")), "serve", str(model), "--served-model-name", "qwen3"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
    argv += ["--max-model-len", "4096", "--enforce-eager", *more]
    return Engine(argv, port, VLLM_ON_CPU)


def llamacpp(server: Path, model: Path, more: Sequence[str] = ()) -> Engine:
    """llama.cpp's server on one thread, serving the tiny model as `qwen3`."""
    port = free_port()
    argv = [str(server), "--model", str(model), "--alias", "qwen3", "--host", "127.0.0.1"]
    return Engine([*argv, "--port", str(port), "--threads", "1", *more], port)


def resettable_vllm(python: Path, model: Path, more: Sequence[str]) -> Engine:
    """The same with its endpoints for developers, so that --reset-cache can empty its prefix cache."""
    engine = vllm(python, model, more)
    engine.env = {**engine.env, "VLLM_SERVER_DEV_MODE": "1"}
    return engine


def transformers_serve(python: Path, model: Path) -> Engine:
    """`transformers serve` on the CPU, pinned to the tiny model."""
    port = free_port()
    argv = [str(python.with_name("transformers")), "serve", str(model), "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--device", "cpu", "--dtype", "bfloat16"]
    # With no hub cache its /v1/models is a 500 that resets the connection: what a client must bear.
    engine = Engine(argv, port)
    engine.env = {"HF_HOME": str(engine.place / "no-hub-cache")}
    return engine


def sglang(python: Path, model: Path) -> Engine:
    """SGLang on the CPU, in plain PyTorch, serving the tiny model as `qwen3`."""
    port = free_port()
    argv = [str(python), "-m", "sglang.launch_server", "--model-path", str(model)]
    argv += ["--served-model-name", "qwen3", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    argv += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    argv += ["--disable-overlap-schedule", "--disable-cuda-graph", "--max-total-tokens", "65536"]
    return Engine([*argv, "--mem-fraction-static", "0.3"], port, SGLANG_ON_CPU)
