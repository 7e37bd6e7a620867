"""Run settings: how a run is sent, ended, kept and exported, which changes no request and no server."""

import argparse
import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Self

import msgspec

from loadgen.base import parsing
from loadgen.base.errors import FAIL_CODES
from loadgen.base.parsing import Bounded, integer_between, number_between, parse_with
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import quote_value
from loadgen.base.urls import split_http_url
from loadgen.engines.engine import METRICS_PATH
from loadgen.settings import request_settings
from loadgen.settings.setting import (
    LENGTHS,
    OUTPUT,
    REQUESTS,
    RUN,
    SERVER,
    STOP,
    UNLISTED,
    WORKLOAD,
    Makes,
    Setting,
)

BY_ENVIRONMENT = ""  # --otel without a URL: the SDK's variables decide
_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})", re.ASCII)
_HERE = "127.0.0.1"
RECEIVED = f"{_HERE}:4318"  # OTLP/HTTP's own port


def check_collector_url(text: str) -> str:
    """Return the base URL of an OTLP collector without its last slash, "" as it is; raises ValueError."""
    url = text.strip().rstrip("/")
    if not text:
        return BY_ENVIRONMENT
    if (parts := split_http_url(url)) is None:
        raise ValueError(f"{quote_value(text)} is not a collector's URL: give one as http://localhost:4318")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            "the collector's URL holds more than host, port and path (not shown): put a key into "
            "OTEL_EXPORTER_OTLP_HEADERS, a variable"
        )
    if parts.path.endswith(("/v1/traces", "/v1/metrics")):
        raise ValueError(
            f"{url} is the place of one signal: leave out {parts.path[parts.path.index('/v1/') :]}"
        )
    return url


def check_listen_address(text: str) -> str:
    """Return PORT or HOST:PORT as HOST:PORT, of this machine alone without a host; raises ValueError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 1 <= int(match[2]) <= 65_535:
        raise ValueError(f"{quote_value(text)} is not a port: give PORT, or HOST:PORT as 0.0.0.0:9464")
    return f"{match[1] or _HERE}:{int(match[2])}"


def check_power_url(text: str) -> str:
    """Return the URL of an exporter of power without /metrics; raises ValueError."""
    url = text.strip().rstrip("/").removesuffix(METRICS_PATH)
    if (parts := split_http_url(url)) is None:
        raise ValueError(f"{quote_value(text)} is not an exporter's URL: give one as http://node:9400")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an exporter's URL is a host, a port and a path: leave out the rest (not shown)")
    return url


# fmt: off
_own = partial(Setting, Makes.NOTHING, group=OUTPUT, rank=5, resumes=True)


@dataclass(frozen=True)
class TelemetryOptions:
    """The settings of telemetry that leaves the client while it measures."""

    otel: Annotated[str | None, _own("send OpenTelemetry spans and metrics to URL (default: by "
        "OTEL_EXPORTER_OTLP_*, else http://localhost:4318), and a traceparent in each request",
        read=parse_with(check_collector_url), metavar="URL")] = None
    prometheus: Annotated[str | None, _own("serve the figures so far at PORT of this machine, or "
        "HOST:PORT, for Prometheus", read=parse_with(check_listen_address), metavar="[HOST:]PORT")] = None
    receive_spans: Annotated[str | None, _own("receive the server's spans by OTLP/HTTP at PORT of this "
        f"machine, or HOST:PORT (default {RECEIVED}): its own times of each request",
        read=parse_with(check_listen_address), metavar="[HOST:]PORT")] = None
# fmt: on


MOST_REPEATS, MOST_WORKERS = 10_000, 4096
AUTO = 0  # workers: as many as the load needs
DEAD = 10  # failures in a row, and no success at all: by default such a server is dead
JUDGED_FROM = 20  # requests that have ended before a share of them is judged
DRAIN_S = 30.0  # for those under way once --max-duration has passed
_LIMIT = re.compile(r"(\d{1,9})|(\d{1,3}(?:\.\d{1,6})?)%", re.ASCII)


class Tolerance(msgspec.Struct, frozen=True):
    """How many requests may fail: a number, or a share (0 to 1) of those that have ended."""

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `--max-failures 5` or `--max-failures 2.5%`; raises ValueError."""
        match = _LIMIT.fullmatch(text.strip())
        if match is None or (match[2] and float(match[2]) > 100):
            raise ValueError(f"{text!r} is not a number of requests (such as 5) or a share (such as 2.5%)")
        return cls(count=int(match[1])) if match[1] else cls(share=float(match[2]) / 100)

    def is_exceeded(self, failed: int, ended: int) -> bool:
        """Whether `failed` of the `ended` requests are too many; a share is judged from 20 ended on."""
        if self.share is None:
            return self.count is not None and failed > self.count
        return ended >= JUDGED_FROM and failed > self.share * ended

    def __str__(self) -> str:
        return str(self.count) if self.share is None else f"{100 * self.share:g}%"


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _split_conditions(text: str) -> tuple[str, ...]:
    """Split `--fail-on slo,suspect` into names of FAIL_CODES; raises ValueError for another."""
    names = _split_names(text)
    if not names or (unknown := [name for name in names if name not in FAIL_CODES]):
        wrong = quote_value(unknown[0]) if names else "nothing is named"
        raise ValueError(f"{wrong}: choose from {', '.join(FAIL_CODES)}")
    return names


