"""Server settings: which server is measured or started, how it is reached, and on what it runs."""

from __future__ import annotations

import argparse
import os
import shlex
from functools import partial
from typing import Any

from loadgen.base import parsing
from loadgen.base.parsing import MOST_SEED, MOST_TOKENS, integer_between, number_between
from loadgen.engines.engines import LAUNCHED
from loadgen.settings.setting import LAUNCH, NO_KEYWORD, ROOFLINE, SERVER, KeyRows, Makes, OptionRows, setting

START_TIMEOUT_S = 1200.0
_MOST_GPUS = 1024
_MOST_RUNNING = 1 << 20


def _split_line(value: Any) -> Any:
    """Return a text of flags, as of --server-args, or a list of them as a tuple; other values unchanged.

    Raises ValueError for a text with an open quote.
    """
    words = shlex.split(value) if isinstance(value, str) else value
    return tuple(words) if isinstance(words, list) else words


def _check_variables(value: dict[str, str] | None) -> dict[str, str] | None:
    """Return variables; raises ValueError for an empty name, one with =, and a zero byte."""
    if any(not name or "=" in name or "\0" in name + text for name, text in (value or {}).items()):
        raise ValueError(
            "a variable's name must not be empty or contain =, and neither it nor its value a zero byte"
        )
    return value


def _check_some_text(value: str | None) -> str | None:
    if value == "":
        raise ValueError("String should have at least 1 character")
    return value


# fmt: off
_server = partial(setting, Makes.CLIENT, group=SERVER, names_server=True)
_place = partial(_server, None, keyword=NO_KEYWORD)
_key = partial(_place, rank=2, resumes=True,
    campaign="is a flag of `loadgen campaign`: a file cannot hold keys")
_trust = partial(_server, None, rank=3, metavar="FILE", shard=True)
_launch = partial(setting, Makes.NOTHING, None, group=LAUNCH, apart=True, keyword=NO_KEYWORD)
_machine = partial(setting, Makes.NOTHING, None, group=ROOFLINE, names_server=True)
_asked = partial(_launch, rank=2)


class AddressFlags(OptionRows, frozen=True):
    """The flags of the server's address, which become the addresses of `Options`."""

    base_url: list[str] | None = _place("address of a running server, http or https; several times: servers "
        "of one model that share the requests (docs/targets.md)", action="append", metavar="URL", common=True)
    host: str | None = _place("host of a running server, in place of --base-url")
    port: int | None = _place("port of the server at --host (default 8000; with --backend sglang 30000, "
        "lmdeploy 23333)", read=integer_between(0, 65535))


class TargetOptions(OptionRows, frozen=True):
    """The settings of which API and model are requested, and how they are reached."""

    endpoint: str | None = _server(None,
        "path of the API (default: the backend's, as /v1/completions or /v1/chat/completions)",
        metavar="PATH", shard=True)
    model: str | None = _server(None, "name of the model (default: first in /v1/models); with --launch, its "
        "directory", rank=1, shard=True, path=True, common=True)
    served_model_name: str | None = _server(None, "model name in requests, if it is not --model", rank=1,
        metavar="NAME", shard=True)
    tokenizer: str | None = _server(None, "tokenizer of the prompts, by directory or name; the name is one "
        "in the local hub cache", rank=1, metavar="DIR", shard=True, path=True, common=True)
    vocab_size: int | None = _server(None, "draw token ids below N, if neither tokenizer nor config is "
        "available", rank=1, read=integer_between(1, parsing.MOST_IDS), metavar="N", shard=True)
    headers: dict[str, str] = _server({}, "header of every request, never stored (other users can read it in "
        "`ps`)", rank=1, flag="--header", apart=True,
        nargs="+", action="extend", metavar="NAME=VALUE", resumes=True)


class KeyOptions(OptionRows, frozen=True):
    """The settings of where the API key is read from: no flag takes the key itself, which `ps` would show."""

    # None: OPENAI_API_KEY where it is set; "": no key
    api_key_env: str | None = _key("environment variable with the API key; default OPENAI_API_KEY",
        metavar="NAME", common=True)
    api_key_file: str | None = _key("file with the API key", metavar="FILE")


class CallOptions(OptionRows, frozen=True):
    """The keywords of a call from Python that have no flag."""

    # "": none; default: OPENAI_API_KEY of the environment
    api_key: str | None = setting(Makes.NOTHING, None, names_server=True)


