"""Flags: the command line of `loadgen bench`, vLLM's spelling and meaning where it has one."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from loadgen.base import bounds
from loadgen.base.bounds import parsed_by, real, shown, whole
from loadgen.base.errors import UsageError
from loadgen.base.secrecy import hide
from loadgen.base.spelling import Parser, arguments
from loadgen.fleet.cluster_flags import add_cluster_flags
from loadgen.plan import backends
from loadgen.run import which_server
from loadgen.run.cancel_options import add_cancel_flags
from loadgen.run.data_options import add_data_flags, laid_over
from loadgen.run.launch_options import Launching, add_launch_flags, joined, launching
from loadgen.run.other_options import add_unheeded_flags, explained, refuse
from loadgen.run.shards.flags import add_shard_flags
from loadgen.run.stop_options import add_stop_flags
from loadgen.run.stop_rules import DRAIN_S, StopRules, Tolerance
from loadgen.wire.sent_headers import check_headers, check_path, check_request_id_prefix

if TYPE_CHECKING:
    from loadgen.plan.plan import Plan
    from loadgen.run.shards.start_at import PlannedStart
    from loadgen.transport.share import Share

_MOST_REPEATS, MOST_WORKERS = 10_000, 4096
AUTO = 0  # workers: as many as the load needs
_UNSET: Any = argparse.SUPPRESS
_CERTIFICATES = ("--ca-cert", "--client-cert", "--client-key")

_HEADER = re.compile(r"\s*([\w!#$%&'*+.^`|~-]+)\s*[=:]\s*(.*?)\s*", re.ASCII | re.DOTALL)


class Options(msgspec.Struct, frozen=True):
    """The command line of `bench`, parsed once; `overrides` are the profile keys that were given."""

    profiles: tuple[str, ...] = ()
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    base_url: str | None = None
    more_urls: tuple[str, ...] = ()  # of further servers that share the requests
    default_url: bool = False  # no address was given, and base_url is a client's default
    default_port: bool = False  # nor a port: that of base_url is a client's default
    endpoint: str | None = None
    model: str | None = None
    served_model_name: str | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    api_key_env: str | None = None  # None: OPENAI_API_KEY where it is set; "": no key
    api_key_file: str | None = None
    insecure: bool = False
    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    ready_check_timeout_s: float = 0.0
    seed: int | None = None
    request_id_prefix: str | None = None
    transport: str | None = None
    http2: bool = False
    source_address: tuple[str, ...] = ()  # that connections come from; (): the kernel's choice, or loopback's
    preset: str | None = None
    print_request: bool = False
    export_requests: str | None = None
    quiet: bool = False
    observe: bool = True
    launching: Launching = msgspec.field(default_factory=Launching)
    reset_cache: bool = False
    fingerprint: bool = False
    hardware: str | None = None
    gpus: int = 0  # that the server runs on; 0: not given
    bandwidth: float | None = None  # GB/s
    model_config: str | None = None
    layout: str | None = None  # of the block; a key of block.LAYOUTS
    formula: str | None = None  # of the ladder's speed
    depth: tuple[int, ...] | None = None  # of the ladder: tokens that are cached before
    selftest: bool = False
    explain: bool = False
    strict: bool = False
    repeat: int = 1
    label: str | None = None
    save_result: bool = False
    save_detailed: bool = False
    append_result: bool = False
    result_dir: str | None = None
    result_filename: str | None = None
    metadata: tuple[str, ...] = ()
    run_dir: str | None = None
    save_requests: bool = False
    no_effect: tuple[str, ...] = ()  # flags of vLLM that were given, and change nothing here
    max_failures: Tolerance | None = None
    max_consecutive_failures: int | None = None  # None: the default rule, see stop_rules
    max_duration_s: float | None = None
    drain_timeout_s: float = DRAIN_S
    stop_when_saturated: bool = False
    workers: int = 1  # AUTO: as many as the load needs
    live_totals: str | None = None  # the file that running totals are published in
    shard: Share | None = None  # of the plan, that this command sends; None: all of it
    start_at: PlannedStart | None = None  # None: as soon as it can
    expect_plan: str | None = None  # the digest of the only plan that may be sent
    cluster: str | None = None  # the address of a Ray cluster whose shards send the plan; None: this machine
    shards: int | None = None  # on the cluster

    @property
    def share(self) -> Share:
        """The part of the plan that this command sends."""
        from loadgen.transport.share import WHOLE  # numpy, which --help does without

        return self.shard or WHOLE

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all servers, as given; none where one is started."""
        return () if self.base_url is None else (self.base_url, *self.more_urls)

    @property
    def embedded(self) -> bool:
        """Whether the embedded engine answers: no other server is named."""
        return self.base_url is None and not self.launching.wanted

    @property
    def saves(self) -> bool:
        """Whether a result file is written too, next to the run directory."""
        return self.save_result or self.save_detailed or self.append_result

    def stop_rules(self, plan: Plan | None = None) -> StopRules:
        """The rules to stop, for one run: each run has its own; saturation is judged of a plan's rate."""
        rules = StopRules(
            self.max_failures, self.max_consecutive_failures, self.max_duration_s, self.drain_timeout_s
        )
        rules.sessions = plan is not None and plan.turns is not None
        if self.stop_when_saturated and plan is not None:
            from loadgen.run import saturation  # few runs need it

            rules.saturation = saturation.rule_of(plan)
        return rules


