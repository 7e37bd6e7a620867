"""Launched server: started for this command, known to be ours, ready, and gone when the command ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base import clock, files
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LOG_LINE, MeasureError, ServerDied, UsageError
from loadgen.base.secrecy import hide_secrets
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.base.text import cut_end
from loadgen.base.urls import is_unspecified
from loadgen.engines.engines import ENGINES
from loadgen.facts.run_facts import Launched
from loadgen.plan import plan, request_sources
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.run.command import progress
from loadgen.run.command.credentials import Credentials
from loadgen.run.command.options import Launching, Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import Watch
from loadgen.run.live_display import choose_display
from loadgen.run.observation import Local
from loadgen.run.reached_server import open_session
from loadgen.run.session import Session
from loadgen.server.control import ServerProbe
from loadgen.server.exchange import ControlLoop, ServerAddress
from loadgen.settings import data_settings
from loadgen.settings.validation import ServerSettings
from loadgen_servers.launch import custom
from loadgen_servers.launch.container import Container
from loadgen_servers.launch.launchers import LAUNCHERS
from loadgen_servers.launch.spec import Command, LaunchError, ServerSpec, shown, without_secrets
from loadgen_servers.process import port_owner
from loadgen_servers.process.failure_causes import PORT_TAKEN, cause
from loadgen_servers.process.running import Running, free_port, start

LOG = "server.log"
_SHARED_OUT = [engine.launch_name for engine in ENGINES if engine.shares_context]
_MOST_SLOTS = 256  # llama.cpp's LLAMA_MAX_SEQ
_ROUND, _TEMPLATE = 256, 256  # tokens: what such a context is a multiple of, and room for a chat template's
_PORTS = 3  # that are tried: between its choice and the server's start a port may be taken
_CAUSE_LINES, _SHOWN_LINES = 400, 15  # of its end: where the cause may stand, and what is printed
_POLL_S = 0.5
_LOG_WIDTH = 120  # of its log's last line, in a display
_MEMORY_S = 30.0  # at most, for the GPU's memory to come back
_MEMORY_BYTES = 256 << 20  # of it may stay taken: others use the GPU too


class PortTaken(UsageError):
    """Another process listens on the port chosen for the server."""


class Startup(msgspec.Struct, frozen=True):
    """A server that is starting: its command, its processes, and since when."""

    launch: Launching
    running: Running
    begin_ns: int

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was started."""
        return (clock.now_ns() - self.begin_ns) / 1e9

    def last_line(self) -> str:
        """Return the last line of its log, without secrets, cut to 120 characters; "" while it is empty."""
        return "".join(cut_end(hide_secrets(line.strip()), _LOG_WIDTH) for line in self.running.tail(1))


def dry_run(options: Options, settings: ServerSettings, asks: bool = True) -> str:
    """Return the command line that would start the server, without secrets; raises UsageError if none can.

    Its port is one that is free now. Without `asks` no interpreter is run to learn what is installed: an
    engine of unknown version gets the flags of a recent one.
    """
    return shown(_make_command(locate_model(options), settings, free_port(), asks))


def attach_launched(
    options: Options,
    settings: ServerSettings,
    auth: Credentials,
    loop: ControlLoop,
    workload: Profile,
    stack: ExitStack,
    interrupts: Interrupts,
) -> Session:
    """Start a server that ends with `stack`, check that it generates a token, and return a session on it.

    Raises UsageError where it cannot be started, MeasureError where it ends, hangs or gives no token.
    """
    options = locate_model(options)
    access, local = stack.enter_context(launch_server(options, settings, auth, loop))
    session = open_session(options, access, local, 0.0, interrupts)
    try:
        first_token_s = check_first_token(session, workload, choose_display(options.quiet))
    except MeasureError:
        session.check_alive(failed=True)  # why it died explains more
        raise
    if local.launched is None:
        return session
    launched = replace(local.launched, first_token_s=local.launched.ready_s + first_token_s)
    return replace(session, local=replace(local, launched=launched))


