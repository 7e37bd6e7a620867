"""`loadgen selftest`: this client against a null server, which logs when it really wrote each message."""

from __future__ import annotations

import argparse
import math
import select
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen import clock
from loadgen.arrays import Int64
from loadgen.endpoint.discovery import ServerAddress
from loadgen.errors import MeasureError, UsageError
from loadgen.metrics.metrics import compute
from loadgen.metrics.record import Records
from loadgen.protocol import engines
from loadgen.protocol.layout import counted
from loadgen.protocol.openai import DIALECTS
from loadgen.results.printing import printed
from loadgen.session import signals
from loadgen.session.measure import Outcome, TransportOptions, Watch, measure
from loadgen.session.progress import Display, display
from loadgen.session.transport_choice import runnable
from loadgen.spelling import Parser, arguments
from loadgen.telemetry.environment import describe
from loadgen.transport.job import Health
from loadgen.validity import calibration
from loadgen.validity.calibration import Calibration, Error, Seen, Sent, compare
from loadgen.validity.run_metadata import asked
from loadgen.workload import plan, profile
from loadgen.workload.bounds import MOST_STREAMS, real, whole
from loadgen.workload.plan import Plan
from loadgen.workload.plan_inputs import ModelTarget, Seed
from loadgen.workload.profile import Profile
from loadgen.workload.requests import PromptRequests
from loadgen_servers.process.embedded import NULL, Embedded, EngineFailed

_TTFT_MS = 50.0
_REQUEST_S = 0.5  # how long a request shall last: short ones give more first tokens
_STEP_S = 0.4  # how long one of the capacity search shall
_SLOW = 1.2  # beyond this share of the interval the null server is at its end, not the client
_MARGIN = 1.3  # a step with twice the streams takes longer
_LEAST_MESSAGES = 4
_LEAST_CPU_US = 0.1  # of a message: no clock of CPU time is finer
_PATIENCE_S = 60.0
_LEAST_INTERVAL_MS = 0.5  # at the pace of a warm-up: one process writes all messages
_USUAL_STREAMS = 256
_COUNT, _POSITIVE = whole(1, MOST_STREAMS), real(0.001, 10_000)  # of its flags


class SelftestLoad(msgspec.Struct, frozen=True):
    """The load on the client: a message every `interval_ms` on each of `streams`."""

    streams: int = _USUAL_STREAMS
    interval_ms: float = 20.0
    tokens_per_message: int = 1
    input_tokens: int = 64
    chat: bool = False

    @classmethod
    def of(cls, workload: Profile) -> SelftestLoad:
        """The load of a run to come, from its profile; the server's pace is a guess."""
        streams = workload.max_concurrency or _USUAL_STREAMS
        return cls(
            streams=min(streams, workload.num_prompts or streams),
            input_tokens=workload.input_len,
            chat=workload.backend == "openai-chat",
        )

    @property
    def words(self) -> str:
        pace = f"{1000 * self.tokens_per_message / self.interval_ms:g} tok/s"
        each = f", {self.tokens_per_message} tokens a message" if self.tokens_per_message > 1 else ""
        return f"{counted(self.streams, 'stream')} × {pace}{each}"


@dataclass
class Null:
    """A running null server."""

    base_url: str
    log: Path
    process: Embedded

    def sent(self, prefix: str) -> dict[int, Sent]:
        """What was sent to the requests of a prefix, by plan index; ends the server."""
        self.process.stop()
        rows = (msgspec.json.decode(line, type=Sent) for line in self.log.read_bytes().splitlines())
        return {int(row.request_id[len(prefix) :]): row for row in rows if row.request_id.startswith(prefix)}


@contextmanager
def null_server(ttft_ms: float, interval_ms: float, *shape: str) -> Iterator[Null]:
    """A null server of our own; raises UsageError or MeasureError where it cannot be started."""
    if not hasattr(select, "epoll"):
        raise UsageError("the self-test needs Linux: its null server waits on epoll")
    with tempfile.TemporaryDirectory(prefix="loadgen-selftest-") as name:
        log = Path(name) / "log.jsonl"
        pace = ["--ttft-ms", f"{ttft_ms:g}", "--interval-ms", f"{interval_ms:g}", "--log", str(log)]
        with Embedded([*pace, *shape], NULL) as process:
            try:
                listening = process.start()
            except EngineFailed as error:
                raise MeasureError(f"the null server did not start: {error}") from None
            yield Null(listening.base_url, log, process)