class _WorkerCount(Bounded[int]):
    """An argparse type: a number of workers, or `auto` as AUTO."""

    def __call__(self, text: str) -> int:
        if text == "auto":
            return AUTO
        if not text.isdecimal():
            raise argparse.ArgumentTypeError(f"{quote_value(text)} is neither a number nor `auto`")
        return super().__call__(text)


# fmt: off
_run = partial(Setting, Makes.CLIENT, group=RUN)
_once = partial(Setting, Makes.NOTHING, group=RUN, rank=2)
_stop = partial(Setting, Makes.CLIENT, group=STOP)
_output = partial(Setting, Makes.NOTHING, group=OUTPUT, rank=4)
_address = partial(Setting, Makes.CLIENT, group=SERVER, names_server=True)
_length = partial(Setting, Makes.LOAD, group=LENGTHS, rank=1, metavar="N")


@dataclass(frozen=True)
class SendOptions:
    """The settings of how requests are sent."""

    transport: Annotated[Literal["auto", "ring", "wire", "httpx"] | None, _run("way that bytes are read "
        "and timed. ring: a kernel timestamp for each TCP segment; wire: for each read; httpx: proxies, "
        "HTTP/2; auto (default): ring where it is allowed and tokens may be read late, else wire")] = None
    http2: Annotated[bool, _run("negotiate HTTP/2, with --transport httpx")] = False
    # That connections come from; (): the kernel's choice, or loopback's.
    source_address: Annotated[tuple[str, ...], _run("addresses of this machine that connections come "
        "from, in turn, where one has too few ports (28,232 for each server; on loopback they are chosen)",
        read=_split_names, metavar="A[,B…]")] = ()
    # AUTO: as many as the load needs.
    workers: Annotated[int, _run("processes that share the load, each with a capturing process (default 1; "
        "auto: as needed)", read=_WorkerCount(int, 1, MOST_WORKERS, "a whole number", f"1 to {MOST_WORKERS}"),
        metavar="N|auto")] = 1
    request_id_prefix: Annotated[str | None, Setting(Makes.REQUEST, "first part of each x-request-id "
        "(default: random)", group=REQUESTS, rank=3, metavar="TEXT")] = None
    # The file that running totals are published in.
    live_totals: Annotated[str | None, _run("publish running totals in FILE, for another program to read",
        metavar="FILE")] = None


@dataclass(frozen=True)
class AroundOptions:
    """The settings of what is measured and printed around the requests of a run."""

    print_request: Annotated[bool, Setting(Makes.NOTHING, "print one request as it would be sent, then "
        "exit", group=REQUESTS, rank=3)] = False
    export_requests: Annotated[str | None, Setting(Makes.NOTHING, "write the requests to FILE, as rows "
        "that vLLM's data set custom reads too", group=REQUESTS, rank=3, metavar="FILE")] = None
    repeat: Annotated[int, _once("number of runs of each profile (default 1); each has new prompts",
        read=integer_between(1, MOST_REPEATS), metavar="N", common=True)] = 1
    resume: Annotated[str | None, _once("go on with runs that were interrupted: the same command, and their "
        "directory; of `bench` that of any of them", metavar="DIR", resumes=True)] = None
    selftest: Annotated[bool, _once("first measure this client's own error at the same load")] = False
    reset_cache: Annotated[bool, _once("empty the prefix cache before each run (always done for a "
        "launched server; another vLLM must run with VLLM_SERVER_DEV_MODE=1)", names_server=True)] = False
    observe: Annotated[bool, _once("do not sample the server's /metrics nor this machine's sensors",
        flag="--no-observe")] = True
    probe_memory: Annotated[bool, _once("measure this machine's memory bandwidth before each run, for up "
        "to 2 s (always done in a campaign)", names_server=True)] = False
    quiet: Annotated[bool, _once("print no progress; the report and warnings are printed all the same",
        resumes=True)] = False
    power_url: Annotated[tuple[str, ...], _once("read the power of the server's machines at URL "
        "(repeatable): DCGM's exporter (port 9400), node_exporter's RAPL (9100), AMD's "
        "device-metrics-exporter (5000)", read=parse_with(check_power_url), action="append", metavar="URL",
        names_server=True)] = ()
    fingerprint: Annotated[bool, _once("record the responses to a few greedy prompts, to see whether a fast "
        "checkpoint still answers")] = False


