"""Flags: the command line of `loadgen bench`, vLLM's spelling and meaning where it has one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.features.data.data_settings import READ_OUTPUT_LENS
from loadgen.features.shards.shard_flags import ShardOptions
from loadgen.fleet.cluster_flags import ClusterOptions
from loadgen.run import which_server
from loadgen.run.launch_options import Launching, joined, launching
from loadgen.run.other_options import add_unheeded_flags, explained, refuse
from loadgen.run.stop_rules import StopRules
from loadgen.settings import backends, table
from loadgen.settings.load_settings import SeedOptions
from loadgen.settings.run_settings import AroundOptions, OutputOptions, SendOptions, StopOptions
from loadgen.settings.server_settings import KeyOptions, MachineOptions, TargetOptions, TrustOptions
from loadgen.settings.setting import Setting, make_option_struct
from loadgen.wire.sent_headers import check_headers, check_path, check_request_id_prefix

if TYPE_CHECKING:
    from loadgen.plan.plan import Plan
    from loadgen.settings.keyword_types import WorkloadOptions
    from loadgen.transport.sending.share import Share

_UNSET: Any = argparse.SUPPRESS
_CERTIFICATES = ("--ca-cert", "--client-cert", "--client-key")
_NAMING_DATA = {"dataset_name", "dataset_path", "profile"}
_HEADER = re.compile(r"\s*([\w!#$%&'*+.^`|~-]+)\s*[=:]\s*(.*?)\s*", re.ASCII | re.DOTALL)

# All settings that a command may have: the core's, and those that features contribute.
TABLE: tuple[Setting, ...] = (*table.TABLE, *ShardOptions.rows, *ClusterOptions.rows)

if TYPE_CHECKING:

    class _Settings(
        TargetOptions,
        KeyOptions,
        TrustOptions,
        MachineOptions,
        SeedOptions,
        SendOptions,
        AroundOptions,
        StopOptions,
        OutputOptions,
        ShardOptions,
        ClusterOptions,
        frozen=True,
    ):
        """What each of these rows is, for checkers."""

else:
    _Settings = make_option_struct("_Settings", *table.OPTIONS, ShardOptions, ClusterOptions)


def _no_keys() -> WorkloadOptions:
    return {}


class Options(_Settings, frozen=True):
    """The command line of `bench`, parsed once: the settings of a run, and what follows from them."""

    profiles: tuple[str, ...] = ()
    overrides: WorkloadOptions = msgspec.field(default_factory=_no_keys)  # of a profile, that were given
    base_url: str | None = None
    more_urls: tuple[str, ...] = ()  # of further servers that share the requests
    default_url: bool = False  # no address was given, and base_url is a client's default
    default_port: bool = False  # nor a port: that of base_url is a client's default
    launching: Launching = msgspec.field(default_factory=Launching)
    formula: str | None = None  # of the ladder's speed
    depth: tuple[int, ...] | None = None  # of the ladder: tokens that are cached before
    no_effect: tuple[str, ...] = ()  # flags of vLLM that were given, and change nothing here

    @property
    def share(self) -> Share:
        """The part of the plan that this command sends."""
        from loadgen.transport.sending.share import WHOLE  # numpy, which --help does without

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


def is_given(options: Options, row: Setting) -> bool:
    """Whether a setting of a run is not what it is without a flag."""
    return bool(getattr(options, row.name) != row.default)


def parse(argv: Sequence[str], parser: argparse.ArgumentParser | None = None) -> Options:
    """The options on this command line; raises UsageError that names what is wrong with it."""
    words = joined(argv[1:] if argv[:1] == ["serve"] else argv)  # pasted from `vllm bench serve`
    refuse(words)
    values = vars(parse_arguments(parser or bench_parser(), words, explained=explained))
    given = frozenset(values)
    laid_over(values)
    labels = values.get("backend"), values.pop("endpoint_type", None), values.get("endpoint") or ""
    default_port = backends.find_default_port(*labels)
    if (backend := backends.choose_backend(*labels)) is not None:
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
        overrides=cast("WorkloadOptions", values),
        base_url=base_url or default_url,
        more_urls=tuple(more_urls),
        default_url=default_url is not None,
        default_port=default_url is not None or (host is not None and port is None),
        headers=headers,
        launching=launch,
        **options,
    )


def laid_over(values: dict[str, Any]) -> None:
    """Lay --input-len and --output-len over each data set's own, as vLLM 0.32 does, in the flags' values."""
    if (tokens := values.pop("every_input_len", None)) is not None:
        values["input_len"] = tokens
    if (tokens := values.pop("every_output_len", None)) is not None:
        values["output_len"] = tokens
        if _NAMING_DATA & {*values, *_varied(values)}:
            values.update(dict.fromkeys(READ_OUTPUT_LENS, tokens))


def _varied(values: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a profile that a sweep's flags vary, as they name them."""
    for text in (*values.get("vary", ()), *chain.from_iterable(values.get("link", ()))):
        yield text.partition("=")[0].strip().replace("-", "_")


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
    table.add_groups(parser, rows=TABLE)
    add_unheeded_flags(parser)
    return parser
