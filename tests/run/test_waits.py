"""Whatever a command waits for is shown, from its start to its end, in the order of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.serving_scripts import launch_command
from fakes.scripted_server import api, stream
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.run import live_display
from loadgen.run.command.progress import Display, Progress, Shown

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "4", "--num-warmups", "2"]


class Noted(Display):
    """Notes what is shown, each thing once."""

    def __init__(self, into: list[str]) -> None:
        self.into = into

    def show(self, progress: Progress) -> None:
        """Its title, with its place."""
        self._note(progress.title)

    def draw(self, shown: Shown) -> None:
        """Its line, without how far it is."""
        self._note(shown.line().partition(":")[0])

    @contextmanager
    def waiting(
        self, what: str, at_most_s: float | None = None, detail: Callable[[], str] = str, forks: bool = False
    ) -> Iterator[None]:
        """What it is, and that it is known how long at most."""
        assert isinstance(detail(), str)
        place = re.sub(r"runs/\S+|http://\S+", "…", what)
        self._note(f"{place}{' at most' * bool(at_most_s)}{' (forks)' * forks}")
        yield

    def _note(self, line: str) -> None:
        if line not in self.into[-1:]:
            self.into.append(line)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    monkeypatch.setattr(live_display, "LineDisplay", lambda stream: Noted(lines))
    return lines


MEASURED = [
    "making the prompts",
    "emptying the server's prefix cache",
    "warming up",
    "settling: until the server is idle at most",
    "bench",
    "reading the server's counters, once it is idle at most",
    "writing …",
]


def test_the_waits_for_a_running_server(shown: list[str]) -> None:
    with VirtualServing(api(lambda _: stream(3, 0.002))) as server:
        words = ["--base-url", server.base_url, *LOAD, "--ready-check-timeout-sec", "5"]
        assert cli.main(["bench", *words]) == 0
    idle = "measuring idle power"
    assert [line for line in shown if not line.startswith(idle)] == ["waiting for … at most", *MEASURED]


@pytest.mark.whole
def test_the_waits_for_a_server_that_is_started(shown: list[str], tmp_path: Path, ports: list[int]) -> None:
    assert cli.main(["bench", "--launch-command", launch_command(tmp_path, "Server().serve()"), *LOAD]) == 0
    unlike = ("measuring idle power", "reading the server's counters")  # sensors differ; it has no counters
    assert [line for line in shown if not line.startswith(unlike)] == [
        "starting command at most",
        "waiting for …",
        "first token",
        *(line for line in MEASURED if not line.startswith(unlike)),
        "stopping command at most",
        "until the GPU's memory is free again at most",
    ]


@pytest.mark.usefixtures("engines")
def test_the_waits_of_a_simulation(shown: list[str]) -> None:
    assert cli.main(["bench", "--preset", "instant", *LOAD]) == 0
    simulated = [f"SIMULATED {line}" if line in ("warming up", "bench") else line for line in MEASURED]
    assert shown == ["starting the embedded engine", "waiting for … at most", *simulated]
