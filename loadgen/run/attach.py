"""Attach: begin a session with a running server, one started for the run, or the embedded engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace

from loadgen.base import urls
from loadgen.base.errors import NotReady, UsageError
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.urls import ApiPlace, is_this_machine, read_port
from loadgen.features import import_rows
from loadgen.host.environment import start_git
from loadgen.plan.plan import list_api_headers
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import ModelTarget
from loadgen.run import acceptance, transport_choice
from loadgen.run.command import progress
from loadgen.run.command.credentials import Credentials, collect_credentials
from loadgen.run.command.options import Options, change_port, explain_no_server
from loadgen.run.extension import find_extensions
from loadgen.run.observation import Local
from loadgen.run.session import Session
from loadgen.run.verbs import importing
from loadgen.server.control import ServerInfo, ServerProbe
from loadgen.server.exchange import ControlLoop, ServerAddress
from loadgen.settings import request_settings
from loadgen.settings.validation import FLAGS, ServerSettings, validate_table

if TYPE_CHECKING:
    import psutil

    from loadgen.server.checkpoint import Checkpoint
    from loadgen_servers.process.embedded import Embedded

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
    extensions = find_extensions(options)
    wrappers = [each.begin_companion(options, stack) for each in extensions]
    makers = [each.begin_sender(options, stack, interrupts) for each in extensions]
    session = _attach_server(options, asked, workload, stack, interrupts, begun)
    session = replace(session, read_commit=read_commit)
    for each in extensions:
        servers = each.join_servers(options, session.servers, session.access)
        session = replace(session, servers=servers)
    for make_sender in filter(None, makers):
        sender = make_sender(session.options, session.access, session.word_counts)
        session = replace(session, sender=sender)
    for wrap in filter(None, wrappers):
        session = replace(session, sender=wrap(session.sender))
    return session


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
            (feature,) = import_rows("launch")
            launched: Session = feature.attach_launched(
                options, asked, auth, loop, workload, stack, interrupts
            )
            return launched
        if options.base_url is not None:
            try:
                return _attach_url(options, auth, loop, interrupts)
            except NotReady as error:
                if not options.default_url:
                    raise
                raise NotReady(error.summary, explain_no_server(options.base_url)) from None
        from loadgen.run import embedded_engine  # where another server answers, it is not needed

        begun = begun or embedded_engine.begin_engine(options, stack)
        assert begun is not None
        with progress.display(options.quiet).waiting("starting the embedded engine"):
            url = embedded_engine.wait_until_ready(begun)
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


def _attach_url(options: Options, auth: Credentials, loop: ControlLoop, interrupts: Interrupts) -> Session:
    """Open a session with running servers, all ready and with the same model; raises as `attach`."""
    place, *more = (urls.parse_base_url(url, options.endpoint) for url in options.urls)
    options = replace(options, endpoint=place.endpoint)
    access, wait_s = make_address(options, place, auth, loop), options.ready_check_timeout_s
    session = open_session(options, access, find_local(access), wait_s, interrupts)
    if not more:
        return session
    (several,) = import_rows("servers")
    joined: Session = several.attach_others(session, (place, *more), loop)
    return joined


def make_address(options: Options, place: ApiPlace, auth: Credentials, loop: ControlLoop) -> ServerAddress:
    """Make the address of a running server, with headers, secrets and TLS settings; raises UsageError.

    Where some of several servers are behind TLS, the others get no TLS settings.
    """
    schemes = {urlsplit(url.strip()).scheme for url in options.urls}
    if options.more_urls and urlsplit(place.base_url).scheme == "http" and "https" in schemes:
        options = replace(options, insecure=False, ca_cert=None, client_cert=None, client_key=None)
    return ServerAddress(
        place.base_url,
        auth.headers,
        *(options.insecure, options.ca_cert, options.client_cert, options.client_key),
        secrets=auth.secrets,
        loop=loop,
        prefix=place.prefix,
        query=place.query,
        key_origin=auth.origin,
    )


def find_local(access: ServerAddress) -> Local | None:
    """Return a server's Local, whose `pids` searches for its processes; None if it is on another machine.

    They are the first process that listens on the server's port and those below it, none if none listens.
    """
    if not is_this_machine(access.base_url):
        return None
    from loadgen_servers.process import port_owner  # its psutil is of use on this machine only

    port = read_port(access.base_url)
    processes: list[psutil.Process] = []  # its first process, once searched for

    def pids() -> list[int]:
        if not any(map(port_owner.alive, processes)) and (first := port_owner.listening(port)):
            processes[:] = [first]
        return [process.pid for first in processes for process in port_owner.tree(first)]

    return Local(pids)


def open_session(
    options: Options,
    access: ServerAddress,
    local: Local | None,
    wait_s: float,
    interrupts: Interrupts,
    like: ServerInfo | None = None,
) -> Session:
    """Wait up to `wait_s` until a server is ready; return a session on it, with `like`'s model if served.

    It reads a local model's files, if it can, and tries whether prompts of ids are taken. Raises NotReady.
    """
    # A capturing process that sends by httpx has all of it loaded: it imports nothing during a run.
    access = replace(access, plain=not transport_choice.find_likely_kind(options.transport).uses_httpx)
    model = options.served_model_name or options.model
    probe = ServerProbe(access)
    asking = progress.display(options.quiet).waiting(
        f"waiting for {access.shown_url}", wait_s, lambda: probe.reason
    )
    with asking:
        served = acceptance.check_takes_ids(probe, probe.ask(model, wait_s))
    if like is not None and like.model in served.models:
        served = replace(served, model=like.model)
    if options.model and served.model_root in ("", served.model):  # SGLang gives the name for the root too
        served = replace(served, model_root=options.model)
    # A --model that is a directory has its tokenizer there, as `vllm bench serve` has it.
    directory = options.model if options.model and os.path.isdir(options.model) else None
    subject = ModelTarget(
        engine=served.engine,
        model=served.model,
        model_root=served.model_root,
        tokenizer=options.tokenizer or directory,
        vocab_size=options.vocab_size,
        endpoint=options.endpoint,
        prefix=access.prefix,
        query=access.query,
    )
    files: Checkpoint | None = None
    here = local is not None and not served.engine.simulated
    if here and os.path.exists(os.path.expanduser(subject.model_root)):  # else it is a name
        with importing():
            from loadgen.server import checkpoint
        with suppress(UsageError):  # files that cannot be read do not stop the server
            files = checkpoint.read_checkpoint(subject.model_root)
    # Where nothing between it and us could wait for acknowledgements that it does not wait for: a gateway on
    # this machine may pass on the name of the engine behind it.
    known = local is not None and (local.launched is not None or served.engine.ours)
    root = replace(access.target(""), delay_acks=known and served.engine.sends_at_once)
    return Session(options, access, served, subject, root, local, files, interrupts=interrupts)


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
    (feature,) = import_rows("launch")
    roomy: ServerSettings = feature.give_room(options.launching, given, profiles)
    return roomy
