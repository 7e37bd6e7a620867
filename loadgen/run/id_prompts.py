"""Id prompts: whether a server takes token ids, asked of it where its engine does not decide that."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.base import untrusted
from loadgen.engines.refusals import REFUSING
from loadgen.server import control
from loadgen.server.discovery import ServerInfo, ServerProbe
from loadgen.wire.openai import Completions

_IDS = [10, 11, 12]  # in any vocabulary
_ANSWER_S = 60.0


def found_out(probe: ServerProbe, served: ServerInfo) -> ServerInfo:
    """What is served, by an engine that takes ids if this server counted as many as it was sent.

    One that refuses them, or counts a text's, takes none. Without such an answer the engine's usual is
    assumed, as of one that does not describe itself.
    """
    if not served.engine.asked_for_ids or not served.version:
        return served
    access, dialect = probe.access, Completions()
    path = f"{access.prefix}{dialect.path.removeprefix('/v1')}{access.query}"
    answer = control.send_request(
        access, probe.tls, path, dialect.make_request(served.model, _IDS, 1), _ANSWER_S
    )
    counted = untrusted.read_mapping(answer.object.get("usage")).get("prompt_tokens")
    if answer.status not in REFUSING and counted in (None, len(_IDS)):
        return served
    return replace(served, engine=replace(served.engine, takes_ids=False))