def locate_model(options: Options) -> Options:
    """Return the options with the absolute path of the model if it is here, as the server will report it."""
    if options.model is not None and os.path.exists(options.model):
        return replace(options, model=os.path.abspath(options.model))
    return options


def check_first_token(session: Session, workload: Profile, display: Display | None = None) -> float:
    """Send one request of the workload's form, 8 tokens in and 1 out; return the seconds until it answers.

    Fields that are refused are left out. Raises MeasureError where no token comes.
    """
    least = {"num_warmups": 1, "input_len": 8, "output_len": 1, "prefix_len": 0, "range_ratio": "0"}
    asked = plan.make_warmup(workload.model_copy(update=least), session.subject, Seed.draw())
    options = session.make_transport_options(asked).make_warm_up(1)
    display = display or Display()
    try:
        outcome = session.adapter.try_requests(
            asked, options, lambda: Watch(display, "first token", interrupts=session.interrupts)
        )
    finally:
        display.close()
    if failures := outcome.records.failed:
        raise MeasureError(
            f"{session.access.shown_url} generates no token: {failures[0].kind}: {failures[0].detail}"
        )
    return float(outcome.records.end_ns[0] - outcome.records.sent_ns[0]) / 1e9


def give_room(launch: Launching, given: ServerSettings, profiles: Sequence[Profile]) -> ServerSettings:
    """Return the settings, of an engine whose requests share a context with the slots and context needed.

    The slots are the profiles' greatest --max-concurrency, 256 at most; the context has room for the longest
    request and a chat template. What was given stands; what is not known before the run, or the context of a
    single slot, is left to the engine.
    """
    if launch.engine not in _SHARED_OUT:
        return given
    limits = [profile.max_concurrency for profile in profiles]
    running = given.max_running
    if running is None and (known := [limit for limit in limits if limit]) and len(known) == len(limits):
        running = min(max(known), _MOST_SLOTS)
    lengths = [_find_longest(profile) for profile in profiles]
    room = None
    if running is not None and running > 1 and all(lengths):  # a single one has all of the engine's own
        room = max(length + _TEMPLATE for length in lengths if length)
        room = -(-room // _ROUND) * _ROUND
    update = {"max_running": running, "context_len": given.context_len or room}
    return given.model_copy(update=update)


def _find_longest(profile: Profile) -> int | None:
    """Return the tokens of a profile's longest request; None if a file, classes or a distribution decides."""
    if (
        request_sources.find_source(profile) != data_settings.RANDOM
        or profile.classes
        or profile.input_dist
        or profile.output_dist
    ):
        return None
    from loadgen.plan.random_prompts import RANGE_RULES, parse_range_ratio  # few need it

    input_ratio, output_ratio = parse_range_ratio(profile.range_ratio, profile.compat)
    bounds = RANGE_RULES[profile.compat].bounds
    _, most_input = bounds(max(profile.ladder or (profile.input_len,)), input_ratio)
    return profile.prefix_len + most_input + bounds(profile.output_len, output_ratio)[1]


@contextmanager
def launch_server(
    options: Options, settings: ServerSettings, auth: Credentials, loop: ControlLoop
) -> Iterator[tuple[ServerAddress, Local]]:
    """Start a server; yield its address and processes once it is ready and known to be ours.

    Where another process has taken its port in between, another one is tried, three in all. Raises UsageError
    where it cannot be started, ServerDied where it ends or hangs. On leaving, every process of it is gone,
    its port is free, and its GPU memory too, for which it waits 30 s at most.
    """
    base, now = Path(options.run_dir or "runs"), read_wall_clock()
    command, port = _make_command_with_port(options, settings)
    directory = files.create_directory(base, f"{options.launching.name}-server", now)
    before = _read_device_memory_bytes()
    try:
        with ExitStack() as stack:
            for left in reversed(range(_PORTS)):
                startup = Startup(
                    options.launching, _start(command, port, directory, auth.variables), clock.now_ns()
                )
                url = f"http://127.0.0.1:{port}"
                access = ServerAddress(url, auth.headers, secrets=auth.secrets, loop=loop)
                stack.push(lambda *error, of=startup: _stop(of, options.quiet, *error))
                try:
                    _wait_until_ready(startup, access, options.quiet)
                    local = _describe_local(startup, command, settings, before)
                    break
                except (ServerDied, PortTaken) as error:
                    if not left or not _is_port_taken(startup.running, error):
                        raise
                stack.pop_all()
                # Another process took the port: end the server, whose log keeps that port's name.
                running = startup.running
                running.end_all()
                with suppress(OSError):
                    kept = f"{running.log.stem}-port-{port}{running.log.suffix}"
                    running.log.rename(running.log.with_name(kept))
                _wait_for_memory(before)
                if not options.quiet:
                    took = f"port {port} was taken before {startup.launch.name} had it"
                    progress.warn(f"{took}: another one is tried")
                command, port = _make_command_with_port(options, settings)
            yield access, local
    except LaunchError as error:  # it does not end
        raise MeasureError(str(error)) from None
    finally:
        with choose_display(options.quiet).waiting("until the GPU's memory is free again", _MEMORY_S):
            _wait_for_memory(before)


def _make_command_with_port(options: Options, settings: ServerSettings) -> tuple[Command, int]:
    """Make the command line with a port that is free now, and return both."""
    port = free_port()
    return _make_command(options, settings, port), port


def _is_port_taken(running: Running, error: ServerDied | PortTaken) -> bool:
    """Whether a start failed because another process took the port: by error, end of the log, or listener."""
    if isinstance(error, PortTaken):
        return True
    code = running.exit_code()
    if code is not None and cause("\n".join(running.tail(_CAUSE_LINES)), code) == PORT_TAKEN:
        return True
    try:
        port_owner.check(running.pids(), running.port)
    except port_owner.ForeignListener:
        return True
    return False


def _stop(startup: Startup, quiet: bool, *error: Any) -> None:
    """Stop a server and wait for it, shown unless quiet; `error` is that of the block it ran in, if any."""
    running = startup.running
    with choose_display(quiet).waiting(f"stopping {startup.launch.name}", running.grace_s):
        running.__exit__(*error)


def _start(command: Command, port: int, directory: Path, withheld: Sequence[str]) -> Running:
    """Start a server with its log in `directory`, without the variables `withheld` in its environment.

    If that fails, the log, and the directory if empty, are removed: raises UsageError.
    """
    try:
        return start(command, port, directory / LOG, withheld=withheld)
    except LaunchError as error:
        (directory / LOG).unlink(missing_ok=True)
        files.remove_empty(directory)
        raise UsageError(str(error)) from None


def _describe_local(
    startup: Startup, command: Command, settings: ServerSettings, before: int | None
) -> Local:
    """Describe a server that has become ready, its command without secrets.

    Raises PortTaken if another process listens on its port, ServerDied if none does.
    """
    running, safe = startup.running, without_secrets(command)
    given = without_secrets(Command(settings.arguments or (), settings.environment or {}))
    try:
        owner = port_owner.check(running.pids(), running.port)
    except LaunchError as error:
        raise PortTaken(str(error)) from None
    if owner is port_owner.PortOwner.NO_ONE:
        raise _make_death("the server", running, f"answers, and {owner.value}")
    facts = Launched(
        how=startup.launch.name,
        image=startup.launch.container or "",
        command=list(safe.argv),
        environment=dict(safe.environment),
        settings=settings.model_copy(
            update={
                "arguments": settings.arguments and given.argv,
                "environment": settings.environment and dict(given.environment),
            }
        ),
        ready_s=startup.elapsed_s,
        owned=str(owner.value),
    )
    return Local(
        pids=running.pids,
        log=running.log,
        launched=facts,
        check_alive=lambda wait_s: _check_alive(startup.launch.name, running, wait_s),
        gone=lambda: running.exit_code() is not None,
        device_before_bytes=before,
    )


def _make_command(options: Options, settings: ServerSettings, port: int, asks: bool = True) -> Command:
    """Make the command of a container, of the given line, or of the engine's launcher; raises UsageError."""
    launch = options.launching
    if options.model is None and launch.command is None:
        raise UsageError(f"--launch {launch.name} needs --model: a directory, or a name of the hub")
    own = launch.command is None  # else the name and the rest are in the line itself
    spans_url = None
    if options.receive_spans is not None:
        host, _, spans_port = options.receive_spans.rpartition(":")
        here = "127.0.0.1" if is_unspecified(host) else host
        spans_url = f"http://{here}:{spans_port}/v1/traces"
    spec = ServerSpec(
        model=options.model or "",
        port=port,
        served_model_name=options.served_model_name if own else None,
        trace_directory=launch.trace_directory if own else None,
        spans_url=spans_url if own else None,
        python=launch.python,
        asks=asks,
        **settings.model_dump(exclude_none=True),
    )
    try:
        if launch.container is not None:
            engine = launch.engine or "vllm"
            container = Container(
                launch.container, launch.container_engine, engine, launch.container_args, launch.command
            )
            return container.command(spec)
        if launch.command is not None:
            return custom.command(launch.command, spec)
        assert launch.engine is not None
        return LAUNCHERS[launch.engine](spec)
    except LaunchError as error:
        raise UsageError(str(error)) from None


def _wait_until_ready(startup: Startup, access: ServerAddress, quiet: bool) -> None:
    """Poll until the server is ready, shown unless quiet; raises ServerDied if it ends or takes too long."""
    probe = ServerProbe(access)
    launch, running = startup.launch, startup.running
    with choose_display(quiet).waiting(f"starting {launch.name}", launch.timeout_s, startup.last_line):
        while (reason := probe.poll()) is not None:
            if (code := running.exit_code()) is not None:
                raise _make_death(launch.name, running, f"ended with {code} before it was ready")
            if startup.elapsed_s > launch.timeout_s:
                limit = f"{launch.timeout_s:g} s ({reason}; --launch-timeout-sec waits longer)"
                raise _make_death(launch.name, running, f"is not ready after {limit}")
            time.sleep(_POLL_S)


def _check_alive(name: str, running: Running, wait_s: float) -> None:
    """Raise ServerDied if the server has ended, or ends within `wait_s` seconds, for which it waits."""
    deadline_ns = clock.now_ns() + int(wait_s * 1e9)
    while (code := running.exit_code()) is None and clock.now_ns() < deadline_ns:
        time.sleep(_POLL_S)
    if code is not None:
        raise _make_death(name, running, f"ended with {code} during the run")


def _make_death(name: str, running: Running, what: str) -> ServerDied:
    """Make the error for a dead server: what happened, a known cause, and its log's last 15 lines."""
    tail = running.tail(_CAUSE_LINES)
    reason = cause("\n".join(tail), running.exit_code())
    summary = f"{name} {what}" + (f": {reason}" if reason else "")
    last_lines = "".join(f"{LOG_LINE}{hide_secrets(line)}" for line in tail[-_SHOWN_LINES:])
    return ServerDied(summary, f"; its whole log: {running.log}{last_lines}")


def _wait_for_memory(before: int | None) -> None:
    """Wait, 30 s at most, until GPU memory in use is at most 256 MiB over `before`; not if that is None."""
    deadline_ns = clock.now_ns() + int(_MEMORY_S * 1e9)
    while before is not None and clock.now_ns() < deadline_ns:
        now = _read_device_memory_bytes()
        if now is None or now <= before + _MEMORY_BYTES:
            return
        time.sleep(_POLL_S)


def _read_device_memory_bytes() -> int | None:
    """Read the GPU memory in use by all processes; None without GPU, or if one does not report it."""
    from loadgen.features.sensors import sensor_discovery  # an engine's start takes longer than its import

    return sensor_discovery.read_device_memory_bytes()
