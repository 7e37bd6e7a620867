"""A command of one's own: filled in, refused where it cannot serve, and shown without its secrets."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from loadgen_servers.launch.custom import command
from loadgen_servers.launch.spec import Command, LaunchError, ServerSpec, shown, without_secrets

CUSTOM = [
    ("sh serve --port {port}", "sh serve --port 8123", {}),
    ("sh serve {model} --at={host}:{port}", "sh serve hub/m --at=127.0.0.1:8123", {}),
    ("""sh serve {port} --j '{"a": {"b": 1}}'""", """sh serve 8123 --j '{"a": {"b": 1}}'""", {}),
    ("sh serve {port} --cut {0} {} '{a b}'", "sh serve 8123 --cut {0} {} '{a b}'", {}),
    ("A=1 B='x y' sh serve {port} C=3", "sh serve 8123 C=3", {"A": "1", "B": "x y"}),
    ("PORT={port} sh serve", "sh serve", {"PORT": "8123"}),
    ("sh serve {port} ; rm $HOME", "sh serve 8123 ';' rm '$HOME'", {}),
]


@loop_over(("template", "argv", "environment"), CUSTOM)
def test_a_command_of_ones_own_is_filled_in_and_seen_by_no_shell(
    template: str, argv: str, environment: dict[str, str]
) -> None:
    found = command(template, ServerSpec(model="hub/m", port=8123))
    assert found == Command(tuple(shlex.split(argv)), environment)


def test_a_custom_command_gets_arguments_last_and_the_environment() -> None:
    spec = ServerSpec(model="", port=1, arguments=("--x", "a b"), environment={"A": "2"})
    assert command("A=1 sh {port}", spec) == Command(("sh", "1", "--x", "a b"), {"A": "2"})


@loop_over(("template", "asked", "says"), [
    ("", {}, r"has no \{port\}"),
    ("sh serve", {}, r"has no \{port\}: write it where the server expects its port"),
    ("A={port}", {}, "is empty"),
    ("'' {port}", {}, "is empty"),
    ("sh 'serve {port}", {}, "cannot be read .no closing quotation"),
    ("sh {port} {modle}", {}, r"has \{modle\}: only \{port\}, \{host\} and \{model\} are known"),
    ("sh {port} ${HOME}", {}, r"has \{HOME\}"),
    ("sh {port} {model}", {}, r"has \{model\}, and no model is given"),
    ("sh {port} {model}", {"model": "/nowhere/at/all"}, "/nowhere/at/all does not exist"),
    ("surely-not-installed {port}", {}, "surely-not-installed is not installed, or not on PATH"),
    ("sh {port}", {"context_len": 9}, r"does not support context len \(9\): write it into the command"),
    ("sh {port}", {"prefix_caching": False}, r"prefix caching \(False\)"),
    ("sh {port}", {"served_model_name": "q"}, r"served model name \(q\)"),
    ("sh {port}", {"python": "python3"}, r"python \(python3\)"),
])  # fmt: skip
def test_a_command_of_ones_own_that_cannot_serve_is_refused(
    template: str, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        command(template, replace(ServerSpec(model="", port=8123), **asked))


@pytest.mark.whole
def test_the_shown_line_is_what_a_shell_would_run() -> None:
    wanted = ("sh", "-c", 'printf %s, "$A" "$0" "$1"', "x y", '{"a": "b\'c"}')
    line = shown(Command(wanted, {"A": "1; 2"}))
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert ran.stdout == """1; 2,x y,{"a": "b'c"},"""


def test_what_is_put_before_path_is_shown_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert shown(Command(("x",), {"PATH": "/a b:/usr/bin"})) == """PATH='/a b:'"$PATH" x"""


@loop_over(("argv", "environment", "line"), [
    (("x",), {"HF_TOKEN": "hf_1", "A": "1"}, "HF_TOKEN='***' A=1 x"),
    (("x",), {"AWS_SECRET_ACCESS_KEY": "s", "DB_PASSWORD": "p"},
     "AWS_SECRET_ACCESS_KEY='***' DB_PASSWORD='***' x"),
    (("x",), {"TOKENIZERS_PARALLELISM": "false"}, "TOKENIZERS_PARALLELISM=false x"),
    (("x", "--api-key", "a", "b", "--port", "1"), {}, "x --api-key '***' '***' --port 1"),
    (("x", "--api-key=a", "--max-num-batched-tokens", "8"), {},
     "x '--api-key=***' --max-num-batched-tokens 8"),
    (("run", "-e", "HF_TOKEN=a", "--env=API_KEY=b", "-e", "A=c"), {},
     "run -e 'HF_TOKEN=***' '--env=API_KEY=***' -e A=c"),
])  # fmt: skip
def test_secrets_are_not_shown(argv: tuple[str, ...], environment: dict[str, str], line: str) -> None:
    assert shown(Command(argv, environment)) == line


def test_a_command_without_secrets_keeps_how_it_is_ended() -> None:
    command = Command(("x",), {"API_KEY": "k"}, end=("stop",), kill=("rm",), root_pid=("pid",))
    assert without_secrets(command) == replace(command, environment={"API_KEY": "***"})
