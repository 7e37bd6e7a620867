"""Facts: everything about a run that its records do not say."""

from __future__ import annotations

import json
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from loadgen.endpoint.answer_check import Fingerprint
from loadgen.endpoint.engine_config import AsRun
from loadgen.endpoint.server_counters import ServerWindow
from loadgen.metrics.goodput import parse_goodput
from loadgen.metrics.metrics import MetricOptions, parse_percentile_metrics, parse_percentiles
from loadgen.metrics.steady_state import Trim
from loadgen.metrics.vllm_keys import BlockFacts
from loadgen.roofline.ceiling import Ceiling
from loadgen.roofline.checkpoint import Checkpoint
from loadgen.telemetry.sampler import Sensed
from loadgen.validity.calibration import Calibration
from loadgen.validity.campaign_cell import Cell
from loadgen.workload.profile import Profile, check_body
from loadgen.workload.server_settings import ServerSettings

# 1: the first. 2: words are stored once (arrivals.npz), what ended the run and what is not known are fields.
FORMAT, FORMATS = 2, (1, 2)
_PROMPTS = {"prompt", "prompt_embeds", "messages", "input_ids", "input_embeds"}  # in the body, of any API


class Server(BaseModel):
    """Who answered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    engine: str
    version: str = ""
    model: str
    model_root: str = ""
    max_model_len: int = 0
    simulated: str = ""  # the embedded engine's timing preset


class Launched(BaseModel):
    """How the server was started for this run, secrets hidden."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    how: str  # the launcher
    image: str = ""  # of the container it ran in
    command: list[str]
    environment: dict[str, str]  # added to that of the client
    settings: ServerSettings
    ready_s: float  # from its start until it answered
    owned: str  # how it is known that nobody else answered


class Client(BaseModel):
    """What the capturing process said of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    transport: str
    cpu_s: float = 0.0
    wall_s: float = 0.0
    clock_step_ms: float = 0.0
    late_bodies: int = 0
    backlog_bytes: int = 0
    stopped_s: float = 0.0  # the longest time it did not run at all: suspended, or its container paused


class Facts(BaseModel):
    """Everything about a run that its records do not say; with them it gives the report again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    started: datetime
    finished: datetime
    command: list[str]
    profile: Profile
    seed: int
    seed_chosen: bool
    repeat: int = 0
    plan_digest: str
    prompt_format: str
    ids_source: str = ""
    server: Server
    tokenizer: str | None = None
    warmups: int = 0
    warmup_failures: int = 0
    client: Client
    environment: dict[str, str]
    notes: tuple[str, ...] = ()
    cut_short: str = ""  # why the run was not carried to its end
    interrupted: bool = False
    signal: int = 0  # which one ended the run, or what followed it; 0: none did
    under_way: bool = False  # in the journal alone: the run had not ended when this was written
    unknown: tuple[str, ...] = ()  # what could not be learned after the last request, and why
    stop_rule: str = ""  # which rule (--max-failures, --max-duration, …) ended it, in words
    recovered: str = ""  # why only its journal is left, where it was not carried to its end
    unfinished: int = 0  # requests under way when the client was killed, of which nothing else is known
    journal_error: str = ""  # why the journal could not be written in full
    request_id_prefix: str | None = None  # of each x-request-id, its index follows; None: not kept
    label: str | None = None
    metadata: tuple[str, ...] = ()
    requests: int = Field(ge=1)  # as planned
    repeated_prompts: int = 0  # prompts of the plan that equal an earlier one of it
    throttled: tuple[str, ...] = ()  # what held this machine back in the run, in words
    window: ServerWindow | None = None  # what the server says of the run; None: nobody asked it
    launched: Launched | None = None  # None: it was there before
    checkpoint: Checkpoint | None = None  # what the model's files say
    as_run: AsRun | None = None  # what the engine says it makes of them
    sensed: Sensed | None = None  # memory, power and heat of this machine; None: the server is elsewhere
    cache_reset: str = ""  # what became of the prefix cache before the run; "": nobody touched it
    traced: str = ""  # where the engine's own profile of the run lies
    calibration: Calibration | None = None  # how true this client was when it last measured itself
    cell: Cell | None = None  # where it stands in a campaign
    fingerprint: Fingerprint | None = None  # answers to a few greedy prompts
    ceiling: Ceiling | None = None  # what the machine could do at best
    no_ceiling: str = ""  # why that is not known, and what to pass

    def dumped(self) -> bytes:
        """All of it as the JSON that a journal holds."""
        return json.dumps(self.model_dump(mode="json")).encode()

    @property
    def partial(self) -> str:
        """Why these are not all of the plan's requests, in words; "" where they are."""
        return self.cut_short or self.stop_rule or self.recovered

    @property
    def prompt_replaced(self) -> bool:
        """Whether --extra-body puts one prompt in the place of every planned one."""
        fields = _PROMPTS | ({"text"} if self.profile.backend == "sglang" else set())
        return bool(fields & set(self.profile.extra_body))

    def ask(self) -> MetricOptions:
        """What the metrics are asked for."""
        return asked(self.profile)

    def block(self) -> BlockFacts:
        """What the block shows of the load."""
        return shown(self.profile)


def asked(profile: Profile) -> MetricOptions:
    """What a profile asks of the metrics; raises UsageError where it asks for what cannot be."""
    return MetricOptions(
        metric_percentiles=parse_percentiles(profile.metric_percentiles),
        goodput_slo_ms=parse_goodput(profile.goodput),
        streamed=profile.stream,
    )


def shown(profile: Profile) -> BlockFacts:
    """What a profile shows in the block; raises UsageError where it names no metric."""
    return BlockFacts(
        request_rate_per_s=profile.request_rate,
        max_concurrency=profile.max_concurrency,
        selected=parse_percentile_metrics(profile.percentile_metrics),
    )


def check(profile: Profile) -> None:
    """Find before a run what could not be reported after it; raises UsageError."""
    asked(profile)
    shown(profile)
    Trim.parse(profile.warmup, profile.cooldown)
    check_body(profile)
