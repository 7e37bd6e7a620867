"""The table of what was found broken: every row is there, with tests that exist; here are those left over."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs
from builders.campaign_files import cells, failures, the_directory, written
from builders.made_cases import measured
from builders.serving_scripts import launch_command
from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, ScriptedServer, api, chunk, stream, token
from fakes.surroundings import Service, argv, ended, run_directory, shell, started, succeeded
from fakes.surroundings import report as reported_again
from loadgen import cli
from loadgen.base.structs import replace
from loadgen.cli import VERBS
from loadgen.records.journal import JOURNAL, Journal
from loadgen.report import report
from loadgen.report import run_directory as result
from loadgen.report.run_directory import RESULT
from loadgen.report.run_writer import encode_run
from loadgen.run.attach import attach
from loadgen.run.session import Session
from loadgen.study.series.campaign import campaign_command

HERE = Path(__file__).parents[1]
FOUND_BROKEN = Path(__file__).with_name("found_broken.csv")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc, /dev/full and ulimit are Linux's")
ODD = "m\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"


def functions_by_file() -> dict[str, set[str]]:
    """The names of the test functions, by the name of their file."""
    found: dict[str, set[str]] = {}
    for place in (HERE, *(path for path in HERE.iterdir() if path.is_dir() and path.name != "data")):
        for path in place.glob("test_*.py") if place == HERE else place.rglob("test_*.py"):
            names = re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.M)
            found.setdefault(path.name, set()).update(names)
    return found


def test_every_row_says_what_happens_now_and_its_tests_exist() -> None:
    known, wrong = functions_by_file(), []
    with FOUND_BROKEN.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    for row in rows:
        named = re.findall(r"(test_\w+\.py)::(\w+)", row[3]) if len(row) == 4 else []
        missing = [f"{file}::{test}" for file, test in named if test not in known.get(file, ())]
        if len(row) != 4 or not all(row) or missing or not (named or row[2].startswith("not fixed: ")):
            wrong.append((row[0], missing))
    assert wrong == []
    assert len(rows) > 100


# What no other file of tests holds.


def assert_printable(text: str) -> None:
    for letter in text:
        assert letter in "\n\t" or letter.isprintable(), hex(ord(letter))


@pytest.mark.parametrize("words", ["", "--explain", "--layout sglang", "--markdown -", "--csv -"])
def test_a_stored_name_commands_no_terminal(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = made_runs.run(model=ODD, label=ODD, notes=(ODD,), metadata=(f"a={ODD}",))
    made_runs.keep(odd, tmp_path)
    assert cli.main(["report", str(tmp_path), *words.split()]) == 0
    said = capsys.readouterr()
    assert "]0;owned" in said.out
    assert_printable(said.out + said.err)


@pytest.mark.parametrize("form", ["html", "markdown", "csv"])
def test_a_stored_name_is_no_command_in_a_file(form: str, tmp_path: Path) -> None:
    if form == "html":
        pytest.importorskip("jinja2", reason="pages need it")
    made_runs.keep(made_runs.run(model=ODD, label=ODD, notes=(ODD,)), tmp_path)
    path = tmp_path / f"page.{form}"
    assert cli.main(["report", str(tmp_path), f"--{form}", str(path)]) == 0
    text = path.read_text("utf-8")
    assert "]0;owned" in text
    assert not [letter for letter in text if letter in ODD and not letter.isprintable()]


def test_a_run_of_which_a_journal_is_left_is_named_and_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, left = tmp_path / "whole", tmp_path / "left"
    for place in (whole, left):
        place.mkdir()
    made_runs.keep(made_runs.run(), whole)
    of = made_runs.run()
    journal = Journal(left / JOURNAL)
    journal.put_facts(replace(of.facts, under_way=True).encode())
    for record in made_runs.answers(24, 16, 4, 1.0, 0):
        journal.add(record)
    journal.finish()
    journal.close()
    assert cli.main(["compare", str(whole), str(left)]) == 0
    said = capsys.readouterr()
    assert f"{left} is an unfinished run: it has no {RESULT}; loadgen report {left} shows" in said.err
    assert cli.main(["report", str(left)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("PARTIAL: the client was killed during the run; read from its journal")
    assert "verdict: INVALID: the client was killed during the run" in out
    assert cli.main(["export", str(left), "--jsonl"]) == 0
    assert len((left / "requests.jsonl").read_text("utf-8").splitlines()) == 24


@pytest.mark.parametrize("fields", [{"capacity_streams": 0}, {"capacity_streams": 0, "streams": 1}, {}])
def test_a_self_test_that_held_nothing_ends_in_a_report(fields: dict[str, int]) -> None:
    of = made_runs.run(calibration=measured(0.0, **fields))
    text = report.render_report(of, explain=True)
    assert "not judged" not in text
    assert "failed:" not in text
    assert "self-test" in text
    json.dumps(encode_run(of), allow_nan=False)


LOAD = ["--random-input-len", "5", "--random-output-len", "3", "--num-prompts", "6", "--max-concurrency", "2"]


@pytest.mark.whole
@LINUX
def test_what_is_kept_is_its_owners_alone(elsewhere: Path) -> None:
    with ScriptedServer(api(lambda _: stream())) as server:
        words = ["--base-url", server.base_url, "--save-requests", "--no-observe"]
        assert cli.main(["bench", "--quiet", *LOAD, *words]) == 0
    (directory,) = (elsewhere / "runs").iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    files = list(directory.iterdir())
    assert len(files) == 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


@pytest.mark.whole
def test_a_servers_log_that_was_removed_costs_what_it_says_alone(
    ports: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"""
