"""Servers that do not start, that die, or that are somebody else's: a clear line, and nothing is left."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from builders.serving_scripts import launch_command
from fakes.scripted_server import ScriptedServer, api, stream
from loadgen import cli
from loadgen.report.run_directory import REPORT, RESULT
from loadgen.run import launched_server, session
from loadgen.run.live_display import LineDisplay
from loadgen_servers.process import running

pytestmark = pytest.mark.usefixtures("ports")
LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "6", "--max-concurrency", "1"]
HEALTHY = "Server().serve()"
HANGS = "print('loading weights', flush=True)\ntime.sleep(1000)"


def bench(line: str, *words: str) -> int:
    return cli.main(["bench", "--quiet", "--launch-command", line, *LOAD, *words])


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said on standard error, where a launch that failed says everything."""
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("loadgen: ")
    assert "Traceback" not in said.err
    return said.err


def server_log() -> Path:
    (log,) = Path("runs").glob("*-command-server/server.log")
    return log


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.whole
@pytest.mark.parametrize(("code", "parts"), [
    pytest.param(
        f"die(1, {OUT_OF_MEMORY!r})",
        ["command ended with 1 before it was ready: the GPU's memory ran out", f"  | {OUT_OF_MEMORY}"],
        id="out of memory",
    ),
    pytest.param(
        r"os.write(1, bytes(range(256)) * 40 + b'\n\x1b[31mlast words\x1b[0m\n')" + "\nos._exit(5)",
        ["command ended with 5", "\n  | last words\n"],
        id="a log of binary",
    ),
    pytest.param(
        f"Server(lambda asked: die(9, {OUT_OF_MEMORY!r})).serve()",
        ["command ended with 9 during the run: the GPU's memory ran out", f"\n  | {OUT_OF_MEMORY}\n"],
        id="at its first token",
    ),
    pytest.param(
        "Server(lambda asked: die(7, 'my last words') if asked.number > 1 else None).serve()",
        ["command ended with 7 during the run", "\n  | my last words\n"],
        id="in the warm-up",
    ),
])  # fmt: skip
def test_a_server_that_ends_before_the_run_is_told_with_cause_and_log(
    code: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(launch_command(tmp_path, code), "--num-warmups", "1") == 1
    said = told(capsys)
    for part in parts:
        assert part in said
    assert f"its whole log: {server_log()}" in said
    assert all(line.isprintable() for line in said.splitlines())


@pytest.mark.whole
def test_a_secret_that_a_server_logs_is_not_shown_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first_s", "every_s"):
        monkeypatch.setattr(LineDisplay, name, 0.1)
    words = "{'model': 'm', 'api_key': ['hush-hush']} HF_TOKEN=hush-2"
    code = f"print({words!r}, flush=True)\ntime.sleep(0.5)\nos._exit(1)"
    assert cli.main(["bench", "--launch-command", launch_command(tmp_path, code), *LOAD]) == 1
    said = capsys.readouterr().err
    assert re.search(r"^starting command · .*\{'model': 'm', 'api_key': \*", said, re.M)
    assert "\n  | {'model': 'm', 'api_key': ***" in said
    assert "hush" not in said


@pytest.mark.whole
def test_a_server_that_never_becomes_ready_is_given_up_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "print('loading weights', flush=True)\nServer(health=lambda: 503).serve()"
    assert bench(launch_command(tmp_path, code), "--launch-timeout-sec", "1.5") == 1
    said = told(capsys)
    assert "command is not ready after 1.5 s (/health answers 503; --launch-timeout-sec waits longer)" in said
    assert "\n  | loading weights" in said


@pytest.mark.whole
def test_a_server_that_gives_no_token_is_not_benchmarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "_FAILED_S", 0.1)
    assert bench(launch_command(tmp_path, "Server(lambda asked: 500).serve()")) == 1
    assert "generates no token: http-status: 500: as it was told" in told(capsys)
    assert [path.name for path in Path("runs").iterdir()] == [server_log().parent.name]


