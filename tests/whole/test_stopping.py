"""Runs that a rule ends before their plan: reported all the same, with the rule by name, and exit code 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.scripted_server import Answer, Asked, ScriptedServer, api, stream, whole
from loadgen import cli
from loadgen.report.run_directory import RESULT

pytestmark = pytest.mark.whole
LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-warmups", "0", "--max-concurrency", "2"]
OOPS = Answer([whole(b"{}", "500 Oops")])


def every(number: int) -> Callable[[Asked], Answer]:
    """Each such request fails, a little later than it came."""
    failed = Answer([0.005, *OOPS.pieces])
    return lambda asked: failed if asked.number % number == 0 else stream(3, 0.002)


@pytest.mark.parametrize("transport", ["wire", "httpx"])
@pytest.mark.parametrize(("script", "words", "rule", "least", "most"), [
    pytest.param(lambda _: Answer([0.01, *OOPS.pieces]), [], "the first ", 10, 60, id="a dead server"),
    pytest.param(
        every(2), ["--max-failures", "5"], "--max-failures 5: ", 11, 120, id="too many failures"
    ),
    pytest.param(every(2), ["--max-failures", "10%"], "--max-failures 10%: ", 20, 150, id="a share"),
    pytest.param(
        lambda _: stream(3, 0.01),
        ["--max-duration", "0.5"],
        "--max-duration 0.5 s: ",
        2,  # of twenty where the machine is not busy
        190,
        id="time for sending is up",
    ),
    pytest.param(
        lambda _: stream(3, 0.6),
        ["--max-duration", "0.3", "--drain-timeout", "0.2"],
        "--max-duration 0.3 s: 2 requests still under way after the --drain-timeout of 0.2 s were cut",
        2,
        2,
        id="what is under way is cut",
    ),
])  # fmt: skip
def test_a_rule_ends_a_run_and_is_named(
    script: Callable[[Asked], Answer],
    words: list[str],
    rule: str,
    least: int,
    most: int,
    transport: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["bench", "--quiet", *LOAD, "--num-prompts", "200", "--transport", transport, *words]
    with ScriptedServer(api(script)) as server:
        assert cli.main([*line, "--base-url", server.base_url, "--run-dir", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("PARTIAL: ")
    (directory,) = tmp_path.iterdir()
    stored = json.loads((directory / RESULT).read_text("utf-8"))
    ours = stored["loadgen"]
    assert ours["stop_rule"].startswith(rule)
    assert least <= ours["metrics"]["requests"] <= most
    assert "stopped-by-rule" in {doubt["name"] for doubt in ours["verdict"]["doubts"]}
    assert ours["requests"] == 200
