"""Server settings: which server is measured or started, how it is reached, and on what it runs."""

import os
import shlex
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from loadgen.base import parsing
from loadgen.base.parsing import MOST_SEED, MOST_TOKENS, integer_between, number_between
from loadgen.settings.setting import LAUNCH, ROOFLINE, SERVER, Makes, Setting

START_TIMEOUT_S = 1200.0
_MOST_GPUS = 1024
_MOST_RUNNING = 1 << 20


def _split_line(value: Any) -> Any:
    """Make a tuple of a text of flags, or of a list; keep other values; ValueError for an open quote."""
    words = shlex.split(value) if isinstance(value, str) else value
    return tuple(words) if isinstance(words, list) else words


def _check_variables(value: dict[str, str] | None) -> dict[str, str] | None:
    """Return variables; raises ValueError for an empty name, one with =, and a zero byte."""
    if any(not name or "=" in name or "\0" in name + text for name, text in (value or {}).items()):
        raise ValueError(
            "a variable's name must not be empty or contain =, and neither it nor its value a zero byte"
        )
    return value


# fmt: off
_server = partial(Setting, Makes.CLIENT, group=SERVER, names_server=True)
_key = partial(_server, rank=2, resumes=True)
_trust = partial(_server, rank=3, metavar="FILE")
_launch = partial(Setting, Makes.NOTHING, group=LAUNCH)
_machine = partial(Setting, Makes.NOTHING, group=ROOFLINE, names_server=True)
_asked = partial(_launch, rank=2)


@dataclass(frozen=True)
class TargetOptions:
    """The settings of which API and model are requested, and how they are reached."""

    endpoint: Annotated[str | None, _server("path of the API (default: the backend's, as /v1/completions "
        "or /v1/chat/completions)", metavar="PATH")] = None
    model: Annotated[str | None, _server("name of the model (default: first in /v1/models); with "
        "--launch, its directory", rank=1, common=True)] = None
    served_model_name: Annotated[str | None, _server("model name in requests, if it is not --model", rank=1,
        metavar="NAME")] = None
    tokenizer: Annotated[str | None, _server("tokenizer of the prompts, by directory or name; the name is "
        "one in the local hub cache", rank=1, metavar="DIR", common=True)] = None
    vocab_size: Annotated[int | None, _server("draw token ids below N, if neither tokenizer nor config is "
        "available", rank=1, read=integer_between(1, parsing.MOST_IDS), metavar="N")] = None
    headers: Annotated[dict[str, str], _server("header of every request, never stored (other users can "
        "read it in `ps`)", rank=1, flag="--header", action="extend", metavar="NAME=VALUE",
        resumes=True)] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyOptions:
    """The settings of where the API key is read from: no flag takes the key itself, which `ps` would show."""

    # None: OPENAI_API_KEY where it is set; "": no key
    api_key_env: Annotated[str | None, _key("environment variable with the API key; default OPENAI_API_KEY",
        metavar="NAME", common=True)] = None
    api_key_file: Annotated[str | None, _key("file with the API key", metavar="FILE")] = None


@dataclass(frozen=True)
class CallOptions:
    """The keywords of a call from Python that have no flag."""

    # "": none; default: OPENAI_API_KEY of the environment
    api_key: Annotated[str | None, Setting(Makes.NOTHING, names_server=True)] = None


@dataclass(frozen=True)
class TrustOptions:
    """The settings of TLS certificates, and of how long to wait for the server."""

    insecure: Annotated[bool, _server("accept any TLS certificate", rank=3)] = False
    ca_cert: Annotated[str | None, _trust("trust the certificate authorities in FILE (PEM) too")] = None
    client_cert: Annotated[str | None, _trust("client certificate (PEM), for servers that require "
        "one")] = None
    client_key: Annotated[str | None, _trust("private key of --client-cert, if not in the same "
        "file")] = None
    ready_check_timeout_s: Annotated[float, _server("wait S seconds for the server to be ready (default "
        "0: it must be)", rank=3, flag="--ready-check-timeout-sec",
        read=number_between(0, parsing.MOST_SECONDS), metavar="S", resumes=True)] = 0.0
    # Each as it was written; the feature reads them.
    metrics_url: Annotated[tuple[str, ...], Setting(Makes.NOTHING, "read the /metrics of a server behind "
        "the router (repeatable); ROLE: router, prefill, decode or worker (docs/targets.md)", group=SERVER,
        rank=3, action="append", metavar="ROLE=URL", names_server=True, resumes=True)] = ()
    # The embedded engine answers, with this timing.
    preset: Annotated[str | None, Setting(Makes.REQUEST, "name of a simulated server; `loadgen engine "
        "--list-presets` has them, and there is roofline/MACHINE/MODEL", group=SERVER, rank=3,
        metavar="NAME", common=True)] = None


