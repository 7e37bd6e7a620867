"""What every test is kept from seeing of the machine it runs on."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Each test is of one tier: `-m TIER` runs them. One without a mark is a unit test.
TIERS = ("unit", "whole", "long", "engine")
TIMEOUTS_S = {"long": 300, "engine": 1800}  # the others: pyproject.toml
EXAMPLES = {"unit": 20, "long": 500}  # of each property; those of unit tests are tried again in the long tier


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C is heard: a shell that starts this in the background has it ignored, and all children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A worker of pytest-xdist has a thread of its own, of which Python 3.12 warns at each fork.
    config.addinivalue_line("filterwarnings", "ignore:.*fork:DeprecationWarning")
    for tier, examples in EXAMPLES.items():
        settings.register_profile(
            tier,
            max_examples=examples,
            deadline=None,  # a busy machine is not a fault of the code
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
    settings.load_profile("long" if _is_long(config) else "unit")
    gc.disable()  # until all tests are collected: nearly all of it stays


def _is_long(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "long")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for the whole of a tier; one for a part of it and for real engines."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return 2 if whole and config.option.markexpr != "engine" else 0


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its tier, and the time that a test of the tier may take."""
    torn = []
    for item in items:
        tiers = {mark.name for mark in item.iter_markers() if mark.name in TIERS}
        if len(tiers) > 1:
            torn.append(f"{item.nodeid}: {', '.join(sorted(tiers))}")
        tier = next(iter(tiers), "unit")
        if tier == "unit" and _is_long(config) and hasattr(getattr(item, "obj", None), "hypothesis"):
            tier = "long"
        if not tiers:
            item.add_marker(tier)
        if tier in TIMEOUTS_S and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUTS_S[tier]))
    if torn:
        raise pytest.UsageError("a test is of one tier: " + "; ".join(torn))


def pytest_collection_finish() -> None:
    """What is imported stays to the end: the garbage collector need not search it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No key, no proxy and no self-test of the person who runs the tests; no pause that spares a server."""
    from loadgen.server import discovery, scraper

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        for name in ("OPENAI_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
            patch.delenv(name, raising=False)
        patch.setattr(discovery, "_POLLS_PER_S", 50)
        patch.setattr(scraper, "_SCRAPES_PER_S", 50)
        patch.setattr(scraper, "_BETWEEN_S", 0.02)
        yield


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Every port that was given out; afterwards nothing listens there, and no process is left."""
    from fakes.supervised import MARK, listens, marked
    from loadgen.run import alongside, launched_server  # of few tests
    from loadgen_servers.process import running

    given: list[int] = []

    def free_port() -> int:
        given.append(running.free_port())
        return given[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setattr(launched_server, "free_port", free_port)
    monkeypatch.setattr(launched_server, "_POLL_S", 0.02)
    monkeypatch.setattr(alongside, "_IDLE_S", 0.0)
    yield given
    monkeypatch.delenv(MARK)
    left = marked(str(tmp_path))
    for process in left:
        process.kill()
    assert not left
    assert not any(map(listens, given))