class _Digits(PromptRequests):
    """Numbers as text, for an API that takes nothing else; the null server ignores them."""

    format = "text"

    def __init__(self, input_lens: Int64, output_lens: Int64) -> None:
        self.input_lens, self.output_lens = input_lens, output_lens

    def prompt(self, i: int) -> str:
        return f"{i} " * int(self.input_lens[i])


def _plan(load: SelftestLoad, requests: int, tokens: int) -> Plan:
    workload = profile.build(
        {
            "name": "selftest",
            "num_prompts": requests,
            "max_concurrency": load.streams,
            "input_len": load.input_tokens,
            "output_len": tokens,
            "request_timeout": _PATIENCE_S,
        }
    )
    engine = engines.by_owner("loadgen-null") or engines.UNKNOWN
    made, chat = plan.make(workload, ModelTarget(engine, "null"), Seed.drawn()), DIALECTS["chat"]
    if not load.chat:
        return made
    digits = _Digits(made.requests.input_lens, made.requests.output_lens)
    return replace(made, dialect=chat, path=chat.path, requests=digits)


def _fire(made: Plan, transport: str, base_url: str, prefix: str) -> Outcome:
    target = replace(ServerAddress(base_url).target(made.path, None), delay_acks=True)
    options = TransportOptions(target, transport, request_id_prefix=prefix)
    outcome = measure(made, options, Watch(Display(), "self-test"))
    if outcome.signal:
        raise signals.Stopped(outcome.signal)
    if outcome.cut_short:
        raise MeasureError(f"the self-test of {transport} was cut short: {outcome.cut_short}")
    return outcome


def _trial(load: SelftestLoad, transport: str, waves: int, messages: int) -> tuple[Seen, Health]:
    """Waves of requests with `messages` messages each, against a null server of their own."""
    tokens, prefix = messages * load.tokens_per_message, f"{transport}-"
    shape = ("--tokens-per-message", str(load.tokens_per_message))
    with null_server(_TTFT_MS, load.interval_ms, *shape) as null:
        outcome = _fire(_plan(load, waves * load.streams, tokens), transport, null.base_url, prefix)
        return compare(outcome.records, null.sent(prefix)), outcome.health


class Capacity(msgspec.Struct, frozen=True):
    """The most that was held; `bounded` where something more was tried and was not."""

    streams: int
    tokens_per_s: float
    bounded: bool


