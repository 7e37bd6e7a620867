"""Completion: every verb, its flags and the profiles, in three shells."""

from __future__ import annotations

import subprocess

import pytest

from builders.loops import loop_over
from loadgen import cli
from loadgen.plan.profile import list_shipped
from loadgen.run.command.completion import list_flags
from loadgen.run.command.options import bench_parser


def write(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_a_verb_has_the_flags_of_its_whole_help() -> None:
    shown = {option for action in bench_parser()._actions for option in action.option_strings}
    assert set(list_flags("bench", cli.main)) <= shown
    assert {"--base-url", "--stop-when-saturated", "--otel"} <= set(list_flags("bench", cli.main))
    assert "--reference-url" in list_flags("quality", cli.main)
    assert list_flags("profiles", cli.main) == []


@pytest.mark.whole
@loop_over(
    ("words", "found"),
    [
        ("loadgen camp", ["campaign"]),
        ("loadgen bench --request-r", ["--request-rate"]),
        ("loadgen bench --profile low", ["low-load"]),
        ("loadgen verify --allowed", ["--allowed-signers"]),
        ("loadgen bench 5", []),
    ],
)
def test_bash_completes(capsys: pytest.CaptureFixture[str], words: str, found: list[str]) -> None:
    ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _loadgen; echo ${{COMPREPLY[@]}}"
    script = f"{write(capsys, 'bash')}\n{ask}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout.split(), done.stderr) == (found, "")


def test_zsh_loads_the_script_of_bash_and_fish_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert write(capsys, "zsh") == "autoload -U +X bashcompinit && bashcompinit\n" + write(capsys, "bash")
    lines = write(capsys, "fish").splitlines()
    assert len(lines) > 300
    assert sum("__fish_is_nth_token 1" in line for line in lines) == len(cli.VERBS)
    profiles = " ".join(list_shipped())
    assert (
        f"complete -c loadgen -n '__fish_seen_subcommand_from bench' -l profile -x -a '{profiles}'" in lines
    )


@loop_over(("argv", "code"), [([], 2), (["--help"], 0), (["bash", "zsh"], 2), (["bsh"], 2)])
def test_any_other_call_says_which_shells_there_are(
    capsys: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    assert cli.main(["completion", *argv]) == code
    shown = capsys.readouterr()
    assert "bash" in shown.out + shown.err
