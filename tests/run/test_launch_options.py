"""Launch flags: what is to be started and how, from the command line and a profile's [server] table."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from builders.loops import loop_over, read_tables
from builders.serving_scripts import engine_command
from loadgen import cli
from loadgen.base.secrecy import hide_argument_secrets

TABLES = read_tables("launch_options")

ECHO = "--launch-command 'echo {port}'"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, with a venv in which every engine seems to be installed."""
    monkeypatch.chdir(tmp_path)
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    for name in ("python", "python3"):
        (binaries / name).write_text("#!/bin/sh\necho 99.0\necho\n")
    for name in ("vllm", "transformers"):
        (binaries / name).write_text(f"#!{binaries}/python\n")
    for path in binaries.iterdir():
        path.chmod(0o755)
    return tmp_path


@loop_over(
    ("line", "says"),
    TABLES["refused"],
)
def test_what_cannot_be_started_is_told_in_one_line(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *shlex.split(line)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"loadgen: .*\n", said.err)
    assert says in said.err
    assert not Path("runs").exists()


def shown(capsys: pytest.CaptureFixture[str], *words: str, verb: str = "bench") -> str:
    """What --dry-run prints, with the port, which is another each time, as PORT."""
    assert cli.main([verb, "--dry-run", *words]) == 0
    assert not Path("runs").exists()
    said = capsys.readouterr()
    assert said.err == ""
    return re.sub(r"(?<=port )\d+", "PORT", said.out)


VLLM = ["--launch", "vllm", "--model", "org/m", "--server-python", "venv"]
# The venv's directory is put before the rest of PATH, as if it were activated.
BEFORE = r"""PATH={place}/venv/bin:"$PATH" """
OWN = "PYTHONSAFEPATH=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_SERVER_DEV_MODE=1 "
START = BEFORE + OWN + "{place}/venv/bin/vllm serve org/m --host 127.0.0.1 --port PORT"


@pytest.mark.whole
def test_a_dry_run_prints_the_command_and_starts_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--context-len", "9", "--memory-fraction", "0.5", "--server-args", "--x 'a b'"]
    start = START.format(place=place)
    assert shown(capsys, *VLLM) == f"{start}\n"
    expected = f"{start} --max-model-len 9 --gpu-memory-utilization 0.5 --x 'a b'\n"
    assert shown(capsys, *VLLM, *more) == expected
    assert shown(capsys, *VLLM, "--server-env", "A=b c", "--served-model-name", "n") == (
        f"{start} --served-model-name n\n".replace(OWN, f"{OWN}A='b c' ")
    )
    assert shown(capsys, "--launch-command", "A=1 echo --port {port}") == "A=1 echo --port PORT\n"


@pytest.mark.whole
def test_a_ladder_on_sglang_sends_ids_unless_a_tokenizer_is_given(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--launch", "sglang", "--model", "org/m", "--server-python", "venv"]
    assert "--skip-tokenizer-init" in shown(capsys, *words, verb="ladder")
    assert "--skip-tokenizer-init" not in shown(capsys, *words)
    (place / "p.toml").write_text("ladder = [1]\n[server]\nskip_tokenizer = false\n")
    assert "--skip-tokenizer-init" not in shown(capsys, *words, "--profile", "./p.toml", verb="ladder")


SECRETS = ["--server-env", "HF_TOKEN=hush-1", "A_SECRET=hush-2"]
SECRETS += ["--server-args", "--api-key hush-3 --token=hush-4"]


@pytest.mark.whole
def test_no_secret_is_in_a_dry_run_nor_in_the_command_that_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["loadgen", "bench", *VLLM, *SECRETS])
    command = ["--launch-command", "KEY=hush-5 echo {port} --api-key hush-6"]
    said = shown(capsys, *VLLM, *SECRETS) + shown(capsys, *command) + shlex.join(hide_argument_secrets())
    monkeypatch.setattr(sys, "argv", ["loadgen", "bench", *command])
    said += shlex.join(hide_argument_secrets())
    assert "hush" not in said
    assert said.count("***") == 4 + 2 + 4 + 2


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_no_secret_is_on_the_screen_nor_in_any_file(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = '[server]\nenvironment = { MY_TOKEN = "hush-5" }\narguments = ["--served-model-name", "m"]\n'
    (place / "p.toml").write_text(f"num_prompts = 2\ninput_len = 8\noutput_len = 3\n{table}")
    words = ["bench", "--profile", "./p.toml", "--server-env", "HF_TOKEN=hush-1", "--header", "X=hush-2"]
    words += ["--launch-command", f"A_KEY=hush-3 {engine_command('--preset', 'instant')}", "--save-result"]
    monkeypatch.setattr(sys, "argv", ["loadgen", *words])
    assert cli.main(words) == 0
    said = capsys.readouterr()
    (result,) = Path("runs").glob("*/result.json")
    stored = json.loads(result.read_text("utf-8"))["loadgen"]["launched"]
    environment = stored["environment"]
    assert {environment[name] for name in ("A_KEY", "HF_TOKEN", "MY_TOKEN")} == {"***"}
    assert stored["command"][-2:] == ["--served-model-name", "m"]
    files = [path for path in place.rglob("*") if path.is_file() and path.name != "p.toml"]
    assert len([path for path in files if path.suffix == ".json"]) == 2
    for content in (said.out.encode(), said.err.encode(), *(path.read_bytes() for path in files)):
        assert b"hush" not in content
