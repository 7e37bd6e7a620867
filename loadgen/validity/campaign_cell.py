"""Cell: where a run stands in the matrix of a campaign."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Cell(BaseModel):
    """One checkpoint on one server under one profile, once; runs with the same profile and repeat have one
    prompt stream."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    campaign: str
    checkpoint: str  # its name in the campaign's file: the row it is compared in
    server: str
    profile: str
    repeat: int  # counted from 0
    start: str  # which start of the server it ran on: runs of one start share what that start had of luck

    @property
    def arm(self) -> str:
        """What is compared: the checkpoint on its server."""
        return f"{self.checkpoint} on {self.server}"


class FailedCell(BaseModel):
    """A cell that came to nothing, and why."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    cell: Cell
    reason: str