import pathlib
def heed(asked):
    if asked.number == 3:
        for log in pathlib.Path({str(tmp_path)!r}).glob('runs/*/server.log'):
            log.unlink()
Server(heed).serve()"""
    line = launch_command(tmp_path, code)
    assert cli.main(["bench", "--quiet", "--launch-command", line, *LOAD]) == 0
    (directory,) = tmp_path.glob("runs/*-bench")
    assert result.load(directory).metrics.completed == 6
    assert "the server's log was removed while it ran" in (directory / "server.log").read_text("utf-8")
    assert "Successful requests:                     6 " in capsys.readouterr().out
    assert len(ports) == 1


# A campaign.


def huge_usage(asked: Asked) -> Answer:
    """Every second answer counts 10^30 tokens."""
    used = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1%030d}}\n\n' % 0
    odd = [HEAD, *map(chunk, (token(), token("b", "length"), used, DONE)), LAST]
    return Answer(odd) if asked.number % 2 else stream()


@pytest.fixture
def uncompared(ports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_command, "_print_comparison", lambda kept, given: None)


@pytest.mark.whole
@pytest.mark.usefixtures("uncompared")
def test_a_campaign_measures_what_stands_beside_an_odd_server(tmp_path: Path) -> None:
    with ScriptedServer(api(huge_usage)) as bad, ScriptedServer(api(lambda _: stream())) as good:
        path = written(
            tmp_path,
            {"name": "bad", "base_url": bad.base_url},
            {"name": "good", "base_url": good.base_url},
            repeats=1,
        )
        assert cli.main(["campaign", str(path)]) == 0
    place = the_directory()
    assert cells(place) == ["r0-bad-attached-tiny", "r0-good-attached-tiny"]
    odd = result.load(place / "cells" / "r0-bad-attached-tiny")
    assert odd.verdict.level.value == "INVALID"
    assert 0 < odd.metrics.failed < odd.metrics.requests


def fails_inside(of: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Session, *given: Any) -> Any:
        if self.cell is not None and self.cell.checkpoint == "A":
            raise ZeroDivisionError("nobody foresaw it")
        return of(self, *given)

    return run


@pytest.mark.whole
@pytest.mark.usefixtures("uncompared")
@pytest.mark.parametrize("where", ["a run", "a ladder", "where it is attached to"])
def test_a_fault_of_our_own_costs_its_cell_alone(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attached(options: Any, settings: Any, *given: Any) -> Session:
        if where.startswith("where") and not seen:
            seen.append(1)
            raise ZeroDivisionError("nobody foresaw it")
        return attach(options, settings, *given)

    seen: list[int] = []
    monkeypatch.setattr("loadgen.study.series.point_runs.attach", attached)
    if not where.startswith("where"):
        monkeypatch.setattr(Session, "run", fails_inside(Session.run))
    (tmp_path / "up.toml").write_text("ladder = [1, 5]\noutput_len = 3\nnum_prompts = 2\n", "utf-8")
    two = ({"name": name, "preset": "instant"} for name in "AB")
    profiles = {"profiles": ["./up.toml"]} if where == "a ladder" else {}
    assert cli.main(["campaign", str(written(tmp_path, *two, repeats=1, **profiles)), "--quiet"]) == 0
    place = the_directory()
    (failed,) = failures(place).values()
    assert failed == "loadgen itself failed; please report it: ZeroDivisionError: nobody foresaw it"
    assert len(cells(place)) == 1


# Processes.


@pytest.mark.whole
@LINUX
@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1], ids=["SIGQUIT", "SIGUSR1"])
def test_after_a_signal_that_is_not_caught_the_journal_is_reported(
    number: signal.Signals, tmp_path: Path
) -> None:
    with Service().serving() as service:
        line = 'ulimit -c 0; exec "$@"'
        words = ["bash", "-c", line, "shell", *argv(service.base_url, 10_000, "--quiet")]
        client = started(words, tmp_path)
        service.until_journalled(40)
        at_s = time.monotonic()
        client.send_signal(number)
        assert ended(client).code == -number
        due = service.journalled(at_s)
    assert not (run_directory(tmp_path) / RESULT).exists()
    said = reported_again(tmp_path)
    assert (said.code, said.out.startswith("PARTIAL")) == (0, True)
    assert succeeded(said.out) >= due


@pytest.mark.whole
@LINUX
def test_a_limit_on_the_size_of_files_costs_files_and_no_figure(tmp_path: Path) -> None:
    with Service().serving() as service:
        found = shell('ulimit -f 1; "$@"', tmp_path, argv(service.base_url, 30, "--quiet"))
    assert found.code == 4, found
    assert succeeded(found.out) == 30
    assert "Traceback" not in found.err
    assert "journal.bin" in found.err


# What prints without a server: to a reader that goes away, to a full disk, and to nothing.
PRINTING = [
    "report RUN", "compare RUN RUN", "audit RUN", "campaign", "engine --list-presets", "engine --help",
]  # fmt: skip
MORE = [
    "--help", "profiles", "profiles high-load", "campaign demo --dry-run", "report RUN --explain",
    "report RUN --markdown -", *(f"{verb} --help" for verb in VERBS if verb != "engine"),
]  # fmt: skip
BROKEN_OUTPUTS = {"| head -c 1": 0, ">/dev/full": 4, ">&-": 0}  # the exit codes


@pytest.fixture
def kept(elsewhere: Path) -> str:
    """The directory of a made run."""
    pytest.importorskip("scipy", reason="compare needs it")
    (elsewhere / "run").mkdir()
    made_runs.keep(made_runs.run(), elsewhere / "run")
    return str(elsewhere / "run")


def broken(redirected: str, words: list[str], errors: Path) -> tuple[int, str]:
    """The exit code and standard error of the command with such an output, in a fork of this process."""
    reader, output = os.pipe() if "head" in redirected else (-1, -1)
    if "full" in redirected:
        output = os.open("/dev/full", os.O_WRONLY)
    if not (pid := os.fork()):
        try:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
            sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
            if output < 0:
                os.close(1)
                sys.stdout = None  # as the interpreter has it then
            else:
                os.dup2(output, 1)
                sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            if reader >= 0:
                os.close(reader)
            sys.argv = ["loadgen", *words]
            cli.run()
        finally:
            os._exit(70)
    if output >= 0:
        os.close(output)
    if reader >= 0:
        os.read(reader, 1)
        os.close(reader)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), errors.read_text("utf-8")


@pytest.mark.whole
@LINUX
@pytest.mark.parametrize("redirected", BROKEN_OUTPUTS)
def test_no_verb_ends_in_a_traceback_for_a_broken_output(redirected: str, kept: str, elsewhere: Path) -> None:
    ended = {
        line: broken(redirected, line.replace("RUN", kept).split(), elsewhere / "errors")
        for line in (*PRINTING, *(MORE if "head" in redirected else ()))
    }
    code = BROKEN_OUTPUTS[redirected]
    wrong = {
        line: found
        for line, found in ended.items()
        if found[0] != code or re.search("Traceback|Exception|Broken", found[1])
    }
    assert wrong == {}


@pytest.mark.whole
@LINUX
def test_a_campaign_outlives_its_terminal(tmp_path: Path) -> None:
    path = written(tmp_path, {"name": "A", "preset": "instant"}, repeats=2)
    words = [sys.executable, "-m", "loadgen", "campaign", str(path)]
    found = shell('"$@" 2>/dev/full | head -c 1; exit ${PIPESTATUS[0]}', tmp_path, words)
    assert found.code == 0, found
    assert len(cells(the_directory(tmp_path / "runs"))) == 2
