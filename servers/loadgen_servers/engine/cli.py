"""The command line of the embedded engine."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec.structs import fields, replace

from loadgen_servers import http_server
from loadgen_servers.engine.presets import DEFAULT, Preset, given, preset, presets
from loadgen_servers.engine.request import ServedModel
from loadgen_servers.engine.scheduler import Limits, Scheduler
from loadgen_servers.engine.server import Engine
from loadgen_servers.engine.step_times import Timing, UnsteadyTiming
from loadgen_servers.http_server import Port

_UNWRITTEN = 4  # the exit code of output that could not be written


def main(argv: Sequence[str] | None = None) -> int:
    """Listen, print the URL as one JSON line, serve until SIGTERM, SIGINT or the end of stdin.

    Raises BrokenPipeError if no one reads what is printed.
    """
    options = parser().parse_args(argv)
    if options.list_presets:
        rows = presets().items()
        if options.json:
            listed = [{"name": name, "model": row.model, "source": row.source} for name, row in rows]
            return 0 if _printed(json.dumps({"presets": listed}, indent=1) + "\n") else _UNWRITTEN
        texts = (f"{name}\n    {row.model}: {row.source}{_note(row)}\n" for name, row in rows)
        return 0 if _printed("".join(texts)) else _UNWRITTEN
    try:
        engine_at = engine_of(options)
    except ValueError as error:
        print(f"loadgen engine: {error}", file=sys.stderr)
        return 2
    http_server.raise_file_limit()
    try:
        port = Port(options.host, options.port)
    except OSError as error:
        place, why = f"{options.host}:{options.port}", (error.strerror or str(error)).partition(" (")[0]
        print(f"loadgen engine: cannot listen on {place}: {why}; try --port 0", file=sys.stderr)
        return 1
    return _serve(engine_at(port), options.exit_with_stdin)


def engine_of(options: argparse.Namespace) -> Callable[..., Engine]:
    """Make what builds the engine of a command line, given its port; raises ValueError for limits."""
    chosen = preset(options.preset) if options.preset_json is None else given(options.preset_json)
    limits = _limits(options, chosen)
    timing: Timing = chosen.timing
    if options.cold_ms or options.slowdown_per_s:
        timing = UnsteadyTiming(timing, options.cold_ms, options.cold_steps, options.slowdown_per_s)
    served = ServedModel(
        model=options.served_model_name or chosen.model,
        max_model_len=options.max_model_len or min(chosen.max_model_len, limits.kv_cache_tokens),
        early_eos=options.early_eos,
        cached_details=options.enable_prompt_tokens_details,
        request_metrics=options.enable_per_request_metrics,
        hidden_reasoning=options.hidden_reasoning,
        role_at_once=options.role_at_once,
        acceptance=limits.acceptance,
    )
    return partial(
        Engine,
        scheduler=_scheduler(options, limits, timing),
        served=served,
        preset=chosen.name,
        interval=options.stream_interval,
    )


def _scheduler(options: argparse.Namespace, limits: Limits, timing: Timing) -> Scheduler:
    """Make the scheduler, one that stalls on purpose or logs if that is asked for; raises ValueError."""
    if options.inject is None and options.log is None:
        return Scheduler(limits, timing)
    # The import is here, since pydantic takes longer to import than the engine to start.
    from loadgen_servers.engine.stalling import (
        InjectionFile,
        StallingScheduler,
        make_draws,
        open_truth_log,
        read_injections,
    )

    asked = InjectionFile(injections=()) if options.inject is None else read_injections(options.inject)
    if limits.acceptance and any(one.kind == "preemption" for one in asked.injections):
        raise ValueError("--acceptance and an injected preemption exclude each other: leave one out")
    made = StallingScheduler(limits, timing, draws=make_draws(asked), skip=asked.skip)
    if options.log is not None:
        try:
            made.log = open_truth_log(options.log)
        except OSError as error:
            raise ValueError(f"--log {options.log}: {error.strerror}") from None
    return made


def _note(row: Preset) -> str:
    return f"\n    note: {row.note}" if row.note else ""


def _printed(text: str) -> bool:
    """Write a text to standard output, at once; False if that takes no more, as a full disk.

    Raises BrokenPipeError if no one reads it.
    """
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"loadgen engine: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return False
    return True


class _Parser(argparse.ArgumentParser):
    """Argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists the flags\n")


def parser() -> argparse.ArgumentParser:
    """The flags of the embedded engine."""
    flags = _Parser(
        prog="loadgen engine",
        usage="%(prog)s [--preset NAME] [--port PORT] [FLAG ...]",
        description="A simulated LLM server: continuous batching in real time, on published step times.",
        allow_abbrev=False,
    )
    add = flags.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=_port, default=0, help="port to listen on; 0 picks a free one (default 0)")
    add("--preset", default=DEFAULT, help=f"machine and model to simulate (default: {DEFAULT})")
    add("--preset-json", metavar="JSON", help="a custom preset: name and a row of presets.toml")
    add("--list-presets", action="store_true", help="show the presets and their sources, then exit")
    add("--json", action="store_true", help="show the presets as one JSON object")
    add("--served-model-name", help="id of the model (default: the preset's)")
    add("--max-num-seqs", type=_positive, help="sequences in a batch (default: the preset's, 256)")
    add("--max-num-batched-tokens", type=_positive, help="tokens in a step (default: the preset's)")
    add("--max-model-len", type=_positive, help="tokens of a prompt and its output (default: the preset's)")
    add("--stream-interval", type=_positive, default=1, metavar="N", help="tokens per streamed chunk")
    share = "share of the requests without ignore_eos that stop before max_tokens (default: 0)"
    add("--early-eos", type=_fraction, default=0.0, metavar="FRACTION", help=share)
    hidden = "tokens that begin each output, are not streamed, and count as reasoning in usage (default: 0)"
    add("--hidden-reasoning", type=_number(int, 0), default=0, metavar="N", help=hidden)
    at_once = "send a chat's role chunk when its request is accepted (default: with the first token)"
    add("--role-at-once", action="store_true", help=at_once)
    own = "report queue, prefill and decode time with a stream's usage, as vLLM does with this flag"
    add("--enable-per-request-metrics", action="store_true", help=own)
    add("--exit-with-stdin", action="store_true", help="stop when stdin ends, as when the parent ends")
    drafts = (
        "decode speculatively: the chance of each draft token to be accepted if those before it were, as "
        "0.8,0.7,0.5 for three a step (default: no drafts)"
    )
    add("--acceptance", type=_fractions, metavar="CHANCE,…", help=drafts)
    _add_kv_cache(flags)
    _add_unsteadiness(flags)
    _add_injections(flags)
    return flags