def search(held: Capacity, start: int, refused: float, attempt: Callable[[int], Seen | None]) -> Capacity:
    """From `start` streams, twice what is held; where nothing is, a quarter of what is not.

    `held` and `refused` are what is known already: the most, and the least that was not (else infinite).
    `attempt` gives None where there is no time or room for another.
    """
    streams = start
    while held.streams < streams < refused and (seen := attempt(streams)) is not None:
        if seen.held(streams):
            held = Capacity(streams, max(held.tokens_per_s, seen.tokens_per_s), False)
        else:
            refused = streams
        streams = 2 * held.streams or max(1, int(refused) // 4)
    return replace(held, bounded=math.isfinite(refused))


def _capacity(
    load: SelftestLoad, transport: str, first: Seen, cpu_us_per_token: float, deadline_ns: int
) -> Capacity:
    """The capacity, from the first trial and waves of other numbers of streams until the deadline."""
    took_ns = 0

    def wave(streams: int) -> Seen | None:
        nonlocal took_ns
        begin_ns = clock.now_ns()
        if begin_ns + _MARGIN * took_ns > deadline_ns:
            return None
        messages = max(_LEAST_MESSAGES, round(_STEP_S * 1e3 / load.interval_ms))
        try:
            seen, _ = _trial(replace(load, streams=streams), transport, 1, messages)
        except UsageError:  # more connections than files may be open
            return None
        took_ns = clock.now_ns() - begin_ns
        served_ms = float(np.median(seen.gap[1])) / 1e6 if len(seen.gap[1]) else 0.0
        return None if served_ms > _SLOW * load.interval_ms else seen

    # The search begins at the streams that should take half a core, rounded down to a power of two.
    messages_per_s = 0.5e6 / max(cpu_us_per_token * load.tokens_per_message, _LEAST_CPU_US)
    guess = 1 << (max(1, int(messages_per_s * load.interval_ms / 1e3)).bit_length() - 1)
    if first.held(load.streams):
        held = Capacity(load.streams, first.tokens_per_s, False)
        return search(held, max(2 * load.streams, guess), math.inf, wave)
    return search(Capacity(0, 0.0, False), min(max(1, load.streams // 4), guess), load.streams, wave)


def _calibrate(load: SelftestLoad, transport: str, budget_s: float, environment: str) -> Calibration:
    """The self-test of one transport in about `budget_s`; raises MeasureError where nothing came whole."""
    begin_ns = clock.now_ns()
    messages = max(_LEAST_MESSAGES, round(_REQUEST_S * 1e3 / load.interval_ms))
    wave_s = (_TTFT_MS + messages * load.interval_ms) / 1e3
    seen, health = _trial(load, transport, max(1, round(0.4 * budget_s / wave_s)), messages)
    if not len(seen.gap[0]):
        raise MeasureError(
            f"no answer came whole over {transport} at {load.words} ({seen.failed} of {seen.requests} "
            f"failed{'; ' * bool(seen.first_error)}{seen.first_error}): give fewer --streams"
        )
    cpu_us_per_token = health.cpu_ns / 1e3 / max(seen.tokens, 1)
    capacity = _capacity(load, transport, seen, cpu_us_per_token, begin_ns + int(budget_s * 1e9))
    return Calibration(
        measured=datetime.now(UTC),
        environment=environment,
        transport=transport,
        streams=load.streams,
        interval_ms=load.interval_ms,
        tokens_per_message=load.tokens_per_message,
        ttft=Error.of(*seen.ttft),
        gap=Error.of(*seen.gap),
        e2e=Error.of(*seen.e2e),
        events_per_read=seen.events_per_read,
        capacity_tokens_per_s=capacity.tokens_per_s,
        capacity_streams=capacity.streams,
        capacity_bounded=capacity.bounded,
        cpu_us_per_token=cpu_us_per_token,
    )


def measure_client(
    load: SelftestLoad, transports: Sequence[str], budget_s: float = 5.0
) -> dict[str, Calibration]:
    """The self-test of these transports at a load, in about `budget_s` together; raises MeasureError."""
    environment, each_s = calibration.environment_digest(describe()), budget_s / len(transports)
    return {transport: _calibrate(load, transport, each_s, environment) for transport in transports}


def at_the_pace_of(workload: Profile, transport: str, warmed: Records) -> None:
    """Let the client measure itself at the load to come, with the warm-up's pace; the result is cached."""
    pace, load = compute(warmed, asked(workload)), SelftestLoad.of(workload)
    if pace.itl.n:
        tokens = round(pace.total_output_tokens / pace.health.messages)
        interval_ms = max(pace.itl.mean_ms, _LEAST_INTERVAL_MS)
        load = replace(load, interval_ms=interval_ms, tokens_per_message=max(tokens, 1))
    measured = measure_client(load, [transport])
    calibration.remember(measured.values())
    printed("\n".join((f"self-test at {load.words}:", *table(measured[transport]))), sys.stdout)


class Mode(msgspec.Struct, frozen=True):
    """One thing that servers do, and the null server's flags for it."""

    words: str
    shape: tuple[str, ...] = ()
    chat: bool = False


MODES = (
    Mode("a token a message"),
    Mode("a token a message, chat", chat=True),
    Mode("4 tokens a message", ("--tokens-per-message", "4")),
    Mode("4 messages a write", ("--messages-per-write", "4")),
    Mode("a message in 3 writes", ("--pieces", "3")),
    Mode("messages with a role alone", ("--extra", "role"), chat=True),
    Mode("messages with usage alone", ("--extra", "usage")),
    Mode("comments (pings)", ("--extra", "ping")),
    Mode("empty texts", ("--extra", "empty")),
    Mode("a stall of 100 ms", ("--stall-ms", "100")),
)


def examine(mode: Mode, transports: Sequence[str]) -> dict[str, str]:
    """What is wrong with what each transport saw of a mode, `ok` where nothing is; raises MeasureError."""
    load = SelftestLoad(streams=2, interval_ms=2.0, chat=mode.chat)
    requests, tokens = 2 * load.streams, 18
    with null_server(load.interval_ms, load.interval_ms, *mode.shape) as null:
        records = {
            transport: _fire(_plan(load, requests, tokens), transport, null.base_url, f"{transport}-").records
            for transport in transports
        }
        return {
            transport: fault(compare(received, null.sent(f"{transport}-")), requests * tokens)
            for transport, received in records.items()
        }


def fault(seen: Seen, tokens: int) -> str:
    """What is wrong with a run that asked for `tokens` tokens; `ok` where nothing is."""
    if seen.failed:
        return f"{seen.failed} of {seen.requests} failed, the first with {seen.first_error}"
    if seen.unlike:
        return f"{seen.unlike} of {seen.requests} answers with more or fewer messages than were sent"
    return "ok" if seen.tokens == tokens else f"{seen.tokens} tokens of {tokens}"


def _modes(transports: Sequence[str]) -> tuple[list[str], bool]:
    """The table of modes, and whether all are well."""
    lines, faults = [f"{'what the server sends':<28}" + "".join(f"{name:>10}" for name in transports)], []
    for mode in MODES:
        outcomes = examine(mode, transports)
        cells = (f"{'ok' if outcome == 'ok' else 'wrong':>10}" for outcome in outcomes.values())
        lines.append(f"  {mode.words:<26}" + "".join(cells))
        faults += [f"{mode.words}, {name}: {wrong}" for name, wrong in outcomes.items() if wrong != "ok"]
    return lines + faults, not faults


def table(measured: Calibration) -> list[str]:
    """A transport's figures, at most 80 columns."""
    lines = [f"{measured.transport + ': error':<14}{'median':>22}{'P99':>22}{'max':>22}"]
    for name, error in (("TTFT", measured.ttft), ("message gap", measured.gap), ("E2E", measured.e2e)):
        values_us = (error.median_us, error.p99_us, error.max_us)
        lines.append(f"  {name:<12}" + "".join(f"{_cell(error, us):>22}" for us in values_us))
    if measured.capacity_streams:
        capacity = "" if measured.capacity_bounded else "at least "
        capacity += f"{measured.capacity_tokens_per_s:,.0f} tok/s, on {measured.capacity_streams:,} streams"
    else:
        capacity = "no load that was tried was held"
    return [
        *lines,
        f"  capacity          {capacity}",
        f"  messages a read   {measured.events_per_read:.4f}",
        f"  CPU per token     {measured.cpu_us_per_token:.1f} µs",
    ]


def _cell(error: Error, us: float) -> str:
    percent = error.percent(us)
    return f"{us:,.{1 * (us < 100)}f} µs {percent:6.{2 * (percent < 100)}f} %"


def main(argv: Sequence[str]) -> int:
    """Measure, print, keep; 1 where the client does not see what is sent. Raises MeasureError."""
    options = arguments(_parser(), argv)
    transports, why_not = runnable()
    if options.transport in transports:
        transports = (options.transport,)
    elif why_not and options.transport != "httpx":
        printed(f"ring is not measured: {why_not}", sys.stdout)
    load = SelftestLoad(options.streams, options.interval_ms, options.tokens_per_message, options.input_len)
    deadline_ns = clock.now_ns() + int(options.seconds * 1e9)
    with display(quiet=False).waiting("what servers send: one mode after the other", forks=True):
        lines, well = _modes(transports)
    printed("\n".join([*lines, f"\n{load.words}, against the null server on this machine:\n"]), sys.stdout)
    measured: dict[str, Calibration] = {}
    for transport in transports:
        left_s = (deadline_ns - clock.now_ns()) / 1e9 / (len(transports) - len(measured))
        with display(quiet=False).waiting(f"error and capacity of {transport}", left_s, forks=True):
            measured |= measure_client(load, (transport,), left_s)
        printed("\n".join(table(measured[transport])), sys.stdout, end="\n\n")
    if options.save and calibration.remember(measured.values()):
        printed(f"kept for later reports in {calibration.cache_path()}", sys.stdout)
    return 0 if well else MeasureError.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="loadgen selftest",
        allow_abbrev=False,
        description="Measure this client against a null server with known timings: docs/selftest.md.",
    )
    add = parser.add_argument
    add("--streams", type=_COUNT, default=_USUAL_STREAMS, metavar="N", help="default %(default)s")
    add("--interval-ms", type=_POSITIVE, default=20.0, metavar="MS", help="between messages (default 20)")
    add("--tokens-per-message", type=_COUNT, default=1, metavar="K", help="default 1")
    add("--input-len", type=_COUNT, default=64, metavar="N", help="prompt tokens (default 64)")
    add(
        "--transport",
        choices=("ring", "wire", "httpx", "all", "both"),
        default="all",
        help="all (default): each that runs here; both is its earlier name",
    )
    add("--seconds", type=_POSITIVE, default=14.0, metavar="S", help="for all of it (default 14)")
    add("--no-save", dest="save", action="store_false", help="do not keep the result for later reports")
    return parser
