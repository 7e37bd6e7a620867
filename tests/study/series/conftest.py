"""Campaigns are of the server and the client alone, whatever other tests run next to them."""

from __future__ import annotations

import pytest

from loadgen.run import session


@pytest.fixture(autouse=True)
def _no_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cpu_watch", lambda *given, **named: None)
