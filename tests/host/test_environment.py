"""The environment: what is told of the machine, and what is never told."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.recorded_sensors import RecordedNvml, tree
from loadgen.base.secrecy import hide_argument_secrets, hide_secrets
from loadgen.host import environment
from loadgen.host.environment import (
    ThrottlingState,
    explain_throttling,
    read_throttling_state,
    start_git,
)
from loadgen.host.machine_state import MachineState
from loadgen.host.nvml import Gpus

TABLES = read_tables("environment")


@loop_over(("typed", "shown"), TABLES["commands"])
def test_no_secret_is_in_the_command_that_is_kept(typed: list[str], shown: list[str]) -> None:
    assert hide_argument_secrets(typed) == shown


@loop_over(
    ("text", "shown"),
    [
        ("{'api_key': ['a', 'b'], 'port': 1}", "{'api_key': ***, 'port': 1}"),
        ("Namespace(api_key='a b', port=1)", "Namespace(api_key=***, port=1)"),
        ("ServerArgs(api_key=None, hf_token='x', port=1)", "ServerArgs(api_key=None, hf_token=***, port=1)"),
        ('{"admin_api_key": "x", "port": 1}', '{"admin_api_key": ***, "port": 1}'),
    ],
)
def test_no_secret_is_in_a_servers_own_account(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def git(place: Path, *words: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ("git", "-C", str(place), *words)
    return subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout.strip()


def read_commit(place: Path) -> str:
    with start_git(place) as read:
        return read()


@pytest.mark.whole
def test_a_checkout_names_its_commit_and_whether_it_is_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "--no-gpg-sign", "-m", "first")
    git(tmp_path, "tag", "v1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert read_commit(tmp_path) == commit
    (tmp_path / "untracked").write_text("1")
    assert read_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert read_commit(tmp_path) == f"{commit}+dirty"


@pytest.mark.whole
def test_an_installed_package_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_commit(tmp_path) == ""
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert read_commit(tmp_path) == ""
    monkeypatch.setenv("PATH", "")
    assert read_commit(tmp_path) == ""


def read_state(told: dict[str, Any], root: Path) -> ThrottlingState:
    """The state of a machine with these files and GPUs."""
    nvml = RecordedNvml("h200")
    nvml.said["devices"] = told.get("devices")
    found = read_throttling_state(
        tree(root, told.get("files", "")),
        lambda: Gpus(nvml).read_state(()) if "devices" in told else MachineState(),
    )
    counters = {path.removeprefix(str(root)): count for path, count in found.counters.items()}
    return ThrottlingState(counters, found.held)


@loop_over_named(("before", "after", "said"), TABLES["throttling"])
def test_a_machine_that_is_held_back_says_by_what(
    before: dict[str, Any], after: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    """At the end, or by a count that rose in the run."""
    states = [read_state(told, tmp_path / str(n)) for n, told in enumerate((before, after))]
    assert [*explain_throttling(*states)] == said


@pytest.mark.whole
def test_the_machine_at_hand_answers_without_a_fault() -> None:
    began = time.perf_counter()
    assert (
        explain_throttling(read_throttling_state(), read_throttling_state()) == read_throttling_state().held
    )
    assert time.perf_counter() - began < 60.0


def test_the_environment_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process")

    monkeypatch.setattr("subprocess.Popen", refuse)
    monkeypatch.setattr("os.posix_spawn", refuse)
    facts = environment.describe_machine()
    assert all(facts[name] for name in ("os", "platform", "machine", "cpu", "cpus", "python"))
    assert facts["memory"].endswith(" GiB")
    assert float(facts["memory"].split()[0]) > 0
