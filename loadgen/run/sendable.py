"""Sendable: whether a server can take the whole of a plan, found out before anything of it is sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import format_count, list_first, quote_value
from loadgen.plan import request_sources
from loadgen.plan.plan import Plan
from loadgen.server.discovery import ServerInfo

_LOG = logging.getLogger("loadgen")
_MOST_NAMES = 10  # of models, in a message
_FEW_SLOTS = (
    "the server has %d slots for %d requests at once: the others will wait in its queue "
    "(--max-running; llama-server: --parallel)"
)
_SHORT_CONTEXT = (
    "the server was started for a context of %d tokens (--context-len) and has %d: llama-server takes no "
    "more than the model was trained with (--server-args '--override-kv ARCHITECTURE.context_length=int:N')"
)
_NO_TOOLS = (
    "the model's chat template has no place for tools, so the server may leave them out of the prompts "
    "(llama-server: --jinja --chat-template-file)"
)
_CONTEXT = "start the server with a larger context (--context-len; vLLM: --max-model-len)"
# What to type where rows are too long, by the kind of the data.
_FIXES = {
    "random": "lower --random-input-len or --random-output-len",
    "random_turns": "lower --turns, --random-input-len or --random-output-len, or {context}",
    "prefix_repetition": "lower --prefix-repetition-prefix-len, -suffix-len or -output-len",
    **dict.fromkeys(
        ("trace", "timed_trace"),
        "pass --trace-max-input-len N, with --trace-too-long clip to cut them, or {context}",
    ),
}
_ROWS = "lower --output-len, leave those rows out of the file, or {context}"


@runtime_checkable
class _Placed(Protocol):
    """Requests that know the row of a file that each is of."""

    def where(self, i: int) -> str: ...


@runtime_checkable
class _Modelled(Protocol):
    """Requests that may name a model of their own."""

    @property
    def models(self) -> Mapping[str, int]:
        """The models that they name, and the first request of each."""
        ...


def check_sendable(made: Plan, served: ServerInfo, started_context: int = 0) -> None:
    """Raises MeasureError or UsageError where a server would refuse requests of a plan.

    `started_context` is the context in tokens that it was started for; 0: it was not started here.
    """
    check_models(made, served)
    check_lengths(made, served.max_model_len)
    warn(made, served, started_context)


def warn(made: Plan, served: ServerInfo, started_context: int = 0) -> None:
    """Warn of what a server takes, and not as it is meant."""
    if 0 < served.max_model_len < started_context:
        _LOG.warning(_SHORT_CONTEXT, started_context, served.max_model_len)
    streams = made.profile.held_concurrency or 0
    if 0 < served.slots < streams:
        _LOG.warning(_FEW_SLOTS, served.slots, streams)
    if served.without_tools and "tools" in getattr(made.requests, "features", {}):
        _LOG.warning(_NO_TOOLS)


def check_models(made: Plan, served: ServerInfo) -> None:
    """Raises MeasureError where a row names a model that a server, which lists its models, does not serve."""
    lists = served.engine.checks_model and served.engine.lists_its_model and served.models
    if not lists or not isinstance(made.requests, _Modelled):
        return
    others = {name: i for name, i in made.requests.models.items() if name not in served.models}
    if not others:
        return
    name = min(others, key=others.__getitem__)
    more = f", and {format_count(len(others) - 1, 'more model')} like it" if len(others) > 1 else ""
    raise MeasureError(
        f"{_where(made, others[name])} asks for the model {quote_value(name)}{more}; {served.engine.name} "
        "serves "
        f"{list_first(served.models, _MOST_NAMES)}: change the name, or leave `model` out of the rows for "
        f"{quote_value(made.model)}"
    )


def check_lengths(made: Plan, limit: int) -> None:
    """Raises where a request cannot be answered as planned: MeasureError where it is too long for the model.

    `limit` is in tokens, prompt and answer together; 0: not known.
    """
    _check_least(made)
    if not 0 < limit < made.longest:
        return
    totals = _known(made.requests.input_lens, made) + _known(made.requests.output_lens, made)
    longest, count = int(totals.argmax()), int((totals > limit).sum())
    fix = _FIXES.get(made.facts.kind, _ROWS).format(context=_CONTEXT)
    if made.facts.kind == request_sources.RANDOM:
        raise MeasureError(
            f"the longest request needs {totals[longest]} tokens but {made.model} accepts {limit}: {fix}"
        )
    are = "1 request needs" if count == 1 else f"{count:,} requests need"
    raise MeasureError(
        f"{are} more tokens than the {limit} that {made.model} accepts, the longest {totals[longest]} "
        f"({_where(made, longest)}): {fix}"
    )


def _check_least(made: Plan) -> None:
    """Raises UsageError of a --min-tokens that is more than a request asks for at most."""
    least = made.profile.min_tokens
    asked = made.requests.output_lens[: len(made)]
    too_few = np.flatnonzero((asked > 0) & (asked < (least or 0)))
    if len(too_few):
        first = int(too_few[0])
        raise UsageError(
            f"--min-tokens {least} is more than the {asked[first]} tokens that a request asks for "
            f"({_where(made, first)}): lower it, or have every answer as long by --output-len"
        )


def _known(lens: Int64, made: Plan) -> Int64:
    """The lengths of the requests that are planned, 0 where only the server counts."""
    return np.maximum(lens[: len(made)], 0)


def _where(made: Plan, i: int) -> str:
    """A request by its row in the file, counted from 1, or by its place in the plan."""
    if isinstance(made.requests, _Placed):
        return made.requests.where(i)
    return f"request {i}"
