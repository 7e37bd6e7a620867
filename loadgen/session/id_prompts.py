"""Id prompts: whether a server takes prompts of token ids, asked of it where that is not known of its engine."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.endpoint import control
from loadgen.endpoint.discovery import ServerInfo, ServerProbe
from loadgen.protocol import untrusted
from loadgen.protocol.openai import Completions

_IDS = [10, 11, 12]  # in any vocabulary
_ANSWER_S = 60.0


def found_out(probe: ServerProbe, served: ServerInfo) -> ServerInfo:
    """What is served, by an engine that takes ids if this server counted as many as it was sent.

    A text of the same length would count more, or be refused. Without an answer the engine's usual is assumed.
    """
    if not served.engine.asked_for_ids:
        return served
    access, dialect = probe.access, Completions()
    path = f"{access.prefix}{dialect.path.removeprefix('/v1')}{access.query}"
    body = dialect.request(served.model, _IDS, 1)
    answer = control.asked(access, probe.tls, path, body, _ANSWER_S)
    if answer.error or answer.status >= 500:
        return served
    usage = untrusted.mapping(answer.object.get("usage"))
    takes = answer.status == 200 and usage.get("prompt_tokens") == len(_IDS)
    return replace(served, engine=replace(served.engine, takes_ids=takes))
