"""The transports that a test is run over, one at a time."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a test of `httpx` once, though `wire` stands for two transports in its file."""
    items[:] = [item for item in items if not _is_repeated(item)]


def _is_repeated(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    values = {} if callspec is None else callspec.params
    return values.get("epoll_transports") == "ring" and "httpx" in values.values()


@pytest.fixture(params=["wire", "ring"])
def epoll(request: pytest.FixtureRequest) -> str:
    """The two that poll; where the kernel allows no ring, the second is the ring transport without one."""
    return str(request.param)


@pytest.fixture(params=["wire", "ring", "httpx"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every one."""
    return str(request.param)
