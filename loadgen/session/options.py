"""Flags: the command line of `loadgen bench`, vLLM's spelling and meaning where it has one."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from loadgen.endpoint.secrecy import hide
from loadgen.errors import UsageError
from loadgen.protocol.sent_headers import check_headers, check_path, check_request_id_prefix
from loadgen.session.launch_options import Launching, add_launch_flags, joined, launching
from loadgen.session.refused_options import ONLY_RANDOM, OTHER_DATASETS, REFUSED
from loadgen.session.stop_options import add_stop_flags
from loadgen.session.stop_rules import DRAIN_S, Tolerance
from loadgen.spelling import Parser, refuse_unknown
from loadgen.workload.bounds import MOST_IDS, MOST_REQUESTS, MOST_SECONDS, MOST_SEED, real, shown, whole

_MOST_REPEATS = 10_000
_LONGEST = 20  # digits that are looked at
_UNSET: Any = argparse.SUPPRESS
_CERTIFICATES = ("--ca-cert", "--client-cert", "--client-key")

_HEADER = re.compile(r"\s*([\w!#$%&'*+.^`|~-]+)\s*[=:]\s*(.*?)\s*", re.ASCII | re.DOTALL)


class Options(msgspec.Struct, frozen=True):
    """The command line of `bench`, parsed once; `overrides` are the profile keys that were given."""

    profiles: tuple[str, ...] = ()
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    base_url: str | None = None
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
    preset: str | None = None
    print_request: bool = False
    quiet: bool = False
    observe: bool = True
    launching: Launching = msgspec.field(default_factory=Launching)
    reset_cache: bool = False
    fingerprint: bool = False
    hardware: str | None = None
    bandwidth: float | None = None  # GB/s
    model_config: str | None = None
    layout: str | None = None  # of the block; a key of block.LAYOUTS
    formula: str | None = None  # of the ladder's speed
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
    max_failures: Tolerance | None = None
    max_consecutive_failures: int | None = None  # None: the default rule, see stop_rules
    max_duration_s: float | None = None
    drain_timeout_s: float = DRAIN_S

    @property
    def saves(self) -> bool:
        """Whether a result file is written beside the run directory."""
        return self.save_result or self.save_detailed or self.append_result


def parse(argv: Sequence[str], parser: argparse.ArgumentParser | None = None) -> Options:
    """The options on this command line; raises UsageError that names what is wrong with it."""
    words = joined(argv)
    _refuse(words)
    parser = parser or bench_parser()
    given, unknown = parser.parse_known_args(words)
    if unknown:
        refuse_unknown(unknown[0], parser)
    values = vars(given)
    if values.pop("dataset_name") != "random":
        raise UsageError("--dataset-name: only random is built")
    base_url = values.pop("base_url", None)
    host, port = values.pop("host", None), values.pop("port", None)
    if host is not None or port is not None:
        if base_url is not None:
            raise UsageError("--base-url names host and port already: leave out --host and --port")
        base_url = f"http://{host or '127.0.0.1'}:{8000 if port is None else port}"
    profiles = tuple(values.pop("profile").split(",")) if "profile" in values else ()
    if not all(profiles):
        raise UsageError("--profile: a name is empty; `loadgen profiles` lists them")
    headers = _headers(values.pop("header", []))
    check_path(values.get("endpoint") or "")
    check_request_id_prefix(values.get("request_id_prefix") or "")
    launch = launching(values)
    if base_url is not None and launch.wanted:
        raise UsageError("--base-url is a server that is there already: leave out --launch, or --base-url")
    certificate = next((flag for flag in _CERTIFICATES if values.get(flag[2:].replace("-", "_"))), None)
    if certificate is not None and base_url is None:
        raise UsageError(f"{certificate} is for a server that is there already: pass its https --base-url")
    names = Options.__struct_fields__
    options = {name: values.pop(name) for name in list(values) if name in names}
    # They are written into every result as they are given.
    if "metadata" in options:
        options["metadata"] = tuple(map(hide, options["metadata"]))
    if "label" in options:
        options["label"] = hide(options["label"])
    if values.pop("disable_tqdm", False):
        options["quiet"] = True
    return Options(
        profiles=profiles, overrides=values, base_url=base_url, headers=headers, launching=launch, **options
    )


def _refuse(argv: Sequence[str]) -> None:
    for position, word in enumerate(argv):
        flag = word.split("=", 1)[0]
        following = argv[position + 1] if position + 1 < len(argv) else "--"
        if word == "--profile" and following.startswith("--"):
            raise UsageError(
                "--profile takes the name of a workload here (`loadgen profiles` lists them); "
                "vLLM's bare --profile, which profiles the server, is --server-trace"
            )
        reason = REFUSED.get(flag, ONLY_RANDOM if flag.startswith(OTHER_DATASETS) else None)
        if reason is not None:
            raise UsageError(f"{flag} is a flag of `vllm bench serve` that is not built: {reason}")


def _headers(pairs: Sequence[str]) -> dict[str, str]:
    """Headers written NAME=VALUE, or as curl has them; no word of one that is refused is shown."""
    found = {}
    for number, pair in enumerate(pairs, 1):
        named = _HEADER.fullmatch(pair)
        if named is None:
            raise UsageError(
                f"--header: value {number} (not shown) is no header: write NAME=VALUE in ASCII, in quotes"
            )
        found[named[1]] = named[2]
    check_headers(found.items())
    return found


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
        allow_abbrev=False,
        argument_default=_UNSET,
        description="Benchmark a server: attach with --base-url; without it, the embedded engine.",
        epilog="Without --profile: the workload of `vllm bench serve`, 1000 prompts of 1024 in / 128 out.",
    )
    _target_flags(parser.add_argument_group("server"))
    add_launch_flags(parser.add_argument_group("a server started for the run"))
    _workload_flags(parser.add_argument_group("workload"))
    _request_flags(parser.add_argument_group("requests"))
    _run_flags(parser.add_argument_group("the run"))
    add_stop_flags(parser.add_argument_group("rules to stop (docs/reliability.md)"))
    add_roofline_flags(parser.add_argument_group("roofline"))
    _output_flags(parser.add_argument_group("output"))
    return parser


Group = argparse._ArgumentGroup


def add_key_flags(group: argparse._ActionsContainer) -> None:
    """The flags that say where the API key is; none takes the key itself, which other users would see."""
    add = group.add_argument
    add("--api-key-env", metavar="NAME", help="variable that holds the API key (default OPENAI_API_KEY)")
    add("--api-key-file", metavar="FILE", help="file that holds it, instead")


def _target_flags(group: Group) -> None:
    add = group.add_argument
    add("--base-url", metavar="URL", help="for example http://localhost:8000; https works too")
    add("--host", help="with --port, instead of --base-url")
    add("--port", type=whole(0, 65535))
    add(
        "--endpoint",
        metavar="PATH",
        help="default: the backend's own, /v1/completions or /v1/chat/completions",
    )
    add(
        "--backend",
        choices=("openai", "openai-chat", "vllm", "sglang"),
        help="which API (default openai: completions; sglang: its own /generate)",
    )
    add("--model", help="default: the first that /v1/models names")
    add("--served-model-name", metavar="NAME", help="the name requests carry, where it is not --model")
    add("--tokenizer", metavar="DIR", help="where token ids or text prompts come from")
    add(
        "--vocab-size",
        type=whole(1, MOST_IDS),
        metavar="N",
        help="draw ids below N, where no tokenizer or config tells",
    )
    add(
        "--header",
        nargs="+",
        action="extend",
        metavar="NAME=VALUE",
        help="sent with every request, never stored; of a key, other users see it in `ps`",
    )
    add_key_flags(group)
    add("--insecure", action="store_true", help="accept any TLS certificate")
    add("--ca-cert", metavar="FILE", help="trust the authorities in it (PEM), besides the system's")
    add("--client-cert", metavar="FILE", help="our own certificate (PEM), for servers that ask for one")
    add("--client-key", metavar="FILE", help="its key, where that is not in the same file")
    add("--ready-check-timeout-sec", dest="ready_check_timeout_s", type=real(0, MOST_SECONDS), metavar="S",
        help="how long to wait for the server to be ready (default 0: it must be)")  # fmt: skip
    add(
        "--preset",
        metavar="NAME",
        help="timing of the embedded engine; `loadgen engine --list-presets`, or roofline/MACHINE/MODEL",
    )


def _workload_flags(group: Group) -> None:
    add = group.add_argument
    add(
        "--profile",
        metavar="NAME[,NAME…]",
        help="a preset or a path to a .toml; `loadgen profiles` lists them",
    )
    add("--dataset-name", default="random", help="random, the only one built")
    add("--random-input-len", "--input-len", dest="input_len", type=int, metavar="N", help="prompt tokens")
    add("--random-output-len", "--output-len", dest="output_len", type=int, metavar="N", help="answer tokens")
    add("--random-range-ratio", dest="range_ratio", metavar="R", help="lengths vary by ± R, 0 to 1")
    add("--random-prefix-len", dest="prefix_len", type=int, metavar="N", help="tokens shared by all prompts")
    add("--num-prompts", type=int, metavar="N")
    add("--max-concurrency", type=int, metavar="N", help="requests under way at most (default: no limit)")
    add("--request-rate", type=float, metavar="RPS", help="requests due per second (default inf)")
    add("--burstiness", type=float, metavar="B", help="1 Poisson (default), <1 bursts, >1 even, inf constant")
    add("--duration", type=float, metavar="S", help="send for S seconds, instead of a number of prompts")
    add("--num-warmups", type=_warmups, metavar="N", help="requests before the measured ones, or `wave`")
    add("--seed", type=whole(-MOST_SEED, MOST_SEED), help="default: drawn, printed and recorded")
    add("--prompt-format", choices=("auto", "ids", "text-vllm", "text-vllm-0.9"),
        help="ids: exactly N random token ids (default where the API takes them)")  # fmt: skip


def _request_flags(group: Group) -> None:
    add, yes_no = group.add_argument, argparse.BooleanOptionalAction
    add("--ignore-eos", action=yes_no, help="let no answer end early (default, where the server takes it)")
    for name, kind in (("temperature", float), ("top-p", float), ("top-k", int), ("min-p", float)):
        add(f"--{name}", type=kind, metavar="X")
    for name in ("frequency-penalty", "presence-penalty", "repetition-penalty"):
        add(f"--{name}", type=float, metavar="X")
    add("--logprobs", type=int, metavar="N")
    add("--extra-body", type=_json_object, metavar="JSON", help="merged into every request")
    add("--chat-template-kwargs", type=_json_object, metavar="JSON")
    add("--no-stream", dest="stream", action="store_false", help="whole answers: E2E latency only")
    add("--continuous-usage", action="store_true", help="ask for the token count on every message")
    add("--request-id-prefix", metavar="TEXT", help="of x-request-id (default: drawn)")
    add("--print-request", action="store_true", help="print one request as it would be sent, then exit")


def _run_flags(group: Group) -> None:
    add = group.add_argument
    add(
        "--transport", choices=("wire", "httpx"), help="wire: kernel stamps (default); httpx: proxies, HTTP/2"
    )
    add("--http2", action="store_true", help="with --transport httpx")
    add("--request-timeout", type=float, metavar="S", help="per request, 0 for none (default 21600)")
    add("--stall-timeout", type=float, metavar="S", help="without a token, 0 for none (default 300)")
    add("--repeat", type=_repeats, metavar="N", help="runs of each profile, each with prompts of its own")
    add("--selftest", action="store_true", help="measure this client first, at the load to come")
    add("--reset-cache", action="store_true",
        help="empty the prefix cache before each run (of a launched server: always)")  # fmt: skip
    add("--fingerprint", action="store_true",
        help="keep the answers to a few greedy prompts: does a fast checkpoint still answer?")  # fmt: skip
    add("--no-observe", dest="observe", action="store_false",
        help="leave the server's /metrics and this machine's sensors alone")  # fmt: skip
    add("--quiet", action="store_true", help="no progress")
    add("--disable-tqdm", action="store_true", help="the same")


def add_roofline_flags(group: Group) -> None:
    """The flags that say what machine and what model it is, where they do not say so themselves."""
    add = group.add_argument
    add("--hardware", metavar="KEY", help="as jetson-thor, 4xh100 (default: as the GPU names itself)")
    add("--bandwidth", type=float, metavar="GB/s", help="of its memory, instead of the table's")
    add(
        "--model-config",
        metavar="FILE",
        help="the model's config.json (default: its directory's, or the table's)",
    )


def _output_flags(group: Group) -> None:
    add = group.add_argument
    add("--layout", metavar="NAME", help="of the block: vllm-0.32 (default), vllm-2025, sglang, sglang-2025")
    add("--percentile-metrics", metavar="LIST", help="of ttft,tpot,itl,e2el (default ttft,tpot,itl)")
    add("--metric-percentiles", metavar="LIST", help="default 99")
    add("--goodput", nargs="+", metavar="NAME:MS", help="objectives, as ttft:500 tpot:50 e2el:9000")
    add("--warmup", metavar="N|Ss", help="leave these requests or seconds out of the steady state's begin")
    add("--cooldown", metavar="N|Ss", help="and these out of its end")
    add("--explain", action="store_true", help="every doubt with its evidence, condition and remedy")
    add("--strict", action="store_true", help="exit 3 where the verdict is INVALID")
    add("--save-result", action="store_true", help="also write vLLM's result JSON")
    add("--save-detailed", action="store_true", help="with every request's times and text in it")
    add("--append-result", action="store_true", help="append to the file instead")
    add("--save-requests", action="store_true", help="also write requests.jsonl, a row per request")
    add("--result-dir", metavar="DIR", help="for --save-result (default: here)")
    add("--result-filename", metavar="FILE")
    add("--run-dir", metavar="DIR", help="where run directories go (default: runs)")
    add("--metadata", nargs="+", action="extend", metavar="KEY=VALUE")
    add("--label")


def _repeats(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:_LONGEST]) <= _MOST_REPEATS:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of runs: give 1 to {_MOST_REPEATS}")
    return int(text)


def _warmups(text: str) -> int | str:
    if text == "wave":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{shown(text)} is neither a number nor `wave`")
    return whole(0, MOST_REQUESTS)(text)
