"""A campaign's file is a program: what one that came from elsewhere may do, and what is asked for first."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import written
from builders.loops import loop_over, read_tables
from fakes.scripted_server import api, stream
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.base.clock import read_wall_clock
from loadgen.run import launched_server
from loadgen.run.command.credentials import collect_credentials
from loadgen.study.series.campaign import arms, campaign_file
from loadgen.study.series.campaign.arms import Trust
from loadgen.study.series.campaign.campaign_store import CampaignStore, make_record
from loadgen_servers.launch.spec import Command, LaunchError, shown

TABLES = read_tables("arms")
SECRET = "sk-very-secret-0123456789"


def touching(tmp_path: Path) -> str:
    """A command line that leaves a mark."""
    return f"/bin/sh -c 'echo {{port}} > {tmp_path}/mark'"


def without_port(text: str) -> str:
    """A line with the port that it was made with as N, and without a container's drawn name."""
    return re.sub(r"\b\d{4,5}\b", "N", re.sub(r"loadgen-[0-9a-f]{12}", "NAME", text))


@pytest.mark.parametrize(("flags", "line"), TABLES["programs"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_file_of_somebody_elses_starts_nothing_and_says_what_it_would(
    flags: dict[str, Any], line: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = tmp_path / "evil"  # asked for its version, it would be run
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\n", "utf-8")
    evil.chmod(0o755)
    path = written(tmp_path, {"name": "x", **flags}, repeats=1)
    code = cli.main(["campaign", str(path), *more])
    said = capsys.readouterr()
    if more:
        assert code == 0
        assert "runs programs: x on " in said.out
        assert "; needs --allow-launch\n" in said.out
        assert any(re.search(line, without_port(shown)) for shown in said.out.splitlines())
    else:
        assert code == 2
        assert f"{path} would run programs on this machine, as you; read them, and allow it" in said.err
        assert re.search(f"  x on [a-z]+: .*{line}", without_port(said.err), re.M)
    assert not (tmp_path / "mark").exists()
    assert not Path("runs").exists()


def engine(tmp_path: Path, name: str) -> None:
    """A venv with an engine of a version, whose programs leave a mark."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\necho 99.0.0\necho\n", "utf-8")
    (python.parent / name).write_text(f"#!{python}\n", "utf-8")
    for program in (python, python.parent / name):
        program.chmod(0o755)


@pytest.mark.whole
@pytest.mark.parametrize(("name", "flags"), TABLES["launches"])
@pytest.mark.parametrize("model", ["./model", "a/name"])
def test_the_command_that_is_shown_is_the_one_that_is_run(
    name: str, flags: dict[str, Any], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", "utf-8")
    if name:
        engine(tmp_path, name)
        flags = {**flags, "server_python": str(tmp_path / "venv")}
    path = written(tmp_path, {"name": "x", "model": model, **flags}, repeats=1)
    ran: list[str] = []

    def started(command: Command, *_: Any, **__: Any) -> Any:
        ran.append(shown(command))
        raise LaunchError("not here")

    monkeypatch.setattr(launched_server, "start", started)
    assert cli.main(["campaign", str(path)]) == 2
    question = capsys.readouterr().err
    assert not (tmp_path / "mark").exists()
    assert cli.main(["campaign", str(path), "--dry-run", "--allow-launch"]) == 0
    preview = capsys.readouterr().out
    assert cli.main(["campaign", str(path), "--allow-launch", "--quiet"]) == 1
    (line,) = map(without_port, ran)
    assert f"    {line}\n" in without_port(preview)
    assert without_port(question).endswith(f": {line}\n")
    assert "abcdef" not in question + preview


@pytest.mark.whole
def test_what_is_allowed_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {"name": "x", "launch_command": touching(tmp_path)}, repeats=1)
    assert cli.main(["campaign", str(path), "--allow-launch", "--quiet"]) == 1  # it serves nothing
    assert (tmp_path / "mark").exists()
    capsys.readouterr()
    assert cli.main(["campaign", str(path), "--resume", "--retry-failed"]) == 2  # allowed then, not for ever
    assert "--allow-launch" in capsys.readouterr().err


def test_a_directory_of_somebody_elses_is_trusted_no_more_than_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {"name": "x", "launch_command": touching(tmp_path)}, repeats=1)
    found = campaign_file.load_campaign(path)
    every = arms.make_arms(found, path)
    kept = CampaignStore(tmp_path / "runs" / "given")
    kept.directory.mkdir(parents=True)
    kept.write_record(make_record(found, path, every, read_wall_clock()))
    assert cli.main(["campaign", "--resume", str(kept.directory)]) == 2
    assert "--allow-launch" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("flags", "words", "code"), TABLES["variables"])
def test_a_file_reads_no_variable_that_is_not_allowed_by_name(
    flags: dict[str, Any], words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("SOME_SECRET", SECRET)
    monkeypatch.delenv("NOT_SET", raising=False)
    with VirtualServing(api(lambda _: stream())) as server:
        path = written(tmp_path, {"name": "x", "base_url": server.base_url, **flags}, repeats=1)
        assert cli.main(["campaign", str(path), "--dry-run", *words]) == 0
        preview = capsys.readouterr().out
        assert SECRET not in preview
        assert ("reads from the environment: SOME_SECRET; needs --allow-env" in preview) is (code == 2)
        assert cli.main(["campaign", str(path), *words]) == code
        got = any(SECRET in asked.head + asked.body.decode() for asked in server.asked)
        assert got is (code == 0 and bool(words))
        assert bool(server.asked) is (code == 0)
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    if code:
        question = "reads SOME_SECRET from the environment, and may send it to the servers that it names"
        assert question in said.err
        assert "allow it with --allow-env SOME_SECRET" in said.err


@loop_over(("flags", "given", "key"), TABLES["hosts"])
def test_a_host_named_by_a_file_gets_the_key_only_on_request(
    flags: dict[str, Any], given: dict[str, Any], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("MINE", "sk-mine")
    path = written(tmp_path, {"name": "x", **flags})
    (arm,) = arms.make_arms(campaign_file.load_campaign(path), path, trust=Trust(**given))
    headers = collect_credentials(arm.options, own=arm.options.base_url is None).headers
    assert headers == ({"Authorization": f"Bearer {key}"} if key else {})


@loop_over(("words", "said"), TABLES["keys"])
def test_it_is_said_where_the_key_is_not_sent(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    path = written(tmp_path, {"name": "x", "base_url": "http://stranger.example"})
    assert cli.main(["campaign", str(path), "--dry-run", *words]) == 0
    out = capsys.readouterr().out
    assert "sends to: http://stranger.example\n" in out
    assert ("is not sent" in out) is bool(said)
    assert said in out
    assert SECRET not in out


@loop_over(
    ("place", "shipped"),
    [
        (lambda tmp: campaign_file.locate_campaign("qwen3-thor"), True),
        (lambda tmp: tmp / "qwen3-thor.toml", False),
        (lambda tmp: tmp / "link.toml", True),  # a link to it is it
    ],
)
def test_what_ships_is_trusted_and_nothing_that_is_called_so(
    place: Callable[[Path], Path], shipped: bool, tmp_path: Path
) -> None:
    own = campaign_file.locate_campaign("qwen3-thor")
    (tmp_path / "qwen3-thor.toml").write_text(own.read_text("utf-8"), "utf-8")
    (tmp_path / "link.toml").symlink_to(own)
    found = Trust().apply_to(place(tmp_path))
    assert (found.shipped, found.may_start, found.may_read("MODELS")) == (shipped, shipped, shipped)


@loop_over(("words", "says"), TABLES["refused"])
def test_what_cannot_be_allowed_is_refused(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {"name": "x", "preset": "instant"})
    assert cli.main(["campaign", str(path), "--dry-run", *words]) == 2
    assert says in capsys.readouterr().err
