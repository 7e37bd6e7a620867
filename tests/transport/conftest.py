"""The tests of the epoll transport, for the ring transport too: all that it promises holds of both."""

from __future__ import annotations

import pytest

from fakes import scripted_server


@pytest.fixture(params=["wire", "ring"])
def epoll_transports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `wire` stands for in a test; where no ring is allowed, that is the ring transport without one."""
    name = str(request.param)
    monkeypatch.setitem(scripted_server.TRANSPORTS, "wire", scripted_server.TRANSPORTS[name])
    return name
