"""What every test is kept from seeing of the machine it runs on."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C is heard: a shell that starts this in the background has it ignored, and all children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A worker of pytest-xdist has a thread of its own, of which Python 3.12 warns at each fork.
    config.addinivalue_line("filterwarnings", "ignore:.*fork:DeprecationWarning")
    gc.disable()  # until all tests are collected: nearly all of it stays


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for the whole suite, which mostly waits; one for a part of it and for real engines."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return 2 if whole and config.option.markexpr == "not engine" else 0


def pytest_collection_finish() -> None:
    """What is imported stays to the end: the garbage collector need not search it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No key, no proxy and no self-test of the person who runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_pause_that_spares_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of tests have nothing else to do."""
    from loadgen.endpoint import discovery, scraper

    monkeypatch.setattr(discovery, "_POLLS_PER_S", 50)
    monkeypatch.setattr(scraper, "_SCRAPES_PER_S", 50)
    monkeypatch.setattr(scraper, "_BETWEEN_S", 0.02)


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Every port that was given out; afterwards nothing listens there, and no process is left."""
    from fakes.supervised import MARK, listens, marked
    from loadgen.session import alongside, launched_server  # of few tests
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
