"""Cancel keys: the keys of a profile that hold requests back, or give them up on purpose."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, field_validator

from loadgen.base import bounds
from loadgen.plan.key_roles import OfLoad
from loadgen.plan.load.cancel_point import CancelPoint, parse_point, parse_rate


class CancelKeys(BaseModel, frozen=True, defer_build=True):
    """A cap on requests in prefill, and requests that are cancelled as planned."""

    prefill_concurrency: OfLoad[int | None] = Field(default=None, ge=1, le=bounds.MOST_STREAMS)
    cancel_rate: OfLoad[str] = ""  # of the requests, as 10% or 0.1
    # As 2s or 1.5m after sending, or 50tok: once 50 messages with text have come.
    cancel_after: OfLoad[str] = ""

    @field_validator("cancel_rate", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        """TOML may give the share as a number."""
        return str(value) if type(value) in (int, float) else value

    @field_validator("cancel_rate")
    @classmethod
    def _a_share(cls, value: str) -> str:
        if value:
            parse_rate(value)
        return value

    @field_validator("cancel_after")
    @classmethod
    def _a_point(cls, value: str) -> str:
        if value:
            parse_point(value)
        return value

    @property
    def cancel_point(self) -> CancelPoint | None:
        """When a request that is to be cancelled is; None: none is to be."""
        return parse_point(self.cancel_after) if self.cancel_rate and self.cancel_after else None
