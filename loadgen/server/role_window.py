"""Role window: what one server behind a router counted during a run, and when it ended in it."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel

from loadgen.server.server_counters import ServerWindow

Role = Literal["router", "prefill", "decode", "worker"]
ROLES: tuple[Role, ...] = get_args(Role)
ROUTER, PREFILL, DECODE, WORKER = ROLES


class RoleWindow(BaseModel, extra="forbid", frozen=True):
    """The change of one server's counters over a run, its samples as their peaks."""

    role: Role
    name: str  # short: of its host, with the port
    url: str  # without secrets
    window: ServerWindow
    peak_running: float | None = None
    peak_waiting: float | None = None
    peak_kv_cache_usage: float | None = None  # 0 to 1
    ended_s: float | None = None  # after the run began: from then on it did not answer, or had restarted
    ended_why: str = ""  # what was wrong with its last scrape; "" where it restarted
    counted_s: float | None = None  # when it was last scraped before that; 0: only before the run
    restarted: bool = False  # it answered again, its counters begun afresh; the window is of before that

    @property
    def label(self) -> str:
        """The role and the short name."""
        return f"{self.role} {self.name}"