def _add_kv_cache(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("KV cache").add_argument
    add("--kv-cache-tokens", type=_positive, help="tokens the KV cache holds (default: the preset's)")
    size = "tokens in a block of the prefix cache (default: 16)"
    add("--block-size", type=_positive, default=16, help=size)
    switch = argparse.BooleanOptionalAction
    reuse = "reuse the blocks of earlier prompts that are still in the KV cache (default: on)"
    add("--enable-prefix-caching", dest="prefix_caching", action=switch, default=True, help=reuse)
    details = "report cached prompt tokens as usage.prompt_tokens_details.cached_tokens (default: off)"
    add("--enable-prompt-tokens-details", action=switch, default=False, help=details)
    preempt = (
        "reserve KV for the prompt alone; when the cache is full, requeue the last request "
        "(default: reserve KV for prompt and max_tokens, never preempt)"
    )
    add("--preempt", action="store_true", help=preempt)


def _add_unsteadiness(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("an unsteady machine").add_argument
    cold = "milliseconds added to each cold step (default: 0)"
    steps = "number of first steps that are cold (default: 16)"
    add("--cold-ms", type=_not_negative, default=0.0, metavar="MS", help=cold)
    add("--cold-steps", type=_positive, default=16, metavar="N", help=steps)
    slower = "fraction that every step gets longer by, per second since the first step (default: 0)"
    add("--slowdown-per-s", type=_not_negative, default=0.0, metavar="FRACTION", help=slower)


def _add_injections(parser: argparse.ArgumentParser) -> None:
    about = "known to the microsecond: what a client finds is compared with the log (docs/engines.md)"
    add = parser.add_argument_group("stalls on purpose", about).add_argument
    asked = "a JSON file of stalls: http, queue, prefill, slow_step, preemption"
    add("--inject", type=Path, metavar="FILE", help=asked)
    truth = "write a JSON line for each request and each stall: what was when, by CLOCK_MONOTONIC"
    add("--log", type=Path, metavar="FILE", help=truth)


def _number(kind: type[int] | type[float], least: float, most: float = math.inf) -> Callable[[str], float]:
    """Converts a flag's value to a finite number from `least` to `most`."""

    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if not least <= value <= most or value == math.inf:
            bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
            raise argparse.ArgumentTypeError(f"must be {bounds}, got {text}")
        return value

    return convert


_positive, _port = _number(int, 1), _number(int, 0, 65535)
_fraction, _not_negative = _number(float, 0, 1), _number(float, 0)


def _fractions(text: str) -> tuple[float, ...]:
    return tuple(_fraction(part) for part in text.split(","))


def _limits(options: argparse.Namespace, chosen: Preset) -> Limits:
    given = {field.name: getattr(options, field.name) for field in fields(Limits)}
    limits = replace(chosen.limits, **{name: value for name, value in given.items() if value is not None})
    drafted = f" × {1 + len(limits.acceptance)} tokens to verify" if limits.acceptance else ""
    if limits.max_num_batched_tokens < limits.max_num_seqs * (1 + len(limits.acceptance)):
        raise ValueError(
            f"--max-num-batched-tokens {limits.max_num_batched_tokens} is below --max-num-seqs "
            f"{limits.max_num_seqs}{drafted}: a step could not decode every sequence; lower the second"
        )
    if limits.acceptance and limits.preempt:
        raise ValueError("--acceptance and --preempt exclude each other: leave one out")
    if options.max_model_len and options.max_model_len > limits.kv_cache_tokens:
        raise ValueError(
            f"--max-model-len {options.max_model_len} does not fit --kv-cache-tokens "
            f"{limits.kv_cache_tokens}: a request could wait forever; lower the first or raise the second"
        )
    return limits


def _serve(engine: Engine, exit_with_stdin: bool) -> int:
    port = engine.port
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    # The signal's byte wakes the poll, which would otherwise sleep on (PEP 475).
    port.watch(read_fd, engine.stop)
    previous_fd = signal.set_wakeup_fd(write_fd)
    collecting = gc.isenabled()
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if exit_with_stdin:
            port.watch_stdin(engine.stop)
        line = {"base_url": port.base_url, "preset": engine.preset, "model": engine.served.model}
        if not _printed(f"{msgspec.json.encode(line).decode()}\n"):
            return _UNWRITTEN
        gc.disable()
        engine.run()
    except PermissionError:
        print("loadgen engine: --exit-with-stdin needs a pipe or a terminal as stdin", file=sys.stderr)
        return 2
    finally:
        if collecting:
            gc.enable()
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        port.close()
        os.close(read_fd)
        os.close(write_fd)
    return 0
