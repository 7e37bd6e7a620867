"""Secrets in texts and values, keys from variables and files, and what children are started with."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import psutil
import pytest

from builders.loops import loop_over, read_tables
from fakes.supervised import until
from loadgen import cli
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import Secrets
from loadgen.run.command.credentials import collect_credentials, read_api_key
from loadgen.run.command.options import parse
from loadgen_servers import child_process
from loadgen_servers.process.embedded import ENGINE, NULL, Embedded

TABLES = read_tables("secrecy")

KEY = 'a/b+"c"_0123456789&<='
BASIC = base64.b64encode(b"me:hush-hush-1").decode()


# One is known by its form; EMPTY is a placeholder, a word that may stand anywhere.
@loop_over(("headers", "tables", "url", "values"), TABLES["found"])
def test_secrets_are_known_by_the_names_of_their_places(
    headers: dict[str, str], tables: list[Any], url: str, values: list[str]
) -> None:
    forms = set(Secrets.collect(headers, tuple(tables), url).forms)
    assert set(values) <= forms
    assert {form for value in values for form in Secrets.collect(tables=({"key": value},)).forms} == forms


@loop_over(
    ("variables", "text"),
    [
        ({"WANDB_API_KEY": "abc-123456", "HOME": "/srv/data"}, "/srv/data abc-123456"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "x-team=abc-%3123456, b=c"}, "/srv/data abc-%3123456 abc-123456"),
        ({"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=abc-123456"}, "/srv/data abc-123456"),
        ({"MLFLOW_TRACKING_URI": "http://me:abc-123456@h"}, "/srv/data abc-123456"),
        ({"HOME": "/srv/data", "MAX_TOKENS": "123456"}, "/srv/data"),
    ],
)
def test_what_other_services_are_reached_with_is_known(variables: dict[str, str], text: str) -> None:
    hidden = Secrets.collect_exported(variables).hide(text)
    assert (hidden.split()[0], {*hidden.split()[1:]} <= {"***"}) == ("/srv/data", True)


WRITTEN = [
    ("no {}!", KEY, "no ***!"),
    ("{}{}", KEY, "******"),
    ('{{"error": {}}}', json.dumps(KEY), '{{"error": "***"}}'.format()),
    ("/?key={}&a", quote(KEY, safe=""), "/?key=***&a"),
    ("{}", "a/b+&quot;c&quot;_0123456789&amp;&lt;=", "***"),
    ("{}", base64.b64encode(KEY.encode()).decode(), "***="),
    ("cut: {}", KEY[:12], "cut: ***"),
    ("cut: {}…", KEY[:12], "cut: ***…"),
    ("short: {}", KEY[:7], f"short: {KEY[:7]}"),
    ("plain {}", "words", "plain words"),
]


@loop_over(("text", "form", "shown"), WRITTEN)
def test_a_secret_is_hidden_in_every_form_it_is_echoed_in(text: str, form: str, shown: str) -> None:
    said = text.format(*[form] * text.count("{}")) if "{{" not in text else text.format(form)
    concealed = Secrets.collect({"key": KEY}).conceal(said)
    if "=" in shown and concealed.endswith("***"):  # padding is no part of a secret
        concealed += "="
    assert concealed == shown


KEYS = ["sk-proj-aB3dE6gH9jK2", "0123456789abcdefABCD", KEY, "abc123", "p@ss w+rd/é=&<x>\"'", "x7" * 400]


def base64_among(before: int, after: int, key: str) -> str:
    return base64.b64encode(b"Q" * before + key.encode() + b"Z" * after).decode()


SPELLINGS: dict[str, Callable[[str], str]] = {
    "hex": lambda key: key.encode().hex(),
    "upper hex": lambda key: key.encode().hex().upper(),
    "hex with colons": lambda key: key.encode().hex(":"),
    "hex with blanks": lambda key: key.encode().hex(" "),
    "hex in more": lambda key: f"before {key} after".encode().hex(),
    **{
        f"base64 after {before} and before {after} bytes": partial(base64_among, before, after)
        for before in range(4)
        for after in range(3)
    },
    "base64 for URLs after a byte": lambda key: base64.urlsafe_b64encode(b":" + key.encode()).decode(),
    "URL": lambda key: quote(key, safe=""),
    "URL, lower case": lambda key: re.sub("%..", lambda found: found[0].lower(), quote(key, safe="")),
    "URL, every character": lambda key: "".join(f"%{octet:02X}" for octet in key.encode()),
    "URL, every second": lambda key: "".join(
        quote(c, safe="") if i % 2 else "".join(f"%{o:02x}" for o in c.encode()) for i, c in enumerate(key)
    ),
    "URL, twice": lambda key: quote("".join(f"%{octet:02X}" for octet in key.encode()), safe=""),
    "URL, plus for a blank": quote_plus,
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON, every character": lambda key: "".join(f"\\u{ord(c):04x}" for c in key),
    "JSON, upper case": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "JSON, the first alone": lambda key: f"\\u{ord(key[0]):04x}{key[1:]}",
    "JSON, slashes": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "JSON in JSON": lambda key: json.dumps("".join(f"\\u{ord(c):04x}" for c in key))[1:-1],
    "JavaScript": lambda key: "".join(f"\\x{ord(c):02x}" for c in key),
    "HTML": html.escape,
    "HTML, decimal": lambda key: "".join(f"&#{ord(c)};" for c in key),
    "HTML, hex": lambda key: "".join(f"&#x{ord(c):X};" for c in key),
    "HTML, padded": lambda key: "".join(f"&#0{ord(c):03};" for c in key),
    "HTML, names": lambda key: "".join({"_": "&lowbar;", "/": "&sol;"}.get(c, c) for c in key),
    "HTML in HTML": lambda key: html.escape("".join(f"&#{ord(c)};" for c in key)),
}


@loop_over("key", KEYS)
@loop_over("name", SPELLINGS)
def test_a_secret_in_another_spelling_is_hidden(name: str, key: str) -> None:
    spelled = SPELLINGS[name](key)
    hidden = Secrets.collect(tables=({"key": key},)).hide(f"no such key ({spelled}) here, {{{spelled}}}")
    left = re.fullmatch(r"no such key \((.*)\) here, \{(.*)\}", hidden)
    assert left is not None, hidden
    for rest in left.groups():
        assert "***" in rest
        shown = rest.replace("***", "").rstrip("=")
        # At the sides of base64 and hex others' bytes stay, and up to two characters that they share.
        assert len(shown) <= (2 * len("before  after") if "in more" in name else 8 if "base64" in name else 0)


@loop_over("case", [str.lower, str.upper, str.swapcase])
@loop_over("key", ["3fa9c0de55aa", "3FA9C0DE-55AA-0123", "sk-proj-aB3dE6gH9jK2"])
def test_a_secret_in_another_case_is_hidden(case: Callable[[str], str], key: str) -> None:
    assert Secrets.collect(tables=({"key": key},)).hide(f"no {case(key)}!") == "no ***!"


@loop_over("key", ["secret", "Password", "EMPTY", "token1", "a-word-of-letters"])
def test_a_short_or_plain_key_punches_no_holes(key: str) -> None:
    text = "SECRET password empty TOKEN1: 100 % & \\n of &amp; A-WORD-OF-LETTERS c2VjcmU 736563"
    assert Secrets.collect(tables=({"key": key},)).conceal(text) == text


@loop_over("filler", ["%", "\\", "&", "&amp;", "%25", "\\u0061", "a\\", "a-", "&#97;", "%61"])
def test_no_text_takes_longer_than_its_length_explains(filler: str) -> None:
    secrets, text = Secrets.collect(tables=({"key": "a" * 300 + "1b"},)), filler * (1_000_000 // len(filler))
    secrets.conceal("%a")
    began = time.process_time()
    secrets.conceal(text)
    assert time.process_time() - began < 20


def test_secrets_known_by_form_are_hidden_and_our_words_stay() -> None:
    assert Secrets().hide("no: Bearer abc.def, sk-0123456789abcdefgh") == "no: Bearer ***, sk-***"
    assert Secrets().hide("generates no token: http-status: 500") == "generates no token: http-status: 500"


def test_values_are_masked_by_content_and_by_name() -> None:
    told = {
        "command": [f"x={KEY}", 5],
        "profile": {"extra_body": {"api_key": "short", "max_tokens": 5, KEY: None}},
        "times": [0.5, 1.5],
        "token": None,
    }
    assert Secrets.collect({"key": KEY}).mask(told) == {
        "command": ["x=***", 5],
        "profile": {"extra_body": {"api_key": "***", "max_tokens": 5, "***": None}},
        "times": [0.5, 1.5],
        "token": None,
    }


def test_an_error_that_leaves_holds_none_and_stays_what_it_is() -> None:
    with (
        pytest.raises(MeasureError, match=r"^no token: \*\*\*!$"),
        Secrets.collect({"key": KEY}).hide_in_errors(),
    ):
        raise MeasureError(f"no token: {KEY}!")


def test_secrets_print_as_their_number() -> None:
    assert "a/b" not in repr(Secrets.collect({"key": KEY}))


@loop_over("end", ["", "\n", "\r\n", " ", "\t"])
def test_a_key_is_read_without_the_spaces_around_it(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(f"\ufeffsk-1{end}", "utf-8", newline="")  # with a mark of its encoding
    path.chmod(0o600)
    monkeypatch.setenv("MINE", f"sk-1{end}")
    monkeypatch.setenv("OPENAI_API_KEY", f"sk-1{end}")
    assert {read_api_key(None, str(path)), read_api_key("MINE", None), read_api_key(None, None)} == {"sk-1"}
    assert read_api_key("", None) == ""  # none at all


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_key_that_others_may_read_is_used_with_a_warning(
    mode: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    path.write_text("sk-1", "utf-8")
    path.chmod(mode)
    assert read_api_key(None, str(path)) == "sk-1"
    warning = f"warning: others on this machine may read {path}: chmod 600 {path}"
    assert caplog.messages == [warning] * warned


BAD_FILES: list[tuple[bytes | str, str]] = [
    (b"", "is empty"),
    (b" \r\n", "is empty"),
    (b"sk-\xe9", "is not an API key"),
    (b"sk-1\nsk-2", "is not an API key"),
    (b"\x00\x01binary", "is not an API key"),
    (b"x" * (1 << 17), "is too long for a key"),
    ("fifo", "is not a regular file"),
    ("directory", "is not a regular file"),
    ("absent", "No such file"),
]


@loop_over(("content", "says"), BAD_FILES)
def test_a_file_that_holds_no_key_is_refused_at_once(content: bytes | str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if content == "fifo":
        os.mkfifo(path)
    elif content == "directory":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(UsageError, match=says) as raised:
        read_api_key(None, str(path))
    assert "sk-" not in str(raised.value)


@loop_over(
    ("words", "own", "headers"),
    [
        ([], False, {"Authorization": "Bearer sk-0"}),
        ([], True, {}),  # nobody asked for it to go to a server of our own
        (["--api-key-env", "MINE"], False, {"Authorization": "Bearer sk-1"}),
        (["--api-key-env", "MINE"], True, {"Authorization": "Bearer sk-1"}),
        (["--header", "authorization: x"], False, {"authorization": "x"}),
    ],
)
def test_which_key_goes_where(
    words: list[str], own: bool, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0")
    monkeypatch.setenv("MINE", "sk-1")
    assert collect_credentials(parse(words), own).headers == headers


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(UsageError, match="--api-key-env NOT_SET: it is not set in the environment"):
        collect_credentials(parse(["--api-key-env", "NOT_SET"]))


def test_children_get_no_key_and_nothing_of_the_current_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "OPENAI_API_KEY": "1",
        "ANTHROPIC_APIKEY": "1",
        "VLLM_API_KEY": "1",
        "MINE": "1",
        "HF_TOKEN": "1",
        "AWS_SECRET_ACCESS_KEY": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        "LC_ALL": "C",
        "PYTHONPATH": os.pathsep.join(["", ".", "relative", "/absolute"]),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert given.keys() & child_process.inherited(["MINE"]).keys() == {
        *("VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "CUDA_VISIBLE_DEVICES", "LC_ALL", "PYTHONPATH")
    }
    assert given.keys() & child_process.needed().keys() == {"LC_ALL", "PYTHONPATH"}
    for environment in (child_process.environment(), child_process.needed()):
        _, *rest = environment["PYTHONPATH"].split(os.pathsep)
        assert rest == ["/absolute"]
    assert child_process.command("a", "b") == [sys.executable, "-P", "-m", "a", "b"]


# What a stranger's directory may hold, named as what Python and we import first.
PLANTED = ("selectors", "socket", "json", "struct", "msgspec", "psutil", "loadgen_servers", "asyncio")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory full of modules, each of which leaves a mark; its mark."""
    place, mark = tmp_path / "planted", tmp_path / "mark"
    place.mkdir()
    for name in PLANTED:
        (place / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n", "utf-8")
    monkeypatch.chdir(place)
    return mark


LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "2", "--run-dir", "../runs"]


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--quiet", "--preset", "instant", *LOAD],
        ["bench", "--quiet", "--profile", "smoke", "--preset", "instant", "--run-dir", "../runs"],
        ["selftest", "--seconds", "0.2", "--streams", "2", "--transport", "wire", "--no-save"],
        ["bench", "--quiet", "--launch-command", "sleep 1{port}", "--launch-timeout-sec", "0.2", *LOAD],
        ["bench", "--quiet", "--launch", "vllm", "--model", "m/m", "--dry-run"],
        ["bench", "--launch", "sglang", "--model", "m/m", "--server-python", sys.executable, "--dry-run"],
    ],
)  # fmt: skip
def test_no_python_file_of_the_current_directory_runs(words: list[str], planted: Path) -> None:
    cli.main(words)
    assert not planted.exists()


@pytest.mark.whole
def test_nor_where_the_command_is_a_module(planted: Path) -> None:
    argv = [sys.executable, "-m", "loadgen", "bench", "--quiet", "--preset", "instant", *LOAD]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "servers")])}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not planted.exists()


@pytest.mark.whole
@pytest.mark.parametrize("module", [ENGINE, NULL])
def test_a_server_of_our_own_listens_on_loopback_alone(module: str, tmp_path: Path) -> None:
    arguments = ["--log", str(tmp_path / "log")] if module == NULL else []
    with Embedded(arguments, module) as server:
        server.start()
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        until(lambda: bool(listening(process)), "it listens")
        assert listening(process) == {"127.0.0.1"}


def listening(process: psutil.Process) -> set[str]:
    return {one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN}
