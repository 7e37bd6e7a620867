"""Facts: everything about a run that is not in its records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Self, TypedDict

from pydantic import BaseModel, Field

from loadgen.base import bounds
from loadgen.base.errors import UsageError
from loadgen.engines.refusals import AdaptedField
from loadgen.figures import objectives
from loadgen.figures.figure_table import parse_metrics, parse_percentiles
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.steady_state import Trim
from loadgen.figures.vllm_keys import BlockFacts
from loadgen.plan.data_facts import DataFacts
from loadgen.plan.profile import Profile, check_body
from loadgen.plan.server_settings import ServerSettings
from loadgen.verdict.shard_facts import MergedShard, ShardFacts

if TYPE_CHECKING:
    from loadgen.host.cpu_use import CpuUse
    from loadgen.host.sensor_summary import SensorSummary
    from loadgen.roofline.ceiling import Ceiling
    from loadgen.server.answer_check import Fingerprint
    from loadgen.server.engine_config import EngineConfig
    from loadgen.server.server_counters import ServerWindow
    from loadgen.verdict.calibration import Calibration

# 1: the first. 2: words are stored once (arrivals.npz), what ended the run and what is not known are fields.
FORMAT, FORMATS = 2, (1, 2)


_Turns = Annotated[int, Field(ge=1, le=bounds.MOST_TURNS)]


class Server(BaseModel, extra="forbid", frozen=True):
    """The server that answered."""

    url: str
    engine: str
    version: str = ""
    model: str
    model_root: str = ""
    max_model_len: int = 0
    slots: int = 0  # requests that it runs at once, where it reports that
    simulated: str = ""  # the embedded engine's timing preset


class Launched(BaseModel, extra="forbid", frozen=True):
    """How the server was started for this run, secrets hidden."""

    how: str  # the launcher
    image: str = ""  # of the container it ran in
    command: list[str]
    environment: dict[str, str]  # added to that of the client
    settings: ServerSettings
    ready_s: float  # from its start until it answered
    owned: str  # how it is known that no other process answered


class Client(BaseModel, extra="forbid", frozen=True):
    """What the capturing process reports of itself."""

    transport: str
    why: str = ""  # this transport, where it was not asked for
    cpu_s: float = 0.0
    wall_s: float = 0.0
    clock_step_ms: float = 0.0
    reconnects: int = 0  # connections that the server closed between two turns of a session
    late_bodies: int = 0
    backlog_bytes: int = 0
    stopped_s: float = 0.0  # the longest time it did not run at all: suspended, or its container paused
    segments: int = 0  # TCP segments that a packet ring timed
    dropped_segments: int = 0  # that the ring had no room for
    fallen_back: int = 0  # requests timed by their sockets' reads although there was a ring
    held_segments: int = 0  # that the server sent as soon as the client had read, late, the one before
    workers: int = 1  # capturing processes, each with a decoding one
    why_workers: str = ""  # that number, where --workers auto chose it
    busiest_cpu_s: float = 0.0  # of that capturing process with the most, where there are several
    cpus: str = ""  # that the workers were pinned to, as 4-7; "": none


class LateFacts(TypedDict, total=False):
    """The fields of Facts that are learned while the run goes on, or after it."""

    finished: datetime
    client: Client
    requests: int
    bodies_digest: str
    turn_places: tuple[tuple[int, str], ...]
    under_way: bool
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    cut_short: str
    interrupted: bool
    signal: int
    stop_rule: str
    saturated: bool
    reasoned: int
    hidden_reasoning: int
    recovered: str
    journal_error: str
    throttled: tuple[str, ...]
    cpu_use: CpuUse | None
    traced: str
    shard: ShardFacts | None
    shards: tuple[MergedShard, ...]
    lost: tuple[str, ...]
    window: ServerWindow | None
    sensed: SensorSummary | None
    as_run: EngineConfig | None
    calibration: Calibration | None
    fingerprint: Fingerprint | None
    ceiling: Ceiling | None
    no_ceiling: str
    gpus: int


class StartFacts(BaseModel, extra="forbid", frozen=True):
    """What is known of a run before its first request, and is journalled then; see run_facts for all of it.

    Of type Any is what few runs have before, or none: its models are built when a run has ended.
    """

    format: int = FORMAT
    started: datetime
    finished: datetime
    command: list[str]
    profile: Profile
    seed: int
    seed_chosen: bool
    repeat: int = 0
    attempt: int = 0  # how often this run of a series was begun before; prompts are drawn from it too
    runs: int = 1  # with prompts of their own, of which this is one: --repeat
    plan_digest: str
    prompt_format: str
    ids_source: str = ""
    data: DataFacts = DataFacts()
    server: Server
    tokenizer: str | None = None
    text_tokenizer: str = ""  # the directory of the tokenizer that counts answers without usage; "": none
    warmups: int = 0
    warmup_failures: int = 0
    client: Client
    environment: dict[str, str]
    ignore_eos_refused: bool = False  # the engine does not accept it, so it was not sent
    adapted: tuple[AdaptedField, ...] = ()  # what the server refused of the requests as planned
    reasoned: int = 0  # answers whose first token was of reasoning
    hidden_reasoning: int = 0  # answers whose reasoning was counted, and not streamed before the first token
    notes: tuple[str, ...] = ()
    cut_short: str = ""  # why the run ended early
    interrupted: bool = False
    signal: int = 0  # which one ended the run, or what followed it; 0: none did
    under_way: bool = False  # only in a journal: the run had not ended when this was written
    unknown: tuple[str, ...] = ()  # what could not be determined after the last request, and why
    stop_rule: str = ""  # which rule (--max-failures, --max-duration, …) ended it, in words
    saturated: bool = False  # that rule found the server further and further behind the load
    recovered: str = ""  # why only its journal is left, if the run ended early
    unfinished: int = 0  # requests under way when the client was killed, of which nothing else is known
    journal_error: str = ""  # why the journal could not be written in full
    request_id_prefix: str | None = None  # of each x-request-id, followed by its index; None: not stored
    label: str | None = None
    metadata: tuple[str, ...] = ()
    requests: int = Field(ge=1)  # as planned
    session_turns: tuple[_Turns, ...] = ()  # requests of each session, in the plan's order; (): no sessions
    bodies_digest: str = Field(
        default="", pattern="^[0-9a-f]*$"
    )  # of all bodies that were sent, in any order, without the model's name
    # Where in the data file the turns stand that ended their session early, by plan index: the first ones.
    turn_places: tuple[tuple[int, str], ...] = ()
    repeated_prompts: int = 0  # prompts of the plan that equal an earlier one of it
    targets: tuple[str, ...] = ()  # base URLs, where there were several: slot s is of number s mod as many
    shard: ShardFacts | None = None  # which part of the plan this is; None: all of it
    lost: tuple[str, ...] = ()  # workers or shards that were lost, and why, in words
    throttled: tuple[str, ...] = ()  # what throttled this machine during the run, in words
    cpu_use: Any = None
    window: Any = None
    launched: Launched | None = None  # None: it was running before
    checkpoint: Any = None
    as_run: Any = None
    sensed: Any = None
    cache_reset: str = ""  # how the prefix cache was reset before the run; "": it was not
    traced: str = ""  # where the engine's own profile of the run lies
    calibration: Any = None
    cell: Any = None
    fingerprint: Any = None
    ceiling: Any = None
    no_ceiling: str = ""  # why that is not known, and what to pass
    gpus: int = Field(default=0, ge=0)  # that the server runs on, by --gpus or --hardware; 0: neither

    def learned(self, late: LateFacts) -> Self:
        """These facts with what was learned later."""
        return self.model_copy(update=dict(late))

    def dumped(self) -> bytes:
        """The facts as the JSON that a journal holds."""
        return json.dumps(self.model_dump(mode="json", by_alias=True)).encode()


def asked(profile: Profile) -> MetricOptions:
    """The metrics that a profile requests; raises UsageError if they cannot be computed.

    Without --goodput the limits of --slo say which requests are good, each by that of its highest percentile.
    """
    slo = objectives.parse(profile.slo)
    if blind := [objective for objective in slo if not objectives.judgeable(objective, profile.stream)]:
        raise UsageError(
            f"--slo {blind[0]} needs a stream to judge it: leave out --disable-stream, or use e2el"
        )
    return MetricOptions(
        metric_percentiles=parse_percentiles(profile.metric_percentiles),
        goodput_slo_ms=objectives.parse_goodput(profile.goodput) or objectives.goodput_slo_ms(slo),
        streamed=profile.stream,
    )


def shown(profile: Profile) -> BlockFacts:
    """What a profile shows in the block; raises UsageError if it names an unknown metric."""
    return BlockFacts(
        request_rate_per_s=profile.request_rate,
        max_concurrency=profile.max_concurrency,
        selected=parse_metrics(profile.percentile_metrics),
    )


def check(profile: Profile) -> None:
    """Find before a run what could not be reported after it, or would be untrue; raises UsageError."""
    check_reportable(profile)
    check_body(profile)


def check_reportable(profile: Profile) -> None:
    """Raises UsageError if a run of this profile, new or stored, cannot be reported."""
    asked(profile)
    shown(profile)
    Trim.parse(profile.warmup, profile.cooldown)


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """The pairs of `--metadata KEY=VALUE`; raises UsageError."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--metadata {pair}: write KEY=VALUE")
        metadata[key.strip()] = value.strip()
    return metadata