def parse(argv: Sequence[str], parser: argparse.ArgumentParser | None = None) -> Options:
    """The options on this command line; raises UsageError that names what is wrong with it."""
    words = joined(argv[1:] if argv[:1] == ["serve"] else argv)  # pasted from `vllm bench serve`
    refuse(words)
    values = vars(arguments(parser or bench_parser(), words, explained=explained))
    given = frozenset(values)
    laid_over(values)
    labels = values.get("backend"), values.pop("endpoint_type", None), values.get("endpoint") or ""
    default_port = backends.default_port(*labels)
    if (backend := backends.meant(*labels)) is not None:
        values["backend"] = backend
    base_url, *more_urls = values.pop("base_url", None) or [None]
    host, port = values.pop("host", None), values.pop("port", None)
    if host is not None or port is not None:
        if base_url is not None:
            raise UsageError("--base-url names host and port already: leave out --host and --port")
        name = f"[{host}]" if ":" in (host or "").strip("[]") and host[0] != "[" else host
        base_url = f"http://{name or '127.0.0.1'}:{default_port if port is None else port}"
    profiles = tuple(values.pop("profile").split(",")) if "profile" in values else ()
    if not all(profiles):
        raise UsageError("--profile: a name is empty; `loadgen profiles` lists them")
    headers = _headers(values.pop("header", []))
    check_path(values.get("endpoint") or "")
    check_request_id_prefix(values.get("request_id_prefix") or "")
    launch = launching(values)
    if base_url is not None and launch.wanted:
        raise UsageError("--base-url is a running server: leave out --launch, or --base-url")
    certificate = next((flag for flag in _CERTIFICATES if values.get(flag[2:].replace("-", "_"))), None)
    if certificate is not None and base_url is None:
        raise UsageError(f"{certificate} applies to a running server: pass its https --base-url")
    default_url = which_server.default_url(given, launch.wanted, default_port) if base_url is None else None
    names = Options.__struct_fields__
    options = {name: values.pop(name) for name in list(values) if name in names}
    options["workers"] = which_server.workers(options.get("workers"), 1 + len(more_urls))
    options["metadata"] = tuple(options.get("metadata", ()))
    if values.pop("disable_tqdm", False):
        options["quiet"] = True
    return Options(
        profiles=profiles,
        overrides=values,
        base_url=base_url or default_url,
        more_urls=tuple(more_urls),
        default_url=default_url is not None,
        default_port=default_url is not None or (host is not None and port is None),
        headers=headers,
        launching=launch,
        **options,
    )


