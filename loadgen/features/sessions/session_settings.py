"""Sessions: the settings of how many conversations there are, what their turns hold, and when each is due."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Literal

from loadgen.base import bounds
from loadgen.base.bounds import integer_between, number_between
from loadgen.settings.load_settings import ShapeKeys
from loadgen.settings.setting import SESSIONS, KeyRows, Makes, RequestSource, setting

_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_OWN_HEADERS = ("host", "content-type", "content-length", "x-request-id", "transfer-encoding", "connection")
_MOST_FACTOR = 1000.0
_ARRIVALS = ("request_rate", "schedule", "bursts", "ramp_up_strategy")
RECORDED_DELAYS, NO_DELAYS = "recorded", "none"


def _write_number(value: Any) -> Any:
    """TOML and Python may give a time as a number."""
    return f"{value:g}" if type(value) in (int, float) else value


def _check_delays(value: Any) -> str:
    """TOML may give the factor as a number."""
    text = str(value).strip()
    if text in (RECORDED_DELAYS, NO_DELAYS):
        return text
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= _MOST_FACTOR:
        raise ValueError(f"give recorded, none, or a factor from 0 to {_MOST_FACTOR:g}")
    return text


def _check_header_name(value: str) -> str:
    if value and (_HEADER_NAME.fullmatch(value) is None or value.lower() in _OWN_HEADERS):
        raise ValueError("give the name of a header that is none of the request's own")
    return value


# fmt: off
_session = partial(setting, Makes.LOAD, group=SESSIONS)


class SessionKeys(KeyRows, frozen=True):
    """How the turns of conversations follow one another."""

    num_sessions: int | None = _session(None, "conversations to send (default: all of the file); "
        "--max-concurrency is how many at once, --request-rate how many begin per second",
        read=integer_between(1, bounds.MOST_REQUESTS), metavar="N", keyword="int | None",
        replaces=("num_prompts",))
    turns: int | None = _session(None, "make conversations of N turns: --random-input-len and "
        "--random-output-len are those of a turn", read=integer_between(1, bounds.MOST_TURNS), metavar="N",
        keyword="int | None")
    think_time: str = _session("", "seconds before each of their turns, or a distribution of them",
        metavar="S", convert=_write_number, keyword="str | float")
    turn_delays: str = _session(RECORDED_DELAYS, "recorded (default), none, or a factor on the recorded ones",
        metavar="X", convert=_check_delays, keyword="str | float")
    # `live` sends the server's own answers back as the history.
    assistant: Literal["recorded", "live"] = _session("recorded", "whose answers are sent back: the recorded "
        "ones (the same prompts for every server), or its own", choices=("recorded", "live"))
    session_header: str = setting(Makes.REQUEST, "", "a header with the session's name, as X-Session-ID",
        group=SESSIONS, metavar="NAME", check=_check_header_name)
    turn_timeout: float | None = setting(Makes.CLIENT, None, "a turn that takes longer ends its session",
        group=SESSIONS, read=number_between(0.001, bounds.MOST_SECONDS), metavar="S", above=0.0,
        most=bounds.MOST_SECONDS, keyword="float | None")
    users: int | None = _session(None, "users, each with a session at a time, whose turns are due at "
        "--user-rate", read=integer_between(1, bounds.MOST_STREAMS), metavar="N", keyword="int | None",
        replaces=("max_concurrency", "turn_delays", "think_time", *_ARRIVALS))
    user_rate: float | None = _session(None, "turns per second of each user", read=number_between(1e-9, 1e9),
        metavar="R", above=0.0, most=1e9, keyword="float | None")
# fmt: on

PROFILE_KEYS = {ShapeKeys: (SessionKeys,)}
SOURCES = {
    "random_turns": RequestSource(
        "loadgen.features.sessions.synthetic_turns", key="turns", is_made=True, plans_lens=True
    )
}
# A profile whose requests are each of their own.
NO_SESSIONS: dict[str, Any] = {row.name: row.default for row in SessionKeys.rows}
