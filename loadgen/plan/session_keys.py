"""Session keys: the keys of a profile that say how the turns of conversations follow one another."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator

from loadgen.base import bounds
from loadgen.plan.key_roles import OfClient, OfLoad, OfRequest

_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_OWN_HEADERS = ("host", "content-type", "content-length", "x-request-id", "transfer-encoding", "connection")
_MOST_FACTOR = 1000.0
RECORDED_DELAYS, NO_DELAYS = "recorded", "none"
# A profile whose requests are each of their own.
NO_SESSIONS: dict[str, Any] = {
    "num_sessions": None,
    "turns": None,
    "think_time": "",
    "turn_delays": RECORDED_DELAYS,
    "assistant": "recorded",
    "session_header": "",
    "turn_timeout": None,
    "users": None,
    "user_rate": None,
}


class SessionKeys(BaseModel, frozen=True, defer_build=True):
    """How many sessions there are, what their turns hold, and when each is due."""

    # None: the file's, all.
    num_sessions: OfLoad[Annotated[int, Field(ge=1, le=bounds.MOST_REQUESTS)] | None] = None
    # Of each synthetic conversation.
    turns: OfLoad[Annotated[int, Field(ge=1, le=bounds.MOST_TURNS)] | None] = None
    # Seconds before each of their turns but the first, as 2 or as a distribution.
    think_time: OfLoad[str] = ""
    turn_delays: OfLoad[str] = RECORDED_DELAYS  # `none`, or a factor on those recorded
    assistant: OfLoad[Literal["recorded", "live"]] = "recorded"  # which answers are sent back as the history
    # The name of a header that has the same value in all turns of a session.
    session_header: OfRequest[str] = ""
    turn_timeout: OfClient[Annotated[float, Field(gt=0, le=bounds.MOST_SECONDS)] | None] = None  # seconds
    users: OfLoad[Annotated[int, Field(ge=1, le=bounds.MOST_STREAMS)] | None] = None
    user_rate: OfLoad[Annotated[float, Field(gt=0, le=1e9)] | None] = None  # turns per second of each of them

    @field_validator("turn_delays", mode="before")
    @classmethod
    def _known_delays(cls, value: Any) -> Any:
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

    @field_validator("think_time", mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        """TOML and Python may give it as a number."""
        return f"{value:g}" if type(value) in (int, float) else value

    @field_validator("session_header")
    @classmethod
    def _header_name(cls, value: str) -> str:
        if value and (_HEADER_NAME.fullmatch(value) is None or value.lower() in _OWN_HEADERS):
            raise ValueError("give the name of a header that is none of the request's own")
        return value

    @property
    def own_session_keys(self) -> list[str]:
        """The keys that apply to sessions alone and are given, in the order above."""
        return [key for key, default in NO_SESSIONS.items() if getattr(self, key) != default]