def _headers(pairs: Sequence[str]) -> dict[str, str]:
    """Headers written NAME=VALUE, or as curl has them; no word of one that is refused is shown."""
    headers = {}
    for number, pair in enumerate(pairs, 1):
        named = _HEADER.fullmatch(pair)
        if named is None:
            raise UsageError(
                f"--header: value {number} (not shown) is not a header: write NAME=VALUE in ASCII, in quotes"
            )
        headers[named[1]] = named[2]
    check_headers(headers.items())
    return headers


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{shown(hide(text))} is not a JSON object")
    return value


def bench_parser() -> argparse.ArgumentParser:
    """The parser of `loadgen bench`; what is not given is absent from its result."""
    parser = Parser(
        prog="loadgen bench",
        usage="%(prog)s [--base-url URL|--launch ENGINE|--preset NAME] [FLAG ...]",
        allow_abbrev=False,
        argument_default=_UNSET,
        description="Benchmark a server: a running one (--base-url) or one started for the run (--launch). "
        "Without an address, flags that speak of a server (--model, --dataset-name, …) mean the one at "
        f"{which_server.DEFAULT_URL}, as in `vllm bench serve` (sglang, lmdeploy: their ports); with "
        "--preset, or without any such flag, the embedded engine answers: a simulation.",
        epilog="Without --profile: the workload of `vllm bench serve`, 1000 prompts of 1024 in / 128 out.",
    )
    _target_flags(parser.add_argument_group("server"))
    add_launch_flags(parser.add_argument_group("a server started for the run"))
    add_workload_flags(parser.add_argument_group("workload"))
    add_data_flags(parser)
    _request_flags(parser.add_argument_group("requests"))
    _run_flags(parser.add_argument_group("the run"))
    add_shard_flags(parser.add_argument_group("one plan sent by several commands (docs/shards.md)"))
    add_cluster_flags(parser.add_argument_group("a plan sent from a Ray cluster (docs/shards.md)"))
    add_stop_flags(parser.add_argument_group("rules to stop (docs/reliability.md)"))
    add_roofline_flags(parser.add_argument_group("roofline"))
    _output_flags(parser.add_argument_group("output"))
    add_unheeded_flags(parser)
    return parser


Group = argparse._ArgumentGroup


# fmt: off
def add_key_flags(group: argparse._ActionsContainer) -> None:
    """The flags that name the API key's place; none takes the key itself, which other users would see."""
    add = group.add_argument
    add("--api-key-env", metavar="NAME",
        help="environment variable with the API key (default OPENAI_API_KEY)")
    add("--api-key-file", metavar="FILE", help="file with the API key")


def _target_flags(group: Group) -> None:
    add = group.add_argument
    add("--base-url", action="append", metavar="URL",
        help="address of a running server, http or https; several times: servers of one model that share the "
        "requests (docs/targets.md)")
    add("--host", help="with --port, instead of --base-url")
    add("--port", type=whole(0, 65535), help="default 8000; of --backend sglang 30000, of lmdeploy 23333")
    add("--endpoint", metavar="PATH", help="default: the backend's, /v1/completions or /v1/chat/completions")
    add("--backend", type=parsed_by(backends.known), metavar="{" + ",".join(backends.OWN) + "}",
        help="API (default openai: completions; sglang: its own /generate)")
    add("--model", help="default: the first in /v1/models")
    add("--served-model-name", metavar="NAME", help="model name in requests, if not --model")
    add("--tokenizer", metavar="DIR", help="or a name in the local hub cache: source of ids or text prompts")
    add("--vocab-size", type=whole(1, bounds.MOST_IDS), metavar="N",
        help="draw token ids below N, if neither tokenizer nor config is available")
    add("--header", nargs="+", action="extend", metavar="NAME=VALUE",
        help="sent with every request, never stored (other users can read it in `ps`)")
    add_key_flags(group)
    add("--insecure", action="store_true", help="accept any TLS certificate")
    add("--ca-cert", metavar="FILE", help="also trust these certificate authorities (PEM)")
    add("--client-cert", metavar="FILE", help="our certificate (PEM), for servers that require one")
    add("--client-key", metavar="FILE", help="its private key, if not in the same file")
    add("--ready-check-timeout-sec", dest="ready_check_timeout_s", metavar="S",
        type=real(0, bounds.MOST_SECONDS),
        help="wait S seconds for the server to be ready (default 0: it must be)")
    add("--preset", metavar="NAME",
        help="simulate a server's timing: see `loadgen engine --list-presets`, or roofline/MACHINE/MODEL")


