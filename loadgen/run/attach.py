"""Attach: a session with a running server, one started for the run, or the embedded engine."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace

from loadgen.base import urls
from loadgen.base.errors import MeasureError, NotReady, UsageError
from loadgen.base.secrecy import shown_url
from loadgen.base.urls import ApiPlace, is_this_machine, port_of
from loadgen.features.targets import replicas
from loadgen.features.targets.replicas import Replica
from loadgen.plan import plan
from loadgen.plan.plan_inputs import ModelTarget, Seed
from loadgen.plan.profile import Profile
from loadgen.run import embedded_engine, id_prompts, progress, transport_choice
from loadgen.run.credentials import Credentials, credentials
from loadgen.run.importing import importing
from loadgen.run.local_server import Local
from loadgen.run.measure import Watch
from loadgen.run.options import Options
from loadgen.run.progress import Display
from loadgen.run.session import Session
from loadgen.run.signals import SIGNALS, Interrupts
from loadgen.run.which_server import at_port, nothing_there
from loadgen.server.discovery import ServerAddress, ServerInfo, ServerProbe
from loadgen.server.exchange import ControlLoop
from loadgen.settings import backends
from loadgen.settings.validation import ServerSettings
from loadgen_servers.process.embedded import Embedded

if TYPE_CHECKING:
    import psutil

    from loadgen.roofline.checkpoint import Checkpoint

_EMBEDDED_WAIT_S = 10.0


def attach(
    options: Options,
    asked: ServerSettings,
    workload: Profile,
    stack: ExitStack,
    interrupts: Interrupts = SIGNALS,
    begun: Embedded | None = None,
) -> Session:
    """A session with a server that is ready; what was started for it ends with `stack`.

    `begun` is the embedded engine where that was started before, of the same options.

    Raises UsageError or MeasureError; a server that was started has given a token in the workload's way.
    """
    options = _at_default(options, workload)
    tables = {"arguments": asked.arguments, "environment": asked.environment}  # they may hold secrets
    auth = credentials(options, options.base_url is None, tables, workload.model_dump())
    with auth.secrets.hide_in_errors():
        loop = stack.enter_context(ControlLoop(interrupts))
        if options.launching.wanted:
            # No other run needs what starts servers.
            from loadgen.run.launched_server import launched, located

            options = located(options)
            access, local = stack.enter_context(launched(options, asked, auth, loop))
            session = _session(options, access, local, 0.0, interrupts)
            try:
                first_token(session, workload, progress.display(options.quiet))
            except MeasureError:
                session.check_alive(failed=True)  # why it died explains more
                raise
            return session
        if options.base_url is not None:
            try:
                return _of_running(options, auth, loop, interrupts)
            except NotReady as error:
                if not options.default_url:
                    raise
                raise NotReady(error.summary, nothing_there(options.base_url)) from None
        begun = begun or embedded_engine.begun(options, stack)
        assert begun is not None
        with progress.display(options.quiet).waiting("starting the embedded engine"):
            url = embedded_engine.ready(begun)
        embedded = ServerAddress(url, auth.headers, secrets=auth.secrets, loop=loop)
        return _session(options, embedded, Local(lambda: []), _EMBEDDED_WAIT_S, interrupts)


def _at_default(options: Options, workload: Profile) -> Options:
    """The options at the port of the client whose API the profile names, where the command names neither."""
    if options.base_url is None or not options.default_port or "backend" in options.overrides:
        return options
    port = backends.find_default_port(workload.backend, None, options.endpoint or "")
    if port == backends.find_default_port(None):
        return options
    return replace(options, base_url=at_port(options.base_url, port))


def _of_running(options: Options, auth: Credentials, loop: ControlLoop, interrupts: Interrupts) -> Session:
    """The session with servers that run already, all ready and of the same model; raises as `attach`."""
    place, *more = (urls.parse_base_url(url, options.endpoint) for url in options.urls)
    options = replace(options, endpoint=place.endpoint)
    access, wait_s = _attached(options, place, auth, loop), options.ready_check_timeout_s
    session = _session(options, access, _local(access), wait_s, interrupts)
    if not more:
        return session
    first, others = Replica(session.access, session.served, session.root, session.local), []
    for url, other in zip(options.more_urls, more, strict=True):
        if (other.prefix, other.endpoint, other.query) != (place.prefix, place.endpoint, place.query):
            raise UsageError(f"--base-url {shown_url(url)}: its API's path differs from {access.shown_url}'s")
        theirs = replace(options, base_url=url)
        reached = _attached(theirs, other, credentials(theirs), loop)
        found = _session(theirs, reached, _local(reached), wait_s, interrupts, session.served)
        others.append(Replica(found.access, found.served, found.root, found.local))
        for known in (first, *others[:-1]):
            replicas.check_alike(known, others[-1])
    return replace(
        session,
        served=replicas.least_served(session.served, others),
        local=replicas.local_of_all(session.local, others),
        replicas=tuple(others),
    )


def _attached(options: Options, place: ApiPlace, auth: Credentials, loop: ControlLoop) -> ServerAddress:
    """The address of a server that runs already; raises UsageError.

    Of several, those behind TLS alone get what is for TLS.
    """
    if options.more_urls and urlsplit(place.base_url).scheme == "http" and _behind_tls(options):
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


def _behind_tls(options: Options) -> bool:
    return any(urlsplit(url.strip()).scheme == "https" for url in options.urls)


def first_token(session: Session, workload: Profile, display: Display | None = None) -> None:
    """Check that the server generates: one token, requested as the workload requests them.

    Raises MeasureError where none comes.
    """
    least = {"num_warmups": 1, "input_len": 8, "output_len": 1, "prefix_len": 0, "range_ratio": "0"}
    asked = plan.make_warmup(workload.model_copy(update=least), session.subject, Seed.drawn())
    options = session.transport_options(asked).alone()
    display = display or Display()
    try:
        outcome = session.adapter.tried(
            asked, options, lambda: Watch(display, "first token", interrupts=session.interrupts)
        )
    finally:
        display.close()
    if failures := outcome.records.failed:
        raise MeasureError(
            f"{session.access.shown_url} generates no token: {failures[0].kind}: {failures[0].detail}"
        )


def _local(access: ServerAddress) -> Local | None:
    """The server's processes where it is on this machine."""
    if not is_this_machine(access.base_url):
        return None
    from loadgen_servers.process import port_owner  # its psutil is of use on this machine only

    port = port_of(access.base_url)
    processes: list[psutil.Process] = []  # its first process, once searched for

    def pids() -> list[int]:
        if not any(map(port_owner.alive, processes)) and (first := port_owner.listening(port)):
            processes[:] = [first]
        return [process.pid for first in processes for process in port_owner.tree(first)]

    return Local(pids)


