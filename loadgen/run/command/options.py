"""Options: the command line of `loadgen bench`, vLLM's spelling and meaning where it has one."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, cast
from urllib.parse import urlsplit

from loadgen.base.errors import UsageError
from loadgen.base.parsing import Parser, parse_arguments, suggest_name
from loadgen.base.text import quote_value
from loadgen.base.urls import check_headers, check_path, check_request_id_prefix
from loadgen.settings import request_settings, setting, table, vllm_flags
from loadgen.settings.data_settings import ANSWER_LENS
from loadgen.settings.keyword_types import BenchOptions, WorkloadOptions
from loadgen.settings.server_settings import LaunchOptions, ServerKeys
from loadgen.settings.setting import list_rows
from loadgen.settings.shard_settings import WHOLE, Share
from loadgen.settings.table import TABLE, RunOptions

_UNSET: Any = argparse.SUPPRESS
_HELPS = ("-h", "--help", "--help-all")
_SHORT_HELP = (
    "Benchmark a running server (--base-url), one started for the run (--launch), or a simulation "
    "(--preset). The flags of most runs:"
)
_CERTIFICATES = ("--ca-cert", "--client-cert", "--client-key")
_NAMING_DATA = {"dataset_name", "dataset_path", "profile"}
_HEADER = re.compile(r"\s*([\w!#$%&'*+.^`|~-]+)\s*[=:]\s*(.*?)\s*", re.ASCII | re.DOTALL)

DEFAULT_URL = "http://127.0.0.1:8000"  # where `vllm serve` listens, and what `vllm bench serve` measures
# Flags by their names in the parser, and keywords of `bench()`: each only makes sense of a server that runs.
SPEAKING_OF_A_SERVER = frozenset(
    {row.dest for row in TABLE if row.names_server}
    | {row.name for row in TABLE if row.names_server and row.name in BenchOptions.__annotations__}
    | {"no_effect"}
)
_NOTHING_THERE = (
    " (no address was given, and this is {}): start a server there, or pass --base-url URL or --launch "
    "ENGINE; for a simulation, pass --preset NAME (`loadgen engine --list-presets` has the names)"
)
_LINES = ("--server-args", "--container-args")
_OF_A_START = ("python", "timeout_s", "dry_run")
_ASKED, _LAUNCH = list_rows(ServerKeys), list_rows(LaunchOptions)
_OTHERS = "docs/from-others.md"  # what SGLang's, guidellm's and aiperf's flags are here


@dataclass(frozen=True)
class Launching(LaunchOptions):
    """The settings of the server to start."""

    settings: dict[str, Any] = field(default_factory=dict)  # of the server, those that were given

    @property
    def wanted(self) -> bool:
        """Whether a server is to be started."""
        return bool(self.engine or self.command or self.container)

    @property
    def name(self) -> str:
        """The engine's name, for the report and the log's directory."""
        return self.engine or ("container" if self.container else "command")


@dataclass(frozen=True)
class Options(RunOptions):
    """The parsed command line of `bench`: the settings of a run, and what follows from them."""

    profiles: tuple[str, ...] = ()
    overrides: WorkloadOptions = field(default_factory=WorkloadOptions)
    base_url: str | None = None
    more_urls: tuple[str, ...] = ()  # of further servers that share the requests
    default_url: bool = False  # no address was given, and base_url is a client's default
    default_port: bool = False  # nor a port: that of base_url is a client's default
    launching: Launching = field(default_factory=Launching)
    formula: str | None = None  # of the ladder's speed
    depth: tuple[int, ...] | None = None  # of the ladder: tokens that are cached before
    batch_sizes: tuple[int, ...] | None = None  # of the ladder at depth: requests at once
    api_headers: Mapping[str, str] = field(default_factory=dict)  # of the API of the profile
    no_effect: tuple[str, ...] = ()  # flags of vLLM that were given, and change nothing here

    @property
    def share(self) -> Share:
        """The share of the plan that this command sends."""
        return self.shard or WHOLE

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all servers, as given; () if one is started."""
        return () if self.base_url is None else (self.base_url, *self.more_urls)

    @property
    def embedded(self) -> bool:
        """Whether the embedded engine answers, since no other server is named."""
        return self.base_url is None and not self.launching.wanted

    @property
    def saves(self) -> bool:
        """Whether to write vLLM's result file too, next to the run directory."""
        return self.save_result or self.save_detailed or self.append_result

    @property
    def failing(self) -> frozenset[str]:
        """The names in FAIL_CODES that make an exit code; --strict is --fail-on invalid."""
        return frozenset(self.fail_on) | ({"invalid"} if self.strict else frozenset())