def add_workload_flags(group: Group) -> None:
    """The flags of how many requests there are, and when."""
    add = group.add_argument
    add("--profile", metavar="NAME[,NAME…]", help="see `loadgen profiles`, or a path to a .toml file")
    add("--num-prompts", type=int, metavar="N",
        help="requests in all (default: the profile's or the file's, else 1000)")
    add("--max-concurrency", type=int, metavar="N", help="most requests in flight (default: no limit)")
    add("--request-rate", type=float, metavar="RPS", help="requests per second (default inf)")
    add("--burstiness", type=float, metavar="B", help="1 Poisson (default), <1 bursts, >1 even, inf constant")
    add("--duration", type=float, metavar="S", help="send for S seconds, instead of a number of prompts")
    add_cancel_flags(group)
    add("--num-warmups", type=_warmups, metavar="N", help="requests before the measured ones, or `wave`")
    add("--seed", type=whole(-bounds.MOST_SEED, bounds.MOST_SEED),
        help="default: random, printed and recorded")


def _request_flags(group: Group) -> None:
    add, yes_no = group.add_argument, argparse.BooleanOptionalAction
    add("--ignore-eos", action=yes_no,
        help="generate every planned token (default of random prompts and traces, where supported)")
    add("--min-tokens", type=int, metavar="N", help="output tokens at least, where --ignore-eos is refused")
    for name, kind in (("temperature", float), ("top-p", float), ("top-k", int), ("min-p", float)):
        add(f"--{name}", type=kind, metavar="X", help="default: the profile's, else the server's own")
    for name in ("frequency-penalty", "presence-penalty", "repetition-penalty"):
        add(f"--{name}", type=float, metavar="X", help="default: the profile's, else the server's own")
    add("--logprobs", type=int, metavar="N", help="request those of N tokens at each place (default: none)")
    add("--extra-body", type=_json_object, metavar="JSON", help="merged into every request")
    add("--chat-template-kwargs", type=_json_object, metavar="JSON",
        help="variables of the chat template, sent with every chat request")
    add("--disable-stream", dest="stream", action="store_false", help="whole responses: E2E latency only")
    add("--continuous-usage", action="store_true", help="request the token count with every message")
    add("--request-id-prefix", metavar="TEXT", help="of x-request-id (default: random)")
    add("--print-request", action="store_true", help="print one request as it would be sent, then exit")
    add("--export-requests", metavar="FILE", help="write the requests as rows that vLLM's custom reads too")


