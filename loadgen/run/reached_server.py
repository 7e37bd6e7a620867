"""Reached server: the address of a server that runs, whether it is here, and a session once it is ready."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import psutil

from loadgen.base.errors import UsageError
from loadgen.base.secrecy import hide_url_secrets
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.base.urls import ApiPlace, is_this_machine, read_port
from loadgen.plan.request_sources import ModelTarget
from loadgen.run import acceptance
from loadgen.run.command.credentials import Credentials, collect_credentials
from loadgen.run.command.options import Options
from loadgen.run.live_display import choose_display
from loadgen.run.observation import Local
from loadgen.run.server_group import Replica, ServerGroup, check_alike, join_locals, join_served
from loadgen.run.session import Session
from loadgen.server import checkpoint
from loadgen.server.control import ServerInfo, ServerProbe
from loadgen.server.exchange import ControlLoop, ServerAddress
from loadgen_servers.process import port_owner


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
    model = options.served_model_name or options.model
    probe = ServerProbe(access)
    asking = choose_display(options.quiet).waiting(
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
    files: checkpoint.Checkpoint | None = None
    here = local is not None and not served.engine.simulated
    if here and os.path.exists(os.path.expanduser(subject.model_root)):  # else it is a name
        with suppress(UsageError):  # files that cannot be read do not stop the server
            files = checkpoint.read_checkpoint(subject.model_root)
    # A server is known if nothing between it and us waits for acknowledgements that it does not wait for: a
    # gateway on this machine may pass on the name of the engine behind it.
    known = local is not None and (local.launched is not None or served.engine.ours)
    root = replace(access.target(""), delay_acks=known and served.engine.sends_at_once)
    return Session(options, access, served, subject, root, local, files, interrupts=interrupts)


def attach_others(session: Session, places: Sequence[ApiPlace], loop: ControlLoop) -> Session:
    """Wait for the further servers, at all places but the first, and return the session with them.

    Raises UsageError if an API's path differs from the first's, MeasureError if two servers are one or serve
    different models, and what `attach` raises.
    """
    options, access, place = session.options, session.access, places[0]
    first, others = Replica(access, session.served, session.root, session.local), list[Replica]()
    for url, other in zip(options.more_urls, places[1:], strict=True):
        if (other.prefix, other.endpoint, other.query) != (place.prefix, place.endpoint, place.query):
            raise UsageError(
                f"--base-url {hide_url_secrets(url)}: its API's path differs from {access.shown_url}'s"
            )
        theirs = replace(options, base_url=url)
        reached = make_address(theirs, other, collect_credentials(theirs), loop)
        wait_s = options.ready_check_timeout_s
        found = open_session(theirs, reached, find_local(reached), wait_s, session.interrupts, session.served)
        others.append(Replica(found.access, found.served, found.root, found.local))
        for known in (first, *others[:-1]):
            check_alike(known, others[-1])
    return replace(
        session,
        served=join_served(session.served, others),
        local=join_locals(session.local, others),
        servers=ServerGroup(tuple(others)),
    )
