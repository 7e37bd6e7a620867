"""Run settings: those of how a run is sent, ended and kept, which change no request and no server."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from loadgen.base import parsing
from loadgen.base.errors import FAIL_CODES
from loadgen.base.parsing import integer_between, number_between, parse_with
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import quote_value
from loadgen.settings import request_settings
from loadgen.settings.setting import (
    NO_KEYWORD,
    OUTPUT,
    REQUESTS,
    RUN,
    STOP,
    UNLISTED,
    WORKLOAD,
    Makes,
    OptionRows,
    make_option_struct,
    setting,
)

MOST_REPEATS, MOST_WORKERS = 10_000, 4096
AUTO = 0  # workers: as many as the load needs
DEAD = 10  # failures in a row, and no success at all: by default such a server is dead
JUDGED_FROM = 20  # requests that have ended before a share of them is judged
DRAIN_S = 30.0  # for those under way once --max-duration has passed
_LIMIT = re.compile(r"(\d{1,9})|(\d{1,3}(?:\.\d{1,6})?)%", re.ASCII)
_NOT_THERE = "cannot be used in a campaign"
_BY_CAMPAIGN = "is a flag of `loadgen campaign`"


class Tolerance(msgspec.Struct, frozen=True):
    """How many requests may fail: a number, or a share (0 to 1) of those that have ended."""

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Tolerance:
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


def _parse_workers(text: str) -> int:
    """Parse a number of workers, or `auto` as AUTO; raises ArgumentTypeError."""
    if text == "auto":
        return AUTO
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{quote_value(text)} is neither a number nor `auto`")
    return integer_between(1, MOST_WORKERS)(text)


# fmt: off
_run = partial(setting, Makes.CLIENT, group=RUN)
_once = partial(setting, Makes.NOTHING, group=RUN, rank=2)
_stop = partial(setting, Makes.CLIENT, group=STOP)
_output = partial(setting, Makes.NOTHING, group=OUTPUT, rank=4)
_switch = partial(_output, False, action="store_true", keyword=NO_KEYWORD, campaign=_NOT_THERE)
_file = partial(_output, None, keyword=NO_KEYWORD, campaign=_NOT_THERE)


class SendOptions(OptionRows, frozen=True):
    """The settings of how requests are sent."""

    transport: Literal["auto", "wire", "ring", "httpx"] | None = _run(None,
        "way that bytes are read and timed. ring: a kernel timestamp for each TCP segment; wire: for each "
        "read; httpx: proxies, HTTP/2; auto (default): ring where it is allowed and tokens may be read late, "
        "else wire", choices=("auto", "ring", "wire", "httpx"), shard=True)
    http2: bool = _run(False, "negotiate HTTP/2, with --transport httpx", action="store_true", shard=True)
    # That connections come from; (): the kernel's choice, or loopback's.
    source_address: tuple[str, ...] = _run((), "addresses of this machine that connections come from, in "
        "turn, where one has too few ports (28,232 for each server; on loopback they are chosen)",
        read=_split_names, metavar="A[,B…]", cluster="each node has its own addresses",
        keyword="list[str]")
    # AUTO: as many as the load needs.
    workers: int = _run(1, "processes that share the load, each with a capturing process (default 1; auto: "
        "as needed)", read=_parse_workers, metavar="N|auto", shard=True, least=1, most=MOST_WORKERS,
        keyword='int | Literal["auto"]')
    request_id_prefix: str | None = setting(Makes.REQUEST, None, "first part of each x-request-id (default: "
        "random)", group=REQUESTS, rank=3, metavar="TEXT")
    # The file that running totals are published in.
    live_totals: str | None = _run(None, "publish running totals in FILE, for another program to read",
        metavar="FILE", keyword=NO_KEYWORD, campaign=_NOT_THERE,
        series="`loadgen bench` publishes those of one run",
        cluster="the display has the totals of all shards")


class AroundOptions(OptionRows, frozen=True):
    """The settings of what is measured and printed around the requests of a run."""

    print_request: bool = setting(Makes.NOTHING, False, "print one request as it would be sent, then exit",
        group=REQUESTS, rank=3, action="store_true", keyword=NO_KEYWORD, campaign=_NOT_THERE,
        series="`loadgen bench` shows one")
    export_requests: str | None = setting(Makes.NOTHING, None, "write the requests to FILE, as rows that "
        "vLLM's data set custom reads too", group=REQUESTS, rank=3, metavar="FILE", keyword=NO_KEYWORD,
        campaign=_NOT_THERE, series="`loadgen bench` writes one plan")
    repeat: int = _once(1, "number of runs of each profile (default 1); each has new prompts",
        read=integer_between(1, MOST_REPEATS),
        metavar="N", keyword=NO_KEYWORD, campaign="is written repeats = N, above the tables", common=True)
    selftest: bool = _once(False, "first measure this client's own error at the same load",
        action="store_true", keyword=NO_KEYWORD, campaign=_NOT_THERE,
        series="run `loadgen selftest` at the highest load first")
    reset_cache: bool = _once(False, "empty the prefix cache before each run (always done for a launched "
        "server; another vLLM must run with VLLM_SERVER_DEV_MODE=1)", action="store_true", names_server=True)
    observe: bool = _once(True, "do not sample the server's /metrics nor this machine's sensors",
        flag="--no-observe", action="store_false")
    probe_memory: bool = _once(False, "measure this machine's memory bandwidth before each run, for up to 2 "
        "s (always done in a campaign)", action="store_true", names_server=True)
    quiet: bool = _once(False, "print no progress; the report and warnings are printed all the same",
        action="store_true", keyword=NO_KEYWORD, resumes=True, campaign=_BY_CAMPAIGN)


class FingerprintOptions(OptionRows, frozen=True):
    """The setting of the greedy prompts."""

    fingerprint: bool = setting(Makes.NOTHING, False, "record the answers to a few greedy prompts, to see "
        "whether a fast checkpoint still answers", group=RUN, rank=2, action="store_true",
        campaign="applies to the whole campaign: write it above the tables")


class StopOptions(OptionRows, frozen=True):
    """The settings of the rules that end a run before its plan is carried out."""

    max_failures: Tolerance | None = _stop(None,
        f"end the run after more than N failures, or N%% of the requests that ended ({JUDGED_FROM} at least)",
        read=parse_with(Tolerance.parse), metavar="N|N%", keyword="int | str")
    # None: the default rule, see stop_rules.
    max_consecutive_failures: int | None = _stop(None,
        f"end the run after N failures in a row; 0: never (default {DEAD}, until one request succeeds)",
        read=integer_between(0, 999_999_999), metavar="N", shard=True)
    max_duration_s: float | None = _stop(None, "send for at most S seconds", flag="--max-duration",
        read=number_between(0.001, parsing.YEAR_S), metavar="S", shard=True)
    drain_timeout_s: float = _stop(DRAIN_S, "seconds that requests have to end after --max-duration, before "
        f"they are cut (default {DRAIN_S:g})", flag="--drain-timeout", read=number_between(0,
        parsing.YEAR_S), metavar="S", shard=True)
    stop_when_saturated: bool = _stop(False, "end the run once the server falls further and further behind "
        "an open loop of one rate", action="store_true",
        cluster="the shards report no request's TTFT while they run")


class OutputOptions(OptionRows, frozen=True):
    """The settings of what a run prints and which files it writes."""

    gpus: int = setting(Makes.NOTHING, 0, "number of GPUs that the server runs on, for tok/s per GPU "
        "(default: of --hardware, or as detected)", group=OUTPUT, rank=2, read=integer_between(1,
        parsing.MOST_GPUS), metavar="N", names_server=True, shard=True)
    # Of the block; a key of block.LAYOUTS.
    layout: str | None = _output(None, "layout of the result block: vllm-0.32 (default), sglang",
        rank=0, metavar="NAME", keyword=NO_KEYWORD, resumes=True)
    explain: bool = _switch("print the whole report, with every doubt", resumes=True, common=True)
    strict: bool = _switch("exit with 3 if the verdict is INVALID, as --fail-on invalid does", resumes=True)
    fail_on: tuple[str, ...] = _output((), "conditions with an exit code of their own: "
        f"{', '.join(FAIL_CODES)} (docs/ci.md)", read=parse_with(_split_conditions), metavar="WHAT[,…]",
        keyword=NO_KEYWORD, resumes=True, campaign=_NOT_THERE)
    json: bool = _switch("print the result as one JSON object, everything else on standard error",
        resumes=True)
    save_result: bool = _switch("write vLLM's result file (JSON) too", common=True)
    save_detailed: bool = _switch("write every request's times and text into vLLM's file", shard=True)
    append_result: bool = _switch("append to vLLM's result file instead of replacing it")
    save_requests: bool = _output(False, "write requests.jsonl too, a row per request",
        action="store_true", keyword=NO_KEYWORD, resumes=True)
    result_dir: str | None = _file("directory of vLLM's result file (default: the current one)",
        metavar="DIR")
    result_filename: str | None = _file("name of vLLM's result file (default: the name that vLLM gives it)",
        metavar="FILE")
    # Where a run directory is written; of a call by default nothing is.
    run_dir: str | None = _output(None, "parent of run directories (default: runs)", metavar="DIR",
        resumes=True, campaign=_BY_CAMPAIGN, common=True)
    metadata: tuple[str, ...] = _output((), "pair that is kept in the results", nargs="+", action="extend",
        read=hide_secrets, metavar="KEY=VALUE", resumes=True, shard=True, keyword="list[str]")
    label: str | None = _output(None, "text that is kept in the results, and begins the name of vLLM's file",
        read=hide_secrets, resumes=True, shard=True)


class CommandFlags(OptionRows, frozen=True):
    """Flags that become other options: which profiles are run, and vLLM's name of --quiet."""

    profile: str | None = setting(Makes.LOAD, None, "workload by name or .toml file; `loadgen profiles` "
        "lists names", group=WORKLOAD, rank=-1, metavar="NAME[,NAME…]", keyword=NO_KEYWORD,
        campaign='is written profiles = ["high-load", …]', common=True)
    disable_tqdm: bool = setting(Makes.NOTHING, False, "print no progress, as --quiet does", group=RUN,
        rank=3, action="store_true", keyword=NO_KEYWORD, campaign=_NOT_THERE)
    endpoint_type: str | None = setting(Makes.REQUEST, None, argparse.SUPPRESS, group=UNLISTED,
        read=parse_with(request_settings.check_backend), keyword=NO_KEYWORD, names_server=True)
# fmt: on

if TYPE_CHECKING:

    class Sending(SendOptions, frozen=True):
        """The types of the rows, for checkers."""

else:
    Sending = make_option_struct("Sending", SendOptions)


def select_sending(options: SendOptions) -> Sending:
    """Select from all options of a run those of SendOptions, which transports get."""
    return Sending(**{row.name: getattr(options, row.name) for row in SendOptions.rows})