def _run_flags(group: Group) -> None:
    add = group.add_argument
    add("--transport", choices=("auto", "ring", "wire", "httpx"),
        help="ring: a kernel timestamp for each TCP segment; wire: for each read; httpx: proxies, HTTP/2; "
        "auto (default): ring where it is allowed and tokens may be read late, else wire")
    add("--http2", action="store_true", help="with --transport httpx")
    add("--source-address", type=_addresses, metavar="A[,B…]",
        help="addresses of this machine that connections come from, in turn, where one has too few ports "
        "(28,232 for each server; on loopback they are chosen)")
    add("--workers", type=_workers, metavar="N|auto",
        help="processes that share the load, each with a capturing process (default 1; auto: as needed)")
    add("--live-totals", metavar="FILE", help="publish running totals in FILE, for another program to read")
    add("--request-timeout", type=float, metavar="S", help="seconds of a request, 0: none (default 21600)")
    add("--stall-timeout", type=float, metavar="S", help="seconds without a token, 0: none (default 300)")
    add("--repeat", type=whole(1, _MOST_REPEATS), metavar="N",
        help="runs of each profile, with new prompts each")
    add("--selftest", action="store_true", help="first measure this client's own error at the same load")
    add("--reset-cache", action="store_true",
        help="empty the prefix cache before each run (always done for a launched server; "
        "another vLLM must run with VLLM_SERVER_DEV_MODE=1)")
    add("--fingerprint", action="store_true",
        help="record the answers to a few greedy prompts, to see whether a fast checkpoint still answers")
    add("--no-observe", dest="observe", action="store_false",
        help="do not sample the server's /metrics nor this machine's sensors")
    add("--quiet", action="store_true", help="no progress display")
    add("--disable-tqdm", action="store_true", help="as --quiet")


def add_roofline_flags(group: Group) -> None:
    """The flags that name machine and model, where neither can be detected."""
    add = group.add_argument
    add("--hardware", metavar="KEY", help="as jetson-thor or 4xh100 (default: detected from the GPU's name)")
    add("--bandwidth", type=float, metavar="GB/s", help="memory bandwidth, instead of the table's")
    add("--model-config", metavar="FILE",
        help="the model's config.json (default: from its directory, or the table)")


def _output_flags(group: Group) -> None:
    add = group.add_argument
    add("--layout", metavar="NAME",
        help="of the result block: vllm-0.32 (default), vllm-2025, sglang, sglang-2025")
    add("--percentile-metrics", metavar="LIST",
        help="of ttft,tpot,itl,e2el,ttfvt,e2el_per_token,prefill_speed,user_tps (default ttft,tpot,itl)")
    add("--metric-percentiles", metavar="LIST", help="default 99")
    add("--goodput", nargs="+", metavar="NAME:MS", help="objectives, as ttft:500 tpot:50 e2el:9000")
    add("--slo", metavar="TEXT",
        help="judge percentiles: 'ttft p90 < 500ms, tpot p90 < 50ms', or mlperf/llama3.1-8b")
    add("--gpus", type=whole(1, bounds.MOST_GPUS), metavar="N",
        help="GPUs that the server runs on, for tok/s per GPU (default: of --hardware, or as detected)")
    add("--warmup", metavar="N|Ss", help="exclude the first N requests or S seconds from the steady state")
    add("--cooldown", metavar="N|Ss", help="exclude the last ones")
    add("--explain", action="store_true", help="print the whole report, with every doubt")
    add("--strict", action="store_true", help="exit with 3 if the verdict is INVALID")
    add("--save-result", action="store_true", help="also write vLLM's result JSON")
    add("--save-detailed", action="store_true", help="include every request's times and text")
    add("--append-result", action="store_true", help="append to the file instead")
    add("--save-requests", action="store_true", help="also write requests.jsonl, a row per request")
    add("--result-dir", metavar="DIR", help="for --save-result (default: the current directory)")
    add("--result-filename", metavar="FILE", help="default: the name that vLLM gives it")
    add("--run-dir", metavar="DIR", help="parent of run directories (default: runs)")
    add("--metadata", nargs="+", action="extend", type=hide,  # as in every result
        metavar="KEY=VALUE", help="kept in the results")
    add("--label", type=hide, help="kept in the results, and the beginning of vLLM's file name")
# fmt: on


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _workers(text: str) -> int:
    if text == "auto":
        return AUTO
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{shown(text)} is neither a number nor `auto`")
    return whole(1, MOST_WORKERS)(text)


def _warmups(text: str) -> int | str:
    if text == "wave":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{shown(text)} is neither a number nor `wave`")
    return whole(0, bounds.MOST_REQUESTS)(text)
