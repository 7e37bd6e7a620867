"""Server: the settings of which server is measured, how it is reached and trusted, and on what it runs."""

from __future__ import annotations

from functools import partial

from loadgen.base import bounds
from loadgen.base.bounds import integer_between, number_between
from loadgen.settings.groups import OUTPUT, ROOFLINE, SERVER
from loadgen.settings.setting import NO_KEYWORD, Makes, OptionRows, setting

# fmt: off
_server = partial(setting, Makes.CLIENT, group=SERVER, names_server=True)
_place = partial(_server, None, keyword=NO_KEYWORD)
_key = partial(_place, rank=2, resumes=True,
    campaign="is a flag of `loadgen campaign`: a file cannot hold keys")
_trust = partial(_server, None, rank=3, metavar="FILE", shard=True)
_machine = partial(setting, Makes.NOTHING, None, group=ROOFLINE, names_server=True)


class AddressFlags(OptionRows, frozen=True):
    """Where the server is: these become the addresses of `Options`."""

    base_url: list[str] | None = _place("address of a running server, http or https; several times: servers "
        "of one model that share the requests (docs/targets.md)", action="append", metavar="URL")
    host: str | None = _place("with --port, instead of --base-url")
    port: int | None = _place("default 8000; of --backend sglang 30000, of lmdeploy 23333",
        read=integer_between(0, 65535))


class TargetOptions(OptionRows, frozen=True):
    """Which API and which model are requested, and how they are reached."""

    endpoint: str | None = _server(None,
        "default: the backend's, /v1/completions or /v1/chat/completions", metavar="PATH", shard=True)
    model: str | None = _server(None, "default: the first in /v1/models", rank=1, shard=True,
        path=True)
    served_model_name: str | None = _server(None, "model name in requests, if not --model", rank=1,
        metavar="NAME", shard=True)
    tokenizer: str | None = _server(None, "or a name in the local hub cache: source of ids or text prompts",
        rank=1, metavar="DIR", shard=True, path=True)
    vocab_size: int | None = _server(None, "draw token ids below N, if neither tokenizer nor config is "
        "available", rank=1, read=integer_between(1, bounds.MOST_IDS), metavar="N", shard=True)
    headers: dict[str, str] = _server({}, "sent with every request, never stored (other users can read "
        "it in `ps`)", rank=1, flag="--header", apart=True,
        nargs="+", action="extend", metavar="NAME=VALUE", resumes=True)


class KeyOptions(OptionRows, frozen=True):
    """The API key's place: no flag takes the key itself, which other users would see."""

    # None: OPENAI_API_KEY where it is set; "": no key
    api_key_env: str | None = _key("environment variable with the API key (default OPENAI_API_KEY)",
        metavar="NAME")
    api_key_file: str | None = _key("file with the API key", metavar="FILE")


class CallOptions(OptionRows, frozen=True):
    """Keywords of a call that no flag has."""

    # "": none; default: OPENAI_API_KEY of the environment
    api_key: str | None = setting(Makes.NOTHING, None, names_server=True)


class TrustOptions(OptionRows, frozen=True):
    """Which certificates are trusted and shown, and how long the server may take to be ready."""

    insecure: bool = _server(False, "accept any TLS certificate", rank=3, action="store_true", shard=True)
    ca_cert: str | None = _trust("also trust these certificate authorities (PEM)")
    client_cert: str | None = _trust("our certificate (PEM), for servers that require one")
    client_key: str | None = _trust("its private key, if not in the same file")
    ready_check_timeout_s: float = _server(0.0, "wait S seconds for the server to be ready (default 0: it "
        "must be)", rank=3, flag="--ready-check-timeout-sec", read=number_between(0, bounds.MOST_SECONDS),
        metavar="S", resumes=True)
    # The embedded engine answers, with this timing.
    preset: str | None = setting(Makes.REQUEST, None, "simulate a server's timing: see `loadgen engine "
        "--list-presets`, or roofline/MACHINE/MODEL", group=SERVER, rank=3, metavar="NAME")


class MachineOptions(OptionRows, frozen=True):
    """Machine and model, where neither can be detected."""

    hardware: str | None = _machine("as jetson-thor or 4xh100 (default: detected from the GPU's name)",
        metavar="KEY")
    bandwidth: float | None = _machine("memory bandwidth, instead of the table's", read=float,
        metavar="GB/s")
    model_config: str | None = _machine("the model's config.json (default: from its directory, or the "
        "table)", metavar="FILE", path=True)
    gpus: int = setting(Makes.NOTHING, 0, "GPUs that the server runs on, for tok/s per GPU (default: of "
        "--hardware, or as detected)", group=OUTPUT, rank=2, read=integer_between(1, bounds.MOST_GPUS),
        metavar="N", names_server=True, shard=True)
# fmt: on