_DEFAULTS = Options()
_NAMES = frozenset(each.name for each in fields(Options))


def is_given(options: Options, name: str) -> bool:
    """Whether a setting of a run differs from its default."""
    return bool(getattr(options, name) != getattr(_DEFAULTS, name))


def parse(argv: Sequence[str], parser: argparse.ArgumentParser | None = None) -> Options:
    """Parse the command line of `bench`, or of vLLM's `bench serve`; raises UsageError."""
    words = join_flag_lines(argv[1:] if argv[:1] == ["serve"] else argv)  # pasted from `vllm bench serve`
    if parser is None:
        parser = bench_parser()
        parser.help_flag = "--help-all"
    values = parse_words(parser, words)
    given = frozenset(values)
    lay_over_lengths(values)
    values["profiles"] = tuple(values.pop("profile").split(",")) if "profile" in values else ()
    if not all(values["profiles"]):
        raise UsageError("--profile: a name is empty; `loadgen profiles` lists them")
    headers = {}
    for number, pair in enumerate(values.pop("header", []), 1):
        named = _HEADER.fullmatch(pair)
        if named is None:
            raise UsageError(
                f"--header: value {number} (not shown) is not a header: write NAME=VALUE in ASCII, in quotes"
            )
        headers[named[1]] = named[2]
    check_headers(headers.items())
    values["headers"] = headers
    if values.pop("disable_tqdm", False):
        values["quiet"] = True
    options = normalise(values, given)
    certificate = next((flag for flag in _CERTIFICATES if getattr(options, flag[2:].replace("-", "_"))), None)
    if certificate is not None and (options.base_url is None or options.default_url):
        raise UsageError(f"{certificate} applies to a running server: pass its https --base-url")
    return options