@dataclass(frozen=True)
class LaunchOptions:
    """The settings of which server to start, and how."""

    engine: Annotated[str | None, _launch("start this engine on --model, stop it afterwards",
        flag="--launch", common=True)] = None
    command: Annotated[str | None, _launch("start any server: a command line with {port} in it",
        flag="--launch-command", metavar="LINE")] = None
    container: Annotated[str | None, _launch("start the engine of --launch (default vllm) in a container "
        "of this image", flag="--launch-container", metavar="IMAGE")] = None
    container_engine: Annotated[str | None, _launch("container engine, docker or podman (default: the "
        "first on PATH)", metavar="NAME")] = None
    container_args: Annotated[tuple[str, ...], _launch("more arguments of `docker run`, as "
        "'--shm-size 16g'", metavar="LINE")] = ()
    python: Annotated[str | None, _launch("Python interpreter or venv with the engine installed; of "
        "llamacpp, the program llama-server", flag="--server-python", metavar="PATH", rank=1)] = None
    timeout_s: Annotated[float, _launch("wait S seconds for the launched server to be ready (default 1200)",
        flag="--launch-timeout-sec", metavar="S", rank=3)] = START_TIMEOUT_S
    dry_run: Annotated[bool, _launch("print the command that would start the server, then exit",
        rank=3)] = False
    # The server may start in another directory.
    trace_directory: Annotated[str | None, _launch("have the engine write a profiler trace of the run",
        flag="--server-trace", read=os.path.abspath, metavar="DIR", rank=3, names_server=True)] = None


class ServerKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of a server to start: the `[server]` table of a profile; None leaves it to the engine."""

    # Tokens, prompt and answer together.
    context_len: Annotated[int | None, Field(ge=1, le=MOST_TOKENS), _asked("most tokens of a "
        "request, prompt and output, that the launched server accepts", metavar="N")] = None
    # Of the GPU's.
    memory_fraction: Annotated[float | None, Field(gt=0.0, le=1.0), _asked("share of the GPU's "
        "memory that the launched server uses, 0 to 1", metavar="X")] = None
    tensor_parallel: Annotated[int | None, Field(ge=1, le=_MOST_GPUS), _asked("number of GPUs "
        "that share the model", metavar="N", common=True)] = None
    quantization: Annotated[str | None, Field(min_length=1), _asked("quantization by the "
        "engine's name for it (default: from the checkpoint)", metavar="NAME")] = None
    # Token ids in and out.
    skip_tokenizer: Annotated[bool | None, _asked("start a server of token ids alone, without a tokenizer",
        action="store_true")] = None
    prefix_caching: Annotated[bool | None, _asked("reuse of cached prefixes (default: the engine's "
        "own)")] = None
    seed: Annotated[int | None, Field(ge=0, le=MOST_SEED), _asked("seed of the launched server "
        "(default: the engine's own)", flag="--server-seed", metavar="N")] = None
    # Requests at once.
    max_running: Annotated[int | None, Field(ge=1, le=_MOST_RUNNING), _asked("most requests "
        "that the launched server runs at once (llamacpp: its slots)", metavar="N")] = None
    # For the engine, as they are.
    arguments: Annotated[tuple[str, ...] | None, BeforeValidator(_split_line), _asked("more arguments of "
        "the engine, passed unchanged", flag="--server-args", metavar="LINE", rank=0, common=True)] = None
    # Added to the caller's.
    environment: Annotated[dict[str, str] | None, AfterValidator(_check_variables), _asked(
        "variable of the launched server's environment", flag="--server-env", action="extend",
        metavar="NAME=VALUE", rank=0)] = None


@dataclass(frozen=True)
class MachineOptions:
    """The settings that name machine and model for the roofline where neither can be detected."""

    hardware: Annotated[str | None, _machine("machine of the server, as jetson-thor or 4xh100 (default: "
        "detected from the GPU's name)", metavar="KEY")] = None
    bandwidth: Annotated[float | None, _machine("memory bandwidth of the machine, instead of the table's",
        metavar="GB/s")] = None
    model_config: Annotated[str | None, _machine("the model's config.json (default: from its directory, "
        "or the table)", metavar="FILE")] = None
# fmt: on