class TrustOptions(OptionRows, frozen=True):
    """The settings of TLS certificates, and of how long to wait for the server."""

    insecure: bool = _server(False, "accept any TLS certificate", rank=3, action="store_true", shard=True)
    ca_cert: str | None = _trust("trust the certificate authorities in FILE (PEM) too")
    client_cert: str | None = _trust("client certificate (PEM), for servers that require one")
    client_key: str | None = _trust("private key of --client-cert, if not in the same file")
    ready_check_timeout_s: float = _server(0.0, "wait S seconds for the server to be ready (default 0: it "
        "must be)", rank=3, flag="--ready-check-timeout-sec", read=number_between(0, parsing.MOST_SECONDS),
        metavar="S", resumes=True)
    # Each as it was written; the feature reads them.
    metrics_url: tuple[str, ...] = setting(Makes.NOTHING, (), "read the /metrics of a server behind the "
        "router (repeatable); ROLE: router, prefill, decode or worker (docs/targets.md)", group=SERVER,
        rank=3, action="append", metavar="ROLE=URL", names_server=True, keyword="list[str]", resumes=True,
        swept=False)
    # The embedded engine answers, with this timing.
    preset: str | None = setting(Makes.REQUEST, None, "name of a simulated server; `loadgen engine "
        "--list-presets` has them, and there is roofline/MACHINE/MODEL", group=SERVER, rank=3, metavar="NAME",
        common=True)


class LaunchRows(OptionRows, frozen=True):
    """The settings of which server to start, and how."""

    engine: str | None = _launch("start this engine on --model, stop it afterwards", flag="--launch",
        choices=LAUNCHED, common=True)
    command: str | None = _launch("start any server: a command line with {port} in it",
        flag="--launch-command", metavar="LINE")
    container: str | None = _launch("start the engine of --launch (default vllm) in a container of this "
        "image", flag="--launch-container", metavar="IMAGE")
    container_engine: str | None = _launch("container engine, docker or podman (default: the first on PATH)",
        metavar="NAME")
    container_args: tuple[str, ...] = setting(Makes.NOTHING, (),
        "more arguments of `docker run`, as '--shm-size 16g'", group=LAUNCH, metavar="LINE",
        keyword=NO_KEYWORD)
    python: str | None = _launch("Python interpreter or venv with the engine installed; of llamacpp, the "
        "program llama-server", flag="--server-python", metavar="PATH", rank=1, path=True)
    timeout_s: float = setting(Makes.NOTHING, START_TIMEOUT_S, "wait S seconds for the launched server to be "
        "ready (default 1200)", group=LAUNCH, flag="--launch-timeout-sec", apart=True, read=float,
        metavar="S", rank=3, keyword=NO_KEYWORD)
    dry_run: bool = setting(Makes.NOTHING, False, "print the command that would start the server, then exit",
        group=LAUNCH, action="store_true", rank=3, keyword=NO_KEYWORD,
        campaign="is a flag of `loadgen campaign`")
    # The server may start in another directory.
    trace_directory: str | None = _launch("have the engine write a profiler trace of the run",
        flag="--server-trace", read=os.path.abspath, metavar="DIR", rank=3, names_server=True)


class ServerKeys(KeyRows, frozen=True):
    """The settings of a server to start: the `[server]` table of a profile; None leaves it to the engine."""

    # Tokens, prompt and answer together.
    context_len: int | None = _asked("most tokens of a request, prompt and answer, that the launched server "
        "accepts", read=int, metavar="N", least=1, most=MOST_TOKENS)
    # Of the GPU's.
    memory_fraction: float | None = _asked("share of the GPU's memory that the launched server uses, 0 to 1",
        read=float, metavar="X", above=0.0, most=1.0)
    tensor_parallel: int | None = _asked("number of GPUs that share the model", read=int, metavar="N",
        least=1, most=_MOST_GPUS, common=True)
    quantization: str | None = _asked("quantization by the engine's name for it (default: from the "
        "checkpoint)", metavar="NAME", check=_check_some_text)
    # Token ids in and out.
    skip_tokenizer: bool | None = _asked("start a server of token ids alone, without a tokenizer",
        action="store_true")
    prefix_caching: bool | None = _asked("reuse of cached prefixes (default: the engine's own)",
        action=argparse.BooleanOptionalAction)
    seed: int | None = _asked("seed of the launched server (default: the engine's own)",
        flag="--server-seed", read=int, metavar="N", least=0, most=MOST_SEED)
    # Requests at once.
    max_running: int | None = _asked("most requests that the launched server runs at once (llamacpp: its "
        "slots)", read=int, metavar="N", least=1, most=_MOST_RUNNING)
    # For the engine, as they are.
    arguments: tuple[str, ...] | None = _asked("more arguments of the engine, passed unchanged",
        flag="--server-args", metavar="LINE", convert=_split_line, rank=0, common=True)
    # Added to the caller's.
    environment: dict[str, str] | None = _asked("variable of the launched server's environment",
        flag="--server-env", action="extend", nargs="+", metavar="NAME=VALUE", check=_check_variables, rank=0)


class MachineOptions(OptionRows, frozen=True):
    """The settings that name machine and model for the roofline where neither can be detected."""

    hardware: str | None = _machine("machine of the server, as jetson-thor or 4xh100 (default: detected from "
        "the GPU's name)", metavar="KEY")
    bandwidth: float | None = _machine("memory bandwidth of the machine, instead of the table's",
        read=float, metavar="GB/s")
    model_config: str | None = _machine("the model's config.json (default: from its directory, or the "
        "table)", metavar="FILE", path=True)
# fmt: on
