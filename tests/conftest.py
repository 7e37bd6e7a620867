"""What every test is kept from seeing of the machine it runs on."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest_plugins = ["tiers"]
# A container often forbids Python to keep what it compiles: each worker, and each of hundreds of commands,
# would compile all of it again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C is heard: a shell that starts this in the background has it ignored, and all children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A worker of pytest-xdist has a thread of its own, of which Python 3.12 warns at each fork.
    config.addinivalue_line("filterwarnings", "ignore:.*fork:DeprecationWarning")
    gc.disable()  # until all tests are collected: nearly all of it stays


def pytest_collection_finish() -> None:
    """What is imported stays to the end: the garbage collector need not search it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No key, no proxy and no self-test of the person who runs the tests; no pause for a server or a disk."""
    from loadgen.run import attach
    from loadgen.server import control, scraper

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        for name in ("OPENAI_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
            patch.delenv(name, raising=False)
        patch.setattr(os, "fsync", lambda file: None)  # no test cuts the power
        patch.setattr(attach, "start_git", lambda: nullcontext(str))  # a process for each session
        patch.setattr(control, "_POLLS_PER_S", 50)
        patch.setattr(scraper, "_SCRAPES_PER_S", 50)
        patch.setattr(scraper, "_BETWEEN_S", 0.02)
        yield


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def engines() -> Iterator[None]:
    """Embedded engines in virtual time, within this process."""
    from fakes.virtual_serving import virtual_engines

    with virtual_engines():
        yield


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Every port that was given out; afterwards nothing listens there, and no process is left."""
    from fakes.supervised import MARK, listens, marked
    from loadgen.features.sensors import sensor_discovery  # of few tests
    from loadgen.run import launched_server
    from loadgen_servers.process import running

    given: list[int] = []

    def free_port() -> int:
        given.append(running.free_port())
        return given[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setattr(launched_server, "free_port", free_port)
    monkeypatch.setattr(launched_server, "_POLL_S", 0.02)
    monkeypatch.setattr(sensor_discovery, "_IDLE_S", 0.0)
    yield given
    monkeypatch.delenv(MARK)
    left = marked(str(tmp_path))
    for process in left:
        process.kill()
    assert not left
    assert not any(map(listens, given))
