"""Run facts: everything about a run that is not in its records, once its models are needed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Self

from msgspec.structs import replace

from loadgen.base.columns import MOST_COUNT
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.vllm_keys import BlockFacts
from loadgen.host.cpu_use import CpuUse
from loadgen.host.sensor_summary import WITH_SERVER, SensorSummary
from loadgen.roofline.ceiling import Ceiling
from loadgen.roofline.checkpoint import Checkpoint
from loadgen.server.answer_check import Fingerprint
from loadgen.server.engine_config import EngineConfig
from loadgen.server.server_counters import ServerWindow
from loadgen.transport.sending.share import WHOLE, Share
from loadgen.verdict.calibration import Calibration
from loadgen.verdict.campaign_cell import Cell
from loadgen.verdict.run_metadata import StartFacts, asked, shown
from loadgen.verdict.shard_facts import MergedShard

# Flags by which an engine takes more GPUs than those that share one copy of the model's layers.
_PARALLEL = re.compile(r"--(data|pipeline|prefill-context)-parallel-size|--(dp|pp)(-size)?\b|-(dp|pp)\b")
_PROMPTS = {"prompt", "prompt_embeds", "messages", "input_ids", "input_embeds"}  # in the body, of any API


class Facts(StartFacts, frozen=True):
    """Everything about a run that is not in its records; the two together make the report."""

    window: ServerWindow | None = None  # the server's counters over the run; None: not scraped
    checkpoint: Checkpoint | None = None  # what the model's files declare
    as_run: EngineConfig | None = None  # the configuration that the engine reports
    sensed: SensorSummary | None = None  # this machine's memory, power, heat; None: the server is elsewhere
    cpu_use: CpuUse | None = None  # this machine's CPUs; None: the server is elsewhere
    calibration: Calibration | None = None  # this client's error when it last measured itself
    cell: Cell | None = None  # its place in a campaign
    fingerprint: Fingerprint | None = None  # answers to a few greedy prompts
    ceiling: Ceiling | None = None  # what the machine could do at best
    shards: tuple[MergedShard, ...] = ()  # of which this run was merged

    @classmethod
    def of(cls, start: StartFacts) -> Self:
        """What was known before the first request, nothing learned since."""
        return cls.model_validate(dict(start))

    @classmethod
    def stored(cls, ours: Mapping[str, Any]) -> Self:
        """The facts in a result or journal of any format; raises pydantic's ValidationError."""
        fields = {key: ours[key] for key in cls.model_fields if key in ours}
        # Earlier versions had only a note where there is a field now.
        notes = fields.get("notes")
        refused = isinstance(notes, list) and any("ignore_eos is not sent" in str(note) for note in notes)
        return cls.model_validate({"ignore_eos_refused": refused, **fields})

    @property
    def partial(self) -> str:
        """Why these are not all of the plan's requests, in words; "" if they are."""
        return self.cut_short or self.stop_rule or self.recovered

    @property
    def prompt_replaced(self) -> bool:
        """Whether --extra-body replaces every planned prompt by one, as earlier versions allowed."""
        fields = _PROMPTS | ({"text"} if self.profile.backend == "sglang" else set())
        return bool(fields & set(self.profile.extra_body))

    @property
    def gpu_count(self) -> int:
        """GPUs that the server ran on: as given, else where its memory was, else as started; 0: unknown."""
        if self.gpus or self.server.simulated:
            return self.gpus
        if self.sensed is not None and self.sensed.gpus_how == WITH_SERVER:
            return len(self.sensed.gpus)
        if self.launched is None or "gpu" not in self.environment:
            return 0
        replicated = any(_PARALLEL.match(word) for word in self.launched.command)
        return 0 if replicated else self.launched.settings.tensor_parallel or 0

    @property
    def share(self) -> Share:
        """The part of the plan that this run sent; what is asked of a run is its own part."""
        return WHOLE if self.shard is None else Share(self.shard.number, self.shard.of)

    @property
    def whole_load(self) -> bool:
        """Whether the server had no other part of the plan's load than this run's."""
        return self.share.of == 1

    @property
    def own_requests(self) -> int:
        """How many of the plan's requests were this run's to send."""
        own = None if self.shard is None else self.shard.requests
        return self.requests if own is None else own

    @property
    def own_sessions(self) -> int:
        """How many of the plan's sessions were this run's to send; 0: there are none."""
        return self.share.slots(len(self.session_turns))

    @property
    def queues(self) -> int:
        """How many queues the slots took requests, or sessions, from: slot s from number s mod as many.

        A process has its own sessions; the requests of a shard are for all of its processes.
        """
        shards = self.share.of if self.session_turns else max(self.share.of, len(self.shards))
        processes = self.client.workers if self.session_turns else 1
        return min(max(shards * processes, 1), MOST_COUNT)

    @property
    def max_concurrency(self) -> int | None:
        """The most requests that this run was to have under way at once; None: there was no limit."""
        most = self.profile.max_concurrency
        return None if most is None else self.share.slots(most)

    @property
    def held_concurrency(self) -> int | None:
        """The concurrency, or sessions at once, that this run was to hold; None: the loop was open."""
        held = self.profile.held_concurrency
        return None if held is None else self.share.slots(held)

    @property
    def planned_rate_per_s(self) -> float:
        """Requests per second as planned, the mean of a trace or a schedule; inf: all at once."""
        return self.data.rate_per_s(self.profile.mean_rate_per_s) / self.share.of

    def ask(self) -> MetricOptions:
        """Which metrics to compute."""
        return replace(asked(self.profile), gpus=self.gpus)

    def block(self) -> BlockFacts:
        """What the result block shows of the load; a trace's rate is its mean.

        The rate of sessions is none of requests, which the block would call it.
        """
        rate_per_s, most = math.inf if self.session_turns else self.planned_rate_per_s, self.max_concurrency
        return replace(shown(self.profile), request_rate_per_s=rate_per_s, max_concurrency=most)
