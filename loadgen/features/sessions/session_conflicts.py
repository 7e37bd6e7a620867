"""Session conflicts: keys of sessions where there are none, or that do not go together, refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.features.sessions.session_settings import NO_SESSIONS, RECORDED_DELAYS
from loadgen.settings.table import ARRIVALS
from loadgen.settings.validation import find_flag

Values = Mapping[str, Any]
_CONVERSATIONS = "pass --dataset-path FILE of conversations, or --turns N"


def check(values: Values, typed: Collection[str] = ()) -> None:
    """Raises UsageError of the first pair of keys that do not go together, or a key without what it is of.

    `values` are a profile's, by key; `typed` are those given as flags or keywords.
    """
    sessions = bool(_given(values))
    for rule in (*_RULES, *(_LOADS if sessions else ())):
        for message in rule(values):
            raise UsageError(message)


def check_load(values: Values) -> None:
    """Raises UsageError of a load that sessions cannot have, where only the rows show that there are some."""
    for rule in _LOADS:
        for message in rule(values):
            raise UsageError(message)


def check_none(values: Values, kind: str) -> None:
    """Raises UsageError of a key of sessions where the data turn out to be of this kind, and to have none."""
    for key in _given(values):
        path = f" {values['dataset_path']}" if values.get("dataset_path") else ""
        raise UsageError(
            f"{find_flag(key)} applies to conversations, and --dataset-path{path} holds {kind}: "
            f"{_CONVERSATIONS}"
        )


def _given(values: Values) -> list[str]:
    """The keys of sessions that are not at their default."""
    return [key for key, default in NO_SESSIONS.items() if values.get(key, default) != default]


def _flag(values: Values, key: str) -> str:
    """A flag that gives a rate, as it was given where that is a number."""
    value = values.get(key)
    return f"{find_flag(key)} {value:g}" if isinstance(value, float) else find_flag(key)


def _no_sessions(values: Values) -> Iterator[str]:
    recognised = values.get("dataset_path") and values.get("dataset_name") is None
    if values.get("turns") is not None or (recognised and not values.get("trace")):
        return
    for key in _given(values):
        if key != "think_time":
            yield f"{find_flag(key)} applies to conversations: {_CONVERSATIONS}"


def _two_sources(values: Values) -> Iterator[str]:
    if values.get("turns") is None:
        if values.get("think_time"):
            yield (
                "--think-time is of conversations that are made here: pass --turns N; the delays of a file "
                "are as recorded, or by --turn-delays X"
            )
        return
    others = {
        "--trace": values.get("trace"),
        f"--dataset-name {values.get('dataset_name')}": values.get("dataset_name") not in (None, "random"),
        "--dataset-path": values.get("dataset_path"),
    }
    for flag, given in others.items():
        if given:
            yield f"--turns makes conversations, and {flag} has requests of its own: leave out one of them"
    if values.get("classes"):
        yield "--turns and --class: a turn has no class: give --input-dist and --output-dist"
    if values.get("backend") not in (None, "openai", "openai-chat"):
        yield (
            f"--backend {values['backend']}: --turns makes conversations of the chat API: use --backend "
            "openai-chat"
        )


def _users(values: Values) -> Iterator[str]:
    users, rate = values.get("users"), values.get("user_rate")
    if (users is None) != (rate is None):
        given, missing = (
            ("--users", "--user-rate R, turns per second of each")
            if rate is None
            else ("--user-rate", "--users N")
        )
        yield f"{given} needs {missing}"
    if users is None:
        return
    if values.get("max_concurrency") not in (None, users):
        yield (
            f"--users {users} and --max-concurrency {values['max_concurrency']} are two: each user has a "
            "session at a time: leave out --max-concurrency"
        )
    for key in ARRIVALS:
        value = values.get(key)
        if value and value != math.inf:
            yield f"--users has turns at --user-rate, and {_flag(values, key)} begins sessions: leave out one"
    for key, default in (("turn_delays", RECORDED_DELAYS), ("think_time", "")):
        if values.get(key, default) != default:
            yield f"--users has turns at --user-rate, and {find_flag(key)} pauses between them: leave out one"


def _held(values: Values) -> Iterator[str]:
    """A session keeps its place until its last turn, so no cap on requests can be held by it."""
    if str(values.get("schedule") or "").strip().startswith("concurrency"):
        yield (
            "--schedule of a concurrency does not go with conversations, of which each runs to its end: use "
            "--max-concurrency N, or a schedule of a rate at which they begin"
        )
    if values.get("prefill_concurrency") is not None:
        yield (
            "--prefill-concurrency does not go with conversations, whose next turn cannot wait: use "
            "--max-concurrency N, the conversations at once"
        )


def _ladder(values: Values) -> Iterator[str]:
    if values.get("ladder"):
        flag = find_flag(next(iter(_given(values)), "turns"))
        yield f"{flag} does not apply to a ladder: each of its requests stands alone"


_RULES: tuple[Callable[[Values], Iterator[str]], ...] = (_two_sources, _no_sessions, _users)
_LOADS: tuple[Callable[[Values], Iterator[str]], ...] = (_ladder, _held)