@pytest.mark.whole
def test_a_server_that_dies_midway_leaves_records_and_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no other profile is tried."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text("", "utf-8")
    code = "Server(lambda asked: die(7, 'my last words') if asked.number > 4 else None).serve()"
    assert bench(launch_command(tmp_path, code), "--profile", "./one.toml,./two.toml") == 1
    assert not list(Path("runs").glob("*-two"))
    said = capsys.readouterr()
    assert "Successful requests:                     3 " in said.out
    assert said.err.startswith("loadgen: command ended with 7 during the run; its whole log: ")
    assert said.err.endswith("\n  | my last words\n")
    (directory,) = Path("runs").glob("*-one")
    whole_report = (directory / REPORT).read_text("utf-8")
    assert whole_report.startswith("PARTIAL: the server has ended")
    assert said.out.startswith("PARTIAL: the server has ended")
    assert whole_report[whole_report.index("=") : whole_report.index("verdict:")] in said.out
    assert json.loads((directory / RESULT).read_text("utf-8"))["completed"] == 3
    assert (directory / "server.log").read_text("utf-8").endswith("my last words\n")


@pytest.mark.whole
def test_a_port_that_somebody_else_serves_is_never_benchmarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "_PORT_S", 0.1)
    with ScriptedServer(api(lambda _: stream())) as foreign:
        monkeypatch.setattr(launched_server, "free_port", lambda: foreign.port)
        assert bench(launch_command(tmp_path, HANGS)) == 2
        assert {asked.head.split()[0] for asked in foreign.asked} == {"GET"}
        said = told(capsys)
        assert f"port {foreign.port} is served by another process, pid {os.getpid()} (" in said
    assert said.count("\n") == 1


@pytest.mark.whole
def test_another_port_is_tried_where_one_was_taken_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(api(lambda _: stream())) as foreign:
        taken, other = foreign.port, running.free_port
        free = iter([taken])
        monkeypatch.setattr(launched_server, "free_port", lambda: next(free, None) or other())
        waits = f"if int(sys.argv[1]) == {taken}:\n    time.sleep(1000)\n"
        line = launch_command(tmp_path, waits + HEALTHY)
        assert cli.main(["bench", "--launch-command", line, *LOAD]) == 0
        assert {asked.head.split()[0] for asked in foreign.asked} <= {"GET"}
    said = capsys.readouterr()
    assert "Successful requests:                     6 " in said.out
    assert said.err.count(f"port {taken} was taken before command had it: another one is tried") == 1
    names = {path.name for path in Path("runs").glob("*-command-server/*")}
    assert names == {"server.log", f"server-port-{taken}.log"}


@pytest.mark.whole
def test_a_server_that_loses_every_port_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dies = "die(1, \"[Errno 98] error while attempting to bind on address ('127.0.0.1', 1)\")"
    assert bench(launch_command(tmp_path, dies)) == 1
    assert "a port that it needs is taken: end the other server, or start again" in told(capsys)
    assert len(list(Path("runs").glob("*-command-server/*"))) == 3


@pytest.mark.whole
def test_a_port_that_is_taken_after_the_run_is_told_and_the_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "_PORT_S", 0.1)
    monkeypatch.setattr(running, "_free", lambda port: False)
    assert bench(launch_command(tmp_path, HEALTHY)) == 1
    said = capsys.readouterr()
    assert "Successful requests:                     6 " in said.out
    assert re.fullmatch(r"loadgen: port \d+ is still taken, .*\n", said.err)


@pytest.mark.whole
@pytest.mark.parametrize(("heed", "health"), [
    pytest.param("nothing", "lambda: press() or 503", id="before it is ready"),
    pytest.param("lambda asked: press() or time.sleep(1000)", "lambda: 200", id="before its first token"),
])  # fmt: skip
def test_ctrl_c_while_it_starts_leaves_nothing(
    heed: str, health: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"""
def press():
    os.kill({os.getpid()}, signal.SIGINT)
Server({heed}, {health}).serve()"""
    assert bench(launch_command(tmp_path, code)) == 130
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "loadgen: interrupted by Ctrl-C\n")
    assert [path.name for path in Path("runs").iterdir()] == [server_log().parent.name]


@pytest.mark.whole
def test_ctrl_c_during_the_run_keeps_what_was_measured_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"""
def heed(asked):
    if asked.number > 4:
        os.kill({os.getpid()}, signal.SIGINT)
        time.sleep(1000)
Server(heed).serve()"""
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text("", "utf-8")
    assert bench(launch_command(tmp_path, code), "--profile", "./one.toml,./two.toml") == 130
    out = capsys.readouterr().out
    assert out.startswith("PARTIAL")
    assert out.count("Successful requests:                     3 ") == 1
    (directory,) = Path("runs").glob("*-one")
    assert json.loads((directory / RESULT).read_text("utf-8"))["loadgen"]["interrupted"] is True
    assert not list(Path("runs").glob("*-two"))