def normalise(values: dict[str, Any], given: Collection[str]) -> Options:
    """Make a run's options of flags' or keywords' `values`, from which it takes them; raises UsageError.

    The other values are keys of a profile. `given` are the names of the flags or keywords.
    """
    labels = values.get("backend"), values.pop("endpoint_type", None), values.get("endpoint") or ""
    default_port = request_settings.find_default_port(*labels)
    if (backend := request_settings.choose_backend(*labels)) is not None:
        values["backend"] = backend
    urls, host, port = (values.pop(name, None) for name in ("base_url", "host", "port"))
    if host is not None or port is not None:
        if urls:
            raise UsageError("--base-url names host and port already: leave out --host and --port")
        name = f"[{host}]" if ":" in (host or "").strip("[]") and host[0] != "[" else host
        urls = [f"http://{name or '127.0.0.1'}:{default_port if port is None else port}"]
    check_path(values.get("endpoint") or "")
    check_request_id_prefix(values.get("request_id_prefix") or "")
    launch = read_launching(values)
    if urls and launch.wanted:
        raise UsageError("--base-url is a running server: leave out --launch, or --base-url")
    default_url = None if urls else find_default_url(given, launch.wanted, default_port)
    base_url, *more_urls = urls or [default_url]
    own = {name: values.pop(name) for name in _NAMES & values.keys()}
    targets = 1 + len(more_urls)
    workers = own.setdefault("workers", targets)
    if workers is None:
        own["workers"] = targets
    elif workers % targets:
        near = max(workers // targets, 1) * targets
        raise UsageError(
            f"--workers {workers}: {targets} --base-url need as many workers each: pass {near} or "
            f"{near + targets}, or leave it out"
        )
    own |= {name: tuple(value) for name, value in own.items() if isinstance(value, list)}
    return Options(
        overrides=cast(WorkloadOptions, values),
        base_url=base_url,
        more_urls=tuple(more_urls),
        default_url=default_url is not None,
        default_port=default_url is not None or (host is not None and port is None),
        launching=launch,
        **own,
    )


def lay_over_lengths(values: dict[str, Any]) -> None:
    """Move --input-len and --output-len to profile keys, in place; with data named, to ANSWER_LENS too."""
    if (tokens := values.pop("every_input_len", None)) is not None:
        values["input_len"] = tokens
    if (tokens := values.pop("every_output_len", None)) is not None:
        values["output_len"] = tokens
        varied = (*values.get("vary", ()), *chain.from_iterable(values.get("link", ())))
        names = {text.partition("=")[0].strip().replace("-", "_") for text in varied}
        if _NAMING_DATA & {*values, *names}:
            values.update(dict.fromkeys(ANSWER_LENS, tokens))


def bench_parser() -> Parser:
    """Make the parser of `loadgen bench`; flags that are not given are absent from its result."""
    parser = Parser(
        prog="loadgen bench",
        usage="%(prog)s [--base-url URL|--launch ENGINE|--preset NAME] [FLAG ...]",
        allow_abbrev=False,
        argument_default=_UNSET,
        description="Benchmark a server: a running one (--base-url) or one started for the run (--launch). "
        "Without an address, flags that speak of a server (--model, --dataset-name, …) mean the one at "
        f"{DEFAULT_URL}, as in `vllm bench serve` (sglang, lmdeploy: their ports); with "
        "--preset, or without any such flag, the embedded engine answers: a simulation.",
        epilog="Without --profile: the workload of `vllm bench serve`, 1000 prompts of 1024 in / 128 out.",
    )
    parser.add_argument("--help-all", action="help", dest="help", help=argparse.SUPPRESS)
    table.add_groups(parser)
    add_unlisted_flags(parser)
    return parser


class _ShortHelp(argparse.HelpFormatter):
    """A help formatter whose placeholders of values leave room for the texts."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], Any]:
        """Format the placeholder of a flag's value, without its choices."""
        if action.choices is not None or str(action.metavar).startswith("{"):
            return lambda count: ("NAME",) * count
        return super()._metavar_formatter(action, default_metavar)


def render_help(words: Sequence[str]) -> str | None:
    """Return the help that a command line requests (common flags, all, a group); None if it requests none.

    Raises UsageError for a group that there is not.
    """
    asked = next((word for word in join_flag_lines(words) if word.partition("=")[0] in _HELPS), None)
    if asked is None:
        return None
    parser, (flag, _, name) = bench_parser(), asked.partition("=")
    if name and name not in setting.GROUPS:
        near = suggest_name(name, setting.GROUPS)
        raise UsageError(f"no group {quote_value(name)}{near}; there are {', '.join(setting.GROUPS)}")
    shown = {row.option for row in TABLE if row.group == setting.GROUPS[name]} if name else None
    if flag != "--help-all" and not name:
        shown = {row.option for row in TABLE if row.common}
        parser.formatter_class, parser.description = _ShortHelp, _SHORT_HELP
        parser.epilog = f"More: --help-all, or --help=GROUP, of {', '.join(setting.GROUPS)}."
        for action in parser._actions:  # the first phrase is enough
            action.help = (action.help or "").partition("; ")[0]
    for action in parser._actions:
        if shown is not None and shown.isdisjoint(action.option_strings):
            action.help = argparse.SUPPRESS
    return parser.format_help()


def find_default_url(given: Collection[str], launched: bool, port: int | None = None) -> str | None:
    """Return the default address; None if a server is started or simulated instead.

    `port` is the default of the client whose name of an API was given; None: vLLM's.
    """
    if launched or "preset" in given or SPEAKING_OF_A_SERVER.isdisjoint(given):
        return None
    vllms = request_settings.find_default_port(None)
    return DEFAULT_URL if port in (None, vllms) else change_port(DEFAULT_URL, port)


def change_port(url: str, port: int) -> str:
    """Return a URL that ends with a port, with another port."""
    return f"{url.rpartition(':')[0]}:{port}"


def explain_no_server(url: str) -> str:
    """Explain what to do if no server answers at the default address; appended to an error."""
    return _NOTHING_THERE.format(request_settings.name_port_owner(urlsplit(url).port))


def join_flag_lines(argv: Sequence[str]) -> list[str]:
    """Join each flag that takes a line of another program's flags with that line in one argument.

    Flags with underscores are those with dashes, as vLLM's parser has them.
    """
    words, rest = [], iter(argv)
    for raw in rest:
        flag, equals, value = raw.partition("=")
        word = f"{flag.replace('_', '-')}{equals}{value}" if raw.startswith("--") else raw
        line = next(rest, None) if word in _LINES else None
        words.append(word if line is None else f"{word}={line}")
    return words


def read_launching(values: dict[str, Any]) -> Launching:
    """Remove the settings of the server to start from the flags' `values`, and return them.

    Raises UsageError for those that are wrong, contradict each other, or need a server to start.
    """
    values["server_args"] = _split_words("--server-args", values.get("server_args", ""))
    values["container_args"] = _split_words("--container-args", values.get("container_args", ""))
    environment = {}
    for pair in values.get("server_env", ()):
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--server-env {quote_value(name)}: write NAME=VALUE")
        environment[name] = value
    values["server_env"] = environment
    own = {row.name: values.pop(row.dest) for row in (*_ASKED, *_LAUNCH) if row.dest in values}
    asked = {row.name: own.pop(row.name, None) for row in _ASKED}
    settings = {name: value for name, value in asked.items() if value not in (None, (), {})}
    launch = Launching(settings=settings, **own)
    if launch.command is not None and launch.engine:
        raise UsageError("--launch-command is the whole command: leave out --launch")
    if not 0 < launch.timeout_s < 1e9:
        raise UsageError(f"--launch-timeout-sec {launch.timeout_s:g}: give seconds, more than 0")
    if launch.container is None and (launch.container_engine or launch.container_args):
        raise UsageError("--container-engine and --container-args go with --launch-container")
    needless = [row.option for row in _ASKED if row.name in launch.settings]
    of_a_start = [row for row in _LAUNCH if row.name in _OF_A_START]
    needless += [row.option for row in of_a_start if getattr(launch, row.name) != row.default]
    if needless and not launch.wanted:
        raise UsageError(
            f"{needless[0]} applies to a server that loadgen starts: "
            "add --launch, --launch-command or -container"
        )
    return launch


def _split_words(flag: str, line: str) -> tuple[str, ...]:
    """Split the line of a flag as a shell does; raises UsageError for an open quote."""
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"{flag} {quote_value(line)}: {str(error).lower()}") from None


def parse_words(
    parser: argparse.ArgumentParser, words: Sequence[str], intermixed: bool = False
) -> dict[str, Any]:
    """Parse a command line to values by attribute; raises UsageError, which explains a flag of vLLM's.

    Positional arguments may stand between flags if `intermixed`.
    """
    vllm_flags.refuse_bare_profile(words)
    return vars(parse_arguments(parser, words, intermixed, vllm_flags.explain_flag, _OTHERS))


def add_unlisted_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that no help lists: those without effect, and renamed ones."""
    vllm_flags.add_unheeded_flags(parser)
    table.add_flags(parser, table.list_flags(setting.UNLISTED))
