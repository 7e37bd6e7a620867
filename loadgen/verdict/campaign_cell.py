"""Cell: where a run stands in the matrix of a campaign."""

from __future__ import annotations

from pydantic import BaseModel


class Cell(BaseModel, extra="forbid", frozen=True):
    """One checkpoint on one server under one profile, once; runs with the same profile and repeat have one
    prompt stream."""

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


class FailedCell(BaseModel, extra="ignore", frozen=True):
    """A cell that came to nothing, and why."""

    cell: Cell
    reason: str
