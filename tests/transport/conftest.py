"""The transports that a test is run over, one at a time."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["wire", "ring"])
def epoll(request: pytest.FixtureRequest) -> str:
    """The two that poll; where the kernel allows no ring, the second is the ring transport without one."""
    return str(request.param)


@pytest.fixture(params=["wire", "ring", "httpx"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every one."""
    return str(request.param)
