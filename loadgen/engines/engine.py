"""Engine: the row that says all that a client must know of one serving engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.engines.config_patterns import InfoField, LogPattern


class SelfDescription(msgspec.Struct, frozen=True):
    """A server's description of itself; empty strings and 0 for what it does not report."""

    version: str = ""
    model_root: str = ""  # not yet known to be a path
    max_model_len: int = 0
    slots: int = 0  # requests that it runs at once; others wait
    without_tools: bool = False  # its chat template has no place for them


def describe_version(answer: Mapping[str, Any]) -> SelfDescription:
    """Make the description of a server that reports its version alone."""
    return SelfDescription(untrusted.read_text(answer.get("version")))


METRICS_PATH = "/metrics"  # nearly everyone's


class MetricSeries(msgspec.Struct, frozen=True):
    """The meaning of a Prometheus metric name: a quantity, and its part, fixed or given by a label."""

    quantity: str
    part: str = ""
    label: str = ""
    scale: float = 1.0  # its unit in ours, s and bytes: 0.001 of ms; of a bucket its bound is scaled
    only: Mapping[str, str] = {}  # labels whose other values are left out


class EngineMetrics(msgspec.Struct, frozen=True):
    """A server's metric names; `lazy` are the quantities that appear with their first event."""

    name: str  # stored with the figures
    meanings: Mapping[str, MetricSeries]
    marks: tuple[str, ...]  # beginnings of names that no other row's exposition has
    lazy: frozenset[str] = frozenset()
    label: str = ""  # what has them; "": the engine of the row
    flag: str = ""  # without which it has no /metrics
    path: str = METRICS_PATH
    routes: bool = False  # it hands requests on, and counts them as it sees them
    model_label: str = "model_name"
    shares: tuple[str, ...] = ()  # labels by which a gauge is given in addition to the whole
    only: Mapping[str, str] = {}  # labels whose other values are left out
    reasons: Mapping[str, str] = {}  # its words for why requests ended, in lower case → ours


def name_histogram(name: str, quantity: str, scale: float = 1.0, **only: str) -> dict[str, MetricSeries]:
    """Map the Prometheus series of a histogram (buckets, sum), `only` of these labels, to their meanings."""
    return {
        f"{name}_bucket": MetricSeries(quantity, label="le", scale=scale, only=only),
        f"{name}_sum": MetricSeries(quantity, "sum", scale=scale, only=only),
    }


STARTED = {"process_start_time_seconds": MetricSeries("started")}


class Engine(msgspec.Struct, frozen=True):
    """A serving engine: how it is recognised, what a request to it may hold, and what it reports.

    `owned_by` is what its /v1/models reports; `own_path` a path that only its /openapi.json names.
    """

    name: str
    owned_by: str = ""
    own_path: str = ""
    takes_ids: bool = True  # a prompt as token ids
    asked_for_ids: bool = False  # builds differ: one request before the run finds out whether it does
    takes_ignore_eos: bool = True
    vllm_fields: bool = False  # takes repetition_penalty and return_token_ids next to OpenAI's own fields
    forces_length: str = ""  # a `generation_config` that does what it does not take ignore_eos for, as JSON
    max_tokens_field: str = ""  # for chat; "" leaves it to the dialect
    lists_its_model: bool = True  # /v1/models names what it serves
    checks_model: bool = True  # it refuses any other name
    version_path: str = "/version"
    sends_at_once: bool = False  # without Nagle's algorithm: what it writes waits for no acknowledgement
    ours: bool = False  # this project's: no gateway that has Nagle's algorithm stands in front of it
    takes_all_memory: bool = False  # at its start, so that what it has taken is not that of a request
    info_path: str = ""  # reports its configuration
    older_info_path: str = ""  # where older versions do
    reset_path: str = ""  # empties its prefix cache
    reset_needs: str = ""  # what it must have been started with
    salt_field: str = ""  # of a request, which finds only what requests with the same value left in the cache
    unsalted: str = ""  # a pattern of versions that lack the field in some APIs
    trace_start_path: str = ""  # from here on it records a trace of itself
    trace_stop_path: str = ""
    trace_needs: str = ""
    trace_directory_field: str = ""  # of the start request; "" where the directory is chosen at its launch
    simulated: bool = False  # its `root` names the timing it acts with
    unproven: bool = False  # which of our fields it takes is not known before a request
    hosted: bool = False  # someone else's service: nothing but the API itself is asked of it
    describe: Callable[[Mapping[str, Any]], SelfDescription] = describe_version  # of its `version_path`
    published_as: str = ""  # on pages of other clients; "": by its name
    native_backend: str = ""  # its own API, if it takes token ids there where OpenAI's does not
    launch_name: str = ""  # of --launch; "": it is not started by name
    shares_context: bool = False  # its requests at once share one context, and are few unless asked for
    closing_server: str = ""  # its Server header, if it ends a connection after each stream
    own_times: str = ""  # how its answers get its own times of each request, if not always
    past_context: str = ""  # a pattern: how it words that prompt and answer exceed the model's context
    metrics: EngineMetrics | None = None  # of its /metrics
    no_metrics: str = ""  # why it has none
    log_patterns: tuple[LogPattern, ...] = ()  # of its configuration, in its log
    info_fields: tuple[InfoField, ...] = ()  # of its configuration, at `info_path`
