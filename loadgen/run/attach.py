"""Attach: begin a session with a running server, one started for the run, or the embedded engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from loadgen.base import urls
from loadgen.base.errors import NotReady, UsageError
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.structs import replace
from loadgen.features.routed import role_scrapers
from loadgen.host.environment import start_git
from loadgen.plan.plan import list_api_headers
from loadgen.plan.profile import Profile
from loadgen.run import assembly, embedded_engine, reached_server
from loadgen.run.command.credentials import collect_credentials
from loadgen.run.command.options import Options, change_port, explain_no_server
from loadgen.run.live_display import choose_display
from loadgen.run.observation import Local
from loadgen.run.reached_server import make_address, open_session
from loadgen.run.session import Session
from loadgen.server.exchange import ControlLoop, ServerAddress
from loadgen.settings import request_settings
from loadgen.settings.validation import FLAGS, ServerSettings, validate_table
from loadgen_servers.process.embedded import Embedded, EngineFailed

_EMBEDDED_WAIT_S = 10.0


def attach(
    options: Options,
    asked: ServerSettings,
    workload: Profile,
    stack: ExitStack,
    interrupts: Interrupts = SIGNALS,
    begun: Embedded | None = None,
) -> Session:
    """Start or reach the server, and return a session on it once it is ready, with a feature's sender if any.

    What is started ends with `stack`. `begun` is the embedded engine where that was started before, of the
    same options. Raises UsageError or MeasureError; a server started here has given a token to a request of
    the workload's form.
    """
    read_commit = stack.enter_context(start_git())  # it answers while the server is reached
    make_sender = assembly.begin_sender(options, stack, interrupts)
    session = _attach_server(options, asked, workload, stack, interrupts, begun)
    servers = session.servers
    if options.metrics_url and not options.share.number:  # the first shard scrapes for all
        servers = replace(servers, scrape_elsewhere=role_scrapers.find_scrapers(options, session.access))
    sender = make_sender(session.options, session.access, session.word_counts)
    return replace(session, read_commit=read_commit, servers=servers, sender=sender)


def _attach_server(
    options: Options,
    asked: ServerSettings,
    workload: Profile,
    stack: ExitStack,
    interrupts: Interrupts,
    begun: Embedded | None,
) -> Session:
    """Open a session with the server to launch, else those at the URLs, else the embedded engine.

    Raises as `attach`; if no server answers at a default URL, the error also explains how to name one.
    """
    options = _set_default_port(options, workload)
    own = list_api_headers(workload.backend, options.endpoint, options.base_url)
    options = replace(options, api_headers=own)
    tables = {"arguments": asked.arguments, "environment": asked.environment}  # they may hold secrets
    auth = collect_credentials(options, options.base_url is None, tables, workload.model_dump())
    with auth.secrets.hide_in_errors():
        loop = stack.enter_context(ControlLoop(interrupts))
        if options.launching.wanted:
            from loadgen.run import launched_server  # few commands start a server

            return launched_server.attach_launched(options, asked, auth, loop, workload, stack, interrupts)
        if (base_url := options.base_url) is not None:
            place, *more = (urls.parse_base_url(url, options.endpoint) for url in options.urls)
            options = replace(options, endpoint=place.endpoint)
            access, wait_s = make_address(options, place, auth, loop), options.ready_check_timeout_s
            try:
                local = reached_server.find_local(access)
                session = open_session(options, access, local, wait_s, interrupts)
                return reached_server.attach_others(session, (place, *more), loop) if more else session
            except NotReady as error:
                if not options.default_url:
                    raise
                raise NotReady(error.summary, explain_no_server(base_url)) from None
        begun = begun or embedded_engine.begin_engine(options, stack)
        assert begun is not None
        with choose_display(options.quiet).waiting("starting the embedded engine"):
            try:
                url = begun.listening().base_url
            except EngineFailed as error:
                raise UsageError(f"the embedded engine did not start: {error}") from None
        embedded = ServerAddress(url, auth.headers, secrets=auth.secrets, loop=loop)
        return open_session(options, embedded, Local(lambda: []), _EMBEDDED_WAIT_S, interrupts)


def _set_default_port(options: Options, workload: Profile) -> Options:
    """Return the options with the port of the profile's API if the command names no port, URL or API.

    The address of --host without --port gets it too; options without an address stay as they are.
    """
    if options.base_url is None or not options.default_port or "backend" in options.overrides:
        return options
    port = request_settings.find_default_port(workload.backend, None, options.endpoint or "")
    if port == request_settings.find_default_port(None):
        return options
    return replace(options, base_url=change_port(options.base_url, port))


def collect_settings(options: Options, profiles: Sequence[Profile]) -> ServerSettings:
    """Return the [server] table of profiles with, for a server to start, the flags over it.

    An engine whose requests share a context gets room for all of theirs. Raises UsageError if tables differ.
    """
    wanted = [profile.server for profile in profiles if profile.server is not None]
    if any(other != wanted[0] for other in wanted):
        raise UsageError("the profiles' [server] tables differ: run them one by one")
    base = wanted[0] if wanted else ServerSettings()
    if not options.launching.wanted:
        return base
    given = base.merge_given(validate_table(ServerSettings, options.launching.settings, FLAGS))
    from loadgen.run import launched_server

    return launched_server.give_room(options.launching, given, profiles)