def _session(
    options: Options,
    access: ServerAddress,
    local: Local | None,
    wait_s: float,
    interrupts: Interrupts,
    like: ServerInfo | None = None,
) -> Session:
    """The session with a server once it is ready; of one `like` another, the same of its models is meant."""
    # A capturing process that sends by httpx has all of it loaded: it imports nothing during a run.
    access = replace(access, plain=transport_choice.likely(options.transport) != "httpx")
    tls = access.tls()
    model = options.served_model_name or options.model
    probe = ServerProbe(access, tls)
    asking = progress.display(options.quiet).waiting(
        f"waiting for {access.shown_url}", wait_s, lambda: probe.reason
    )
    with asking:
        served = id_prompts.found_out(probe, probe.ask(model, wait_s))
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
    if local is not None and not served.engine.simulated and subject.model_root:
        with importing():
            from loadgen.roofline import checkpoint
        with suppress(UsageError):  # files that cannot be read do not stop the server
            files = checkpoint.read_checkpoint(subject.model_root)
    # Where nothing between it and us could wait for acknowledgements that it does not wait for: a gateway on
    # this machine may pass on the name of the engine behind it.
    known = local is not None and (local.launched is not None or served.engine.ours)
    root = replace(access.target("", tls), delay_acks=known and served.engine.sends_at_once)
    return Session(options, access, served, subject, root, local, files, interrupts=interrupts)
