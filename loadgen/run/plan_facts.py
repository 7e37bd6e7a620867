"""Plan facts: the facts of a plan, its server and its client, as known before the first request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from loadgen.plan.plan import Plan, count_repeated_prompts
from loadgen.run.firing import TransportOptions
from loadgen.server.discovery import ServerInfo
from loadgen.verdict.run_facts import Client, Facts, Server

_SERIES = ("sweep", "limit")  # whose --resume goes on with a directory, and would measure nothing of it again


def facts_of_plan(
    made: Plan,
    started: datetime,
    command: list[str],
    server: Server,
    client: Client,
    environment: dict[str, str],
) -> Facts:
    """The facts that a plan decides, with those of the run that it needs to be one."""
    return Facts(
        started=started,
        finished=started,
        command=command,
        profile=made.profile.model_copy(update={"server": None}),  # it may hold secrets
        seed=made.seed.value,
        seed_chosen=made.seed.chosen,
        repeat=made.seed.repeat,
        attempt=made.seed.attempt,
        plan_digest=made.digest(),
        prompt_format=made.requests.format,
        data=made.facts,
        ids_source=made.ids_source,
        server=server,
        client=client,
        environment=environment,
        adapted=made.adaptation.fields,
        notes=made.notes,
        requests=made.total or 1,
        session_turns=() if made.turns is None else tuple(made.turns.counts.tolist()),
        repeated_prompts=count_repeated_prompts(made),
    )


def server_facts(served: ServerInfo, url: str) -> Server:
    """The facts of the server at a URL."""
    return Server(
        url=url,
        engine=served.engine.name,
        version=served.version,
        model=served.model,
        model_root=served.model_root,
        max_model_len=served.max_model_len,
        slots=served.slots,
        simulated=served.model_root if served.engine.simulated else "",
    )


def client_facts(options: TransportOptions) -> Client:
    """The facts of the client before the first request."""
    return Client(
        transport=options.transport,
        why=options.why_transport,
        workers=options.workers,
        why_workers=options.why_workers,
        cpus=options.cpu_words,
    )


def name_plan(made: Plan) -> str:
    """The name of a plan on a display: its profile, else the file that it sends."""
    return made.profile.name or Path(made.facts.file).name or "bench"


def strip_resume(words: Sequence[str]) -> list[str]:
    """The command without `--resume` and its directory, where it measures a series of runs."""
    if not set(words[1:2]) & set(_SERIES):
        return list(words)
    kept, rest = [], iter(words)
    for word in rest:
        if word == "--resume":
            following = next(rest, "")  # its directory, where it was given one
            kept += [following] if following.startswith("--") else []
        elif not word.startswith("--resume="):
            kept.append(word)
    return kept
