"""The command: whatever is wrong ends in one clear line, the right exit code and nothing left running."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.loops import loop_over, read_tables
from fakes.scripted_server import ScriptedServer, api, stream
from loadgen import cli
from loadgen.base import signals
from loadgen.cli import MEASURE, PREPARE, READ, VERBS, list_questions
from loadgen.settings.setting import GROUPS
from loadgen.settings.table import TABLE

TABLES = read_tables("cli")

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.usefixtures("elsewhere")


def says(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def url() -> Iterator[str]:
    with ScriptedServer(api(lambda _: stream())) as server:
        yield server.base_url


@pytest.mark.usefixtures("engines")
@loop_over(("words", "told"), TABLES["refused"])
def test_a_wrong_command_is_refused_in_one_line(
    words: str,
    told: str,
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.touch()
    words = words.replace("{url}", url).replace("{file}", str(file)).replace("{{", "{").replace("}}", "}")
    small = {"--num-prompts": "2", "--random-input-len": "8", "--random-output-len": "2"}
    given = words.split(" ")
    given += [word for flag, value in small.items() if flag not in given for word in (flag, value)]
    code, out, err = says(capsys, "bench", "--quiet", *given)
    assert (code, out) == (2, "")
    assert told in err
    assert re.fullmatch(r"loadgen: [^\n]+\n", err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "nothing is left behind"


@pytest.mark.whole
@pytest.mark.parametrize(("words", "told"), [
    ("--profile ./mine.toml", "mine.toml: unknown key 'input_ln', did you mean 'input_len'?"),
    ("--preset nonesuch", "nonesuch"),
])  # fmt: skip
def test_a_refused_command_leaves_no_engine_that_it_had_started(
    words: str, told: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.toml").write_text("input_ln = 5\n", "utf-8")
    code, out, err = says(capsys, "bench", *words.split())
    assert (code, out) == (2, "")
    assert told in err
    assert re.fullmatch(r"loadgen: [^\n]+\n", err)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(("argv", "code", "told"), TABLES["helps"])
def test_verbs_help_themselves(
    argv: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = says(capsys, *argv)
    assert (found, err) == (code, "")
    assert told in out


def test_without_a_verb_the_help_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = says(capsys)
    assert (code, out) == (2, "")
    assert err == cli.render_help()


@pytest.mark.parametrize(("raised", "code", "told"), [
    (SystemExit("no licence for this library"), 1, "loadgen: no licence for this library\n"),
    (SystemExit(("a", 1)), 1, "loadgen: ('a', 1)\n"),
    (SystemExit(7), 7, ""),
    (SystemExit(True), 1, ""),
    (SystemExit(), 0, ""),
])  # fmt: skip
def test_an_exit_that_a_library_asks_for_is_a_line_and_a_code(
    raised: SystemExit,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def leave() -> int:
        raise raised

    codes: list[int] = []
    monkeypatch.setattr(cli, "main", leave)
    monkeypatch.setattr(os, "_exit", codes.append)
    enabled = gc.isenabled()
    try:
        cli.run()
    finally:
        if enabled:
            gc.enable()
    said = capsys.readouterr()
    assert (codes, said.out, said.err) == ([code], "", told)


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_in_a_callback_is_not_lost(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Collected:
        pass

    monkeypatch.setattr(sys, "unraisablehook", signals.send_dropped_again)
    collected = [Collected()]
    seen = weakref.ref(collected[0], lambda _: signal.raise_signal(number))
    with signals.SIGNALS.catch(signals.stop):
        collected.clear()
        with pytest.raises(signals.Stopped) as stopped:
            threading.Event().wait(30)
    assert seen() is None
    assert stopped.value.number == number


@pytest.mark.parametrize(
    ("verb", "is_on"), [("report", True), ("data", True), ("bench", False), ("limit", False)]
)
def test_the_collector_is_off_for_what_measures_alone(
    verb: str, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled, found = gc.isenabled(), list[bool]()
    monkeypatch.setattr("sys.argv", ["loadgen", verb, "--help"])
    monkeypatch.setattr(os, "_exit", lambda code: found.append(gc.isenabled()))
    try:
        cli.run()
    finally:
        if enabled:
            gc.enable()
    assert found == [is_on]


@pytest.mark.parametrize("flag", ["--server-args", "--server_args", "--container-args"])
@pytest.mark.parametrize("verb", ["bench", "sweep", "limit"])
def test_help_for_an_engine_is_no_help_of_ours(
    flag: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = says(capsys, verb, flag, "--help", "--num-promts", "5")
    assert (code, out) == (2, "")
    assert "unknown flag --num-promts" in err


@pytest.mark.parametrize(("argv", "told"), [
    (["bnech"], "no command 'bnech', did you mean 'bench'?; there are bench, profiles"),
    (["profiles", "hihg-load"], "did you mean 'high-load'?"),
    (["report", "absent"], "absent is not a run directory"),
])  # fmt: skip
def test_wrong_verbs_and_names_are_told(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = says(capsys, *argv)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.whole
@pytest.mark.parametrize(("words", "heavy"), [
    (["--help"], {"msgspec", "numpy", "httpx", "pydantic", "rich", "transformers", "asyncio"}),
    (["bench", "--help"], {"numpy", "httpx", "rich", "transformers", "asyncio"}),
])  # fmt: skip
def test_help_does_without_the_imports_of_a_run(words: list[str], heavy: set[str]) -> None:
    script = f"import sys; from loadgen.cli import main; main({words}); print(sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert {name for name in heavy if f"'{name}'" in out} == set()


@pytest.mark.whole
def test_settings_for_our_imports_do_not_reach_started_servers() -> None:
    script = """if True:
        import os, psutil, sys, time
        from loadgen.cli import main
        before = dict(os.environ)
        main(["bench", "--base-url", "http://127.0.0.1:9", "--ready-check-timeout-sec", "0"])
        assert "numpy" in sys.modules and "pydantic" in sys.modules
        # A thread that was joined may live on in the kernel for a moment; those of a pool would stay.
        deadline = time.monotonic() + 10
        while psutil.Process().num_threads() > 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        print(psutil.Process().num_threads(), dict(os.environ) == before)
        import pydantic.plugin._loader as loader
        print(loader._plugins)
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    environment = {name: value for name, value in environment.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split()[:2] == ["1", "True"]
    assert done.stdout.split()[-1] == "None"  # pydantic has not looked for plugins


@pytest.mark.whole
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    command = f"{sys.executable} -m loadgen bench --help | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert "Traceback" not in done.stderr


def test_the_help_of_bench_has_the_flags_of_most_runs_in_60_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    helps = {}
    for flag in ("--help", "--help-all", *(f"--help={name}" for name in GROUPS)):
        assert cli.main(["bench", flag]) == 0
        helps[flag] = capsys.readouterr().out
    flags = {flag: set(re.findall(r"^  (--[\w-]+)", text, re.M)) for flag, text in helps.items()}
    short, every = flags.pop("--help"), flags.pop("--help-all")
    assert len(helps["--help"].splitlines()) <= 60
    assert short == {row.option for row in TABLE if row.common}
    assert every == {row.option for row in TABLE if row.group in GROUPS.values()}
    assert sum(map(len, flags.values())) == len(every)
    assert set.union(*flags.values()) == every


def test_help_of_a_group_that_there_is_not_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--help=trace"]) == 2
    assert "loadgen: no group 'trace', did you mean 'traces'?; there are server, " in capsys.readouterr().err


def test_the_verbs_stand_in_three_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    listed = list_questions()
    assert list(listed) == [MEASURE, READ, PREPARE]
    questions = {name: question for each in listed.values() for name, question in each.items()}
    assert set(questions) == {*VERBS, "data learn", "data describe"}
    assert [name for name, question in questions.items() if f"  {name:<13} {question}\n" not in text] == []
    assert [name for name, question in questions.items() if not question.endswith("?")] == []


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_80_columns(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        cli.main([*([verb] if verb else []), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("verb", VERBS)
def test_each_flag_of_a_verb_has_a_word_of_help(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        cli.main([verb, "--help"])
    lines = [*capsys.readouterr().out.splitlines(), ""]
    # A flag's own words begin in its line, behind two spaces, or in the next, further to the right.
    bare = [
        line.strip()
        for line, below in itertools.pairwise(lines)
        if line.startswith("  -") and "  " not in line.strip() and not below.startswith(10 * " ")
    ]
    assert bare == []
