"""The load that the self-test puts on the client, and the plan of its requests."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.text import format_count
from loadgen.engines import engines
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.plan_inputs import ModelTarget, Seed
from loadgen.plan.planned_requests import PromptRequests
from loadgen.plan.profile import Profile
from loadgen.wire.openai import DIALECTS

USUAL_STREAMS = 256
_PATIENCE_S = 60.0


class SelftestClient(msgspec.Struct, frozen=True):
    """What is measured: a transport, in N workers, each of them on a null server of its own."""

    transport: str
    workers: int = 1

    @property
    def words(self) -> str:
        return self.transport + f" in {self.workers} workers" * (self.workers > 1)


class SelftestLoad(msgspec.Struct, frozen=True):
    """The load on the client: a message every `interval_ms` on each of `streams`, of all workers."""

    streams: int = USUAL_STREAMS
    interval_ms: float = 20.0
    tokens_per_message: int = 1
    input_tokens: int = 64
    chat: bool = False

    @classmethod
    def of(cls, workload: Profile) -> SelftestLoad:
        """The load of a run to come, from its profile; the server's pace is a guess."""
        streams = workload.max_concurrency or USUAL_STREAMS
        return cls(
            streams=min(streams, workload.num_prompts or streams),
            input_tokens=workload.input_len,
            chat=workload.backend == "openai-chat",
        )

    @property
    def words(self) -> str:
        pace = f"{1000 * self.tokens_per_message / self.interval_ms:g} tok/s"
        each = f", {self.tokens_per_message} tokens a message" if self.tokens_per_message > 1 else ""
        return f"{format_count(self.streams, 'stream')} × {pace}{each}"


class _Digits(PromptRequests):
    """Numbers as text, for an API that takes nothing else; the null server ignores them."""

    format = "text"

    def __init__(self, input_lens: Int64, output_lens: Int64) -> None:
        self.input_lens, self.output_lens = input_lens, output_lens

    def prompt(self, i: int) -> str:
        return f"{i} " * int(self.input_lens[i])


def planned(load: SelftestLoad, requests: int, tokens: int) -> Plan:
    """A plan of requests of `tokens` tokens, at a load."""
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
    engine = engines.find_by_owner("loadgen-null") or engines.UNKNOWN
    made, chat = plan.make(workload, ModelTarget(engine, "null"), Seed.drawn()), DIALECTS["chat"]
    if not load.chat:
        return made
    digits = _Digits(made.requests.input_lens, made.requests.output_lens)
    return replace(made, dialect=chat, path=chat.path, requests=digits)