@dataclass(frozen=True)
class StopOptions:
    """The settings of the rules that end a run before its plan is carried out."""

    max_failures: Annotated[Tolerance | None, _stop(
        f"end the run after more than N failures, or N%% of the requests that ended ({JUDGED_FROM} at least)",
        read=parse_with(Tolerance.parse), metavar="N|N%")] = None
    # None: the default rule, see stop_rules.
    max_consecutive_failures: Annotated[int | None, _stop(
        f"end the run after N failures in a row; 0: never (default {DEAD}, until one request succeeds)",
        read=integer_between(0, 999_999_999), metavar="N")] = None
    max_duration_s: Annotated[float | None, _stop("send for at most S seconds", flag="--max-duration",
        read=number_between(0.001, parsing.YEAR_S), metavar="S")] = None
    drain_timeout_s: Annotated[float, _stop("seconds that requests have to end after --max-duration, before "
        f"they are cut (default {DRAIN_S:g})", flag="--drain-timeout", read=number_between(0, parsing.YEAR_S),
        metavar="S")] = DRAIN_S
    stop_when_saturated: Annotated[bool, _stop("end the run once the server falls further and further "
        "behind an open loop of one rate")] = False


@dataclass(frozen=True)
class OutputOptions:
    """The settings of what a run prints and which files it writes."""

    gpus: Annotated[int, Setting(Makes.NOTHING, "number of GPUs that the server runs on, for tok/s per "
        "GPU (default: of --hardware, or as detected)", group=OUTPUT, rank=2,
        read=integer_between(1, parsing.MOST_GPUS), metavar="N", names_server=True)] = 0
    # Of the block; a key of block.LAYOUTS.
    layout: Annotated[str | None, _output("layout of the result block: vllm-0.32 (default), sglang", rank=0,
        metavar="NAME", resumes=True)] = None
    explain: Annotated[bool, _output("print the whole report, with every doubt", resumes=True,
        common=True)] = False
    strict: Annotated[bool, _output("exit with 3 if the verdict is INVALID, as --fail-on invalid does",
        resumes=True)] = False
    fail_on: Annotated[tuple[str, ...], _output("conditions with an exit code of their own: "
        f"{', '.join(FAIL_CODES)} (docs/ci.md)", read=parse_with(_split_conditions), metavar="WHAT[,…]",
        resumes=True)] = ()
    json: Annotated[bool, _output("print the result as one JSON object, everything else on standard error",
        resumes=True)] = False
    save_result: Annotated[bool, _output("write vLLM's result file (JSON) too", common=True)] = False
    save_detailed: Annotated[bool, _output("write every request's times and text into vLLM's file")] = False
    append_result: Annotated[bool, _output("append to vLLM's result file instead of replacing it")] = False
    save_requests: Annotated[bool, _output("write requests.jsonl too, a row per request",
        resumes=True)] = False
    result_dir: Annotated[str | None, _output("directory of vLLM's result file (default: the current one)",
        metavar="DIR")] = None
    result_filename: Annotated[str | None, _output("name of vLLM's result file (default: the name that vLLM "
        "gives it)", metavar="FILE")] = None
    # Where a run directory is written; of a call by default nothing is.
    run_dir: Annotated[str | None, _output("parent of run directories (default: runs)", metavar="DIR",
        resumes=True, common=True)] = None
    metadata: Annotated[tuple[str, ...], _output("pair that is kept in the results", action="extend",
        read=hide_secrets, metavar="KEY=VALUE", resumes=True)] = ()
    label: Annotated[str | None, _output("text that is kept in the results, and begins the name of vLLM's "
        "file", read=hide_secrets, resumes=True)] = None


@dataclass(frozen=True)
class CommandFlags:
    """Flags that become other options: addresses, profiles, every data set's lengths, names of vLLM's."""

    base_url: Annotated[list[str] | None, _address("address of a running server, http or https; several "
        "times: servers of one model that share the requests (docs/targets.md)", action="append",
        metavar="URL", common=True)] = None
    host: Annotated[str | None, _address("host of a running server, in place of --base-url")] = None
    port: Annotated[int | None, _address("port of the server at --host (default 8000; with --backend sglang "
        "30000, lmdeploy 23333)", read=integer_between(0, 65535))] = None
    every_input_len: Annotated[int | None, _length("prompt tokens, as --random-input-len",
        flag="--input-len")] = None
    every_output_len: Annotated[int | None, _length("output tokens of every data set, instead of its own",
        flag="--output-len")] = None
    profile: Annotated[str | None, Setting(Makes.LOAD, "workload by name or .toml file; `loadgen "
        "profiles` lists names", group=WORKLOAD, rank=-1, metavar="NAME[,NAME…]", common=True)] = None
    disable_tqdm: Annotated[bool, Setting(Makes.NOTHING, "print no progress, as --quiet does", group=RUN,
        rank=3)] = False
    endpoint_type: Annotated[str | None, Setting(Makes.REQUEST, argparse.SUPPRESS, group=UNLISTED,
        read=parse_with(request_settings.check_backend), names_server=True)] = None
# fmt: on
